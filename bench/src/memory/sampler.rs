//! Samples the resident memory of a process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;

use larder_epochs::process::Usage;

const INTERVAL: Duration = Duration::from_millis(10);

/// Samples until it is dropped.
pub(super) struct Sampler(Arc<AtomicU64>);

impl Sampler {
    pub(super) fn start(process: u32) -> anyhow::Result<Self> {
        let peak = Arc::new(AtomicU64::new(Usage::of(&[process]).rss_bytes));
        let sampled = Arc::clone(&peak);
        let sample = move || {
            // The other owner is the sampler.
            while Arc::strong_count(&sampled) > 1 {
                thread::sleep(INTERVAL);
                sampled.fetch_max(Usage::of(&[process]).rss_bytes, Ordering::Relaxed);
            }
        };
        thread::Builder::new().spawn(sample).context("start a thread")?;
        Ok(Self(peak))
    }

    /// The largest sample so far.
    pub(super) fn peak(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_was_given_back_is_in_the_peak() {
        let sampler = Sampler::start(std::process::id()).unwrap();
        let before = sampler.peak();
        let mut memory = vec![1_u8; 128 << 20];
        while sampler.peak() < before + (100 << 20) {
            // Touched again and again, so that it stays resident.
            std::hint::black_box(&mut memory).iter_mut().step_by(4096).for_each(|byte| *byte ^= 1);
        }
        drop(memory);
        assert!(sampler.peak() >= before + (100 << 20));
    }
}
