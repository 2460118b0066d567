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

/// The Python of `bench/install-peers --loaders`, which has their packages; else that of the machine.
pub(crate) fn find_python() -> PathBuf {
    const NAMES: [&str; 2] = ["python-with-loaders", "python3"];
    NAMES.iter().find_map(|name| find_program(name)).unwrap_or_else(|| PathBuf::from(NAMES[1]))
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
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn programs_are_found_on_the_path() {
        assert!(find_program("sh").is_some() && find_program("no-such-program-anywhere").is_none());
    }

    /// Python looks for its virtual environment beside the path that it was started with, wherever a link there leads.
    #[test]
    fn the_python_with_loaders_starts_in_its_virtual_environment() {
        const PYTHON: &str = "#!/bin/sh\necho \"$0\"\n";
        let cache = tempfile::tempdir().unwrap();
        let (bin, environment) = (cache.path().join("bench/bin"), cache.path().join("bench/loaders/bin"));
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::create_dir_all(&environment).unwrap();
        // The script does not install what is present.
        for name in ["juicefs", "rclone", "redis-server", "s3fs", "fio", "k8s-rdma-shared-dp", "pci.ids"] {
            symlink(find_program("true").unwrap(), bin.join(name)).unwrap();
        }
        // Takes all that pip should install, and prints the path that it was started with.
        let python = environment.join("python");
        std::fs::write(&python, PYTHON).unwrap();
        std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
        // An earlier version made a link.
        let found = bin.join("python-with-loaders");
        symlink(&python, &found).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("install-peers");
        let installed = Command::new(script).arg("--loaders").env("LARDER_CACHE", cache.path()).output().unwrap();
        assert!(installed.status.success(), "{installed:?}");
        assert_eq!(std::fs::read_to_string(&python).unwrap(), PYTHON, "it was not written through the link");
        let started = Command::new(found).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&started.stdout).trim(), python.to_str().unwrap());
    }
}
