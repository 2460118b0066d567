//! The disk space that an import, or a manifest that is fetched, takes.
//!
//! - [`DiskLimit`] says how much that may be, and has the disk's owner say whether there is room.
//! - [`DiskUse`] is the space that one import takes: its journal, its sorted runs and its manifest. [`Held`] is the
//!   share of one of these.
//!
//! Invariant: bytes are counted, and room is asked for, before they are written. A share is given back when its file
//! shrinks or goes.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_dataset::size::exact_bytes;

/// The room of a disk.
pub trait DiskRoom: fmt::Debug + Send + Sync {
    /// Takes room for bytes that are about to be written. Blocks on the disk. Errors: there is too little; the text
    /// says what to do.
    fn take(&self, bytes: u64) -> io::Result<()>;
}

/// Limits of the disk space that one import or one manifest takes.
#[derive(Clone, Debug)]
pub struct DiskLimit {
    /// The most bytes at a time.
    pub bytes_most: u64,
    /// Up to this many bytes are written without a check for room: they harm no disk.
    pub small_bytes: u64,
    /// The room of the disk; `None`: its own limit is enough.
    pub room: Option<Arc<dyn DiskRoom>>,
}

impl Default for DiskLimit {
    /// As much as the disk has.
    fn default() -> Self {
        Self { bytes_most: u64::MAX, small_bytes: 0, room: None }
    }
}

impl DiskLimit {
    /// Takes room on the disk for bytes of a file, or of several, that has `total` bytes with them. Errors: there is
    /// too little.
    pub(crate) fn take_room(&self, bytes: u64, total: u64) -> io::Result<()> {
        self.room.as_ref().filter(|_| total > self.small_bytes).map_or(Ok(()), |room| room.take(bytes))
    }
}

/// A listing takes more disk space than it may.
#[derive(Debug, thiserror::Error)]
#[error(
    "the listing of one dataset takes more than {} of disk space: for a mount, raise --listing-size of larderd or \
     mount a part of the dataset", exact_bytes(*.bytes_most)
)]
struct ListingTooLarge {
    bytes_most: u64,
}

/// The disk space of one import.
#[derive(Clone, Debug)]
pub(crate) struct DiskUse(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: DiskLimit,
    held: AtomicU64,
}

impl DiskUse {
    pub(crate) fn new(limit: DiskLimit) -> Self {
        Self(Arc::new(Inner { limit, held: AtomicU64::new(0) }))
    }

    /// A share of no bytes.
    pub(crate) fn hold(&self) -> Held {
        Held { disk: self.clone(), bytes: AtomicU64::new(0) }
    }

    /// Counts bytes, and returns how many there are with them.
    fn count(&self, bytes: u64) -> io::Result<u64> {
        let bytes_most = self.0.limit.bytes_most;
        let held = self.0.held.fetch_add(bytes, Ordering::Relaxed);
        let total = held.saturating_add(bytes);
        if total > bytes_most {
            self.0.held.fetch_sub(bytes, Ordering::Relaxed);
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, ListingTooLarge { bytes_most }));
        }
        Ok(total)
    }
}

/// A share of the disk space of an import. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Held {
    disk: DiskUse,
    bytes: AtomicU64,
}

impl Held {
    /// Counts bytes that are on the disk already, and returns how many the import has with them. Errors: the import
    /// takes more than it may.
    pub(crate) fn count(&self, bytes: u64) -> io::Result<u64> {
        let total = self.disk.count(bytes)?;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(total)
    }

    /// Takes bytes that are about to be written. Errors: the import takes more than it may, or the disk has too little
    /// room.
    pub(crate) fn take(&self, bytes: u64) -> io::Result<()> {
        let total = self.count(bytes)?;
        self.disk.0.limit.take_room(bytes, total).inspect_err(|_| self.give(bytes))
    }

    /// Gives bytes of the share back.
    pub(crate) fn give(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.disk.0.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let left = *self.bytes.get_mut();
        self.give(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_an_import_count_together_until_they_are_given_back() {
        let disk = DiskUse::new(DiskLimit { bytes_most: 100, ..DiskLimit::default() });
        let (journal, run) = (disk.hold(), disk.hold());
        journal.take(60).unwrap();
        run.take(40).unwrap();
        let refused = journal.take(1).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::QuotaExceeded);
        assert!(refused.to_string().contains("more than 100 of disk space"), "{refused}");
        run.give(10);
        journal.take(10).unwrap();
        drop(run);
        journal.take(30).unwrap();
        assert!(journal.take(u64::MAX).is_err());
        drop(journal);
        disk.hold().take(100).unwrap();
    }

    #[derive(Debug)]
    struct Full;

    impl DiskRoom for Full {
        fn take(&self, _bytes: u64) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    #[test]
    fn bytes_for_which_the_disk_has_no_room_are_not_held_and_the_first_few_need_none() {
        let disk = DiskUse::new(DiskLimit { bytes_most: 100, small_bytes: 10, room: Some(Arc::new(Full)) });
        let (held, other) = (disk.hold(), disk.hold());
        for _ in 0..2 {
            assert_eq!(held.take(100).unwrap_err().kind(), io::ErrorKind::StorageFull);
        }
        held.take(6).unwrap();
        other.take(4).unwrap();
        assert_eq!(held.take(1).unwrap_err().kind(), io::ErrorKind::StorageFull);
        held.count(90).unwrap();
    }
}
