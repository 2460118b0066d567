//! Walks and look-ups, the same for every system.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use rustix::fs::AtFlags;
use serde::Serialize;

use larder_epochs::figures::percentile;

/// Number of look-ups that a thread claims at a time.
const BATCH: usize = 256;

/// The speed of an operation that was repeated many times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rate {
    /// Operations per second of all threads together.
    pub per_second: f64,
    /// Half of them took at most this many microseconds.
    pub p50_us: f64,
    /// 99 of 100 took at most this many microseconds.
    pub p99_us: f64,
}

/// Walks the tree reading names and kinds. Returns the seconds. Fails on an unexpected number of files.
pub(super) fn find(root: &Path, files: usize) -> anyhow::Result<f64> {
    let started = Instant::now();
    let found = walk(root, &mut |_| Ok(()))?;
    let seconds = started.elapsed().as_secs_f64();
    ensure!(found == files, "a walk found {found} files instead of {files}");
    Ok(seconds)
}

/// Walks the tree reading each file's attributes too. Returns the seconds. Fails on an unexpected number of files or
/// size.
pub(super) fn list(root: &Path, files: usize, size: u64) -> anyhow::Result<f64> {
    let started = Instant::now();
    let found = walk(root, &mut |entry| {
        let context = || format!("look at {}", entry.path().display());
        let found = entry.metadata().with_context(context)?.size();
        if found != size {
            bail!("{} has {found} bytes instead of {size}", entry.path().display());
        }
        Ok(())
    })?;
    let seconds = started.elapsed().as_secs_f64();
    ensure!(found == files, "a walk found {found} files instead of {files}");
    Ok(seconds)
}

fn walk(root: &Path, look: &mut dyn FnMut(&std::fs::DirEntry) -> anyhow::Result<()>) -> anyhow::Result<usize> {
    let mut files = 0;
    let mut folders: Vec<PathBuf> = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let context = || format!("list {}", folder.display());
        for entry in std::fs::read_dir(&folder).with_context(context)? {
            let entry = entry.with_context(context)?;
            // Files of the filesystem itself: JuiceFS has `.stats` and others in its root.
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            // The kind comes with the name and needs no look-up.
            let kind = entry.file_type().with_context(context)?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else {
                files += 1;
                look(&entry)?;
            }
        }
    }
    Ok(files)
}

/// Looks the files up in this order. Fails at the first that is missing or has another size. Times are exact to 0.1 us.
pub(super) fn stat(root: &Path, paths: &[&Path], order: &[u32], threads: usize, size: u64) -> anyhow::Result<Rate> {
    let folder = File::open(root).with_context(|| format!("open {}", root.display()))?;
    let next = AtomicUsize::new(0);
    let looker = || -> anyhow::Result<Vec<u32>> {
        let mut times = Vec::with_capacity(order.len() / threads + BATCH);
        loop {
            let from = next.fetch_add(BATCH, Ordering::Relaxed);
            let batch = order.get(from..(from + BATCH).min(order.len())).unwrap_or_default();
            if batch.is_empty() {
                return Ok(times);
            }
            for &file in batch {
                let path = paths[file as usize];
                let began = Instant::now();
                let found = rustix::fs::statat(&folder, path, AtFlags::SYMLINK_NOFOLLOW)
                    .with_context(|| format!("look at {}", path.display()))?;
                times.push(u32::try_from(began.elapsed().as_nanos() / 100).unwrap_or(u32::MAX));
                if found.st_size.cast_unsigned() != size {
                    bail!("{} has {} bytes instead of {size}", path.display(), found.st_size);
                }
            }
        }
    };
    let started = Instant::now();
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(looker)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| bail!("a thread panicked"))).collect()
    });
    let seconds = started.elapsed().as_secs_f64();
    let mut times = Vec::with_capacity(order.len());
    for result in results {
        times.extend(result?);
    }
    times.sort_unstable();
    let us = |share| f64::from(percentile(&times, share).unwrap_or_default()) / 10.0;
    Ok(Rate { per_second: times.len() as f64 / seconds, p50_us: us(0.5), p99_us: us(0.99) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_and_look_ups_find_every_file_and_notice_a_missing_or_changed_one() {
        let folder = tempfile::tempdir().unwrap();
        let made = larder_epochs::tree::make(folder.path(), &[1024; 450], 1, |_| {}).unwrap();
        let paths: Vec<&Path> = made.iter().map(|file| file.path.as_path()).collect();
        let order: Vec<u32> = larder_epochs::order::shuffled(450, 3);
        let all = || -> anyhow::Result<Rate> {
            find(folder.path(), 450)?;
            list(folder.path(), 450, 1024)?;
            stat(folder.path(), &paths, &order, 1, 1024)?;
            stat(folder.path(), &paths, &order, 7, 1024)
        };
        std::fs::write(folder.path().join(".stats"), "of the filesystem itself").unwrap();
        let rate = all().unwrap();
        assert!(rate.per_second > 0.0 && rate.p50_us <= rate.p99_us);
        std::fs::write(folder.path().join(paths[9]), "short").unwrap();
        assert!(all().unwrap_err().to_string().contains("5 bytes instead of 1024"));
        assert!(stat(folder.path(), &paths, &order, 4, 1024).is_err());
        std::fs::remove_file(folder.path().join(paths[9])).unwrap();
        assert!(all().unwrap_err().to_string().contains("449 files instead of 450"));
        assert!(stat(folder.path(), &paths, &order, 1, 1024).is_err());
    }
}
