//! The space in the cache that a dataset was granted. It may change while the dataset is open.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::reservations::Reservation;

/// The space that a dataset was granted.
#[derive(Debug)]
pub(super) struct Granted {
    capacity_bytes: AtomicU64,
    promised: Mutex<Reservation>,
}

impl Granted {
    pub(super) fn new(capacity_bytes: u64, promised: Reservation) -> Self {
        Self { capacity_bytes: AtomicU64::new(capacity_bytes), promised: Mutex::new(promised) }
    }

    pub(super) fn change(&self, capacity_bytes: u64, promised: Reservation) {
        *self.promised.lock().unwrap_or_else(PoisonError::into_inner) = promised;
        self.set_capacity(capacity_bytes);
    }

    /// Raises the grant by the space of adopted blocks, which their own snapshot already has, up to what was wanted.
    /// Returns how many bytes may be cached now.
    pub(super) fn raise(&self, bytes: u64, disk_bytes: u64) -> u64 {
        let mut promised = self.promised.lock().unwrap_or_else(PoisonError::into_inner);
        let up_to_wanted = |from: u64| from.saturating_add(bytes).min(promised.wanted_bytes).max(from);
        let (capacity_bytes, more) =
            (up_to_wanted(self.capacity_bytes()), up_to_wanted(promised.bytes) - promised.bytes);
        promised.bytes += more;
        // The result is at most `disk_bytes`, since `more` is at most `bytes`, so the cast back to u64 loses nothing.
        let more_on_disk = u128::from(disk_bytes) * u128::from(more) / u128::from(bytes.max(1));
        promised.disk_bytes = promised.disk_bytes.saturating_add(more_on_disk as u64);
        self.set_capacity(capacity_bytes);
        capacity_bytes
    }

    fn set_capacity(&self, capacity_bytes: u64) {
        self.capacity_bytes.store(capacity_bytes, Ordering::Relaxed);
    }

    /// Bytes of blocks that may be cached now.
    pub(super) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Relaxed)
    }

    /// The promise that is stored for a later process.
    pub(super) fn promised(&self) -> Reservation {
        *self.promised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
