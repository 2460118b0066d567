//! The dataset that the nodes read.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use larder_e2e::{Lab, Mount};
use larder_testkit::seeded_bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

/// Readers of a node in an epoch.
const READERS: usize = 2;

/// A dataset of files of these sizes, each with bytes that no other file has.
#[derive(Clone)]
pub(super) struct Files {
    pub(super) sizes: Arc<Vec<u64>>,
}

impl Files {
    pub(super) fn new(sizes: impl IntoIterator<Item = u64>) -> Self {
        Self { sizes: Arc::new(sizes.into_iter().collect()) }
    }

    pub(super) fn count(&self) -> usize {
        self.sizes.len()
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    pub(super) fn path(n: usize) -> String {
        format!("d{}/{n:05}", n % 7)
    }

    pub(super) fn bytes(&self, n: usize) -> Vec<u8> {
        seeded_bytes(n as u64, self.sizes[n])
    }

    pub(super) fn put(&self, lab: &Lab) {
        for n in 0..self.count() {
            lab.put(&Self::path(n), self.bytes(n));
        }
    }

    /// Reads a file past the kernel's page cache. The error says what is wrong with it.
    pub(super) fn check(&self, dir: &Path, n: usize) -> Result<(), String> {
        let read = || {
            let mut file = std::fs::File::open(dir.join(Self::path(n)))?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
            let mut bytes = Vec::with_capacity(self.sizes[n] as usize + 1);
            file.read_to_end(&mut bytes)?;
            Ok::<_, std::io::Error>(bytes)
        };
        match read() {
            Ok(bytes) if bytes == self.bytes(n) => Ok(()),
            Ok(_) => Err(format!("{}: file {n} has wrong bytes", dir.display())),
            Err(error) => Err(format!("{}: file {n}: {error}", dir.display())),
        }
    }

    /// Every mount's readers read these files, all at the same time, each mount in an order of its own. Returns when
    /// nothing is in flight any more.
    pub(super) fn read_part(&self, mounts: &[&Mount], seed: u64, part: impl Fn(usize, usize) -> bool) {
        std::thread::scope(|scope| {
            for (at, mount) in mounts.iter().enumerate() {
                let mut order: Vec<usize> = (0..self.count()).filter(|&n| part(at, n)).collect();
                order.shuffle(&mut StdRng::seed_from_u64(seed * 100 + at as u64));
                let (order, next) = (Arc::new(order), Arc::new(AtomicUsize::new(0)));
                for _ in 0..READERS {
                    let (order, next) = (Arc::clone(&order), Arc::clone(&next));
                    scope.spawn(move || {
                        while let Some(&n) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                            self.check(mount.dir(), n).unwrap();
                        }
                    });
                }
            }
        });
        mounts.iter().for_each(|mount| mount.settle());
    }

    /// An epoch: every mount's readers read all files.
    pub(super) fn read_epoch(&self, mounts: &[&Mount], seed: u64) {
        self.read_part(mounts, seed, |_, _| true);
    }

    /// An epoch, and the percentage of its reads that needed no GET.
    pub(super) fn hits_of_epoch(&self, lab: &Lab, mounts: &[&Mount], seed: u64) -> f64 {
        lab.server.reset_counters();
        self.read_epoch(mounts, seed);
        let reads = (self.count() * mounts.len()) as f64;
        100.0 * (1.0 - lab.server.counters().gets as f64 / reads)
    }
}
