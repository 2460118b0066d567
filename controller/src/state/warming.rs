//! The number of jobs that are warming, over all datasets.

use std::collections::BTreeSet;

use larder_api::names::ROLE_WARM;

use super::State;
use super::promises::mark;
use crate::objects::{Job, Key, by_uid};
use crate::time::Seconds;

/// A job whose pod does not run counts for this long: its image may still be being pulled, but a pod that cannot start
/// must not block other datasets.
const START_SECONDS: i64 = 300;

impl State {
    /// The number of warming jobs that have not ended, and whose pods run or may start soon.
    pub fn warming(&self, now: Seconds) -> u32 {
        let jobs = self.warming.iter().filter_map(|key| self.batch_jobs.get(key));
        let (young, old): (Vec<&Job>, Vec<&Job>) =
            jobs.partition(|job| now - Seconds(job.meta.created) < START_SECONDS);
        let uids: BTreeSet<Key> = old.iter().map(|job| by_uid(&job.role.uid)).collect();
        let pods = uids.iter().flat_map(|uid| self.pods.of(uid)).filter(|pod| pod.runs);
        let run: BTreeSet<(&String, &String)> = pods.map(|pod| (&pod.meta.key.namespace, &pod.job)).collect();
        let runs = |job: &&&Job| run.contains(&(&job.meta.key.namespace, &job.meta.key.name));
        (young.len() + old.iter().filter(runs).count()) as u32
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

    /// Updates the warming jobs of a Dataset that has appeared or disappeared.
    pub(super) fn mark_all_warming(&mut self, uid: &str) {
        let jobs: Vec<Key> = self.batch_jobs.of(&by_uid(uid)).map(|job| job.meta.key.clone()).collect();
        jobs.iter().for_each(|key| self.mark_warming(key));
    }
}
