//! The room that a dataset was granted in the cache. It may change while the dataset is open.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::reservations::Reservation;

/// The room that a dataset was granted.
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

    pub(super) fn set_capacity(&self, capacity_bytes: u64) {
        self.capacity_bytes.store(capacity_bytes, Ordering::Relaxed);
    }

    /// Bytes of blocks that may be cached.
    pub(super) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Relaxed)
    }

    /// The promise that a later process finds.
    pub(super) fn promised(&self) -> Reservation {
        *self.promised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
