//! How much memory a process takes for data in flight, if no flag says it: by the limit of its cgroup, or the memory of
//! the machine.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Memory that a process takes without data in flight: the program, the tables of the cache, connections, and pages of
/// manifests.
const BASE_BYTES: u64 = 512 << 20;

/// The bounds of the default.
const LEAST_BYTES: u64 = 128 << 20;
const MOST_BYTES: u64 = 4 << 30;

/// Half of the memory that `limit_bytes` leaves beside the process itself and `reserved_bytes` for others. The other
/// half is for the buffers of threads and connections, replies, and what the allocator keeps.
pub(crate) fn default_target(limit_bytes: u64, reserved_bytes: u64) -> u64 {
    (limit_bytes.saturating_sub(BASE_BYTES + reserved_bytes) / 2).clamp(LEAST_BYTES, MOST_BYTES)
}

/// The memory that this process may take: the least of the limits of its cgroup and those above it, and the memory of
/// the machine. `proc` and `cgroups` are the folders `/proc` and `/sys/fs/cgroup`. None: neither can be read.
pub(crate) fn memory_limit(proc: &Path, cgroups: &Path) -> Option<u64> {
    let cgroup = read_to_string(proc.join("self/cgroup")).unwrap_or_default();
    let machine = read_to_string(proc.join("meminfo")).ok().and_then(|meminfo| total_bytes(&meminfo));
    let limits = limit_files(&cgroup, cgroups).into_iter().filter_map(|file| {
        // Version 2 says `max` if there is no limit; version 1 a number that no machine has.
        read_to_string(file).ok()?.trim().parse().ok()
    });
    limits.chain(machine).min()
}

/// The files with the limits of a process's cgroup and those above it, whether or not they exist; `cgroup` is the text
/// of `/proc/self/cgroup`. A line is number:controllers:path; version 2 has an empty list of controllers. In a
/// container without a namespace of its own for cgroups, the path is one of the host. The container's cgroup is then
/// the root of what it sees.
fn limit_files(cgroup: &str, cgroups: &Path) -> Vec<PathBuf> {
    let lines = cgroup.lines().filter_map(|line| line.split_once(':')?.1.split_once(":/"));
    let files = lines.flat_map(|(controllers, path)| {
        let (root, name) = match controllers {
            "" => (cgroups.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                (cgroups.join("memory"), "memory.limit_in_bytes")
            }
            _ => return Vec::new(),
        };
        let folder = root.join(path);
        let above = folder.ancestors().take_while(|folder| folder.starts_with(&root));
        above.map(|folder| folder.join(name)).collect()
    });
    files.collect()
}

/// The memory of the machine by the text of `/proc/meminfo`.
fn total_bytes(meminfo: &str) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};

    use super::*;

    const MIB: u64 = 1 << 20;
    const MEMINFO: &str = "MemTotal:       16777216 kB\nMemFree:         1 kB\n";
    const MACHINE: u64 = 16 << 30;

    /// The limit where `/proc/self/cgroup` has this text and these files of `/sys/fs/cgroup` exist.
    fn limit(cgroup: &str, meminfo: &str, files: &[(&str, &str)]) -> Option<u64> {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str, text: &str| {
            let path = folder.path().join(path);
            create_dir_all(path.parent().unwrap()).unwrap();
            write(path, text).unwrap();
        };
        at("proc/self/cgroup", cgroup);
        at("proc/meminfo", meminfo);
        files.iter().for_each(|(path, text)| at(&format!("sys/{path}"), text));
        memory_limit(&folder.path().join("proc"), &folder.path().join("sys"))
    }

    #[test]
    fn the_least_limit_of_the_cgroup_and_those_above_counts_in_both_versions() {
        let pod = "0::/kubepods/pod1/larderd\n";
        let (four, six, max) = ((4096 * MIB).to_string(), format!("{}\n", 6144 * MIB), "max\n");
        let (four, six) = (four.as_str(), six.as_str());
        assert_eq!(limit(pod, MEMINFO, &[("kubepods/pod1/larderd/memory.max", four)]), Some(4096 * MIB));
        let above = [("kubepods/pod1/larderd/memory.max", max), ("kubepods/memory.max", six)];
        assert_eq!(limit(pod, MEMINFO, &above), Some(6144 * MIB));
        let both = [("kubepods/pod1/larderd/memory.max", six), ("kubepods/pod1/memory.max", four)];
        assert_eq!(limit(pod, MEMINFO, &both), Some(4096 * MIB));
        // The cgroup of a container is the root of what it sees.
        assert_eq!(limit("0::/\n", MEMINFO, &[("memory.max", four)]), Some(4096 * MIB));
        let old = "12:cpu,cpuacct:/docker/1\n9:memory:/docker/1\n1:name=systemd:/docker/1\n";
        assert_eq!(limit(old, MEMINFO, &[("memory/memory.limit_in_bytes", four)]), Some(4096 * MIB));
        let unlimited = [("memory/docker/1/memory.limit_in_bytes", "9223372036854771712\n")];
        assert_eq!(limit(old, MEMINFO, &unlimited), Some(MACHINE));
    }

    #[test]
    fn without_a_limit_the_memory_of_the_machine_counts_and_what_cannot_be_read_does_not() {
        assert_eq!(limit("0::/\n", MEMINFO, &[("memory.max", "max\n")]), Some(MACHINE));
        assert_eq!(limit("", MEMINFO, &[("memory.max", "1")]), Some(MACHINE), "no cgroup is known");
        assert_eq!(limit("0::/a\n", MEMINFO, &[("a/memory.max", "a lot")]), Some(MACHINE));
        assert_eq!(limit("0::/\n", "no table", &[]), None);
    }

    #[test]
    fn half_of_what_is_left_is_the_default_within_bounds() {
        let reserved = 1024 * MIB;
        assert_eq!(default_target(4096 * MIB, reserved), 1280 * MIB);
        assert_eq!(default_target(4096 * MIB, 0), 1792 * MIB);
        assert_eq!(default_target(1024 * MIB, reserved), LEAST_BYTES, "never nothing");
        assert_eq!(default_target(2 << 40, reserved), MOST_BYTES);
    }
}
