//! The CacheQuotas: the one that counts for each namespace, and what its datasets use.
//!
//! The usage follows from the objects alone: from promises, which are in the NodeCaches, from Datasets and from Jobs.
//! The datasets that wait are known again after every Dataset has been decided about.

use std::collections::{BTreeMap, BTreeSet};

use larder_api::cache_quota::checked::CheckedQuota;
use larder_api::names::ROLE_IMPORT;
use larder_api::{NodeQuota, QuotaUsage};
use larder_kube::api::DynamicObject;
use larder_kube::store::{Put, Store};
use serde_json::Error;

use super::State;
use super::promises::mark;
use super::watched::{Watched, kept};
use crate::datasets::cache_quotas::{self, Taken};
use crate::datasets::input::QuotaView;
use crate::objects::{DatasetObject, Job, Key, Pod, QuotaObject, by_uid};
use crate::read;
use crate::time::Seconds;
use crate::work_queue::Work;
use crate::write::Write;

/// The most quotas of a NodeCache, as in its schema.
const QUOTAS_MAX: usize = 1024;

impl Watched for QuotaObject {
    kept!(cache_quotas, read::quota);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        let key = self.meta.key.clone();
        let limits = (self.meta.uid.clone(), self.quota.clone());
        if let Put::Changed(before) = state.cache_quotas.put(self) {
            work.push(Work::CacheQuota(key.name.clone()));
            if before.map(|before| (before.meta.uid, before.quota)) != Some(limits) {
                state.quotas_changed(&key, work);
            }
        }
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        if state.cache_quotas.take(key).is_some() {
            state.quotas_changed(key, work);
        }
    }
}

impl State {
    /// Finds the quota that counts for each namespace. The limits of the quota `changed` are new.
    fn quotas_changed(&mut self, changed: &Key, work: &mut Vec<Work>) {
        let mut quotas: Vec<(&QuotaObject, &CheckedQuota)> =
            self.cache_quotas.iter().filter_map(|object| Some((object, object.quota.as_ref().ok()?))).collect();
        quotas.sort_by_key(|(object, _)| (object.meta.created, &object.meta.key));
        let (mut in_force, mut taken, mut on_nodes) = (BTreeMap::<String, Key>::new(), BTreeMap::new(), Vec::new());
        for (object, limits) in quotas {
            let key = &object.meta.key;
            let other = limits.namespaces.iter().find_map(|name| Some((in_force.get(name)?, name)));
            if let Some((by, namespace)) = other {
                taken.insert(key.clone(), Taken { by: by.name.clone(), namespace: namespace.clone() });
                continue;
            }
            in_force.extend(limits.namespaces.iter().map(|name| (name.clone(), key.clone())));
            on_nodes.extend(limits.on_each_node(&key.name));
        }
        on_nodes.truncate(QUOTAS_MAX);
        on_nodes.sort_by(|a: &NodeQuota, b| a.name.cmp(&b.name));
        let before = std::mem::replace(&mut self.quota_use.in_force, in_force);
        self.quota_use.taken = taken;
        if std::mem::replace(&mut self.quota_use.on_nodes, on_nodes) != self.quota_use.on_nodes {
            work.extend(self.nodes.keys().into_iter().map(|node| Work::Promises(node.name)));
        }
        work.extend(self.cache_quotas.keys().into_iter().map(|key| Work::CacheQuota(key.name)));
        let now = &self.quota_use.in_force;
        let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        for name in names {
            if before.get(name) != now.get(name) || now.get(name) == Some(changed) {
                let all = self.datasets.in_namespace(name);
                work.extend(all.map(|dataset| Work::Dataset(dataset.meta.key.clone())));
            }
        }
    }

    /// The quota that counts for a namespace, and its limits.
    fn quota_of(&self, namespace: &str) -> Option<(&QuotaObject, &CheckedQuota)> {
        let object = self.cache_quotas.get(self.quota_use.in_force.get(namespace)?)?;
        Some((object, object.quota.as_ref().ok()?))
    }

    /// The limits that each node enforces.
    pub fn node_quotas(&self) -> &[NodeQuota] {
        &self.quota_use.on_nodes
    }

    /// The write that updates the status of a quota.
    pub fn quota_status(&self, name: &str, now: Seconds) -> Option<Write> {
        let key = Key::cluster(name);
        let object = self.cache_quotas.get(&key)?;
        let used = object.quota.as_ref().map(|limits| self.usage(limits)).unwrap_or_default();
        cache_quotas::status(object, self.quota_use.taken.get(&key), used, now)
    }

    fn usage(&self, limits: &CheckedQuota) -> QuotaUsage {
        let count = |name: &String| self.datasets.in_namespace(name).count();
        QuotaUsage {
            promised_bytes: self.promised_to(limits),
            datasets: u32::try_from(limits.namespaces.iter().map(count).sum::<usize>()).unwrap_or(u32::MAX),
            imports: u32::try_from(self.imports_of(limits).len()).unwrap_or(u32::MAX),
        }
    }

    /// The promised room of the namespaces of a quota.
    fn promised_to(&self, limits: &CheckedQuota) -> u64 {
        let sums = limits.namespaces.iter().filter_map(|name| self.quota_use.promised.get(name));
        u64::try_from(sums.sum::<u128>()).unwrap_or(u64::MAX)
    }

    /// The datasets of a quota that are being imported. An import that failed and has not begun again is not running.
    fn imports_of(&self, limits: &CheckedQuota) -> BTreeSet<Key> {
        let jobs = self.quota_use.importing.iter().filter(|key| limits.is_for(&key.namespace));
        let jobs = jobs.filter_map(|key| self.batch_jobs.get(key)).filter(|job| !self.has_failed(job));
        let running = jobs.filter_map(|job| self.key_of(&job.role.uid));
        running.chain(self.quota_use.begun.iter().filter(|key| limits.is_for(&key.namespace))).cloned().collect()
    }

    fn has_failed(&self, job: &Job) -> bool {
        let of = by_uid(&job.role.uid);
        let pods = self.pods.of(&of).filter(|pod| pod.is_of(job));
        let newest = pods.max_by_key(|pod| pod.meta.created);
        let failed = |pod: &Pod| !pod.runs && pod.terminated.as_ref().is_some_and(|end| end.exit_code != 0);
        newest.is_some_and(failed)
    }

    /// The part of its namespace's quota that a dataset may use; `None` without a quota.
    pub(super) fn quota_view(&self, dataset: &DatasetObject) -> Option<QuotaView<'_>> {
        let key = &dataset.meta.key;
        let (object, limits) = self.quota_of(&key.namespace)?;
        let promised = self.promised_to(limits);
        let all = limits.namespaces.iter().flat_map(|name| self.datasets.in_namespace(name));
        let mut older: Vec<&DatasetObject> = all.filter(|other| other.age() < dataset.age()).collect();
        older.sort_by_key(|other| other.age());
        let mut room = limits.promised_bytes.map_or(0, |most| most.saturating_sub(promised));
        let mut kept = 0;
        for bytes in older.iter().filter_map(|other| self.quota_use.limited.get(&other.meta.key)) {
            if *bytes <= room {
                room -= bytes;
                kept += bytes;
            }
        }
        let mut imports = self.imports_of(limits);
        let waiting = self.quota_use.import_queue.iter().take_while(|other| *other != key);
        imports.extend(waiting.filter(|other| limits.is_for(&other.namespace)).cloned());
        imports.remove(key);
        let name = &object.meta.key.name;
        Some(QuotaView { name, limits, promised, kept, older: older.len(), imports: imports.len() })
    }

    /// An older dataset of the same quota that this process has not decided about. It comes first: otherwise a younger
    /// one could take its room after a restart.
    pub fn undecided_before(&self, key: &Key) -> Option<Key> {
        if !self.is_undecided() {
            return None;
        }
        let dataset = self.datasets.get(key)?;
        let (_, limits) = self.quota_of(&key.namespace)?;
        let is_before = |other: &&DatasetObject| {
            other.age() < dataset.age()
                && !self.decided.contains_key(&other.meta.uid)
                && !self.unreadable.contains_key(&other.meta.key)
        };
        let mut all = limits.namespaces.iter().flat_map(|name| self.datasets.in_namespace(name));
        all.find(is_before).map(|other| other.meta.key.clone())
    }

    /// Records whether the quota limits a dataset, and whether its import waits.
    pub fn limited(&mut self, key: &Key, bytes: Option<u64>, awaits_import: bool, work: &mut Vec<Work>) {
        let before = match bytes {
            Some(bytes) => self.quota_use.limited.insert(key.clone(), bytes),
            None => self.quota_use.limited.remove(key),
        };
        let at = self.quota_use.import_queue.iter().position(|other| other == key);
        match at {
            None if awaits_import => self.quota_use.import_queue.push(key.clone()),
            Some(at) if !awaits_import => _ = self.quota_use.import_queue.remove(at),
            _ => {}
        }
        // The room that was kept for it is for others now, and so is its place in the queue.
        if before.unwrap_or(0) > bytes.unwrap_or(0) || at.is_some() && !awaits_import {
            self.quota_use.note(&key.namespace, true);
            self.quota_use_changed(work);
        }
    }

    /// Records that the Job of an import is being created, or that the request has ended.
    pub fn import_begins(&mut self, key: &Key, is_in_flight: bool, work: &mut Vec<Work>) {
        if self.quota_use.begun.contains(key) != is_in_flight {
            mark(&mut self.quota_use.begun, key, is_in_flight);
            self.quota_use.note(&key.namespace, false);
            self.quota_use_changed(work);
        }
    }

    /// Updates whether a Job imports. Any user can set labels, so a Job counts only in the namespace of the Dataset
    /// whose uid it carries.
    pub(super) fn mark_importing(&mut self, key: &Key, work: &mut Vec<Work>) {
        let imports = |job: &Job| {
            let own = self.key_of(&job.role.uid).is_some_and(|own| own.namespace == key.namespace);
            own && job.role.role == ROLE_IMPORT && job.end.is_none() && !job.meta.deleting
        };
        let imports = self.batch_jobs.get(key).is_some_and(imports);
        if self.quota_use.importing.contains(key) != imports {
            mark(&mut self.quota_use.importing, key, imports);
            self.quota_use.note(&key.namespace, !imports);
            self.quota_use_changed(work);
        }
    }

    /// Handles that a Dataset has appeared or disappeared.
    pub(super) fn quota_has_another(&mut self, key: &Key, is_gone: bool, work: &mut Vec<Work>) {
        if is_gone {
            self.quota_use.limited.remove(key);
            self.quota_use.import_queue.retain(|other| other != key);
        }
        self.quota_use.note(&key.namespace, is_gone);
        self.quota_use_changed(work);
    }

    /// Schedules the work of changed usage: the status of quotas, and the datasets that wait for room.
    pub(super) fn quota_use_changed(&mut self, work: &mut Vec<Work>) {
        let changed = std::mem::take(&mut self.quota_use.changed);
        let mut quotas: BTreeMap<&Key, bool> = BTreeMap::new();
        for (namespace, has_fallen) in &changed {
            if let Some(quota) = self.quota_use.in_force.get(namespace) {
                *quotas.entry(quota).or_default() |= has_fallen;
            }
        }
        for (quota, has_fallen) in quotas {
            work.push(Work::CacheQuota(quota.name.clone()));
            if has_fallen {
                let waiting = self.quota_use.limited.keys().chain(&self.quota_use.import_queue);
                let waiting = waiting.filter(|key| self.quota_use.in_force.get(&key.namespace) == Some(quota));
                work.extend(waiting.cloned().map(Work::Dataset));
            }
        }
    }
}
