//! The work that a changed Dataset, NodeCache, Node or LarderSettings causes.

use std::collections::{BTreeMap, BTreeSet};

use larder_api::names::{DatasetKey, NODE_LABEL_PREFIX, SETTINGS};
use larder_api::rights::Endpoints;

use super::State;
use super::promises::{is_ready, makes_room, mark};
use crate::datasets::inline_registry;
use crate::objects::{CacheObject, DatasetObject, Key, Node, by_uid};
use crate::work_queue::Work;

impl State {
    pub(super) fn dataset_changed(&mut self, before: Option<DatasetObject>, key: &Key, work: &mut Vec<Work>) {
        work.push(Work::Dataset(key.clone()));
        self.jobs.wake_readers(key);
        self.data_changed(work);
        let now = self.datasets.get(key);
        let entry = |object: Option<&DatasetObject>| inline_registry::entry(object?, &self.settings.endpoints);
        if entry(before.as_ref()) != entry(now) {
            work.push(Work::Registry);
        }
        mark(&mut self.ready, key, now.is_some_and(is_ready));
        let near = |object: Option<&DatasetObject>| -> BTreeSet<String> {
            object.into_iter().flat_map(near_of).cloned().collect()
        };
        if near(before.as_ref()) != near(now) {
            work.extend(self.nodes.keys().into_iter().map(|node| Work::Promises(node.name)));
        }
        let snapshot =
            |object: &DatasetObject| object.dataset.status.as_ref().and_then(|status| status.snapshot.clone());
        let (old, new) = (before.as_ref().and_then(snapshot), now.and_then(snapshot));
        let uid_now = now.map(|now| now.meta.uid.clone());
        let added = uid_now.clone().filter(|uid| before.as_ref().is_none_or(|before| before.meta.uid != *uid));
        let gone = before.filter(|before| uid_now.as_ref() != Some(&before.meta.uid));
        let (is_gone, leaves) = (now.is_none(), now.is_none_or(|now| now.meta.deleting));
        for uid in added.iter().chain(gone.as_ref().map(|gone| &gone.meta.uid)) {
            self.mark_all_jobs(uid, work);
        }
        if added.is_some() || gone.is_some() {
            self.quota_has_another(key, is_gone, work);
        }
        if let Some(gone) = gone {
            let uid = gone.meta.uid;
            work.push(Work::Orphans(uid.clone()));
            self.decide(&uid, BTreeMap::new(), BTreeMap::new(), work);
            self.decided.remove(&uid);
            for node in self.caches.of(&by_uid(&uid)).map(|cache| cache.meta.key.name.clone()).collect::<Vec<_>>() {
                self.sum_up(&node);
                work.push(Work::Promises(node));
            }
            self.quota_use_changed(work);
        }
        if is_gone {
            self.starved.remove(key);
            self.slot_needs.remove(key);
            self.turns.forget(key, self.datasets.in_namespace(&key.namespace).next().is_none());
            self.cleaning.remove(key);
            self.status_written.remove(key);
            self.refused.remove(key);
        }
        if old != new || leaves {
            if let Some(old) = &old
                && let Some(keys) = self.by_snapshot.get_mut(old)
            {
                keys.remove(key);
                if keys.is_empty() {
                    self.by_snapshot.remove(old);
                }
            }
            if let Some(new) = new.as_ref().filter(|_| !leaves) {
                self.by_snapshot.entry(new.clone()).or_default().insert(key.clone());
            }
            let label = DatasetKey::new(&key.namespace, &key.name).node_label().unwrap_or_default();
            for cache in self.caches.iter() {
                let has = cache.status.iter().flat_map(|status| &status.snapshots);
                let has = has
                    .map(|cached| Some(&cached.snapshot))
                    .any(|there| there == old.as_ref() || there == new.as_ref());
                let labelled = self.nodes.get(&cache.meta.key).is_some_and(|node| node.labels.contains_key(&label));
                if has || labelled {
                    work.push(Work::Labels(cache.meta.key.name.clone()));
                }
            }
        }
    }

    /// The keys of the labels by which mirrors of datasets are near to nodes.
    pub fn near_labels(&self) -> BTreeSet<&str> {
        self.datasets.iter().flat_map(near_of).map(String::as_str).collect()
    }

    pub(super) fn cache_changed(&mut self, before: Option<CacheObject>, key: &Key, work: &mut Vec<Work>) {
        self.sum_up(&key.name);
        self.quota_use_changed(work);
        self.jobs.wake_on(&key.name, &self.pods);
        self.data_changed(work);
        work.push(Work::Promises(key.name.clone()));
        work.push(Work::Labels(key.name.clone()));
        let mut uids: BTreeSet<String> =
            self.promised.get(&key.name).into_iter().flatten().map(|there| there.uid.clone()).collect();
        for cache in before.iter().chain(self.caches.get(key)) {
            uids.extend(cache.spec.datasets.iter().map(|there| there.uid.clone()));
        }
        work.extend(uids.iter().filter_map(|uid| self.key_of(uid)).cloned().map(Work::Dataset));
        // A dataset that pins its cached bytes may have them on any node.
        for cached in
            self.caches.get(key).and_then(|cache| cache.status.as_ref()).iter().flat_map(|status| &status.snapshots)
        {
            let readers = self.by_snapshot.get(&cached.snapshot).into_iter().flatten();
            let keeps = |key: &&Key| self.datasets.get(key).is_some_and(|object| object.dataset.spec.keep.pinned);
            work.extend(readers.filter(keeps).cloned().map(Work::Dataset));
        }
        work.extend(self.cleaning.iter().cloned().map(Work::Dataset));
        if makes_room(before.as_ref(), self.caches.get(key)) {
            work.extend(self.starved.iter().cloned().map(Work::Dataset));
        }
        self.wake_for_all(before.is_none_or(|before| before.status.is_none()), work);
    }

    /// A new node concerns the datasets that want all nodes, and the jobs that have fewer nodes than pods.
    fn wake_for_all(&self, is_new: bool, work: &mut Vec<Work>) {
        use larder_api::dataset::NodeCount;
        if !is_new {
            return;
        }
        let wants_all = self.datasets.iter().filter(|object| {
            let spec = &object.dataset.spec;
            let local = spec.cache.placement.as_deref().is_none_or(|placement| placement == "local");
            spec.nodes.count == Some(NodeCount::All) || !local
        });
        work.extend(wants_all.map(|object| Work::Dataset(object.meta.key.clone())));
        work.extend(self.kueue.progress.keys().cloned().map(Work::Dataset));
    }

    pub(super) fn node_changed(&mut self, before: Option<Node>, key: &Key, work: &mut Vec<Work>) {
        self.jobs.wake_on(&key.name, &self.pods);
        self.data_changed(work);
        work.push(Work::Promises(key.name.clone()));
        work.push(Work::Labels(key.name.clone()));
        let is_own = |label: &String| label.starts_with(NODE_LABEL_PREFIX);
        let now = self.nodes.get(key);
        let matters = |node: &Node| {
            let labels: Vec<(String, String)> =
                node.labels.iter().filter(|(label, _)| !is_own(label)).map(|(a, b)| (a.clone(), b.clone())).collect();
            (labels, node.taints.clone(), node.ready, node.unschedulable, node.meta.deleting)
        };
        // A deleted dataset waits for the removal of its labels.
        let labels = before.iter().flat_map(|node| node.labels.keys()).filter(|label| is_own(label));
        for dataset in labels.filter_map(|label| DatasetKey::of_node_label(label)) {
            let key = Key::new(&dataset.namespace, &dataset.name);
            if self.datasets.get(&key).is_some_and(|dataset| dataset.meta.deleting) {
                work.push(Work::Dataset(key));
            }
        }
        if before.as_ref().map(matters) == now.map(matters) {
            return;
        }
        let uids = self.promised.get(&key.name).into_iter().flatten().map(|there| &there.uid);
        work.extend(uids.filter_map(|uid| self.key_of(uid)).cloned().map(Work::Dataset));
        work.extend(self.starved.iter().chain(&self.cleaning).cloned().map(Work::Dataset));
        self.wake_for_all(true, work);
    }

    pub(super) fn settings_changed(&mut self, work: &mut Vec<Work>) {
        let there = self.larder_settings.get(&Key::cluster(SETTINGS));
        let endpoints = Endpoints::new(there.map(|settings| settings.endpoints.clone()).unwrap_or_default());
        if self.jobs.presence.is_there() {
            // The flavors may have changed.
            self.jobs.wake_all();
            work.extend([Work::JobTypes, Work::Jobs]);
        }
        if endpoints != self.settings.endpoints {
            self.settings.endpoints = endpoints;
            work.push(Work::Registry);
            work.extend(self.datasets.keys().into_iter().map(Work::Dataset));
        }
    }
}

/// The keys of the labels by which mirrors of a dataset are near to nodes.
fn near_of(object: &DatasetObject) -> impl Iterator<Item = &String> {
    object.dataset.spec.mirrors.iter().flat_map(|mirror| mirror.near.keys())
}
