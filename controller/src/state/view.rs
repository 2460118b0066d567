//! Views of the state: the inputs of a decision, the datasets of a label, and orphaned objects.

use std::collections::BTreeMap;

use larder_api::SnapshotCache;
use larder_api::names::{DatasetKey, ROLE_IMPORT, ROLE_SYNC, ROLE_WARM};
use larder_dataset::Placement;

use super::State;
use super::promises::beside;
use crate::datasets::input::{DatasetView, NodeFacts};
use crate::datasets::node_labels::Labelled;
use crate::objects::{Claim, DatasetObject, Job, Key, Meta, Node, Pod, Volume, by_uid};
use crate::time::Seconds;
use larder_kube::kinds::Kind;

impl State {
    /// The datasets whose pods read these bytes, if their sizes are known.
    pub fn labelled(&self, cached: &SnapshotCache) -> Vec<Labelled> {
        let keys = self.by_snapshot.get(&cached.snapshot).into_iter().flatten();
        keys.filter_map(|key| {
            let object = self.datasets.get(key).filter(|object| object.cache_owner() == cached.owner)?;
            let label = DatasetKey::new(&key.namespace, &key.name).node_label().ok()?;
            let placement = object.dataset.spec.cache.placement.as_deref().and_then(|text| text.parse().ok());
            let is_shared = !matches!(placement, None | Some(Placement::Local));
            Some(Labelled { label, bytes: object.dataset.status.as_ref()?.bytes?, is_shared })
        })
        .collect()
    }

    /// True if a node label belongs to an unreadable Dataset.
    pub fn is_label_of_unreadable(&self, label: &str) -> bool {
        let dataset = DatasetKey::of_node_label(label);
        dataset.is_some_and(|dataset| self.unreadable.contains_key(&Key::new(&dataset.namespace, &dataset.name)))
    }

    /// The inputs of a decision about a dataset.
    pub fn dataset_view<'a>(&'a self, key: &'a Key, now: Seconds, warming_slots: u32) -> DatasetView<'a> {
        let dataset = self.datasets.get(key);
        let uid = dataset.map(|dataset| by_uid(&dataset.meta.uid));
        // Any user can set the label, so only jobs in the dataset's namespace count.
        let jobs = uid.iter().flat_map(|uid| self.batch_jobs.of(uid));
        let jobs: Vec<&Job> = jobs.filter(|job| job.meta.key.namespace == key.namespace).collect();
        let of_jobs = |pod: &&Pod| {
            pod.role.as_ref().is_some_and(|role| [ROLE_IMPORT, ROLE_SYNC, ROLE_WARM].contains(&role.role.as_str()))
                && pod.meta.key.namespace == key.namespace
        };
        let job_pods = uid.iter().flat_map(|uid| self.pods.of(uid)).filter(of_jobs).collect();
        let own = uid.iter().flat_map(|uid| self.claims.of(uid));
        let mut claims: BTreeMap<&Key, &Claim> = own.map(|claim| (&claim.meta.key, claim)).collect();
        claims.extend(self.claims.of(key).map(|claim| (&claim.meta.key, claim)));
        claims.extend(self.claims.get(key).filter(|claim| claim.wants.is_none()).map(|claim| (&claim.meta.key, claim)));
        let volumes: Vec<&Volume> = uid.iter().flat_map(|uid| self.volumes.of(uid)).collect();
        // All are sorted by name: a thousand lookups per decision would take longer than the decision itself.
        let mut caches = self.caches.iter().peekable();
        let mut promised = self.promised.iter().peekable();
        let owner = dataset.map_or("", DatasetObject::cache_owner);
        let facts = |node: &'a Node| {
            let name = &node.meta.key.name;
            let promised = beside(&mut promised, |(there, _)| there.cmp(&name));
            NodeFacts {
                node,
                cache: beside(&mut caches, |cache| cache.meta.key.name.cmp(name)),
                promised: promised.map_or(&[], |(_, promised)| promised.as_slice()),
                owner,
            }
        };
        DatasetView {
            now,
            settings: &self.settings,
            key,
            dataset,
            nodes: self.nodes.iter().map(facts).collect(),
            jobs,
            job_pods,
            users: dataset.map_or_else(Vec::new, |dataset| self.users(dataset, &volumes)),
            claims: claims.into_values().collect(),
            volumes,
            deployments: self.deployments.of(key).collect(),
            warm_requests: self.warm_requests(key),
            is_left_out: self.left_out.contains(key),
            warm_requests_unknown: self.kueue.presence.is_unknown() || self.jobs.presence.is_unknown(),
            warming_slots,
            quota: dataset.and_then(|dataset| self.quota_view(dataset)),
            status_age: self.status_written.get(key).map_or(i64::MAX, |written| now - *written),
            emitted: self.emitted(key),
            refused: self.refused.get(key).unwrap_or(&self.nothing_refused),
        }
    }

    /// The pods that have not ended, and that mount a claim of the dataset or name it in an inline volume through which
    /// they may mount it. Any user can write the name of any dataset into a pod. If the name grants no access, it must
    /// not keep the dataset in use either.
    fn users(&self, dataset: &DatasetObject, volumes: &[&Volume]) -> Vec<&Pod> {
        let (key, spec) = (&dataset.meta.key, &dataset.dataset.spec);
        let mounts =
            |pod: &Pod, claim: &Key| pod.meta.key.namespace == claim.namespace && pod.claims.contains(&claim.name);
        let names = |pod: &Pod| {
            spec.origin.secret_ref.is_none()
                && spec.is_granted(&key.namespace, &pod.meta.key.namespace)
                && pod.inline_keys().any(|named| named == *key)
        };
        let bound = volumes.iter().filter(|volume| !volume.claim_uid.is_empty()).map(|volume| &volume.claim);
        let mut users: BTreeMap<&Key, &Pod> = BTreeMap::new();
        for claim in bound.chain([key]) {
            let pods = self.pods.of(claim).filter(|pod| pod.role.is_none() && !pod.ended);
            let pods = pods.filter(|pod| mounts(pod, claim) || claim == key && names(pod));
            users.extend(pods.map(|pod| (&pod.meta.key, pod)));
        }
        users.into_values().collect()
    }

    /// The remaining objects of a deleted Dataset: jobs, claims and volumes.
    pub fn orphans(&self, uid: &str) -> Vec<(Kind, Key, String)> {
        if !self.is_complete() || !self.is_gone(uid) {
            return Vec::new();
        }
        let of = by_uid(uid);
        let mut found = Vec::new();
        let mut add = |kind, meta: &Meta| {
            if !meta.deleting {
                found.push((kind, meta.key.clone(), meta.uid.clone()));
            }
        };
        self.batch_jobs.of(&of).for_each(|job| add(Kind::Job, &job.meta));
        self.claims.of(&of).for_each(|claim| add(Kind::Claim, &claim.meta));
        self.volumes.of(&of).for_each(|volume| add(Kind::Volume, &volume.meta));
        found
    }
}
