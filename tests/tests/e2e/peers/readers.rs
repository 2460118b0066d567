//! Readers in the background, and waiting.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use larder_e2e::Mount;
use larder_e2e::nodes::Node;
pub(super) use larder_e2e::wait_until;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::dataset::Files;

/// Readers of random files. They continue after failures, and record each failure and the longest read.
pub(super) struct Readers {
    stop: Arc<AtomicBool>,
    read: Arc<AtomicU64>,
    failures: Arc<Mutex<Vec<String>>>,
    threads: Vec<std::thread::JoinHandle<Duration>>,
}

impl Readers {
    /// Starts `each` readers for each mount. When this returns, each has read a file. A program that starts later
    /// closes the files that it inherits, and until the kernel has the first answer to a close, that would wait for a
    /// daemon: possibly the very program that starts.
    pub(super) fn start(files: &Files, mounts: &[&Mount], each: usize) -> Self {
        let mut readers =
            Self { stop: Arc::default(), read: Arc::default(), failures: Arc::default(), threads: Vec::new() };
        let begun = Arc::new(AtomicUsize::new(0));
        for mount in mounts {
            for _ in 0..each {
                let (files, dir) = (files.clone(), mount.dir().to_owned());
                let (stop, read) = (Arc::clone(&readers.stop), Arc::clone(&readers.read));
                let (failures, begun) = (Arc::clone(&readers.failures), Arc::clone(&begun));
                let mut rng = StdRng::seed_from_u64(readers.threads.len() as u64);
                readers.threads.push(std::thread::spawn(move || {
                    let mut longest = Duration::ZERO;
                    for turn in 0.. {
                        let started = Instant::now();
                        let checked = files.check(&dir, rng.random_range(0..files.count()));
                        longest = longest.max(started.elapsed());
                        read.fetch_add(1, Ordering::Relaxed);
                        if turn == 0 {
                            begun.fetch_add(1, Ordering::Relaxed);
                        }
                        if let Err(failure) = checked {
                            failures.lock().unwrap().push(failure);
                        }
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                    longest
                }));
            }
        }
        wait_until("every reader has read a file", || begun.load(Ordering::Relaxed) == readers.threads.len());
        readers
    }

    pub(super) fn total(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Waits for this many more reads.
    pub(super) fn go_on_for(&self, reads: u64) {
        let before = self.total();
        wait_until("the readers go on", || self.total() >= before + reads);
    }

    /// Fails if any read has failed up to now.
    pub(super) fn assert_well(&self, when: &str) {
        let failures = self.failures.lock().unwrap();
        let first = &failures[..failures.len().min(5)];
        assert!(failures.is_empty(), "{when}: {} of {} reads failed, first {first:#?}", failures.len(), self.total());
    }

    /// Every reader must end by itself, without a failure. Returns the longest read.
    pub(super) fn finish(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        wait_until("no reader is stuck", || self.threads.iter().all(|thread| thread.is_finished()));
        self.assert_well("at the end");
        self.threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
    }
}

/// Bytes that a mount got from other nodes.
pub(super) fn from_peers(mount: &Mount) -> u64 {
    mount.metric("fs_read_bytes_peer_total")
}

/// Waits until each of these mounts gets bytes from a peer, and `peer` serves some: its link carries more than
/// protocol.
pub(super) fn wait_until_served(what: &str, peer: &Node, readers: &[&Mount]) {
    let sent = peer.link.sent_bytes();
    let got: Vec<u64> = readers.iter().map(|mount| from_peers(mount)).collect();
    wait_until(&format!("{what}: {} serves its peers", peer.name()), || {
        peer.link.sent_bytes() > sent + 2_000_000
            && readers.iter().zip(&got).all(|(mount, &before)| from_peers(mount) > before)
    });
}
