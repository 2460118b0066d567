//! The completions and man pages that packages install: `deploy/release` has them, and they are made from the flags.

use std::collections::BTreeMap;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::aot::{Generator, Shell, generate};
use clap_mangen::Man;

use crate::args::Cli;

/// Files by their names.
type Files = BTreeMap<String, Vec<u8>>;

/// The man pages of a built command and of its sub-commands.
fn pages(command: &Command, made: &mut Files) {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        pages(command, made);
    }
    // Without the version, which would change every page in every release.
    let man = Man::new(command.clone()).source("Larder").manual("Larder");
    let mut page = Vec::new();
    man.render(&mut page).unwrap();
    made.insert(man.get_filename(), page);
}

/// Compares a folder of `deploy/release` with the files that it should have.
fn check(folder: &str, made: &Files) {
    const REMEDY: &str = "run the tests of `packaged` with LARDER_WRITE_GOLDEN=1";
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/release").join(folder);
    if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
        // Pages of commands that no longer exist.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        made.iter().for_each(|(name, content)| std::fs::write(folder.join(name), content).unwrap());
    }
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}: {REMEDY}"));
    let found: Files = entries
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect();
    let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(made), "{REMEDY}");
    for (name, content) in made {
        assert!(found[name] == *content, "{name}: {REMEDY}");
    }
}

#[test]
fn the_completions_are_made_from_the_flags() {
    let made = [Shell::Bash, Shell::Fish, Shell::Zsh].map(|shell| {
        let mut script = Vec::new();
        generate(shell, &mut Cli::command(), "larder", &mut script);
        (shell.file_name("larder"), script)
    });
    check("completions", &Files::from(made));
}

#[test]
fn the_man_pages_are_made_from_the_flags() {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut made = Files::new();
    pages(&command, &mut made);
    assert!(made.contains_key("larder.1") && made.contains_key("larder-mount.1"), "{:?}", made.keys());
    check("man", &made);
}
