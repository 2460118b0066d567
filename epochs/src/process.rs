//! Resources of processes and of the machine, from `/proc` and from the clocks of processes. Only a process's `stat`
//! and `status` are read, because reading them succeeds even if the process is stuck.

use std::collections::HashMap;

use anyhow::Context;

/// The resources that a group of processes has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Usage {
    /// Seconds of CPU, user and kernel.
    pub cpu_seconds: f64,
    /// Current resident memory.
    pub rss_bytes: u64,
    /// The sum of the processes' peak resident memory.
    pub peak_rss_bytes: u64,
}

impl Usage {
    /// The sum over `processes`. A process that has ended adds nothing.
    pub fn of(processes: &[u32]) -> Self {
        processes.iter().fold(Self::default(), |sum, &id| {
            let status = read(id, "status");
            Self {
                cpu_seconds: sum.cpu_seconds + cpu_seconds(id),
                rss_bytes: sum.rss_bytes + status_bytes(&status, "VmRSS:"),
                peak_rss_bytes: sum.peak_rss_bytes + status_bytes(&status, "VmHWM:"),
            }
        })
    }
}

/// A process and all its descendants, as they are now.
pub fn family(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for id in processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        if let Some(parent) = parent(&read(id, "stat")) {
            children.entry(parent).or_default().push(id);
        }
    }
    let mut family = vec![root];
    let mut next = 0;
    while let Some(&id) = family.get(next) {
        family.extend(children.remove(&id).unwrap_or_default());
        next += 1;
    }
    family
}

/// The number of threads of a process; 0 if it has ended.
pub fn threads_of(id: u32) -> usize {
    let status = read(id, "status");
    status.lines().find_map(|line| line.strip_prefix("Threads:")?.trim().parse().ok()).unwrap_or(0)
}

fn read(id: u32, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/{id}/{file}")).unwrap_or_default()
}

/// The CPU time of all threads of a process, including threads that have ended. `stat` reports it in hundredths of a
/// second, which is too coarse for an idle process.
#[expect(unsafe_code, reason = "the C library alone names the clock of another process")]
fn cpu_seconds(id: u32) -> f64 {
    let Ok(id) = libc::pid_t::try_from(id) else { return 0.0 };
    let mut clock: libc::clockid_t = 0;
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both calls write to values that outlive them.
    let is_known =
        unsafe { libc::clock_getcpuclockid(id, &raw mut clock) == 0 && libc::clock_gettime(clock, &raw mut used) == 0 };
    if is_known { used.tv_sec as f64 + used.tv_nsec as f64 / 1e9 } else { 0.0 }
}

/// Seconds of CPU that all threads of this process have used, user and kernel.
#[expect(unsafe_code, reason = "the C library alone knows the CPU time of all threads")]
pub fn own_cpu_seconds() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to writable memory of the right size. RUSAGE_SELF is valid, so the call cannot fail.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    // SAFETY: initialised above; all zeros would be valid as well.
    let usage = unsafe { usage.assume_init() };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn parent(stat: &str) -> Option<u32> {
    // The name is in brackets, and may itself contain blanks and brackets.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

fn status_bytes(text: &str, field: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.trim().strip_suffix("kB")?.trim().parse().ok());
    value.map_or(0, |kib: u64| kib << 10)
}

/// The machine's memory in bytes.
pub fn total_memory() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(kib.context("find MemTotal in /proc/meminfo")? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_grows_with_work() {
        let before = own_cpu_seconds();
        let started = std::time::Instant::now();
        while started.elapsed() < std::time::Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        assert!(own_cpu_seconds() > before);
    }

    #[test]
    fn a_process_name_with_brackets_and_spaces_is_parsed() {
        let text = "77 (a) b (c)) S 12 77 77 0 -1 4194560 5 0 0 0 250 150 9 9 20 0 1 0 100 1000 10";
        assert_eq!((parent(text), parent("")), (Some(12), None));
    }

    #[test]
    fn the_cpu_time_of_ended_threads_is_counted_with_a_resolution_below_a_tick() {
        let own = || Usage::of(&[std::process::id()]).cpu_seconds;
        let before = own();
        let busy = || (0..2_000_000_u64).fold(0, |sum, number| std::hint::black_box(sum ^ number));
        std::thread::spawn(busy).join().unwrap();
        let after = own();
        assert!(after > before && (after * 100.0).fract() > 0.0, "{before} {after}");
    }

    #[test]
    fn memory_is_in_bytes_and_a_process_that_has_ended_counts_nothing() {
        let text = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!((status_bytes(text, "VmRSS:"), status_bytes(text, "VmHWM:")), (1 << 20, 2 << 20));
        assert_eq!(Usage::of(&[u32::MAX]), Usage::default());
        let own = Usage::of(&[std::process::id()]);
        assert!(own.rss_bytes > 0 && own.peak_rss_bytes >= own.rss_bytes);
    }

    #[test]
    fn the_threads_of_a_process_are_counted() {
        assert!(threads_of(std::process::id()) >= 1);
        assert_eq!(threads_of(u32::MAX), 0);
    }

    #[test]
    fn child_processes_are_included() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let family = family(std::process::id());
        assert!(family[0] == std::process::id() && family.contains(&child.id()), "{family:?}");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
