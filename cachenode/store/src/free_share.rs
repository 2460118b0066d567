//! The part of the disk that the cache leaves free, whichever process fills the rest. On a Kubernetes node, the kubelet
//! evicts pods when little disk space is left, and the cache must not be the cause.
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
pub(crate) struct FreeShare {
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

impl FreeShare {
    pub(crate) fn new(dir: PathBuf, percent: u8) -> Self {
        Self { dir, percent, spare: Mutex::default() }
    }

    /// Takes space for a write. Errors: `StorageFull`, caused by [`TooLittleFree`].
    pub(crate) fn take(&self, bytes: u64, now: Instant) -> io::Result<()> {
        if self.percent == 0 {
            return Ok(());
        }
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = spare.asked.is_none_or(|asked| now.saturating_duration_since(asked) >= ASK_EVERY);
        if is_old || spare.bytes < bytes {
            *spare = Spare { bytes: self.spare_bytes()?, asked: Some(now) };
        }
        match spare.bytes.checked_sub(bytes) {
            Some(left) => {
                spare.bytes = left;
                Ok(())
            }
            None => Err(io::Error::new(io::ErrorKind::StorageFull, TooLittleFree { percent: self.percent })),
        }
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
}
