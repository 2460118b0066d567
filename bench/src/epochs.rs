//! Reads a folder for epochs the way a training loop does: every file once, in a new order each time, many threads.
//!
//! Invariant: every byte read is summed, and a sum that is known and differs is an error, not a figure.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};

use crate::order::shuffled;
use crate::systems::child::own_cpu_seconds;
use crate::tree::MadeFile;

/// What a reader reads at once.
const BUFFER_BYTES: usize = 1 << 20;

/// A file to be read.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its path.
    pub path: PathBuf,
    /// Its bytes, if known.
    pub size: Option<u64>,
    /// CRC32C of its bytes, if known.
    pub crc32c: Option<u32>,
}

/// How to read.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Threads.
    pub readers: usize,
    /// Drop each file's pages from the kernel's cache once it is read, so that the next epoch asks for them again.
    pub drop_pages: bool,
    /// Order of this epoch.
    pub seed: u64,
}

/// What one epoch came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Epoch {
    /// Files read.
    pub files: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Seconds.
    pub seconds: f64,
    /// Files a second.
    pub files_per_second: f64,
    /// MB (10^6 bytes) a second.
    pub mb_per_second: f64,
    /// Half of the files took at most this long to open and read, in ms.
    pub p50_ms: f64,
    /// 99 of 100 files took at most this long, in ms.
    pub p99_ms: f64,
    /// Seconds of CPU that this process used meanwhile, user and kernel.
    pub cpu_seconds: f64,
}

impl Epoch {
    /// Of files that took these times, in any order.
    pub(crate) fn new(mut times: Vec<Duration>, bytes: u64, seconds: f64, cpu_seconds: f64) -> Self {
        times.sort_unstable();
        let percentile = |share: f64| {
            let at = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
            times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e3)
        };
        Self {
            files: times.len() as u64,
            bytes,
            seconds,
            files_per_second: times.len() as f64 / seconds,
            mb_per_second: bytes as f64 / 1e6 / seconds,
            p50_ms: percentile(0.5),
            p99_ms: percentile(0.99),
            cpu_seconds,
        }
    }
}

/// The files that a list names, below `root`: a line each, with size, CRC32C in hexadecimal and path, as
/// [`write_expected`] makes it. Errors name the line.
pub fn read_expected(root: &Path, list: &Path) -> anyhow::Result<Vec<Target>> {
    let text = std::fs::read_to_string(list).with_context(|| format!("read {}", list.display()))?;
    let target = |line: &str| {
        let (size, rest) = line.split_once(' ')?;
        let (crc32c, path) = rest.split_once(' ')?;
        let crc32c = u32::from_str_radix(crc32c, 16).ok()?;
        Some(Target { path: root.join(path), size: Some(size.parse().ok()?), crc32c: Some(crc32c) })
    };
    let mut targets = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let understood = target(line);
        targets.push(understood.with_context(|| format!("{} line {number}: not SIZE CRC32C PATH", list.display()))?);
    }
    Ok(targets)
}

/// Writes the list that [`read_expected`] reads.
pub fn write_expected(list: &Path, files: &[MadeFile]) -> anyhow::Result<()> {
    let mut text = String::new();
    for file in files {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} {:08x} {}", file.size, file.crc32c, file.path.display());
    }
    std::fs::write(list, text).with_context(|| format!("write {}", list.display()))
}

/// Every regular file below `root`, in the order of a walk. What cannot be walked is an error.
pub fn walk(root: &Path) -> anyhow::Result<Vec<Target>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("list {}", folder.display()))?;
            let kind = entry.file_type().with_context(|| format!("look at {}", entry.path().display()))?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                found.push(Target { path: entry.path(), size: None, crc32c: None });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Reads every target once. Fails at the first file that cannot be read, is short, or has a wrong checksum; a checksum
/// that is not known is noted in `sums` the first time, and must be the same from then on.
pub fn read_epoch(
    targets: &[Target],
    sums: &Mutex<HashMap<PathBuf, u32>>,
    options: ReadOptions,
    bar: &ProgressBar,
) -> anyhow::Result<Epoch> {
    read_first(targets, usize::MAX, sums, options, bar)
}

/// As [`read_epoch`], and ends after the first `files` of the shuffled order.
pub fn read_first(
    targets: &[Target],
    files: usize,
    sums: &Mutex<HashMap<PathBuf, u32>>,
    options: ReadOptions,
    bar: &ProgressBar,
) -> anyhow::Result<Epoch> {
    let count = u32::try_from(targets.len()).context("number the files")?;
    let mut order: Vec<&Target> =
        shuffled(count, options.seed).into_iter().map(|file| &targets[file as usize]).collect();
    order.truncate(files);
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let (started, cpu_before) = (Instant::now(), own_cpu_seconds());
    let reader = || -> anyhow::Result<(u64, Vec<Duration>)> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let (mut bytes, mut times) = (0, Vec::new());
        while let Some(target) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            if failed.load(Ordering::Relaxed) {
                break;
            }
            let began = Instant::now();
            match read_file(target, &mut buffer, options.drop_pages) {
                Ok((size, crc)) => {
                    times.push(began.elapsed());
                    bytes += size;
                    check(target, size, crc, sums).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                    bar.inc(1);
                }
                Err(error) => {
                    failed.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
        Ok((bytes, times))
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.readers.max(1)).map(|_| scope.spawn(reader)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| bail!("a reader thread panicked"))).collect()
    });
    let (seconds, cpu_seconds) = (started.elapsed().as_secs_f64(), own_cpu_seconds() - cpu_before);
    let (mut bytes, mut times) = (0, Vec::new());
    for result in results {
        let (read, took) = result?;
        bytes += read;
        times.extend(took);
    }
    Ok(Epoch::new(times, bytes, seconds, cpu_seconds))
}

fn read_file(target: &Target, buffer: &mut [u8], drop_pages: bool) -> anyhow::Result<(u64, u32)> {
    let context = || format!("read {}", target.path.display());
    let mut file = File::open(&target.path).with_context(context)?;
    let (mut size, mut crc) = (0, 0);
    loop {
        match file.read(buffer) {
            Ok(0) => break,
            Ok(read) => {
                size += read as u64;
                crc = larder_dataset::crc32c_append(crc, &buffer[..read]);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).with_context(context),
        }
    }
    if drop_pages {
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).with_context(context)?;
    }
    Ok((size, crc))
}

fn check(target: &Target, size: u64, crc: u32, sums: &Mutex<HashMap<PathBuf, u32>>) -> anyhow::Result<()> {
    let path = target.path.display();
    if target.size.is_some_and(|expected| expected != size) {
        bail!("WRONG BYTES: {path} has {size} bytes instead of {}", target.size.unwrap_or_default());
    }
    let expected = match target.crc32c {
        Some(expected) => expected,
        None => {
            *sums.lock().unwrap_or_else(std::sync::PoisonError::into_inner).entry(target.path.clone()).or_insert(crc)
        }
    };
    if crc != expected {
        bail!("WRONG BYTES: {path} has CRC32C {crc:08x} instead of {expected:08x}");
    }
    Ok(())
}

/// Writes dirty pages back and drops the kernel's clean pages, names and inodes. Needs root.
pub fn drop_kernel_caches() -> anyhow::Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("drop the kernel's caches (needs root)")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> ReadOptions {
        ReadOptions { readers: 4, drop_pages: true, seed: 1 }
    }

    #[test]
    fn an_epoch_reads_every_file_once_and_a_changed_byte_stops_it() {
        let folder = tempfile::tempdir().unwrap();
        let made = crate::tree::make(folder.path(), &[16_000; 30], 7, |_| {}).unwrap();
        let mut targets = walk(folder.path()).unwrap();
        let sums = Mutex::default();
        let epoch = read_epoch(&targets, &sums, options(), &ProgressBar::hidden()).unwrap();
        assert_eq!((epoch.files, epoch.bytes), (30, 480_000));
        assert_eq!(sums.lock().unwrap()[&folder.path().join(&made[3].path)], made[3].crc32c);

        targets[5].crc32c = Some(0);
        let error = read_epoch(&targets, &sums, options(), &ProgressBar::hidden()).unwrap_err();
        assert!(error.to_string().contains("WRONG BYTES"), "{error}");
    }

    #[test]
    fn a_list_names_the_files_and_what_they_must_hold() {
        let folder = tempfile::tempdir().unwrap();
        let made = crate::tree::make(&folder.path().join("data"), &[16_000; 30], 7, |_| {}).unwrap();
        let list = folder.path().join("list");
        write_expected(&list, &made).unwrap();
        let mut targets = read_expected(&folder.path().join("data"), &list).unwrap();
        let sums = Mutex::default();
        let read = |targets: &[Target]| read_first(targets, 12, &sums, options(), &ProgressBar::hidden());
        let epoch = read(&targets).unwrap();
        assert_eq!((epoch.files, epoch.bytes), (12, 12 * 16_000));
        assert!(epoch.cpu_seconds > 0.0);

        targets.iter_mut().for_each(|target| target.size = Some(16_001));
        assert!(read(&targets).unwrap_err().to_string().contains("WRONG BYTES"));

        std::fs::write(&list, "12 0 a\n12 xyz b\n").unwrap();
        let error = read_expected(folder.path(), &list).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }
}
