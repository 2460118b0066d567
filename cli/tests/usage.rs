//! The messages and exit codes of wrong usage.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::process::{Command, Output};

fn larder(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_larder")).args(args).output().unwrap()
}

#[test]
fn a_benchmark_that_moved_is_wrong_usage_and_the_error_says_where_it_is() {
    for args in [&["bench", "peers"][..], &["bench", "peers", "--rounds", "1"]] {
        let output = larder(args);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{errors}");
        assert!(errors.starts_with("error: the benchmark peers is not part of larder: larder-bench has"), "{errors}");
    }
}

#[test]
fn the_benchmarks_that_users_run_are_commands_of_larder() {
    for benchmark in ["epochs", "sim"] {
        assert!(larder(&["bench", benchmark, "--help"]).status.success(), "{benchmark}");
    }
}

#[test]
fn a_wrong_flag_is_wrong_usage() {
    assert_eq!(larder(&["mount", "--nonsense"]).status.code(), Some(2));
}
