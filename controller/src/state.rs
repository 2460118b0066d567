//! The controller's view of the cluster, and the work that each event causes.
//!
//! Invariant: all of it can be read from the API again, except for decisions that are not written yet and the times of
//! the last writes.

use std::collections::{BTreeMap, BTreeSet};

use larder_api::{CleanedSnapshot, PromisedDataset};

use crate::clusters::known::Clusters;
use crate::datasets::input::{Refusals, Settings};
use crate::datasets::slots::{Needs, Turns};
use crate::jobs::index::Jobs;
use crate::kueue::known::Kueue;
use crate::objects::{
    CacheObject, Claim, ConfigMap, DatasetObject, Deployment, Job, Key, Node, Pod, QuotaObject, SettingsObject, Volume,
    by_uid,
};
use crate::optional_api::Presence;
use crate::time::Seconds;
use crate::work_queue::Work;
use larder_kube::kinds::{Kind, Part};
use larder_kube::store::Store;
use promises::mark;
use quota_use::QuotaUse;

mod affected;
mod changes;
mod cleaning;
mod clusters;
mod deletions;
mod events_sent;
mod job_pods;
mod jobs;
mod moved;
mod news;
mod nominations;
mod promises;
mod quota_use;
mod quotas;
mod view;
mod warming;
pub mod watched;
mod workloads;

#[derive(Debug, Default)]
pub struct State {
    pub datasets: Store<DatasetObject>,
    /// The uids of unreadable Datasets that were never readable. Objects that belong to them are kept.
    pub unreadable: BTreeMap<Key, String>,
    /// The NodeCaches.
    pub caches: Store<CacheObject>,
    pub nodes: Store<Node>,
    pods: Store<Pod>,
    batch_jobs: Store<Job>,
    volumes: Store<Volume>,
    claims: Store<Claim>,
    deployments: Store<Deployment>,
    pub config_maps: Store<ConfigMap>,
    pub larder_settings: Store<SettingsObject>,
    cache_quotas: Store<QuotaObject>,
    quota_use: QuotaUse,
    listed: BTreeSet<Kind>,
    /// The latest resource version that the watch of a kind has reported.
    seen: BTreeMap<Kind, u64>,
    /// The promises that this process has decided, by Dataset and node.
    decided: BTreeMap<String, BTreeMap<String, Vec<PromisedDataset>>>,
    /// The Datasets of [`Self::decided`], by node.
    decided_on: BTreeMap<String, BTreeSet<String>>,
    /// All promises of a node: decided ones, and written ones that were not decided again.
    promised: BTreeMap<String, Vec<PromisedDataset>>,
    /// The bytes that this process has decided to drop, by Dataset and node.
    cleaned: BTreeMap<String, BTreeMap<String, Vec<CleanedSnapshot>>>,
    /// The datasets whose pods read a snapshot.
    by_snapshot: BTreeMap<String, BTreeSet<Key>>,
    /// The warming jobs of known Datasets.
    warming: BTreeSet<Key>,
    ready: BTreeSet<Key>,
    /// The datasets that do not have enough room.
    pub starved: BTreeSet<Key>,
    /// The nodes of datasets that wait for slots to warm.
    pub slot_needs: BTreeMap<Key, Needs>,
    /// The slots that datasets were given and have not taken yet.
    slots: BTreeMap<Key, u32>,
    /// The warming jobs of datasets whose creation is in flight.
    pub warming_begun: BTreeMap<Key, u32>,
    /// Which datasets got slots last.
    pub turns: Turns,
    /// The datasets whose bytes are being dropped.
    pub cleaning: BTreeSet<Key>,
    /// The datasets that do not fit into the ConfigMap of inline volumes.
    pub left_out: BTreeSet<Key>,
    /// The names of the Events that were written about a dataset.
    emitted: BTreeMap<Key, BTreeSet<String>>,
    none_emitted: BTreeSet<String>,
    /// The rejected ones of the last writes about a dataset.
    pub refused: BTreeMap<Key, Refusals>,
    nothing_refused: Refusals,
    /// When the status of a dataset was last written.
    pub status_written: BTreeMap<Key, Seconds>,
    /// The administrator's settings.
    pub settings: Settings,
    pub kueue: Kueue,
    pub jobs: Jobs,
    pub clusters: Clusters,
}

impl State {
    /// True once all kinds have been listed. Before that, a missing object may merely be unknown.
    pub fn is_complete(&self) -> bool {
        self.listed.len() == Kind::WATCHED.len()
            && [Part::Kueue, Part::Jobs, Part::Gangs, Part::Clusters]
                .iter()
                .all(|part| self.presence(*part).is_settled())
    }

    fn presence(&self, part: Part) -> &Presence {
        match part {
            Part::Kueue => &self.kueue.presence,
            Part::Jobs => &self.jobs.presence,
            Part::Gangs => &self.jobs.gangs,
            Part::Clusters => &self.clusters.presence,
        }
    }

    /// True if the object is known to exist.
    pub fn has(&self, kind: Kind, key: &Key) -> bool {
        self.meta(kind, key).is_some()
    }

    fn everything(&mut self, work: &mut Vec<Work>) {
        work.extend(self.datasets.keys().into_iter().map(Work::Dataset));
        self.everything_on_nodes(work);
        for claim in self.claims.iter() {
            work.extend(claim.wanted().map(Work::Dataset));
        }
        let roles = self.batch_jobs.iter().map(|job| &job.role).chain(self.volumes.iter().map(|volume| &volume.role));
        let roles = roles.chain(self.claims.iter().filter_map(|claim| claim.role.as_ref()));
        let uids: BTreeSet<&String> = roles.map(|role| &role.uid).collect();
        work.extend(uids.into_iter().filter(|uid| self.is_gone(uid)).cloned().map(Work::Orphans));
        work.push(Work::Registry);
        self.everything_of_kueue(work);
        self.everything_of_jobs(work);
    }

    fn everything_on_nodes(&mut self, work: &mut Vec<Work>) {
        // Only now is it known which promises belong to no Dataset.
        for key in self.caches.keys() {
            self.sum_up(&key.name);
        }
        self.quota_use_changed(work);
        for key in self.nodes.keys() {
            work.push(Work::Promises(key.name.clone()));
            work.push(Work::Labels(key.name));
        }
    }

    /// True if the Dataset with this uid is known not to exist.
    fn is_gone(&self, uid: &str) -> bool {
        self.key_of(uid).is_none() && !self.unreadable.values().any(|there| there == uid)
    }

    /// The name of the Dataset with this uid.
    pub fn key_of(&self, uid: &str) -> Option<&Key> {
        self.datasets.of(&by_uid(uid)).next().map(|dataset| &dataset.meta.key)
    }

    /// Records the promises that a Dataset should have, and the bytes that it should drop.
    pub fn decide(
        &mut self,
        uid: &str,
        promises: BTreeMap<String, Vec<PromisedDataset>>,
        clean: BTreeMap<String, Vec<CleanedSnapshot>>,
        work: &mut Vec<Work>,
    ) {
        self.ask_to_clean(uid, clean, work);
        let before = self.decided.get(uid);
        if before == Some(&promises) {
            return;
        }
        let mut nodes: BTreeSet<String> = promises.keys().cloned().collect();
        nodes.extend(self.caches.of(&by_uid(uid)).map(|cache| cache.meta.key.name.clone()));
        nodes.extend(before.into_iter().flat_map(|before| before.keys().cloned()));
        let was_undecided = self.is_undecided();
        for node in &nodes {
            let on = self.decided_on.entry(node.clone()).or_default();
            mark(on, &uid.to_owned(), promises.contains_key(node));
        }
        self.decided.insert(uid.to_owned(), promises);
        if was_undecided && !self.is_undecided() {
            self.drop_old_entries(work);
        }
        for node in nodes {
            self.sum_up(&node);
            work.push(Work::Promises(node));
        }
        self.quota_use_changed(work);
    }

    /// Recomputes the promises of a node.
    fn sum_up(&mut self, node: &str) {
        let cache = self.caches.get(&Key::cluster(node));
        let written = cache.into_iter().flat_map(|cache| &cache.spec.datasets);
        let mut promises: Vec<PromisedDataset> = written
            .filter(|there| !self.decided.contains_key(&there.uid))
            .filter(|there| !self.is_complete() || !self.is_gone(&there.uid))
            .cloned()
            .collect();
        let decided =
            self.decided_on.get(node).into_iter().flatten().filter_map(|uid| self.decided.get(uid)?.get(node));
        promises.extend(decided.flatten().cloned());
        let before = self.promised.remove(node).unwrap_or_default();
        self.quota_use.replace(&before, &promises);
        if !promises.is_empty() {
            self.promised.insert(node.to_owned(), promises);
        }
    }

    pub fn promised(&self, node: &str) -> &[PromisedDataset] {
        self.promised.get(node).map_or(&[], Vec::as_slice)
    }

    /// The number of Datasets, and how many of them are ready.
    pub fn counts(&self) -> (u64, u64) {
        (self.datasets.len() as u64, self.ready.len() as u64)
    }
}
