//! Counts the requests that the kernel sends to a FUSE daemon, by kind, for one mount.
//!
//! The kernel counts hits of its tracepoint `fuse:fuse_request_send` without recording events: it has one counter for
//! each kind and CPU, and increments it when the counter's filter matches. This needs root, tracefs and perf events;
//! without them the error of [`Counting::of_device`] says what is missing.
#![expect(unsafe_code, reason = "perf_event_open and its ioctls, which none of our dependencies wraps")]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;

use anyhow::Context;

use larder_daemon_api::mountinfo::{self, Device};

/// The kinds that are counted separately, with their opcodes.
pub const KINDS: [(&str, u32); 12] = [
    ("lookup", 1),
    ("getattr", 3),
    ("open", 14),
    ("read", 15),
    ("release", 18),
    ("getxattr", 22),
    ("flush", 25),
    ("opendir", 27),
    ("readdir", 28),
    ("releasedir", 29),
    ("readdirplus", 44),
    ("statx", 52),
];

/// Requests without a reply: FORGET, INTERRUPT and BATCH_FORGET. They are not in the total.
const NOT_ANSWERED: [u32; 3] = [2, 36, 42];

/// Mount points of tracefs, in order of preference.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

const PERF_TYPE_TRACEPOINT: u32 = 2;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
/// The counter starts disabled.
const DISABLED: u64 = 1;
/// `_IO('$', 0)`.
const PERF_EVENT_IOC_ENABLE: libc::c_ulong = 0x2400;
/// `_IOW('$', 6, char *)`.
const PERF_EVENT_IOC_SET_FILTER: libc::c_ulong = 0x4008_2406;

/// The kernel's `perf_event_attr` in its first published size; later fields count as zero.
#[repr(C)]
#[derive(Debug, Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

/// The number of requests by kind, and in total.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Requests {
    /// The number of requests of each of the [`KINDS`].
    pub kinds: BTreeMap<&'static str, u64>,
    /// The number of all requests that have a reply: all but FORGET, BATCH_FORGET and INTERRUPT.
    pub total: u64,
}

impl Requests {
    /// The requests per file, by kind; see [`show_rates`].
    pub fn per_file(&self, files: u64) -> String {
        show_rates(self.kinds.iter().map(|(&kind, &count)| (kind, count as f64 / files as f64)))
    }
}

/// The rates of at least 0.01, rounded: " lookup 1.00 read 1.00", or " none".
pub fn show_rates(rates: impl IntoIterator<Item = (&'static str, f64)>) -> String {
    let shown: String =
        rates.into_iter().filter(|(_, rate)| *rate >= 0.005).map(|(kind, rate)| format!(" {kind} {rate:.2}")).collect();
    if shown.is_empty() { " none".to_owned() } else { shown }
}

/// Running counters.
#[derive(Debug)]
pub struct Counting {
    /// By kind: one counter per CPU.
    kinds: Vec<(&'static str, Vec<File>)>,
    total: Vec<File>,
}

impl Counting {
    /// Starts counting the requests of the FUSE mount that contains `path`; see [`of_device`](Self::of_device).
    pub fn of_mount(path: &Path) -> anyhow::Result<Self> {
        let mount = mountinfo::holding(path)?.with_context(|| format!("find the mount of {}", path.display()))?;
        Self::of_device(mount.device)
    }

    /// Starts counting the requests of the FUSE mount whose files have this device number. Fails if the kernel or its
    /// settings do not allow it.
    pub fn of_device(device: Device) -> anyhow::Result<Self> {
        // The tracepoint reports the device number in the kernel's internal encoding.
        let connection = device.major << 20 | device.minor;
        let event = event_id()?;
        let cpus = online_cpus()?;
        let open = |filter: &str| -> anyhow::Result<Vec<File>> {
            cpus.iter().map(|&cpu| counter(event, cpu, filter)).collect()
        };
        let others = NOT_ANSWERED.map(|number| format!("opcode != {number}")).join(" && ");
        let total = open(&format!("connection == {connection} && {others}"))?;
        let one = |&(name, number): &(&'static str, u32)| {
            Ok((name, open(&format!("connection == {connection} && opcode == {number}"))?))
        };
        Ok(Self { kinds: KINDS.iter().map(one).collect::<anyhow::Result<_>>()?, total })
    }

    /// The requests since the start.
    pub fn read(&self) -> anyhow::Result<Requests> {
        let sum = |counters: &[File]| counters.iter().map(value).sum::<anyhow::Result<u64>>();
        let kinds = self.kinds.iter().map(|(name, counters)| Ok((*name, sum(counters)?)));
        Ok(Requests { kinds: kinds.collect::<anyhow::Result<_>>()?, total: sum(&self.total)? })
    }
}

fn event_id() -> anyhow::Result<u64> {
    let read = |root: &&str| {
        std::fs::read_to_string(Path::new(root).join("events/fuse/fuse_request_send/id")).ok()?.trim().parse().ok()
    };
    if let Some(id) = TRACEFS.iter().find_map(read) {
        return Ok(id);
    }
    // tracefs is not mounted yet. Root can mount it; if that fails, the second attempt to read reports it.
    let flags = rustix::mount::MountFlags::empty();
    let _ = rustix::mount::mount("tracefs", TRACEFS[0], "tracefs", flags, None::<&std::ffi::CStr>);
    let id = TRACEFS.iter().find_map(read);
    id.context("no tracepoint fuse:fuse_request_send (needs root, tracefs and a kernel with that tracepoint)")
}

/// Parses a list of CPUs such as `0-3,8`.
fn parse_cpus(text: &str) -> Option<Vec<i32>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse().ok()?..=last.parse::<i32>().ok()?);
    }
    Some(cpus)
}

fn online_cpus() -> anyhow::Result<Vec<i32>> {
    let path = "/sys/devices/system/cpu/online";
    let text = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    parse_cpus(&text).with_context(|| format!("parse {path}"))
}

fn counter(event: u64, cpu: i32, filter: &str) -> anyhow::Result<File> {
    let attributes = PerfEventAttr {
        kind: PERF_TYPE_TRACEPOINT,
        size: u32::try_from(size_of::<PerfEventAttr>()).context("size of perf_event_attr")?,
        config: event,
        flags: DISABLED,
        ..PerfEventAttr::default()
    };
    // SAFETY: the structure outlives the call and has the size that it states; the other arguments are numbers (any
    // process, this CPU, no group).
    let descriptor =
        unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attributes, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC) };
    if descriptor < 0 {
        return Err(std::io::Error::last_os_error()).context("open a perf event (needs root)");
    }
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
    let counter = unsafe { File::from_raw_fd(i32::try_from(descriptor).context("number of a descriptor")?) };
    let filter = CString::new(filter).context("write a filter")?;
    // SAFETY: the filter is a NUL-terminated string that outlives the call.
    if unsafe { libc::ioctl(counter.as_raw_fd(), PERF_EVENT_IOC_SET_FILTER as _, filter.as_ptr()) } < 0 {
        return Err(std::io::Error::last_os_error()).context("filter a perf event");
    }
    // SAFETY: this ioctl takes no pointer.
    if unsafe { libc::ioctl(counter.as_raw_fd(), PERF_EVENT_IOC_ENABLE as _, 0) } < 0 {
        return Err(std::io::Error::last_os_error()).context("enable a perf event");
    }
    Ok(counter)
}

fn value(mut counter: &File) -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    counter.read_exact(&mut bytes).context("read a perf event")?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_ranges_are_parsed() {
        assert_eq!(parse_cpus("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_cpus("0"), Some(vec![0]));
        assert_eq!(parse_cpus("x"), None);
    }

    #[test]
    fn rates_below_one_in_a_hundred_are_hidden() {
        let requests = Requests { kinds: [("lookup", 1000), ("open", 4), ("read", 1380)].into(), total: 2384 };
        assert_eq!(requests.per_file(1000), " lookup 1.00 read 1.38");
        assert_eq!(Requests::default().per_file(1000), " none");
    }

    #[test]
    fn the_structure_has_the_size_that_the_kernel_first_published() {
        assert_eq!(size_of::<PerfEventAttr>(), 64);
    }
}
