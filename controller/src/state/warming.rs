//! How many jobs warm at the moment, of all datasets together.

use std::collections::BTreeSet;

use larder_api::names::ROLE_WARM;

use super::State;
use super::promises::mark;
use crate::objects::{Job, Key, by_uid};

/// A job whose pod does not run counts for this long: an image may have to be fetched, but what cannot start at all must
/// not keep other datasets waiting.
const START_SECONDS: i64 = 300;

impl State {
    /// Warming jobs that have not ended and whose pods run, or may soon.
    pub fn warming(&self, now: i64) -> u32 {
        let jobs = self.warming.iter().filter_map(|key| self.batch_jobs.get(key));
        let (young, old): (Vec<&Job>, Vec<&Job>) = jobs.partition(|job| now - job.meta.created < START_SECONDS);
        let uids: BTreeSet<Key> = old.iter().map(|job| by_uid(&job.role.uid)).collect();
        let pods = uids.iter().flat_map(|uid| self.pods.of(uid)).filter(|pod| pod.runs);
        let run: BTreeSet<(&String, &String)> = pods.map(|pod| (&pod.meta.key.namespace, &pod.job)).collect();
        let runs = |job: &&&Job| run.contains(&(&job.meta.key.namespace, &job.meta.key.name));
        (young.len() + old.iter().filter(runs).count()) as u32
    }

    /// Labels are anybody's: a job counts if it is in the namespace of the Dataset whose uid it has.
    pub(super) fn mark_warming(&mut self, key: &Key) {
        let warms = |job: &Job| {
            let own = self.key_of(&job.role.uid).is_some_and(|own| own.namespace == key.namespace);
            own && job.role.role == ROLE_WARM && job.end.is_none() && !job.meta.deleting
        };
        let warms = self.batch_jobs.get(key).is_some_and(warms);
        mark(&mut self.warming, key, warms);
    }

    /// A Dataset is known now, or no more.
    pub(super) fn mark_all_warming(&mut self, uid: &str) {
        let jobs: Vec<Key> = self.batch_jobs.of(&by_uid(uid)).map(|job| job.meta.key.clone()).collect();
        jobs.iter().for_each(|key| self.mark_warming(key));
    }
}
