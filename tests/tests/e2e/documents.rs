//! Checks that the documents are true.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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

/// All test functions of the repository, and whether each of them is run.
fn tests() -> BTreeMap<String, bool> {
    let mut files = Vec::new();
    rust_files(&repository(), &mut files);
    let mut tests = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let in_proptest = text.contains("proptest!");
        for (at, line) in lines.iter().enumerate() {
            let Some(rest) = line.strip_prefix("fn ").or_else(|| line.strip_prefix("async fn ")) else { continue };
            let above = lines[..at].iter().rev().take_while(|line| !line.is_empty() && !line.ends_with('}'));
            let marked = above.clone().any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"));
            if marked || in_proptest && above.clone().any(|line| line.contains("#[test]")) {
                let is_run = !above.clone().any(|line| line.starts_with("#[ignore") || line.contains(", ignore"));
                // Of two functions of one name, one that is run is enough.
                *tests.entry(rest.split(['(', '<']).next().unwrap().to_owned()).or_default() |= is_run;
            }
        }
    }
    tests
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
        // These follow from other clauses or state a limit, and have no test of their own.
        let exempt = ["V1", "V4", "A1", "O6"].contains(&id);
        assert!(exempt || !named.is_empty(), "clause {id} names no test");
        for name in named {
            let is_run = tests.get(name).unwrap_or_else(|| panic!("clause {id} names {name}, which is not a test"));
            assert!(is_run, "clause {id} names {name}, which is ignored: a test that nobody runs proves nothing");
        }
        clauses += 1;
    }
    assert!(clauses > 25, "{clauses}");
}

#[test]
fn the_flags_page_is_made_from_the_flags() {
    let output = std::process::Command::new(larder_testkit::larder_binary())
        .arg("help-page")
        .env("COLUMNS", "100")
        .output()
        .unwrap();
    let mut made = String::from_utf8(output.stdout).unwrap();
    for program in ["larderd", "cachenode", "larder-controller", "larder-scheduler-ext", "larder-devices"] {
        // Flags show the values of their variables.
        let help = std::process::Command::new(larder_testkit::built(program))
            .arg("--help")
            .env_clear()
            .env("COLUMNS", "100")
            .output()
            .unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        let lines: String = help.lines().map(|line| format!("{}\n", line.trim_end())).collect();
        made += &format!("## {program}\n```\n{lines}```\n\n");
    }
    let path = repository().join("docs/COMMANDS.md");
    if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), made, "run this test with LARDER_WRITE_GOLDEN=1");
}
