//! Finds processes by their cgroup.

/// The processes below a cgroup that run a command, with their ids in this machine's PID namespace.
pub(super) fn processes(cgroup: &str, command: &str) -> Vec<u32> {
    // The kernel keeps only 15 bytes of a command's name.
    let command = &command[..command.len().min(15)];
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found: Vec<u32> = all
        .filter(|process| {
            // A process that ends during the search is not found.
            let read = |name: &str| std::fs::read_to_string(process.path().join(name)).unwrap_or_default();
            read("comm").trim_end() == command && read("cgroup").contains(cgroup)
        })
        .filter_map(|process| process.file_name().to_str()?.parse().ok())
        .collect();
    found.sort_unstable();
    found
}
