//! The state of processes, for scenarios.

use std::collections::BTreeSet;

/// True if a process has ended and its parent has not reaped it. Its first thread may have ended while others still hold
/// its files.
pub(crate) fn is_zombie(pid: u32) -> bool {
    let has_ended = std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "));
    has_ended && std::fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|threads| threads.count() <= 1)
}

/// A field of a process's `/proc/PID/status`, in KiB.
pub fn memory_kib(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// How many FUSE connections a process holds, whatever the number of its descriptors for each. Before Linux 6.15, which
/// is the first to tell them apart, the number of descriptors.
pub fn connections_of(pid: u32) -> usize {
    let mut connections = BTreeSet::new();
    for fd in std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        // `/dev/fuse` while the container that opened it lives, afterwards the rest of that path.
        if std::fs::read_link(fd.path()).is_ok_and(|target| target.ends_with("fuse")) {
            let name = fd.file_name().to_string_lossy().into_owned();
            let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{name}")).unwrap_or_default();
            let connection = info.lines().find(|line| line.starts_with("fuse_connection:")).map(str::to_owned);
            connections.insert(connection.unwrap_or(name));
        }
    }
    connections.len()
}

/// Asserts that neither the environment nor the arguments of a process have the secret, that nobody but root may
/// look into its memory, and that it leaves no core dump.
///
/// # Panics
/// If it has ended.
pub fn assert_private(pid: u32, secret: &str) {
    let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
    let (environ, cmdline) = (read("environ"), read("cmdline"));
    let text = String::from_utf8_lossy(&environ).into_owned() + &String::from_utf8_lossy(&cmdline);
    assert!(!text.contains(secret), "the environment or the arguments of {pid} have the secret");
    let limits = String::from_utf8(read("limits")).unwrap();
    let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().collect::<Vec<_>>(), ["0", "0", "bytes"], "{pid}");
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(format!("/proc/{pid}/environ")).unwrap());
    assert_eq!(owner, 0, "{pid} can be traced by its own user");
}
