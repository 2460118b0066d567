//! What the documents claim is there.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, like the tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand};
use larder_testkit::repository;

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Names of all test functions of the repository.
fn tests() -> BTreeSet<String> {
    let mut files = Vec::new();
    rust_files(&repository(), &mut files);
    let mut names = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let in_proptest = text.contains("proptest!");
        for (at, line) in lines.iter().enumerate() {
            let Some(rest) = line.strip_prefix("fn ").or_else(|| line.strip_prefix("async fn ")) else { continue };
            let above = lines[..at].iter().rev().take_while(|line| !line.is_empty() && !line.ends_with('}'));
            let marked = above.clone().any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"));
            if marked || in_proptest && above.clone().any(|line| line.contains("#[test]")) {
                names.insert(rest.split(['(', '<']).next().unwrap().to_owned());
            }
        }
    }
    names
}

#[test]
fn every_clause_of_the_semantics_names_tests_that_exist() {
    let text = std::fs::read_to_string(repository().join("docs/SEMANTICS.md")).unwrap();
    let tests = tests();
    let mut clauses = 0;
    for clause in text.split("\n- **").skip(1) {
        let id = clause.split("**").next().unwrap();
        let named: Vec<&str> =
            clause.split('`').skip(1).step_by(2).filter(|word| word.matches('_').count() >= 4).collect();
        // What follows from other clauses, or states a limit, has no test of its own.
        let exempt = ["V1", "V4", "A1", "O6"].contains(&id);
        assert!(exempt || !named.is_empty(), "clause {id} names no test");
        for name in named {
            assert!(tests.contains(name), "clause {id} names {name}, which is not a test");
        }
        clauses += 1;
    }
    assert!(clauses > 25, "{clauses}");
}

#[test]
fn the_crates_depend_on_each_other_as_drawn() {
    let text = std::fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap();
    let drawing = text.split("## Crates").nth(1).unwrap().split("```").nth(1).unwrap();
    let mut allowed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in drawing.lines().filter(|line| line.contains("──►")) {
        let (from, to) = line.split_once("──►").unwrap();
        for from in from.split(',') {
            allowed.entry(from.trim()).or_default().extend(to.split(',').map(str::trim));
        }
    }
    let metadata = MetadataCommand::new().manifest_path(repository().join("Cargo.toml")).no_deps().exec().unwrap();
    let short =
        |name: &str| if name == "larder" { "cli".to_owned() } else { name.trim_start_matches("larder-").to_owned() };
    for package in &metadata.packages {
        let from = short(&package.name);
        for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_some()) {
            let to = short(&dependency.name);
            // Tests may reach for what they test with.
            let for_tests = dependency.kind == DependencyKind::Development
                && ["testkit", "s3-server", "dataset", "telemetry", "origin"].contains(&to.as_str());
            let drawn = allowed.get(from.as_str()).is_some_and(|to_these| to_these.contains(to.as_str()));
            assert!(drawn || for_tests, "{from} ──► {to} is not drawn in ARCHITECTURE.md");
        }
        assert!(allowed.contains_key(from.as_str()), "{from} is not drawn in ARCHITECTURE.md");
    }
}

#[test]
fn the_flags_page_is_made_from_the_flags() {
    let output = std::process::Command::new(larder_testkit::larder_binary())
        .arg("help-page")
        .env("COLUMNS", "100")
        .output()
        .unwrap();
    let made = String::from_utf8(output.stdout).unwrap();
    let path = repository().join("docs/COMMANDS.md");
    if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), made, "run this test with LARDER_WRITE_GOLDEN=1");
}
