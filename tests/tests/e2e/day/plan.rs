//! The events of a day and their order.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;

/// The number of tenants.
pub(super) const TENANTS: usize = 3;

/// How much there is of everything.
pub(super) struct Plan {
    /// Datasets of each tenant.
    pub(super) datasets: usize,
    /// Readers of all datasets together, besides those of new pods.
    pub(super) readers: usize,
    /// Kills of larderd, one of them in each hang of the origin.
    kills_of_larderd: usize,
    /// Kills of larder-csi, one of them in each stall of the disk.
    kills_of_csi: usize,
    hangs: usize,
    /// How long a hang takes, at least.
    pub(super) hang: Duration,
    stalls: usize,
    /// How long a stall takes, at least.
    pub(super) stall: Duration,
    /// New snapshots, each of another tenant.
    pub(super) publications: usize,
    revocations: usize,
    /// larderd's `--memory-target`.
    pub(super) memory_target_mib: u64,
}

/// larderd's `--threads`.
pub(super) const THREADS: u64 = 16;

/// The short form.
pub(super) const HOUR: Plan = Plan {
    datasets: 2,
    readers: 48,
    kills_of_larderd: 4,
    kills_of_csi: 2,
    hangs: 1,
    hang: Duration::from_secs(12),
    stalls: 1,
    stall: Duration::from_secs(10),
    publications: 1,
    revocations: 1,
    memory_target_mib: 128,
};

/// The long form. The memory target is a fifth of what the deployment leaves to larderd.
pub(super) const DAY: Plan = Plan {
    datasets: 8,
    readers: 200,
    kills_of_larderd: 20,
    kills_of_csi: 10,
    hangs: 2,
    hang: Duration::from_secs(20),
    stalls: 2,
    stall: Duration::from_secs(30),
    publications: 3,
    revocations: 3,
    memory_target_mib: 256,
};

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    LarderdIsKilled,
    CsiIsKilled,
    OriginHangs,
    DiskStalls,
    SnapshotIsPublished,
    KeysAreRevoked,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LarderdIsKilled => "larderd is killed",
            Self::CsiIsKilled => "larder-csi is killed",
            Self::OriginHangs => "the origin hangs",
            Self::DiskStalls => "the disk stalls",
            Self::SnapshotIsPublished => "a snapshot is published",
            Self::KeysAreRevoked => "keys are revoked",
        })
    }
}

impl Plan {
    /// All events, one after the other: larderd and larder-csi are never both away.
    pub(super) fn events(&self, chance: &mut StdRng) -> Vec<Event> {
        let times = [
            (Event::LarderdIsKilled, self.kills_of_larderd - self.hangs),
            (Event::CsiIsKilled, self.kills_of_csi - self.stalls),
            (Event::OriginHangs, self.hangs),
            (Event::DiskStalls, self.stalls),
            (Event::SnapshotIsPublished, self.publications),
            (Event::KeysAreRevoked, self.revocations),
        ];
        let mut events: Vec<Event> =
            times.into_iter().flat_map(|(event, times)| std::iter::repeat_n(event, times)).collect();
        events.shuffle(chance);
        events
    }
}
