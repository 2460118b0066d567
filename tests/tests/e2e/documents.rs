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

/// The comments of a file that point from a test to the clauses that it proves: (clause, line of the comment).
///
/// Such a comment stands directly above the attribute of a test that is run.
fn pointers(text: &str) -> Result<Vec<(String, usize)>, String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut pointers = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let is_comment = line.starts_with("//") && line.trim_start_matches(['/', '!', ' ']).starts_with("SEMANTICS");
        let is_behind_an_attribute = line.starts_with("#[") && line.contains("// SEMANTICS");
        if !is_comment && !is_behind_an_attribute {
            continue;
        }
        let number = at + 1;
        let Some(clauses) = line.strip_prefix("// SEMANTICS: ") else {
            return Err(format!("line {number}: `{line}` is not of the form `// SEMANTICS: D14, V2` on its own line"));
        };
        let below = &lines[at + 1..];
        if !below.first().is_some_and(|line| *line == "#[test]" || line.starts_with("#[tokio::test")) {
            return Err(format!("line {number}: `{line}` is not directly above `#[test]` or `#[tokio::test]`"));
        }
        let is_of_the_test = |line: &&&str| line.starts_with("#[") || line.starts_with("//");
        let attributes =
            lines[..at].iter().rev().take_while(is_of_the_test).chain(below.iter().take_while(is_of_the_test));
        if attributes.filter(|line| line.starts_with("#[")).any(|line| line.contains("ignore")) {
            return Err(format!(
                "line {number}: `{line}` is above an ignored test: a test that nobody runs proves nothing"
            ));
        }
        pointers.extend(clauses.split(", ").map(|clause| (clause.to_owned(), number)));
    }
    Ok(pointers)
}

#[test]
fn every_clause_of_the_semantics_has_tests_that_are_run() {
    let text = std::fs::read_to_string(repository().join("docs/SEMANTICS.md")).unwrap();
    let mut tests_of: BTreeMap<&str, usize> = BTreeMap::new();
    for clause in text.split("\n- **").skip(1) {
        let id = clause.split("**").next().unwrap();
        assert_eq!(tests_of.insert(id, 0), None, "two clauses are called {id}");
    }
    assert!(tests_of.len() > 25, "{}", tests_of.len());

    let mut files = Vec::new();
    rust_files(&repository(), &mut files);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let pointers = pointers(&text).unwrap_or_else(|error| panic!("{}, {error}", file.display()));
        for (clause, line) in pointers {
            let tests = tests_of
                .get_mut(clause.as_str())
                .unwrap_or_else(|| panic!("{}, line {line}: no clause is called `{clause}`", file.display()));
            *tests += 1;
        }
    }

    // These follow from other clauses or state a limit, and need no test of their own.
    let exempt = ["V1", "O6"];
    for (id, tests) in tests_of {
        assert!(tests > 0 || exempt.contains(&id), "no test that is run has the comment `SEMANTICS: {id}`");
    }
}

#[test]
fn a_pointer_to_a_clause_stands_directly_above_a_test_that_is_run() {
    let of = |text: &str| pointers(text).map(|found| found.into_iter().map(|(id, _)| id).collect::<Vec<_>>());
    assert_eq!(of("/// Why.\n// SEMANTICS: B1, C2\n#[test]\nfn one() {}").unwrap(), ["B1", "C2"]);
    assert_eq!(of("proptest! {\n    // SEMANTICS: B1\n    #[test]\n    fn one(n in 0..9) {}\n}").unwrap(), ["B1"]);
    assert_eq!(of("// SEMANTICS: B1\n#[tokio::test(start_paused = true)]\nasync fn one() {}").unwrap(), ["B1"]);
    assert_eq!(of("#[ignore]\n#[test]\nfn other() {}\n\n// SEMANTICS: B1\n#[test]\nfn one() {}").unwrap(), ["B1"]);
    for wrong in [
        "// SEMANTICS: B1\nfn helper() {}",
        "// SEMANTICS: B1\n\n#[test]\nfn one() {}",
        "// SEMANTICS: B1\n/// Why.\n#[test]\nfn one() {}",
        "#[test]\n// SEMANTICS: B1\nfn one() {}",
        "// SEMANTICS: B1",
        "/// SEMANTICS: B1\n#[test]\nfn one() {}",
        "//SEMANTICS: B1\n#[test]\nfn one() {}",
        "#[test] // SEMANTICS: B1\nfn one() {}",
        "// SEMANTICS: B1\n#[test]\n#[ignore = \"slow\"]\nfn one() {}",
        "#[ignore]\n// SEMANTICS: B1\n#[test]\nfn one() {}",
        "// SEMANTICS: B1\n#[test]\n#[cfg_attr(debug_assertions, ignore)]\nfn one() {}",
    ] {
        assert!(of(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn the_flags_page_is_made_from_the_flags() {
    let output = std::process::Command::new(larder_testkit::larder_binary())
        .arg("help-page")
        .env("COLUMNS", "100")
        .output()
        .unwrap();
    let mut made = String::from_utf8(output.stdout).unwrap();
    let programs =
        ["larderd", "cachenode", "larder-controller", "larder-scheduler-ext", "larder-devices", "larder-csi"];
    for program in programs {
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

#[test]
fn the_deployed_image_has_the_version_of_the_programs() {
    let deploy = repository().join("deploy");
    let mut files = vec![deploy.join("kustomization.yaml")];
    files.extend(
        std::fs::read_dir(deploy.join("components"))
            .unwrap()
            .map(|component| component.unwrap().path().join("base/kustomization.yaml")),
    );
    let tags: Vec<String> = files
        .iter()
        .flat_map(|file| std::fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|line| line.trim().strip_prefix("newTag: ").map(str::to_owned))
        .collect();
    assert!(tags.len() >= 4 && tags.iter().all(|tag| tag == env!("CARGO_PKG_VERSION")), "{tags:?}");
}
