//! What this host can keep of limits, and the hook on it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use larder_rdma_limit::Controller;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::health::capabilities::Capabilities;
use crate::names::HOOK;
use larder_kubelet::atomic_file;

/// How long another process may take to install the hook.
const TURN: Duration = Duration::from_secs(1);

/// Where to look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The folder that the host's cgroups are mounted in, as this process sees it.
    pub cgroup_root: PathBuf,
    /// The folder of the host that the hook is in, as this process sees it.
    pub hook_folder: PathBuf,
}

/// Looks what the host has for keeping limits. `nri`: why the container runtime does not ask the NRI plugin, if it does not.
pub fn probe(settings: &Settings, nri: Option<String>) -> Capabilities {
    let Settings { cgroup_root, hook_folder } = settings;
    let found = Controller::find(cgroup_root);
    let controller = match found {
        None => Some("the kernel has no rdma cgroup controller (CONFIG_CGROUP_RDMA), or it is disabled".to_owned()),
        Some(Controller::V1) => None,
        Some(Controller::V2) => Controller::missing_from(cgroup_root).map(|folder| {
            let folder = folder.strip_prefix(cgroup_root).unwrap_or(&folder).display().to_string();
            format!("the cgroup {folder} lacks the rdma controller: echo +rdma >/sys/fs/cgroup/cgroup.subtree_control")
        }),
    };
    let hook = hook_folder.join(HOOK);
    let runs = |hook: std::fs::Metadata| hook.is_file() && hook.len() > 0 && hook.permissions().mode() & 0o111 != 0;
    let is_there = hook.symlink_metadata().is_ok_and(runs);
    let hook = (!is_there).then(|| format!("the hook {} is missing or not executable", hook.display()));
    Capabilities { controller, hook, nri, unified: found == Some(Controller::V2) }
}

/// A step of [`install`] that failed.
#[derive(Debug, thiserror::Error)]
#[error("install the hook {} into {}: {source}", program.display(), folder.display())]
pub struct InstallError {
    program: PathBuf,
    folder: PathBuf,
    source: io::Error,
}

/// Copies the hook to its folder on the host, unless it is there. It is there complete or not at all at any time, also if this
/// process is killed or another one does the same, and hooks that run while they are replaced run on.
pub fn install(program: &Path, folder: &Path) -> Result<(), InstallError> {
    let steps = || {
        let wanted = std::fs::read(program)?;
        std::fs::create_dir_all(folder)?;
        // One at a time: each removes the file that another is writing.
        let _turn = turn(folder)?;
        let installed = folder.join(HOOK);
        let is_file = installed.symlink_metadata().is_ok_and(|found| found.is_file());
        if is_file && std::fs::read(&installed).is_ok_and(|found| found == wanted) {
            return std::fs::set_permissions(&installed, PermissionsExt::from_mode(0o755));
        }
        atomic_file::replace(&installed, &wanted, 0o755)
    };
    let (program, folder) = (program.to_owned(), folder.to_owned());
    steps().map_err(|source| InstallError { program, folder, source })
}

/// A turn to install, until it is dropped. By a file that nobody but root can open, and so lock.
fn turn(folder: &Path) -> io::Result<File> {
    let path = folder.join(format!(".{HOOK}.lock"));
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path)?;
    let started = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if started.elapsed() < TURN => std::thread::sleep(Duration::from_millis(10)),
            Err(Errno::WOULDBLOCK) => {
                let why = format!("another process holds {}; waiting for it", path.display());
                return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    // SEMANTICS: D19
    #[test]
    fn the_controller_is_there_if_pods_have_it() {
        let scratch = tempfile::tempdir().unwrap();
        let settings = Settings { cgroup_root: scratch.path().to_owned(), hook_folder: scratch.path().to_owned() };
        let write = |name: &str, text: &str| {
            let path = scratch.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
            let Capabilities { controller, unified, .. } = probe(&settings, None);
            (controller.unwrap_or_default(), unified)
        };
        let (why, _) = write("other", "");
        assert!(why.contains("CONFIG_CGROUP_RDMA"), "{why}");
        assert_eq!(write("rdma/cgroup.procs", ""), (String::new(), false));
        assert_eq!(write("cgroup.controllers", "cpu rdma"), (String::new(), true));
        let (why, unified) = write("kubepods/cgroup.controllers", "cpu");
        assert!(why.starts_with("the cgroup kubepods lacks the rdma controller: echo +rdma >") && unified, "{why}");
    }

    // SEMANTICS: D20
    #[test]
    fn the_hook_is_installed_replaced_and_found() {
        let scratch = tempfile::tempdir().unwrap();
        let (program, folder) = (scratch.path().join("image"), scratch.path().join("host/opt"));
        let settings = Settings { cgroup_root: scratch.path().join("none"), hook_folder: folder.clone() };
        let hook = folder.join(HOOK);
        let found = || probe(&settings, None).hook.is_none();
        assert!(!found());
        for content in ["one", "another"] {
            std::fs::write(&program, content).unwrap();
            // Left by a process that was killed.
            let _ = std::fs::write(folder.join(".larder-rdma-limit.x1.tmp"), "half");
            install(&program, &folder).unwrap();
            assert_eq!(std::fs::read_to_string(&hook).unwrap(), content);
            assert!(found());
        }
        let mut left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [".larder-rdma-limit.lock", HOOK]);
        let lock = folder.join(".larder-rdma-limit.lock").metadata().unwrap();
        assert_eq!(lock.permissions().mode() & 0o777, 0o600);
        // The same again does not write: hooks that start now find the file as it was.
        let before = hook.metadata().unwrap().modified().unwrap();
        install(&program, &folder).unwrap();
        assert_eq!(hook.metadata().unwrap().modified().unwrap(), before);
        std::fs::set_permissions(&hook, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(!found());
        install(&program, &folder).unwrap();
        assert!(found());
        std::fs::remove_file(&program).unwrap();
        let error = install(&program, &folder).unwrap_err().to_string();
        assert!(error.starts_with("install the hook ") && error.ends_with("No such file or directory (os error 2)"));
    }

    // SEMANTICS: D20
    #[test]
    fn a_process_that_does_not_finish_its_turn_is_logged() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("host");
        let program = scratch.path().join("image");
        std::fs::write(&program, "one").unwrap();
        install(&program, &folder).unwrap();
        // Whoever may look into the folder can lock that.
        let open = File::open(&folder).unwrap();
        flock(&open, FlockOperation::LockExclusive).unwrap();
        install(&program, &folder).unwrap();
        let stopped = turn(&folder).unwrap();
        let error = install(&program, &folder).unwrap_err().to_string();
        assert!(error.ends_with(".larder-rdma-limit.lock; waiting for it"), "{error}");
        drop(stopped);
        install(&program, &folder).unwrap();
    }

    // SEMANTICS: D20
    #[test]
    fn a_hook_that_runs_while_it_is_replaced_runs_on() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("host");
        install(Path::new("/bin/cat"), &folder).unwrap();
        let piped = std::process::Stdio::piped;
        let mut running = std::process::Command::new(folder.join(HOOK)).stdin(piped()).stdout(piped()).spawn().unwrap();
        install(Path::new("/bin/true"), &folder).unwrap();
        running.stdin.take().unwrap().write_all(b"still here").unwrap();
        assert_eq!(running.wait_with_output().unwrap().stdout, b"still here");
    }
}
