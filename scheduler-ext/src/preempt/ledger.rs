//! The pods that earlier answers may have preempted.
//!
//! An answer names victims on many nodes. A moment later, the scheduler preempts the victims of one node and nominates
//! the pod to it. Until the index shows which node it was, the largest number of victims that any of these nodes takes
//! from a role counts as gone, so two consecutive answers do not take the same worker twice.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Case, Chosen};
use crate::index::facts::{Name, PodFacts};
use crate::index::state::Snapshot;

/// How long the scheduler may still act on an answer. It does so within a second, or repeats the request.
const STANDS: Duration = Duration::from_secs(10);

/// The answers of the last seconds.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Vec<Entry>>);

/// Exclusive access for one request: from counting until its answer is noted, no other request counts.
#[derive(Debug)]
pub struct Turn<'l>(MutexGuard<'l, Vec<Entry>>);

#[derive(Debug)]
struct Entry {
    /// The pod of the request.
    uid: String,
    at: Instant,
    /// The pod's nominated node before the answer. It does not tell how the scheduler acts on this answer.
    before: Option<Name>,
    /// The nodes with the pods to preempt on each.
    nodes: Vec<(Name, Vec<Name>)>,
}

impl Ledger {
    /// Waits for the earlier requests to preempt.
    pub fn turn(&self) -> Turn<'_> {
        Turn(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Turn<'_> {
    /// How many pods of a job's role earlier answers may have preempted that the snapshot still shows as live. Excludes
    /// answers for the pod `uid`, which its new answer replaces.
    pub fn spoken_for(&mut self, uid: &str, job: &str, role: &str, snapshot: &Snapshot, now: Instant) -> u32 {
        let entries = &mut *self.0;
        // A pod that has a node does not preempt any more.
        entries.retain(|entry| now.duration_since(entry.at) < STANDS && snapshot.pods.get(&*entry.uid).is_none());
        let is_of_role = |uid: &&Name| {
            let seat = alive(snapshot, uid).and_then(|pod| pod.seat.as_ref());
            seat.is_some_and(|seat| (&*seat.job, &*seat.role) == (job, role))
        };
        let most = |entry: &Entry| {
            let chosen = snapshot.nominated.get(&*entry.uid).filter(|node| entry.before.as_ref() != Some(node));
            // A nominated node that the answer did not contain is no evidence either.
            let chosen = chosen.filter(|node| entry.nodes.iter().any(|(name, _)| name == *node));
            let may_end = entry.nodes.iter().filter(|(name, _)| chosen.is_none_or(|chosen| chosen == name));
            may_end.map(|(_, uids)| uids.iter().filter(is_of_role).count()).max()
        };
        let others = entries.iter().filter(|entry| entry.uid != uid);
        others.filter_map(most).sum::<usize>().try_into().unwrap_or(u32::MAX)
    }

    /// Records the answer to a case.
    pub fn note(&mut self, case: &Case, chosen: &[Chosen<'_>], snapshot: &Snapshot, now: Instant) {
        let entries = &mut *self.0;
        entries.retain(|entry| entry.uid != case.uid && now.duration_since(entry.at) < STANDS);
        if chosen.is_empty() {
            return;
        }
        let ends = |chosen: &Chosen<'_>| (chosen.node.into(), chosen.uids.iter().map(|uid| Name::from(*uid)).collect());
        let before = snapshot.nominated.get(&*case.uid).cloned();
        entries.push(Entry { uid: case.uid.clone(), at: now, before, nodes: chosen.iter().map(ends).collect() });
    }
}

fn alive<'s>(snapshot: &'s Snapshot, uid: &str) -> Option<&'s PodFacts> {
    snapshot.pods.get(uid).map(|pod| &**pod).filter(|pod| !pod.leaving)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::index::facts::Seat;

    /// A snapshot of workers, of which the given ones are terminating.
    fn snapshot(leaving: &[&str]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for uid in ["w1", "w2", "w3"] {
            let seat = Seat { job: "a/train".into(), uid: "j".into(), role: "worker".into(), index: 1 };
            let pod =
                PodFacts { uid: uid.into(), seat: Some(seat), leaving: leaving.contains(&uid), ..PodFacts::default() };
            snapshot.pods.insert(uid.into(), Arc::new(pod));
        }
        snapshot
    }

    /// The same snapshot, with the pod `p` nominated to a node.
    fn nominated(leaving: &[&str], node: &str) -> Snapshot {
        let mut snapshot = snapshot(leaving);
        snapshot.nominated.insert("p".into(), node.into());
        snapshot
    }

    /// Records an answer for a pod: the workers to preempt on each node.
    fn note(ledger: &Ledger, pod: &str, nodes: &[(&str, &[&str])], snapshot: &Snapshot, now: Instant) {
        let chosen = nodes.iter().map(|(node, uids)| Chosen { node, uids: uids.to_vec(), budget_violations: 0 });
        let case = Case { uid: pod.into(), ..Case::default() };
        ledger.turn().note(&case, &chosen.collect::<Vec<_>>(), snapshot, now);
    }

    /// How many workers the answers for pods other than `pod` may have preempted.
    fn spoken_for(ledger: &Ledger, pod: &str, snapshot: &Snapshot, now: Instant) -> u32 {
        ledger.turn().spoken_for(pod, "a/train", "worker", snapshot, now)
    }

    // SEMANTICS: X5
    #[test]
    fn until_it_is_known_which_node_was_chosen_the_most_counts() {
        let (ledger, now, all) = (Ledger::default(), Instant::now(), snapshot(&[]));
        note(&ledger, "p", &[("n1", &["w1"]), ("n2", &["w2", "w3"])], &all, now);
        assert_eq!(spoken_for(&ledger, "q", &all, now), 2);
        assert_eq!(ledger.turn().spoken_for("q", "a/train", "chief", &all, now), 0);
        // One of two pods that are preempted together.
        assert_eq!(spoken_for(&ledger, "q", &snapshot(&["w2"]), now), 1);
        // Another answer may have preempted w1, so its end does not tell where this pod goes.
        assert_eq!(spoken_for(&ledger, "q", &snapshot(&["w1"]), now), 2);
        assert_eq!(spoken_for(&ledger, "q", &nominated(&[], "n1"), now), 1);
        assert_eq!(spoken_for(&ledger, "q", &nominated(&["w1"], "n1"), now), 0);
        assert_eq!(spoken_for(&ledger, "q", &nominated(&["w1"], "n9"), now), 2);
    }

    #[test]
    fn a_nomination_from_before_the_answer_says_nothing_about_it() {
        let (ledger, now, before) = (Ledger::default(), Instant::now(), nominated(&[], "n1"));
        note(&ledger, "p", &[("n1", &["w1"]), ("n2", &["w2", "w3"])], &before, now);
        assert_eq!(spoken_for(&ledger, "q", &before, now), 2);
        assert_eq!(spoken_for(&ledger, "q", &nominated(&["w2"], "n2"), now), 1);
    }

    #[test]
    fn a_pod_that_has_a_node_ends_nobody_any_more() {
        let (ledger, now, mut all) = (Ledger::default(), Instant::now(), snapshot(&[]));
        note(&ledger, "p", &[("n1", &["w1"])], &all, now);
        assert_eq!(spoken_for(&ledger, "q", &all, now), 1);
        all.pods.insert("p".into(), Arc::default());
        assert_eq!(spoken_for(&ledger, "q", &all, now), 0);
    }

    #[test]
    fn the_answer_to_a_pod_takes_the_place_of_the_one_before_and_none_stands_for_ever() {
        let (ledger, now, all) = (Ledger::default(), Instant::now(), snapshot(&[]));
        note(&ledger, "p", &[("n1", &["w1"])], &all, now);
        note(&ledger, "p", &[("n1", &["w2", "w3"])], &all, now);
        assert_eq!(spoken_for(&ledger, "p", &all, now), 0);
        assert_eq!(spoken_for(&ledger, "q", &all, now), 2);
        assert_eq!(spoken_for(&ledger, "q", &all, now + STANDS), 0);
    }
}
