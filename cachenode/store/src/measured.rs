//! The disk use of each dataset: measured when it is first needed, and again only once the dataset's files have
//! changed. A list of all datasets therefore costs no walk over the folders of those that did not change.
//!
//! Invariant: a change marks the use as stale after the files have changed, and a measurement removes the mark before
//! it begins. A use without a mark is that of the files, except for a few KiB of small files beside the segments.
//! Nothing is measured under the lock of all datasets: a slow disk delays only those that ask for the same dataset.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_dataset::CacheId;

use crate::folder::{DiskUse, SharedFile, disk_use};

/// The disk use of the datasets of a store.
#[derive(Debug, Default)]
pub(crate) struct Measured(Mutex<HashMap<CacheId, Measurement>>);

#[derive(Debug, Default)]
struct Measurement {
    stale: Stale,
    used: DiskUse,
    /// Held while the use is being measured.
    turn: Arc<Mutex<()>>,
    is_running: bool,
}

/// Marks the use of one dataset as stale. Costs one store.
#[derive(Clone, Debug)]
pub(crate) struct Stale(Arc<AtomicBool>);

impl Default for Stale {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Stale {
    /// Call it after the dataset's files have changed.
    pub(crate) fn mark(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Measured {
    /// The disk use of a dataset. Walks over its `folders` if the use is stale.
    pub(crate) fn of(&self, id: &CacheId, folders: impl FnOnce() -> Vec<PathBuf>) -> DiskUse {
        let (turn, stale) = {
            let mut all = self.lock();
            let measurement = all.entry(*id).or_default();
            (Arc::clone(&measurement.turn), measurement.stale.clone())
        };
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        // Another dataset of this id has another mark.
        let is_this = |measurement: &&mut Measurement| Arc::ptr_eq(&measurement.stale.0, &stale.0);
        {
            let mut all = self.lock();
            let Some(measurement) = all.get_mut(id).filter(is_this) else { return DiskUse::default() };
            if !stale.0.swap(false, Ordering::AcqRel) {
                return measurement.used.clone();
            }
            measurement.is_running = true;
        }
        let used = disk_use(folders());
        if let Some(measurement) = self.lock().get_mut(id).filter(is_this) {
            (measurement.used, measurement.is_running) = (used.clone(), false);
        }
        used
    }

    /// The disk use of a dataset when it was measured last. Does not wait for the disk.
    pub(crate) fn last(&self, id: &CacheId) -> DiskUse {
        self.lock().get(id).map(|measurement| measurement.used.clone()).unwrap_or_default()
    }

    /// The mark of a dataset, for those that change its files.
    pub(crate) fn stale(&self, id: &CacheId) -> Stale {
        self.lock().entry(*id).or_default().stale.clone()
    }

    /// Forgets a dataset whose folder was removed, and marks those that have shared one of these files with it, or may
    /// be found to have done so.
    pub(crate) fn forget(&self, id: &CacheId, shared: &[SharedFile]) {
        let mut all = self.lock();
        all.remove(id);
        let has_some = |used: &DiskUse| used.shared.iter().any(|file| shared.iter().any(|it| it.id == file.id));
        all.values().filter(|other| other.is_running || has_some(&other.used)).for_each(|other| other.stale.mark());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CacheId, Measurement>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const SLOW: CacheId = CacheId([1; 32]);
    const OTHER: CacheId = CacheId([2; 32]);

    /// Calls `meanwhile` while the use of a dataset is being measured.
    fn during_a_slow_measurement<T: Send>(measured: &Measured, meanwhile: impl FnOnce() -> T + Send) -> T {
        let ((begin, has_begun), (end, may_end)) = (mpsc::channel(), mpsc::channel());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                measured.of(&SLOW, || {
                    begin.send(()).unwrap();
                    may_end.recv().unwrap();
                    Vec::new()
                })
            });
            has_begun.recv().unwrap();
            let (done, outcome) = mpsc::channel();
            scope.spawn(move || done.send(meanwhile()).unwrap());
            // Far longer than it takes.
            let outcome = outcome.recv_timeout(Duration::from_secs(60));
            end.send(()).unwrap();
            outcome.expect("it does not wait for the measurement")
        })
    }

    #[test]
    fn a_slow_disk_delays_nothing_that_concerns_another_dataset() {
        let measured = Measured::default();
        let used = during_a_slow_measurement(&measured, || {
            measured.stale(&SLOW).mark();
            measured.forget(&CacheId([3; 32]), &[]);
            measured.of(&OTHER, Vec::new)
        });
        assert_eq!(used, DiskUse::default());
    }

    #[test]
    fn a_release_or_a_change_during_a_measurement_makes_its_result_stale() {
        let measured = Measured::default();
        let is_measured_again = || {
            let mut is_measured = false;
            measured.of(&SLOW, || {
                is_measured = true;
                Vec::new()
            });
            is_measured
        };
        during_a_slow_measurement(&measured, || measured.forget(&OTHER, &[]));
        assert!(is_measured_again() && !is_measured_again());
        measured.stale(&SLOW).mark();
        during_a_slow_measurement(&measured, || measured.stale(&SLOW).mark());
        assert!(is_measured_again() && !is_measured_again());
        measured.stale(&SLOW).mark();
        // Another dataset of this id, whose files are others.
        during_a_slow_measurement(&measured, || measured.forget(&SLOW, &[]));
        assert!(is_measured_again() && !is_measured_again());
    }
}
