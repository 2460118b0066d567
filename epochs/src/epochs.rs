//! Reads a folder for epochs the way a training loop does: every file once, in a new order each epoch, by many threads.
//!
//! Invariant: every byte read is checksummed. A checksum that differs from the known one is an error, not a figure.

mod epoch;
mod targets;

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::ProgressBar;

use crate::order::shuffled;
use crate::process::own_cpu_seconds;
pub use epoch::Epoch;
pub use targets::{Target, read_expected, walk, write_expected};

/// Size of a reader's buffer.
const BUFFER_BYTES: usize = 1 << 20;

/// The settings of an epoch.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Number of reader threads.
    pub readers: usize,
    /// Whether to drop each file's pages from the page cache after reading it, so that the next epoch requests them
    /// again.
    pub drop_pages: bool,
    /// At most so many files are begun in a second, evenly; `None`: each reader goes on at once.
    pub files_per_second: Option<f64>,
    /// Seed of this epoch's order.
    pub seed: u64,
}

/// Reads every target once. Fails at the first file that cannot be read, has the wrong size or has the wrong checksum.
/// An unknown checksum is noted in `sums` at the first read; later reads must match it.
pub fn read_epoch(
    targets: &[Target],
    sums: &Mutex<HashMap<PathBuf, u32>>,
    options: ReadOptions,
    bar: &ProgressBar,
) -> anyhow::Result<Epoch> {
    read_first(targets, usize::MAX, sums, options, bar)
}

/// Like [`read_epoch`], but ends after the first `files` of the shuffled order.
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
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            let Some(target) = order.get(nth) else { break };
            if let Some(rate) = options.files_per_second {
                let due = Duration::from_secs_f64(nth as f64 / rate);
                std::thread::sleep(due.saturating_sub(started.elapsed()));
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> ReadOptions {
        ReadOptions { readers: 4, drop_pages: true, files_per_second: None, seed: 1 }
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
    fn a_file_is_not_begun_before_its_time() {
        let folder = tempfile::tempdir().unwrap();
        crate::tree::make(folder.path(), &[16_000; 30], 7, |_| {}).unwrap();
        let targets = walk(folder.path()).unwrap();
        let paced = ReadOptions { files_per_second: Some(100.0), ..options() };
        let epoch = read_epoch(&targets, &Mutex::default(), paced, &ProgressBar::hidden()).unwrap();
        assert!(epoch.files == 30 && epoch.seconds >= 0.29, "{epoch:?}");
    }

    #[test]
    fn a_list_names_the_files_with_their_sizes_and_checksums() {
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
