//! Programs that the benchmarks run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program on `PATH`, or in the folder of `bench/install-peers`: `$LARDER_CACHE/bench/bin`, by default below
/// `~/.cache/larder`.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let path = set("PATH").unwrap_or_default();
    let cache =
        set("LARDER_CACHE").map(PathBuf::from).or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache/larder")));
    std::env::split_paths(&path)
        .chain(cache.map(|cache| cache.join("bench/bin")))
        .map(|folder| folder.join(name))
        .find(|program| is_executable(program))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// The first line that `program` prints for `argument`, such as `--version`; empty if it cannot be run.
pub(super) fn version_of(program: &Path, argument: &str) -> String {
    let output = Command::new(program).arg(argument).stdin(Stdio::null()).output();
    output.map_or_else(
        |_| String::new(),
        |output| {
            let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
            String::from_utf8_lossy(&text).lines().next().unwrap_or_default().trim().to_owned()
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_on_the_path() {
        assert!(find_program("sh").is_some() && find_program("no-such-program-anywhere").is_none());
    }
}
