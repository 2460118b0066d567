//! The turns in which jobs create their pods, which bound the memory for pods that wait for a writer or are being
//! written. Such pods are texts. Those of all jobs have 16 MiB at most, and one pod more for each namespace.

use std::collections::BTreeMap;

use crate::jobs::job_state::JobState;
use crate::write::{Change, Write};
use larder_kube::key::Key;
use larder_kube::kinds::Kind;

/// A pod has a weight of 1 for every so many bytes of its text, rounded up. Most pods have fewer.
const BYTES: usize = 8 << 10;

/// The weight that all pods may have that are not written yet.
const MOST: usize = 2048;

/// The weight that the pods of one turn of a job may have. Its other pods follow in later turns.
const TURN: usize = 256;

/// The pods of a namespace may weigh up to this many times as much as is left for all others. One namespace alone thus
/// gets three quarters of [`MOST`], and the next one three quarters of the rest.
const SHARE: usize = 3;

/// The weight of the pods that are not written yet. Pods of one namespace may wait for long, for example because a
/// webhook for them does not answer, and must not keep all others waiting.
#[derive(Debug, Default)]
pub struct PodTurns {
    all: usize,
    by_namespace: BTreeMap<String, usize>,
}

impl PodTurns {
    /// Counts the pods among the writes that wait for a writer, by job, and among those in flight.
    pub fn new(ready: &BTreeMap<Key, Vec<Write>>, job_states: &BTreeMap<Key, JobState>) -> Self {
        let mut turns = Self::default();
        for (job, writes) in ready {
            turns.add(&job.namespace, weight(writes));
        }
        for (job, job_state) in job_states {
            if let Some(pending) = &job_state.pending
                && !ready.contains_key(job)
            {
                turns.add(&job.namespace, pending.pod_weight);
            }
        }
        turns
    }

    /// Counts further pods of a namespace.
    pub fn add(&mut self, namespace: &str, weight: usize) {
        self.all += weight;
        *self.by_namespace.entry(namespace.to_owned()).or_default() += weight;
    }

    /// The weight that is left for the pods of a job of this namespace; 0 if it is not its turn. The last of these pods
    /// may exceed it. While none of the namespace's pods wait, it may create one, so that many namespaces whose pods
    /// wait do not keep it waiting either.
    pub fn room(&self, namespace: &str) -> usize {
        let own = self.by_namespace.get(namespace).copied().unwrap_or(0);
        let free = MOST.saturating_sub(self.all);
        let room = (SHARE * free).saturating_sub(own) / (SHARE + 1);
        room.clamp(usize::from(own == 0), TURN)
    }
}

/// The weight of the pods that are created by these writes.
pub fn weight(writes: &[Write]) -> usize {
    let of_write = |write: &Write| match &write.change {
        Change::Make(text) if write.kind == Kind::Pod => pod_weight(text),
        _ => 0,
    };
    writes.iter().map(of_write).sum()
}

/// The weight of a pod with this text.
pub fn pod_weight(text: &str) -> usize {
    text.len().div_ceil(BYTES).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: J16
    #[test]
    fn pods_of_one_namespace_that_wait_leave_turns_to_others() {
        let mut turns = PodTurns::default();
        turns.add("hangs", 1_535);
        assert_eq!(turns.room("hangs"), 1);
        turns.add("hangs", 1);
        assert_eq!((turns.room("hangs"), turns.room("other")), (0, TURN));
        turns.add("other", 320);
        assert_eq!((turns.room("other"), turns.room("third")), (64, 144));
        turns.add("other", 192);
        assert_eq!((turns.room("other"), turns.room("third")), (0, 1), "one pod");
    }

    #[test]
    fn pods_that_are_created_weigh_as_much_as_their_texts() {
        let pod = |bytes: usize| Write::new(Kind::Pod, "", "pod", Change::Make("x".repeat(bytes).into()));
        let others = [
            Write::new(Kind::Pod, "", "gone", Change::Delete(String::new())),
            Write::new(Kind::ConfigMap, "", "files", Change::Make("{}".into())),
        ];
        assert_eq!(weight(&others), 0);
        assert_eq!(weight(&[pod(2), pod(BYTES), pod(BYTES + 1)]), 4);
    }
}
