//! The part of a disk that stays free, whichever process fills the rest. On a Kubernetes node, the kubelet evicts pods
//! when little disk space is left, and the cache must not be the cause.
//!
//! Blocks leave the whole part free. Files without which a dataset cannot be mounted may take a quarter of it: a cache
//! that has filled the disk up to the part is the normal case, and must not keep new datasets out.
//!
//! Invariant: nothing is written while less than that part is free, except to space that was allocated ahead of the
//! records. The file system is queried once a second, or earlier when the cache has written as many bytes as the last
//! query found available.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::probe::spare_bytes;

/// How long a result of the file system stays valid: other processes write to the disk too.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Less than the configured part of the disk is free.
#[derive(Debug, thiserror::Error)]
#[error("less than {percent} % of the disk is free (--keep-free): nothing more is cached")]
pub(crate) struct TooLittleFree {
    percent: u8,
}

/// Watches the free part of a disk.
#[derive(Debug)]
pub struct FreeShare {
    dir: PathBuf,
    /// Percent of the whole disk.
    percent: u8,
    spare: Mutex<Spare>,
}

/// The bytes that may still be written before the next query.
#[derive(Debug, Default)]
struct Spare {
    bytes: u64,
    asked: Option<Instant>,
}

impl Spare {
    fn is_old(&self, now: Instant) -> bool {
        self.asked.is_none_or(|asked| now.saturating_duration_since(asked) >= ASK_EVERY)
    }
}

impl FreeShare {
    /// The free part of the disk of `dir`, for blocks.
    pub(crate) fn new(dir: PathBuf, percent: u8) -> Self {
        Self { dir, percent, spare: Mutex::default() }
    }

    /// The free part of the disk of `dir`, for files without which a dataset cannot be mounted. `keep_free_percent` is
    /// the part that blocks leave free.
    pub fn beside_blocks(dir: PathBuf, keep_free_percent: u8) -> Self {
        Self::new(dir, keep_free_percent - keep_free_percent.div_ceil(4))
    }

    /// The part that stays free, in percent of the whole disk.
    pub fn percent(&self) -> u8 {
        self.percent
    }

    /// Takes space for a write. Errors: `StorageFull`, caused by [`TooLittleFree`].
    pub(crate) fn take(&self, bytes: u64, now: Instant) -> io::Result<()> {
        match self.try_take(bytes, now)? {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::StorageFull, TooLittleFree { percent: self.percent })),
        }
    }

    /// Takes space for a write, if the disk has it. Blocks on the disk. Errors: the disk cannot be measured.
    pub fn try_take(&self, bytes: u64, now: Instant) -> io::Result<bool> {
        if self.percent == 0 {
            return Ok(true);
        }
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.is_old(now) || spare.bytes < bytes {
            *spare = Spare { bytes: self.spare_bytes()?, asked: Some(now) };
        }
        let left = spare.bytes.checked_sub(bytes);
        spare.bytes = left.unwrap_or(spare.bytes);
        Ok(left.is_some())
    }

    /// The same as [`spare_bytes`](Self::spare_bytes), as of a moment ago; 0 if the disk cannot be measured.
    pub(crate) fn room(&self, now: Instant) -> u64 {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.is_old(now) {
            *spare = Spare { bytes: self.spare_bytes().unwrap_or_default(), asked: Some(now) };
        }
        spare.bytes
    }

    /// Free disk bytes in excess of the part that must stay free.
    pub(crate) fn spare_bytes(&self) -> io::Result<u64> {
        spare_bytes(&self.dir, self.percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_of_which_all_is_to_stay_free_takes_nothing_and_one_of_which_nothing_is_takes_all() {
        let folder = tempfile::tempdir().unwrap();
        let take = |percent| FreeShare::new(folder.path().to_owned(), percent).take(1, Instant::now());
        take(0).unwrap();
        let refused = take(100).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        assert!(refused.to_string().contains("--keep-free"), "{refused}");
    }

    #[test]
    fn files_beside_blocks_may_take_a_quarter_of_the_free_part() {
        let left = |percent| FreeShare::beside_blocks(PathBuf::new(), percent).percent();
        assert_eq!([0, 1, 5, 20, 99].map(left), [0, 0, 3, 15, 74]);
    }
}
