//! Due work and its times.

use std::collections::{BTreeMap, BTreeSet};

use crate::objects::Key;
use crate::time::Millis;

/// A work item.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// All training jobs. Ordered before the datasets whose data they request.
    Jobs,
    /// The datasets that can have slots for warming.
    Slots,
    Dataset(Key),
    Promises(String),
    /// The labels of a node, and the Event about its cache.
    Labels(String),
    /// Orphaned objects of the Dataset with this uid.
    Orphans(String),
    Registry,
    /// The status of a CacheQuota.
    CacheQuota(String),
    /// The checks of a Workload of Kueue.
    Workload(Key),
    /// A Workload of Kueue whose TrainingJob was deleted.
    Abandoned(Key),
    /// A TrainingJob that MultiKueue moves.
    Moved(Key),
    /// The clusters that are nominated for a Workload of Kueue.
    Nomination(Key),
    /// A pod that no step of a TrainingJob ends.
    OrphanedPod(Key),
    /// A pod of another program in a queue, about which something was decided.
    QueuedPod(Key),
    AdmissionCheck(String),
    Job(Key),
    /// The trials of a sweep.
    Sweep(Key),
    /// The dry run for this pod-spec hash.
    DryRun(String),
    /// The status of a JobType.
    JobType(String),
    JobTypes,
    JobQueue(String),
    /// A job that may run in other clusters.
    Elsewhere(Key),
    /// The links to other clusters.
    Links,
    /// The status of a Cluster.
    Cluster(String),
}

impl Work {
    /// True for work that each round adds again until it is done.
    fn is_repeated(&self) -> bool {
        matches!(self, Self::Abandoned(_) | Self::Moved(_) | Self::Nomination(_))
    }

    /// True for rate-limited work, such as the writes of a node's promises, a node's labels, and the registry.
    fn rests(&self) -> bool {
        match self {
            Self::Jobs
            | Self::Slots
            | Self::Dataset(_)
            | Self::Orphans(_)
            | Self::Workload(_)
            | Self::Abandoned(_)
            | Self::Moved(_)
            | Self::Nomination(_)
            | Self::OrphanedPod(_)
            | Self::QueuedPod(_)
            | Self::Job(_)
            | Self::Sweep(_)
            | Self::DryRun(_)
            | Self::Elsewhere(_)
            | Self::Links => false,
            Self::Promises(_)
            | Self::Labels(_)
            | Self::Registry
            | Self::CacheQuota(_)
            | Self::AdmissionCheck(_)
            | Self::JobType(_)
            | Self::JobTypes
            | Self::JobQueue(_)
            | Self::Cluster(_) => true,
        }
    }
}

/// Work by due time.
#[derive(Debug, Default)]
pub struct Queue {
    due: BTreeSet<(Millis, Work)>,
    at: BTreeMap<Work, Millis>,
    /// Work in flight. If it becomes due again, it waits.
    busy: BTreeSet<Work>,
    /// Consecutive failures.
    failures: BTreeMap<Work, u32>,
    /// When rate-limited work was last done.
    last: BTreeMap<Work, Millis>,
}

/// The minimum interval between two writes of rate-limited work.
const REST_MILLIS: u64 = 10_000;

/// The longest pause before work that has failed is done again.
pub const RETRY_MILLIS: u64 = 60_000;

impl Queue {
    /// Schedules work at `at`, unless it is already due earlier.
    pub fn add(&mut self, work: Work, at: Millis) {
        let rest = self.last.get(&work).map_or(Millis::default(), |last| *last + REST_MILLIS);
        let at = at.max(rest);
        match self.at.get(&work) {
            Some(before) if *before <= at => return,
            // Each round adds it again, which hastens nothing after a failure.
            Some(_) if work.is_repeated() && self.failures.contains_key(&work) => return,
            Some(before) => {
                self.due.remove(&(*before, work.clone()));
            }
            None => {}
        }
        self.due.insert((at, work.clone()));
        self.at.insert(work, at);
    }

    /// Takes due work.
    pub fn take(&mut self, now: Millis) -> Option<Work> {
        let next =
            self.due.iter().take_while(|(at, _)| *at <= now).find(|(_, work)| !self.busy.contains(work)).cloned()?;
        self.due.remove(&next);
        self.at.remove(&next.1);
        Some(next.1)
    }

    /// When the next work is due.
    pub fn next(&self) -> Option<Millis> {
        self.due.iter().find(|(_, work)| !self.busy.contains(work)).map(|(at, _)| *at)
    }

    /// Records that the work needs no writes, which resets its failures.
    pub fn rest(&mut self, work: &Work) {
        self.failures.remove(work);
    }

    /// Records that the work's writes are in flight.
    pub fn begin(&mut self, work: &Work) {
        self.busy.insert(work.clone());
    }

    /// Records that the work's writes have completed. If they failed, the work is done again, after at most `longest`
    /// milliseconds.
    pub fn end(&mut self, work: Work, succeeded: bool, now: Millis, longest: u64) {
        self.busy.remove(&work);
        if succeeded {
            self.failures.remove(&work);
            if work.rests() {
                self.last.insert(work.clone(), now);
                // Work that became due again in the meantime is delayed, too.
                if let Some(at) = self.at.remove(&work) {
                    self.due.remove(&(at, work.clone()));
                    self.add(work, at);
                }
            }
            return;
        }
        let failures = self.failures.entry(work.clone()).or_default();
        *failures = failures.saturating_add(1);
        let pause = 1000u64.saturating_mul(1 << (*failures - 1).min(20)).min(longest);
        if let Some(at) = self.at.remove(&work) {
            self.due.remove(&(at, work.clone()));
        }
        self.add(work, now + pause);
    }

    /// Forgets work about a deleted node.
    pub fn forget_node(&mut self, node: &str) {
        for work in [Work::Promises(node.to_owned()), Work::Labels(node.to_owned())] {
            self.last.remove(&work);
            self.failures.remove(&work);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Work {
        Work::Promises("n".into())
    }

    #[test]
    fn a_nodes_writes_rest_and_a_datasets_do_not() {
        let mut queue = Queue::default();
        let dataset = Work::Dataset(Key::new("a", "b"));
        for work in [node(), dataset.clone()] {
            queue.add(work.clone(), Millis(5));
            assert_eq!(queue.take(Millis(4)), None);
            assert_eq!(queue.take(Millis(5)), Some(work.clone()));
            queue.begin(&work);
            queue.add(work.clone(), Millis(6));
            assert_eq!(queue.take(Millis(100)), None, "it is under way");
            queue.end(work, true, Millis(7), RETRY_MILLIS);
        }
        assert_eq!(queue.take(Millis(8)), Some(dataset));
        assert_eq!(queue.take(Millis(7) + (REST_MILLIS - 1)), None);
        assert_eq!(queue.take(Millis(7) + REST_MILLIS), Some(node()));
    }

    #[test]
    fn the_earliest_time_counts_and_failures_wait_longer_each_time() {
        let mut queue = Queue::default();
        queue.add(node(), Millis(500));
        queue.add(node(), Millis(100));
        queue.add(node(), Millis(900));
        assert_eq!(queue.take(Millis(100)), Some(node()));
        assert_eq!(queue.take(Millis(u64::MAX)), None);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            queue.begin(&node());
            queue.end(node(), false, Millis::default(), RETRY_MILLIS);
            pauses.extend(queue.next().map(|at| at.0));
            queue.take(Millis(u64::MAX));
        }
        assert_eq!(pauses, [1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000, 60000]);
        // Work about a deleted object makes no writes and is forgotten.
        queue.rest(&node());
        assert!(queue.failures.is_empty());
    }

    #[test]
    fn work_that_rounds_repeat_waits_after_a_failure_all_the_same() {
        let mut queue = Queue::default();
        let work = Work::Abandoned(Key::new("a", "b"));
        queue.begin(&work);
        queue.end(work.clone(), false, Millis::default(), RETRY_MILLIS);
        queue.add(work.clone(), Millis(5));
        assert_eq!(queue.next(), Some(Millis(1000)));
        // After a success, nothing delays it.
        queue.take(Millis(1000));
        queue.begin(&work);
        queue.end(work.clone(), true, Millis(1000), RETRY_MILLIS);
        queue.add(work, Millis(1005));
        assert_eq!(queue.next(), Some(Millis(1005)));
    }

    // SEMANTICS: J16
    #[test]
    fn the_caller_sets_the_longest_pause() {
        let mut queue = Queue::default();
        let mut pause = None;
        for _ in 0..30 {
            queue.begin(&node());
            queue.end(node(), false, Millis::default(), 1_000_000);
            pause = queue.next();
            queue.take(Millis(u64::MAX));
        }
        assert_eq!(pause, Some(Millis(1_000_000)));
    }
}
