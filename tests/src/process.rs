//! The state of processes, for scenarios.

use std::collections::BTreeSet;

/// True if a process has ended and its parent has not reaped it.
pub(crate) fn is_zombie(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
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
