//! The threads of the runtime that wait for reads of the cache's disks.
//!
//! Invariant: a disk that hangs holds at most [`EACH_MOST`] of them, and all disks together [`ALL_MOST`], however many
//! datasets and peers read from them. The runtime has 512 for everything that blocks, such as looking up names.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// The most threads that read from one disk: enough for it to be busy.
const EACH_MOST: usize = 32;

/// The most threads that read from all disks.
const ALL_MOST: usize = 256;

/// The threads that all datasets of a process use for reads of the cache that need not be answered at once.
#[derive(Clone, Debug)]
pub struct DiskThreads(Arc<[Arc<Semaphore>]>);

impl DiskThreads {
    /// Those of a store with so many disks.
    pub fn new(disks: usize) -> Self {
        let each = (ALL_MOST / disks.max(1)).clamp(1, EACH_MOST);
        Self((0..disks).map(|_| Arc::new(Semaphore::new(each))).collect())
    }

    /// The result of `read`, which blocks on this disk, once it has a thread. Cancel-safe: a read that has begun goes
    /// on, and keeps its thread.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        runtime: &Handle,
        disk: usize,
        read: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let turn = Arc::clone(&self.0[disk]).acquire_owned().await.ok()?;
        let read = move || {
            let _turn = turn;
            read()
        };
        runtime.spawn_blocking(read).await.ok().flatten()
    }

    /// Takes all threads of a disk, as reads do that hang.
    #[cfg(test)]
    pub(crate) fn hang(&self, disk: usize) -> tokio::sync::OwnedSemaphorePermit {
        let all = self.0[disk].available_permits() as u32;
        Arc::clone(&self.0[disk]).try_acquire_many_owned(all).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_disks_together_have_half_of_the_threads_of_the_runtime() {
        for (disks, each) in [(1, 32), (8, 32), (16, 16), (1000, 1)] {
            let threads = DiskThreads::new(disks);
            assert!(threads.0.iter().all(|disk| disk.available_permits() == each), "{disks}");
        }
    }
}
