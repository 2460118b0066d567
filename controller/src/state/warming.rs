//! The jobs that are warming, over all datasets, and the slots for additional jobs.

use std::collections::{BTreeMap, BTreeSet};

use larder_api::names::ROLE_WARM;

use super::State;
use super::promises::mark;
use crate::datasets::slots::{Claimant, Needs, share_out};
use crate::objects::{Job, Key, by_uid};
use crate::time::Seconds;
use crate::work_queue::Work;

/// A job whose pod does not run counts for this long: its image may still be being pulled, but a pod that cannot start
/// must not block other datasets.
const START_SECONDS: i64 = 300;

impl State {
    /// The number of warming jobs of each dataset that have not ended, and whose pods run or may start soon.
    fn warming(&self, now: Seconds) -> BTreeMap<Key, u32> {
        let jobs = self.warming.iter().filter_map(|key| self.batch_jobs.get(key));
        let (young, old): (Vec<&Job>, Vec<&Job>) =
            jobs.partition(|job| now - Seconds(job.meta.created) < START_SECONDS);
        let uids: BTreeSet<Key> = old.iter().map(|job| by_uid(&job.role.uid)).collect();
        let pods = uids.iter().flat_map(|uid| self.pods.of(uid)).filter(|pod| pod.runs);
        let run: BTreeSet<(&String, &String)> = pods.map(|pod| (&pod.meta.key.namespace, &pod.job)).collect();
        let runs = |job: &&Job| run.contains(&(&job.meta.key.namespace, &job.meta.uid));
        let mut held = self.warming_begun.clone();
        for job in young.into_iter().chain(old.into_iter().filter(runs)) {
            if let Some(dataset) = self.key_of(&job.role.uid) {
                *held.entry(dataset.clone()).or_default() += 1;
            }
        }
        held
    }

    /// Gives the free slots, of `most` in all, to datasets that wait for them, in place of those that they were given
    /// before and have not taken. Returns these datasets.
    pub fn share_slots(&mut self, most: u32, now: Seconds) -> Vec<Key> {
        self.slots = self.free_slots(most, now);
        self.slots.keys().cloned().collect()
    }

    /// Takes the slots that a dataset was given.
    pub fn take_slots(&mut self, key: &Key) -> u32 {
        self.slots.remove(key).unwrap_or(0)
    }

    fn free_slots(&self, most: u32, now: Seconds) -> BTreeMap<Key, u32> {
        let held = self.warming(now);
        if held.values().sum::<u32>() >= most || self.slot_needs.values().all(Needs::are_met) {
            return BTreeMap::new();
        }
        let mut claimants: BTreeMap<Key, Claimant> =
            held.into_iter().map(|(key, held)| (key, Claimant { held, needs: Needs::default() })).collect();
        for (key, needs) in &self.slot_needs {
            claimants.entry(key.clone()).or_default().needs = *needs;
        }
        share_out(most, claimants, &self.turns)
    }

    /// Records the nodes of a dataset that wait for a slot after `started` of them have got one.
    pub fn needs_slots(&mut self, key: &Key, needs: Needs, started: u32) {
        if started > 0 {
            self.warming_begun.insert(key.clone(), started);
            self.turns.served(key);
        }
        let needs = needs.after(started);
        if needs == Needs::default() {
            self.slot_needs.remove(key);
        } else {
            self.slot_needs.insert(key.clone(), needs);
        }
    }

    /// Updates whether a job counts as warming. Any user can set labels, so a job counts only in the namespace of the
    /// Dataset whose uid it carries.
    pub(super) fn mark_warming(&mut self, key: &Key) {
        let warms = |job: &Job| {
            let own = self.key_of(&job.role.uid).is_some_and(|own| own.namespace == key.namespace);
            own && job.role.role == ROLE_WARM && job.end.is_none() && !job.meta.deleting
        };
        let warms = self.batch_jobs.get(key).is_some_and(warms);
        mark(&mut self.warming, key, warms);
    }

    /// Updates the jobs of a Dataset that has appeared or disappeared.
    pub(super) fn mark_all_jobs(&mut self, uid: &str, work: &mut Vec<Work>) {
        let jobs: Vec<Key> = self.batch_jobs.of(&by_uid(uid)).map(|job| job.meta.key.clone()).collect();
        for key in &jobs {
            self.mark_warming(key);
            self.mark_importing(key, work);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_shared_out_in_rounds_and_each_is_taken_once() {
        let (mut state, now) = (State::default(), Seconds(0));
        let [first, second, late] = ["first", "second", "late"].map(|name| Key::new(name, "bulk"));
        let needs = Needs { urgent: 4, ..Needs::default() };
        for key in [&first, &second] {
            state.needs_slots(key, needs, 0);
        }
        assert_eq!(state.share_slots(4, now), [first.clone(), second.clone()]);
        // One that comes later waits for the next round.
        state.needs_slots(&late, needs, 0);
        assert_eq!([&first, &first, &late].map(|key| state.take_slots(key)), [2, 0, 0]);
        state.needs_slots(&first, needs, 2);
        // The second has not taken its slots, and shares them now.
        assert_eq!(state.share_slots(4, now), [late.clone(), second.clone()]);
        assert_eq!([&first, &second, &late].map(|key| state.take_slots(key)), [0, 1, 1]);
        for key in [&second, &late] {
            state.needs_slots(key, needs, 1);
        }
        assert!(state.share_slots(4, now).is_empty(), "all are taken");
    }
}
