//! What the controller knows of the cluster, and which work each piece of news makes.
//!
//! Invariant: all of it can be read again. What this process alone knows is what it decided and has not written yet, and when
//! it wrote last.

use std::collections::{BTreeMap, BTreeSet};

use larder_controller_api::names::{DatasetKey, ENDPOINTS_CONFIG_MAP, NODE_LABEL_PREFIX, ROLE_IMPORT, ROLE_WARM};
use larder_controller_api::rights::Endpoints;
use larder_controller_api::{CleanedSnapshot, PromisedDataset};
use larder_dataset::Placement;

use crate::kinds::Kind;
use crate::kueue::known::Kueue;
use crate::nodes::Labelled;
use crate::objects::{CacheObject, Claim, ConfigMap, DatasetObject, Deployment, Job, Key, Node, Pod, Volume, by_uid};
use crate::queue::Work;
use crate::read::Object;
use crate::registry;
use crate::store::{Put, Store};
use crate::watch::News;
use crate::world::{NodeFacts, Settings, World};
use sums::{beside, is_ready, makes_room, mark};
use touched::{put_into, take_from};

mod clean;
mod sums;
mod touched;
mod workloads;

/// What the controller knows.
#[derive(Debug, Default)]
pub struct State {
    /// The Datasets.
    pub datasets: Store<DatasetObject>,
    /// The caches of nodes.
    pub caches: Store<CacheObject>,
    /// The nodes.
    pub nodes: Store<Node>,
    pods: Store<Pod>,
    jobs: Store<Job>,
    volumes: Store<Volume>,
    claims: Store<Claim>,
    deployments: Store<Deployment>,
    /// The ConfigMaps.
    pub config_maps: Store<ConfigMap>,
    listed: BTreeSet<Kind>,
    /// The promises that this process has decided, by Dataset and node.
    decided: BTreeMap<String, BTreeMap<String, Vec<PromisedDataset>>>,
    /// The Datasets of [`Self::decided`] by node.
    decided_on: BTreeMap<String, BTreeSet<String>>,
    /// All promises of a node: decided, or written and not decided anew.
    promised: BTreeMap<String, Vec<PromisedDataset>>,
    /// The bytes that this process has decided to have dropped, by Dataset and node.
    cleaned: BTreeMap<String, BTreeMap<String, Vec<CleanedSnapshot>>>,
    /// The datasets whose pods read a snapshot.
    by_snapshot: BTreeMap<String, BTreeSet<Key>>,
    /// The jobs that warm.
    warming: BTreeSet<Key>,
    /// The Datasets that are ready.
    ready: BTreeSet<Key>,
    /// The datasets for which there is not enough room.
    pub starved: BTreeSet<Key>,
    /// The datasets that wait for slots to warm.
    pub queued: BTreeSet<Key>,
    /// The datasets whose bytes are being dropped.
    pub cleaning: BTreeSet<Key>,
    /// The names of the events that were written.
    pub told: BTreeSet<String>,
    /// When the status of a dataset was written last.
    pub status_written: BTreeMap<Key, i64>,
    /// What the administrator set.
    pub settings: Settings,
    /// What is known of Kueue.
    pub kueue: Kueue,
}

impl State {
    /// True once all kinds were listed: before, what is missing may only be unknown.
    pub fn is_complete(&self) -> bool {
        self.listed.len() == Kind::WATCHED.len() && self.kueue.is_settled()
    }

    /// Takes news in. Returns the work that they make.
    pub fn apply(&mut self, news: News) -> Vec<Work> {
        let mut work = Vec::new();
        match news {
            News::Changed(object) => self.put(*object, &mut work),
            News::Gone(kind, key) => self.remove(kind, &key, &mut work),
            News::All(kind, objects) => {
                let mut gone = self.keys(kind);
                for object in objects {
                    gone.remove(&object.key());
                    self.put(object, &mut work);
                }
                for key in gone {
                    self.remove(kind, &key, &mut work);
                }
                let was_complete = self.is_complete();
                match kind {
                    Kind::Kueue(kind, version) => self.kueue.all_listed(kind, version),
                    kind => _ = self.listed.insert(kind),
                }
                // Kueue's objects are few, and those that changed have made their work.
                if self.is_complete() && !(was_complete && matches!(kind, Kind::Kueue(..))) {
                    self.everything(&mut work);
                }
            }
            News::NoKueue => {
                let was_complete = self.is_complete();
                self.forget_kueue(&mut work);
                if self.is_complete() && !was_complete {
                    self.everything(&mut work);
                }
            }
            News::Unreadable(_) => {}
        }
        work
    }

    fn keys(&self, kind: Kind) -> BTreeSet<Key> {
        match kind {
            Kind::Dataset => self.datasets.keys(),
            Kind::NodeCache => self.caches.keys(),
            Kind::Node => self.nodes.keys(),
            Kind::Pod => self.pods.keys(),
            Kind::Job => self.jobs.keys(),
            Kind::Volume => self.volumes.keys(),
            Kind::Claim => self.claims.keys(),
            Kind::Deployment => self.deployments.keys(),
            Kind::ConfigMap => self.config_maps.keys(),
            Kind::Event => BTreeSet::new(),
            Kind::Kueue(kind, _) => self.kueue.keys(kind),
        }
    }

    /// True if there is such an object, as far as is known.
    pub fn has(&self, kind: Kind, key: &Key) -> bool {
        match kind {
            Kind::Dataset => self.datasets.get(key).is_some(),
            Kind::NodeCache => self.caches.get(key).is_some(),
            Kind::Node => self.nodes.get(key).is_some(),
            Kind::Pod => self.pods.get(key).is_some(),
            Kind::Job => self.jobs.get(key).is_some(),
            Kind::Volume => self.volumes.get(key).is_some(),
            Kind::Claim => self.claims.get(key).is_some(),
            Kind::Deployment => self.deployments.get(key).is_some(),
            Kind::ConfigMap => self.config_maps.get(key).is_some(),
            Kind::Event => false,
            Kind::Kueue(kind, _) => self.kueue.keys(kind).contains(key),
        }
    }

    fn put(&mut self, object: Object, work: &mut Vec<Work>) {
        match object {
            Object::Dataset(object) => {
                let key = object.meta.key.clone();
                if let Put::Changed(before) = self.datasets.put(*object) {
                    self.dataset_changed(before, &key, work);
                }
            }
            Object::NodeCache(object) => {
                let key = object.meta.key.clone();
                if let Put::Changed(before) = self.caches.put(*object) {
                    self.cache_changed(before, &key, work);
                }
            }
            Object::Node(object) => {
                let key = object.meta.key.clone();
                if let Put::Changed(before) = self.nodes.put(object) {
                    self.node_changed(before, &key, work);
                }
            }
            Object::Pod(object) => put_into(&mut self.pods, object, &self.datasets, &self.claims, work),
            Object::Job(object) => {
                // A job that ends makes room for others.
                let ended = object.end.is_some() && object.role.role == ROLE_WARM;
                let key = object.meta.key.clone();
                put_into(&mut self.jobs, object, &self.datasets, &self.claims, work);
                let warms = |job: &Job| job.role.role == ROLE_WARM && job.end.is_none();
                mark(&mut self.warming, &key, self.jobs.get(&key).is_some_and(warms));
                if ended {
                    work.extend(self.queued.iter().take(64).cloned().map(Work::Dataset));
                }
            }
            Object::Volume(object) => put_into(&mut self.volumes, object, &self.datasets, &self.claims, work),
            Object::Claim(object) => {
                let own = object.meta.key.clone();
                // Claims lead to no other claims.
                put_into(&mut self.claims, object, &self.datasets, &Store::default(), work);
                work.push(Work::Dataset(own));
            }
            Object::Deployment(object) => put_into(&mut self.deployments, object, &self.datasets, &self.claims, work),
            Object::ConfigMap(object) => {
                if let Put::Changed(_) = self.config_maps.put(object) {
                    self.config_map_changed(work);
                }
            }
            Object::Kueue(object) => self.put_kueue(object, work),
        }
    }

    fn remove(&mut self, kind: Kind, key: &Key, work: &mut Vec<Work>) {
        match kind {
            Kind::Dataset => {
                let before = self.datasets.take(key);
                self.dataset_changed(before, key, work);
            }
            Kind::NodeCache => {
                let before = self.caches.take(key);
                self.cache_changed(before, key, work);
            }
            Kind::Node => {
                let before = self.nodes.take(key);
                self.node_changed(before, key, work);
            }
            Kind::Pod => take_from(&mut self.pods, key, &self.datasets, &self.claims, work),
            Kind::Job => {
                take_from(&mut self.jobs, key, &self.datasets, &self.claims, work);
                self.warming.remove(key);
                work.extend(self.queued.iter().take(64).cloned().map(Work::Dataset));
            }
            Kind::Volume => take_from(&mut self.volumes, key, &self.datasets, &self.claims, work),
            Kind::Claim => {
                take_from(&mut self.claims, key, &self.datasets, &Store::default(), work);
                work.push(Work::Dataset(key.clone()));
            }
            Kind::Deployment => take_from(&mut self.deployments, key, &self.datasets, &self.claims, work),
            Kind::ConfigMap => {
                self.config_maps.take(key);
                self.config_map_changed(work);
            }
            Kind::Event => {}
            Kind::Kueue(kind, _) => self.remove_kueue(kind, key, work),
        }
    }

    fn everything(&mut self, work: &mut Vec<Work>) {
        // Only now it is known which promises are to nobody.
        for key in self.caches.keys() {
            self.sum_up(&key.name);
        }
        work.extend(self.datasets.keys().into_iter().map(Work::Dataset));
        for key in self.nodes.keys() {
            work.push(Work::Promises(key.name.clone()));
            work.push(Work::Labels(key.name));
        }
        for claim in self.claims.iter() {
            work.extend(claim.wanted().map(Work::Dataset));
        }
        let roles = self.jobs.iter().map(|job| &job.role).chain(self.volumes.iter().map(|volume| &volume.role));
        let roles = roles.chain(self.claims.iter().filter_map(|claim| claim.role.as_ref()));
        let uids: BTreeSet<&String> = roles.map(|role| &role.uid).collect();
        work.extend(uids.into_iter().filter(|uid| self.key_of(uid).is_none()).cloned().map(Work::Orphans));
        work.push(Work::Registry);
        self.everything_of_kueue(work);
    }

    /// The name of the Dataset with this uid.
    pub fn key_of(&self, uid: &str) -> Option<&Key> {
        self.datasets.of(&by_uid(uid)).next().map(|dataset| &dataset.meta.key)
    }

    fn dataset_changed(&mut self, before: Option<DatasetObject>, key: &Key, work: &mut Vec<Work>) {
        work.push(Work::Dataset(key.clone()));
        let now = self.datasets.get(key);
        let entry = |object: Option<&DatasetObject>| registry::entry(object?, &self.settings.endpoints);
        if entry(before.as_ref()) != entry(now) {
            work.push(Work::Registry);
        }
        mark(&mut self.ready, key, now.is_some_and(is_ready));
        let snapshot =
            |object: &DatasetObject| object.dataset.status.as_ref().and_then(|status| status.snapshot.clone());
        let (old, new) = (before.as_ref().and_then(snapshot), now.and_then(snapshot));
        let gone = before.filter(|before| now.is_none_or(|now| now.meta.uid != before.meta.uid));
        let (is_gone, leaves) = (now.is_none(), now.is_none_or(|now| now.meta.deleting));
        if let Some(gone) = gone {
            let uid = gone.meta.uid;
            work.push(Work::Orphans(uid.clone()));
            self.decide(&uid, BTreeMap::new(), BTreeMap::new(), work);
            self.decided.remove(&uid);
            for node in self.caches.of(&by_uid(&uid)).map(|cache| cache.meta.key.name.clone()).collect::<Vec<_>>() {
                self.sum_up(&node);
                work.push(Work::Promises(node));
            }
        }
        if is_gone {
            self.starved.remove(key);
            self.queued.remove(key);
            self.cleaning.remove(key);
            self.status_written.remove(key);
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

    fn cache_changed(&mut self, before: Option<CacheObject>, key: &Key, work: &mut Vec<Work>) {
        self.sum_up(&key.name);
        work.push(Work::Promises(key.name.clone()));
        work.push(Work::Labels(key.name.clone()));
        let mut uids: BTreeSet<String> =
            self.promised.get(&key.name).into_iter().flatten().map(|there| there.uid.clone()).collect();
        for cache in before.iter().chain(self.caches.get(key)) {
            uids.extend(cache.spec.datasets.iter().map(|there| there.uid.clone()));
        }
        work.extend(uids.iter().filter_map(|uid| self.key_of(uid)).cloned().map(Work::Dataset));
        // A dataset that keeps what it has may have it anywhere.
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

    /// A new node is for the datasets that want all of them, and for jobs that have fewer nodes than pods.
    fn wake_for_all(&self, is_new: bool, work: &mut Vec<Work>) {
        use larder_controller_api::dataset::NodeCount;
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

    fn node_changed(&mut self, before: Option<Node>, key: &Key, work: &mut Vec<Work>) {
        work.push(Work::Promises(key.name.clone()));
        work.push(Work::Labels(key.name.clone()));
        let is_own = |label: &String| label.starts_with(NODE_LABEL_PREFIX);
        let now = self.nodes.get(key);
        let matters = |node: &Node| {
            let labels: Vec<(String, String)> =
                node.labels.iter().filter(|(label, _)| !is_own(label)).map(|(a, b)| (a.clone(), b.clone())).collect();
            (labels, node.taints.clone(), node.ready, node.unschedulable, node.meta.deleting)
        };
        // The end of a dataset waits for its labels to go.
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

    fn config_map_changed(&mut self, work: &mut Vec<Work>) {
        let text = self.config_maps.iter().find(|map| map.meta.key.name == ENDPOINTS_CONFIG_MAP);
        let endpoints = Endpoints::parse(text.map(|map| map.text.as_str()).unwrap_or_default());
        work.push(Work::Registry);
        if endpoints != self.settings.endpoints {
            self.settings.endpoints = endpoints;
            work.extend(self.datasets.keys().into_iter().map(Work::Dataset));
        }
    }

    /// Remembers the promises that a Dataset is to have, and which of its bytes are to go.
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
    }

    /// Sums up the promises of a node.
    fn sum_up(&mut self, node: &str) {
        let cache = self.caches.get(&Key::cluster(node));
        let written = cache.into_iter().flat_map(|cache| &cache.spec.datasets);
        let mut promises: Vec<PromisedDataset> = written
            .filter(|there| !self.decided.contains_key(&there.uid))
            .filter(|there| !self.is_complete() || self.key_of(&there.uid).is_some())
            .cloned()
            .collect();
        let decided =
            self.decided_on.get(node).into_iter().flatten().filter_map(|uid| self.decided.get(uid)?.get(node));
        promises.extend(decided.flatten().cloned());
        if promises.is_empty() {
            self.promised.remove(node);
        } else {
            self.promised.insert(node.to_owned(), promises);
        }
    }

    /// All promises of a node.
    pub fn promised(&self, node: &str) -> &[PromisedDataset] {
        self.promised.get(node).map_or(&[], Vec::as_slice)
    }

    /// The datasets whose pods read a snapshot, as far as their bytes are known.
    pub fn labelled(&self, snapshot: &str) -> Vec<Labelled> {
        let keys = self.by_snapshot.get(snapshot).into_iter().flatten();
        keys.filter_map(|key| {
            let object = self.datasets.get(key)?;
            let label = DatasetKey::new(&key.namespace, &key.name).node_label().ok()?;
            let placement = object.dataset.spec.cache.placement.as_deref().and_then(|text| text.parse().ok());
            let is_shared = !matches!(placement, None | Some(Placement::Local));
            Some(Labelled { label, bytes: object.dataset.status.as_ref()?.bytes?, is_shared })
        })
        .collect()
    }

    /// Warming jobs that have not ended.
    pub fn warming(&self) -> u32 {
        self.warming.len() as u32
    }

    /// How many Datasets there are, and how many of them are ready.
    pub fn counts(&self) -> (u64, u64) {
        (self.datasets.len() as u64, self.ready.len() as u64)
    }

    /// Everything that a decision about a dataset depends on.
    pub fn world<'a>(&'a self, key: &'a Key, now: i64, warming_slots: u32) -> World<'a> {
        let dataset = self.datasets.get(key);
        let uid = dataset.map(|dataset| by_uid(&dataset.meta.uid));
        // Labels are anybody's: what counts is in the dataset's namespace.
        let jobs = uid.iter().flat_map(|uid| self.jobs.of(uid));
        let jobs: Vec<&Job> = jobs.filter(|job| job.meta.key.namespace == key.namespace).collect();
        let imports = |pod: &&Pod| {
            pod.role.as_ref().is_some_and(|role| [ROLE_IMPORT, ROLE_WARM].contains(&role.role.as_str()))
                && pod.meta.key.namespace == key.namespace
        };
        let job_pods = uid.iter().flat_map(|uid| self.pods.of(uid)).filter(imports).collect();
        let own = uid.iter().flat_map(|uid| self.claims.of(uid));
        let mut claims: BTreeMap<&Key, &Claim> = own.map(|claim| (&claim.meta.key, claim)).collect();
        claims.extend(self.claims.of(key).map(|claim| (&claim.meta.key, claim)));
        claims.extend(self.claims.get(key).filter(|claim| claim.wants.is_none()).map(|claim| (&claim.meta.key, claim)));
        let volumes: Vec<&Volume> = uid.iter().flat_map(|uid| self.volumes.of(uid)).collect();
        let bound = volumes.iter().filter(|volume| !volume.claim_uid.is_empty()).map(|volume| &volume.claim);
        let mut users: BTreeMap<&Key, &Pod> = BTreeMap::new();
        for owner in bound.chain([key]) {
            let pods = self.pods.of(owner).filter(|pod| pod.role.is_none() && !pod.ended);
            users.extend(pods.map(|pod| (&pod.meta.key, pod)));
        }
        // All are in the order of their names: a thousand look-ups a decision would take longer than the decision.
        let mut caches = self.caches.iter().peekable();
        let mut promised = self.promised.iter().peekable();
        let facts = |node: &'a Node| {
            let name = &node.meta.key.name;
            let promised = beside(&mut promised, |(there, _)| there.cmp(&name));
            NodeFacts {
                node,
                cache: beside(&mut caches, |cache| cache.meta.key.name.cmp(name)),
                promised: promised.map_or(&[], |(_, promised)| promised.as_slice()),
            }
        };
        World {
            now,
            settings: &self.settings,
            key,
            dataset,
            nodes: self.nodes.iter().map(facts).collect(),
            jobs,
            job_pods,
            users: if dataset.is_some() { users.into_values().collect() } else { Vec::new() },
            claims: claims.into_values().collect(),
            volumes,
            deployments: self.deployments.of(key).collect(),
            wishes: self.wishes(key),
            warming_slots,
            status_age: self.status_written.get(key).map_or(i64::MAX, |written| now - written),
            told: &self.told,
        }
    }

    /// What is left of a Dataset that is gone: jobs, claims and volumes.
    pub fn orphans(&self, uid: &str) -> Vec<(Kind, Key, String)> {
        if !self.is_complete() || self.key_of(uid).is_some() {
            return Vec::new();
        }
        let of = by_uid(uid);
        let mut found = Vec::new();
        let mut add = |kind, meta: &crate::objects::Meta| {
            if !meta.deleting {
                found.push((kind, meta.key.clone(), meta.uid.clone()));
            }
        };
        self.jobs.of(&of).for_each(|job| add(Kind::Job, &job.meta));
        self.claims.of(&of).for_each(|claim| add(Kind::Claim, &claim.meta));
        self.volumes.of(&of).for_each(|volume| add(Kind::Volume, &volume.meta));
        found
    }
}
