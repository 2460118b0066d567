//! Threads that keep CPUs busy during a run, as loaders do that decode what they have read.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Busy threads. They end when this is dropped.
pub(super) struct Busy {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    /// Starts this many threads.
    pub(super) fn start(threads: u32) -> Self {
        let over = Arc::<AtomicBool>::default();
        let compute = |over: Arc<AtomicBool>| {
            let mut sum = 0_u64;
            while !over.load(Ordering::Relaxed) {
                sum = black_box((0..10_000_u64).fold(sum, |sum, n| sum.wrapping_mul(31).wrapping_add(n)));
            }
        };
        let start = |_| {
            let over = Arc::clone(&over);
            std::thread::spawn(move || compute(over))
        };
        let threads = (0..threads).map(start).collect();
        Self { over, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // They cannot panic.
            let _ = thread.join();
        }
    }
}
