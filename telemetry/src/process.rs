//! The metrics of the process itself, by the names that every program of Prometheus' world has, and its version.

use std::fs;
use std::path::Path;

use crate::sample::{Sample, Value};

/// The samples of this process. One that the system does not report is left out.
pub(crate) fn samples() -> Vec<Sample> {
    let own = |file: &str| fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    // As it was called: the path of a program that was upgraded meanwhile ends with " (deleted)".
    let program = std::env::args_os().next().unwrap_or_default();
    let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy();
    let labels = [("program", &*program), ("version", env!("CARGO_PKG_VERSION"))];
    let mut samples = vec![Sample::with("build_info", labels, 1)];
    let tick = rustix::param::clock_ticks_per_second() as f64;
    if let Some(Times { cpu, started }) = Times::parse(&own("stat")) {
        samples.push(Sample::of("process_cpu_seconds_total", [], Value::Fraction(cpu as f64 / tick)));
        let machine = fs::read_to_string("/proc/stat").unwrap_or_default();
        let booted = machine.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
        let started = booted.map(|booted| booted + started as f64 / tick);
        samples.extend(started.map(|started| Sample::of("process_start_time_seconds", [], Value::Fraction(started))));
    }
    // The second field is the resident set, in pages.
    let pages = own("statm").split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    let bytes = pages.map(|pages| pages * rustix::param::page_size() as u64);
    samples.extend(bytes.map(|bytes| Sample::new("process_resident_memory_bytes", bytes)));
    // One of them is that of the listing.
    let files = fs::read_dir("/proc/self/fd").ok().map(|files| files.count().saturating_sub(1) as u64);
    samples.extend(files.map(|files| Sample::new("process_open_fds", files)));
    samples
}

/// Times of a process, in ticks.
#[derive(Debug, PartialEq, Eq)]
struct Times {
    /// That it had a CPU.
    cpu: u64,
    /// From the boot to its start.
    started: u64,
}

impl Times {
    /// The content of `/proc/PID/stat`.
    fn parse(stat: &str) -> Option<Self> {
        // The second field is the name, which may contain anything. The next field has the number 3.
        let (_, fields) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Self { cpu: number(14)? + number(15)?, started: number(22)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_does_not_shift_its_times() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 30 12 0 0 20 0 9 0 4711 1000 50 18446744073709551615";
        assert_eq!(Times::parse(stat), Some(Times { cpu: 42, started: 4711 }));
        assert_eq!(Times::parse(""), None);
    }

    #[test]
    fn a_process_says_its_version_and_what_it_uses() {
        let samples = samples();
        let names: Vec<_> = samples.iter().map(|sample| sample.name).collect();
        assert_eq!(
            names,
            [
                "build_info",
                "process_cpu_seconds_total",
                "process_start_time_seconds",
                "process_resident_memory_bytes",
                "process_open_fds"
            ]
        );
        assert!(samples[0].labels.contains(&("version", env!("CARGO_PKG_VERSION").to_owned())));
    }
}
