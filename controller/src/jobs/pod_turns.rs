//! The turns in which jobs create their pods: further jobs have theirs once writers have taken these pods, which bounds
//! the memory for pods that wait to be written.

use std::collections::BTreeMap;

use crate::write::{Change, Write};
use larder_kube::key::Key;
use larder_kube::kinds::Kind;

/// While this many pods wait for a writer, no further job of their namespaces has its turn.
const PODS_MAX: usize = 2048;

/// Jobs of a namespace have their turn while fewer of its pods wait than this many times the pods that may be added.
/// One namespace alone thus gets three quarters of [`PODS_MAX`], and the next one three quarters of the rest.
const SHARE: usize = 3;

/// The numbers of pods that wait for a writer. Pods of one namespace may wait for long, for example because a webhook
/// for them does not answer, and must not keep all others waiting.
#[derive(Debug, Default)]
pub struct PodTurns {
    all: usize,
    by_namespace: BTreeMap<String, usize>,
}

impl PodTurns {
    /// Counts the pods among the writes that wait for a writer, by job.
    pub fn new(ready: &BTreeMap<Key, Vec<Write>>) -> Self {
        let mut turns = Self::default();
        ready.iter().for_each(|(job, writes)| turns.add(job, writes));
        turns
    }

    /// Counts the pods among further writes of a job.
    pub fn add(&mut self, job: &Key, writes: &[Write]) {
        let is_new_pod = |write: &&Write| write.kind == Kind::Pod && matches!(write.change, Change::Make(_));
        let pods = writes.iter().filter(is_new_pod).count();
        self.all += pods;
        *self.by_namespace.entry(job.namespace.clone()).or_default() += pods;
    }

    /// True if it is the turn of a job of this namespace. It always is while none of the namespace's pods wait, so that
    /// many namespaces whose pods wait do not keep it waiting either.
    pub fn is_turn_of(&self, namespace: &str) -> bool {
        let own = self.by_namespace.get(namespace).copied().unwrap_or(0);
        own == 0 || own < SHARE * PODS_MAX.saturating_sub(self.all)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn writes(pods: usize) -> Vec<Write> {
        let pod = |at: usize| Write::new(Kind::Pod, "", &at.to_string(), Change::Make(json!({})));
        let other = Write::new(Kind::Pod, "", "other", Change::Delete(String::new()));
        (0..pods).map(pod).chain([other]).collect()
    }

    // SEMANTICS: J16
    #[test]
    fn pods_of_one_namespace_that_wait_leave_turns_to_others() {
        let mut turns = PodTurns::new(&BTreeMap::from([(Key::new("hangs", "one"), writes(1_535))]));
        assert!(turns.is_turn_of("hangs"));
        turns.add(&Key::new("hangs", "two"), &writes(1));
        assert!(!turns.is_turn_of("hangs") && turns.is_turn_of("other"));
        turns.add(&Key::new("other", "one"), &writes(512));
        assert!(!turns.is_turn_of("other") && turns.is_turn_of("third"));
    }
}
