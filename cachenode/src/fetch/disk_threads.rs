//! The threads of the runtime that wait for the cache's disks.
//!
//! Invariant: reads of a disk that hangs hold at most [`READERS_EACH`] of them, reads of all disks [`READERS_MOST`],
//! and writes [`WRITERS_MOST`], however many datasets and peers there are. The runtime has 512 for everything that
//! blocks, such as looking up names.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most threads that read from one disk: enough for it to be busy.
const READERS_EACH: usize = 32;

/// The most threads that read from all disks.
const READERS_MOST: usize = 256;

/// The most threads that write.
const WRITERS_MOST: usize = 128;

/// The threads that all datasets of a process use for writes of the cache, and for reads of it that need not be
/// answered at once.
#[derive(Clone, Debug)]
pub struct DiskThreads {
    /// Those that read from each disk.
    readers: Arc<[Arc<Semaphore>]>,
    writers: Arc<Semaphore>,
}

impl DiskThreads {
    /// Those of a store with so many disks.
    pub fn new(disks: usize) -> Self {
        let each = (READERS_MOST / disks.max(1)).clamp(1, READERS_EACH);
        let readers = (0..disks).map(|_| Arc::new(Semaphore::new(each))).collect();
        Self { readers, writers: Arc::new(Semaphore::new(WRITERS_MOST)) }
    }

    /// The result of `read`, which blocks on this disk, once it has a thread. Cancel-safe: a read that has begun goes
    /// on, and keeps its thread.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        runtime: &Handle,
        disk: usize,
        read: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let turn = Arc::clone(&self.readers[disk]).acquire_owned().await.ok()?;
        let read = move || {
            let _turn = turn;
            read()
        };
        runtime.spawn_blocking(read).await.ok().flatten()
    }

    /// Waits for a thread that writes. Cancel-safe.
    pub(super) async fn turn_to_write(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.writers).acquire_owned().await.ok()
    }

    /// Takes all threads that read from a disk, as reads do that hang.
    #[cfg(test)]
    pub(crate) fn hang_reads(&self, disk: usize) -> OwnedSemaphorePermit {
        all_of(&self.readers[disk])
    }

    /// Takes all threads that write.
    #[cfg(test)]
    pub(crate) fn hang_writes(&self) -> OwnedSemaphorePermit {
        all_of(&self.writers)
    }
}

#[cfg(test)]
fn all_of(threads: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    let all = threads.available_permits() as u32;
    Arc::clone(threads).try_acquire_many_owned(all).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_that_all_hang_leave_threads_of_the_runtime() {
        for (disks, each) in [(1, 32), (8, 32), (16, 16), (1000, 1)] {
            let threads = DiskThreads::new(disks);
            assert!(threads.readers.iter().all(|disk| disk.available_permits() == each), "{disks}");
        }
        // tokio's default for a runtime.
        const { assert!(READERS_MOST + WRITERS_MOST < 512) };
    }
}
