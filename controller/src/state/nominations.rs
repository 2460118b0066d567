//! The Workloads for which this controller nominates clusters of MultiKueue.

use std::collections::{BTreeMap, BTreeSet};

use larder_api::names::HERE;
use larder_kube::key::Key;
use larder_kube::kinds::{Kind, KueueKind};
use serde_json::json;

use super::State;
use crate::clusters::choice::{Ask, Candidate, choose};
use crate::clusters::nominate::{due, lacks, more_at, nominate};
use crate::jobs::cluster_view::dataset_key;
use crate::jobs::queue::Role;
use crate::kueue::objects::Config;
use crate::kueue::workload::{PodSet, Workload};
use crate::time::{Earliest, Seconds};
use crate::work_queue::Work;
use crate::write::{Change, Write};

/// The field manager as which Kueue applies the status of Workloads, the nominations included.
const KUEUE_ADMISSION: &str = "kueue-admission";

impl State {
    /// Decides which clusters are nominated for which Workloads, and schedules the writes. Returns when that changes if
    /// nothing else does.
    pub(super) fn nominate_clusters(&mut self, now: Seconds, work: &mut Vec<Work>) -> Option<Seconds> {
        let mut again = Earliest::default();
        let mut waiting: Vec<(&Workload, &Config, Seconds)> = self
            .kueue
            .workloads
            .iter()
            .filter_map(|workload| self.kueue.dispatched(workload).map(|(config, since)| (workload, config, since)))
            .collect();
        waiting.sort_by_key(|(workload, _, since)| (*since, &workload.meta.key));
        let is_known = |name: &&String| *name != HERE && self.clusters.objects.get(&Key::cluster(name)).is_some();
        let mut candidates = None;
        let mut nominations = BTreeMap::new();
        for (workload, config, since) in waiting {
            let known: Vec<&String> = config.clusters.iter().filter(is_known).collect();
            let due = due(now - since, known.len());
            again.extend(due.map(|due| more_at(since, due)));
            if !lacks(&config.clusters, &workload.nominated, due) {
                continue;
            }
            let candidates = candidates.get_or_insert_with(|| self.candidates(now));
            let ranked = self.ranked(workload, &known, candidates, now);
            let clusters = nominate(&config.clusters, &ranked, &workload.nominated, due);
            nominations.insert(workload.meta.key.clone(), clusters);
        }
        self.clusters.nominations = nominations;
        work.extend(self.clusters.nominations.keys().cloned().map(Work::Nomination));
        again.at()
    }

    /// The known clusters that are not nominated for a Workload, the best first. The room in the first of them is taken.
    fn ranked(
        &self,
        workload: &Workload,
        known: &[&String],
        candidates: &mut [Candidate],
        now: Seconds,
    ) -> Vec<String> {
        let owner = workload.of_job.as_ref().and_then(|of_job| of_job.owner.as_ref());
        let object = owner.and_then(|owner| {
            let object = self.jobs.jobs.get(&Key::new(&workload.meta.key.namespace, &owner.name))?;
            (object.meta.uid == owner.uid).then_some(object)
        });
        let roles = match object.and_then(|object| self.roles(object)) {
            Some(roles) => roles.to_vec(),
            None => workload.pod_sets.iter().map(role).collect(),
        };
        let datasets: BTreeSet<Key> = match object.and_then(|object| object.job.as_ref().ok()) {
            Some(job) => job.datasets.iter().map(|mount| dataset_key(&mount.dataset)).collect(),
            None => workload.pod_sets.iter().flat_map(|set| self.datasets_of(workload, set)).collect(),
        };
        let view = self.cluster_view(now);
        let datasets: Vec<(String, u64)> = datasets.iter().map(|key| (key.to_string(), view.bytes(key))).collect();
        let is_new = |candidate: &&mut Candidate| {
            known.contains(&&candidate.name) && !workload.nominated.contains(&candidate.name)
        };
        let (terms, _) = choose(Ask { roles: &roles, datasets: &datasets }, candidates.iter_mut().filter(is_new));
        terms.into_iter().map(|term| term.cluster).collect()
    }

    /// The write that nominates clusters for a Workload, if it is due.
    pub fn nomination(&self, key: &Key) -> Option<Write> {
        let clusters = self.clusters.nominations.get(key)?;
        let workload = self.kueue.workloads.get(key).filter(|workload| self.kueue.dispatched(workload).is_some())?;
        if workload.nominated == *clusters {
            return None;
        }
        // Kueue clears the nominations with an apply that omits them, which removes a field only if no other manager owns
        // it. So they are applied as Kueue, which would lose all other fields of the status if this apply omitted them.
        let mut status = workload.status.as_deref()?.clone();
        status["nominatedClusterNames"] = json!(clusters);
        // If the Workload has changed meanwhile, the write fails: it may have lost its quota, and the nominations with it.
        let metadata = json!({"resourceVersion": workload.meta.version.to_string()});
        let change = Change::ApplyStatusAs(KUEUE_ADMISSION, json!({"metadata": metadata, "status": status}));
        Some(Write::new(Kind::Kueue(KueueKind::Workload, self.kueue.version), &key.namespace, &key.name, change))
    }
}

/// The pods of a pod set, as a role of a job.
fn role(set: &PodSet) -> Role {
    let count = u32::try_from(set.count).unwrap_or(u32::MAX);
    Role { min: count, wanted: count, max: count, requests: set.requests.clone(), ..Role::default() }
}

#[cfg(test)]
mod tests;
