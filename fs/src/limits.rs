//! The system's limits on what a mount needs, and errors that name them.

use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

/// The system refused a resource because of a limit.
#[derive(Debug, thiserror::Error)]
#[error("{remedy}")]
struct Limited {
    remedy: &'static str,
    source: io::Error,
}

/// Adds the limit that caused an error and its remedy. Returns other errors unchanged.
pub(crate) fn named(source: io::Error) -> io::Error {
    let remedy = match source.raw_os_error() {
        Some(libc::EAGAIN) => {
            "no more threads: raise pids.max of the cgroup (podPidsLimit of the kubelet), the user's limit of \
             processes (ulimit -u), or kernel.threads-max"
        }
        Some(libc::ENOMEM) => "no more memory or mappings: raise vm.max_map_count, or the memory that larderd may use",
        Some(libc::EMFILE) => "no more open files: raise larderd's limit (ulimit -n, LimitNOFILE= of systemd)",
        Some(libc::ENFILE) => "no more open files on this machine: raise fs.file-max",
        Some(libc::ENOSPC) => "no more watched descriptors: raise fs.epoll.max_user_watches",
        _ => return source,
    };
    io::Error::new(source.kind(), Limited { remedy, source })
}

/// The fewest threads that one of the visible limits allows this process. The limit of a pod may be invisible to it.
pub(crate) fn threads() -> Option<u64> {
    let number = |path: &Path| std::fs::read_to_string(path).ok()?.trim().parse().ok();
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let of_cgroup = pids_max_file(&cgroup).and_then(|file| number(&file));
    // A process with CAP_SYS_RESOURCE or of root is not bound by it.
    let of_user = getrlimit(Resource::Nproc).current.filter(|_| !rustix::process::geteuid().is_root());
    [of_cgroup, of_user, number(Path::new("/proc/sys/kernel/threads-max"))].into_iter().flatten().min()
}

/// The file with the limit of threads of this process's cgroup; `cgroup` is the text of `/proc/self/cgroup`.
pub fn pids_max_file(cgroup: &str) -> Option<PathBuf> {
    cgroup_file(cgroup, "pids", "pids.max")
}

/// A file of a controller in this process's cgroup; `cgroup` is the text of `/proc/self/cgroup`. A line is
/// number:controllers:path; version 2 has an empty list of controllers.
pub(crate) fn cgroup_file(cgroup: &str, controller: &str, file: &str) -> Option<PathBuf> {
    let mut lines = cgroup.lines().filter_map(|line| line.split_once(':')?.1.split_once(":/"));
    let has = |controllers: &str| controllers.split(',').any(|one| one == controller);
    let (root, path) = match lines.clone().find(|(controllers, _)| has(controllers)) {
        Some((_, path)) => (Path::new("/sys/fs/cgroup").join(controller), path),
        None => ("/sys/fs/cgroup".into(), lines.find(|(controllers, _)| controllers.is_empty())?.1),
    };
    Some(root.join(path).join(file))
}

#[cfg(test)]
mod tests {
    use larder_dataset::Chain;

    use super::*;

    #[test]
    fn an_error_names_its_limit_and_keeps_its_cause() {
        for (errno, limit) in [
            (libc::EAGAIN, "podPidsLimit"),
            (libc::ENOMEM, "vm.max_map_count"),
            (libc::EMFILE, "ulimit -n"),
            (libc::ENFILE, "fs.file-max"),
            (libc::ENOSPC, "fs.epoll.max_user_watches"),
        ] {
            let cause = io::Error::from_raw_os_error(errno);
            let text = cause.to_string();
            let shown = Chain(&named(cause)).to_string();
            assert!(shown.contains(limit) && shown.contains(&text), "{shown}");
        }
        assert_eq!(named(io::Error::from_raw_os_error(libc::ENODEV)).raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn the_limit_of_the_processs_cgroup_is_found_in_both_versions() {
        let file = |cgroup| pids_max_file(cgroup).unwrap();
        assert_eq!(file("0::/kubepods/pod1\n"), Path::new("/sys/fs/cgroup/kubepods/pod1/pids.max"));
        assert_eq!(file("9:name=systemd:/\n8:pids:/a/b\n0::/\n"), Path::new("/sys/fs/cgroup/pids/a/b/pids.max"));
        assert_eq!(file("0::/cri:one\n"), Path::new("/sys/fs/cgroup/cri:one/pids.max"));
        assert_eq!(file("0::/\n"), Path::new("/sys/fs/cgroup/pids.max"));
        assert_eq!(pids_max_file(""), None);
        let file = cgroup_file("4:cpu,cpuacct:/a\n3:cpuset:/b\n0::/\n", "cpu", "cpu.stat").unwrap();
        assert_eq!(file, Path::new("/sys/fs/cgroup/cpu/a/cpu.stat"));
    }
}
