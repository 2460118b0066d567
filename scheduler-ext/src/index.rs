//! The known state of the cluster. One writer applies events from the API; readers use the most recently published
//! [`Snapshot`].
//!
//! Invariant: the state depends only on the existing objects, not on the order of their events. An object with an older
//! version than the known one changes nothing.

pub mod counts;
pub mod facts;
pub mod shards;
pub mod state;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

pub use larder_kube::kinds::Kind;
use larder_kube::pod::amounts::Amounts;

use counts::count;
use facts::{CacheFacts, DatasetFacts, Held, JobFacts, Name, NodeFacts, Nomination, PodFacts, Read, VolumeFacts};
use state::{GroupState, JobState, NodeState, Snapshot, Spread, first_bytes};

/// The kinds of objects that are watched.
pub const FOLLOWED: [Kind; 6] =
    [Kind::Node, Kind::Pod, Kind::Volume, Kind::NodeCache, Kind::Dataset, Kind::TrainingJob];

/// An object, reduced to the fields that are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// The name, or `NAMESPACE/NAME`.
    pub key: Name,
    /// Increases with each change of the object.
    pub version: u64,
    pub facts: Facts,
}

/// The kept fields of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Facts {
    Node(NodeFacts),
    /// A pod that has a node.
    Pod(PodFacts),
    /// A pod without a node, for which the scheduler makes room on one.
    Nominated(Nomination),
    Volume(VolumeFacts),
    Cache(CacheFacts),
    /// A dataset.
    Dataset(DatasetFacts),
    Job(JobFacts),
}

/// An event from the API.
#[derive(Clone, Debug)]
pub enum Event {
    /// The complete list of a kind.
    All(Kind, Vec<Object>),
    /// An object was created or changed.
    Changed(Kind, Box<Object>),
    /// An object was deleted, or no longer matters; with its version.
    Gone(Kind, Name, u64),
    /// The cluster does not serve the kind.
    Absent(Kind),
}

/// A pod, with the Datasets to which its reads resolve.
#[derive(Debug)]
struct PodEntry {
    facts: Arc<PodFacts>,
    datasets: Box<[Name]>,
}

/// The known state of the cluster, including the data that only the writer needs.
#[derive(Debug, Default)]
pub struct Index {
    now: Snapshot,
    /// The device resources that are counted.
    devices: Vec<String>,
    listed: BTreeSet<Kind>,
    versions: BTreeMap<Kind, HashMap<Name, u64>>,
    /// Interned names: objects share one copy of each name.
    names: HashSet<Name>,
    /// Interned requests: pods share one copy of equal amounts.
    requests: HashMap<String, Arc<Amounts>>,
    pods: HashMap<Name, PodEntry>,
    /// By pod name, the uid of each pod for which the scheduler makes room.
    nominated: HashMap<Name, Name>,
    volumes: HashMap<Name, VolumeFacts>,
    /// Per claim, its volume.
    claimed: HashMap<Name, Name>,
    /// Pods by claims whose volumes are not known yet.
    unresolved: HashMap<Name, BTreeSet<Name>>,
}

impl Index {
    /// Creates an empty index that counts these device resources.
    pub fn new(devices: Vec<String>) -> Self {
        Self { devices, ..Self::default() }
    }

    /// Publishes the current state as a snapshot.
    pub fn show(&mut self) -> Arc<Snapshot> {
        self.now.version += 1;
        self.now.is_complete = self.listed.len() == FOLLOWED.len();
        Arc::new(self.now.clone())
    }

    /// The number of known objects of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        self.versions.get(&kind).map_or(0, HashMap::len)
    }

    /// Applies an event.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::All(kind, objects) => {
                let there: HashSet<&Name> = objects.iter().map(|object| &object.key).collect();
                let known = self.versions.get(&kind).into_iter().flat_map(HashMap::keys);
                let gone: Vec<Name> = known.filter(|key| !there.contains(key)).cloned().collect();
                for key in gone {
                    self.forget(kind, &key);
                }
                for object in objects {
                    self.put(kind, object);
                }
                self.listed.insert(kind);
            }
            Event::Changed(kind, object) => self.put(kind, *object),
            Event::Gone(kind, key, version) => {
                let known = self.versions.get(&kind).and_then(|of_kind| of_kind.get(&key));
                if known.is_some_and(|known| *known <= version) {
                    self.forget(kind, &key);
                }
            }
            // There is nothing to wait for, so the kind counts as listed.
            Event::Absent(kind) => self.apply(Event::All(kind, Vec::new())),
        }
    }

    fn put(&mut self, kind: Kind, object: Object) {
        let Object { key, version, facts } = object;
        let known = self.versions.entry(kind).or_default().entry(Arc::clone(&key)).or_default();
        if *known > version {
            return;
        }
        *known = version;
        match facts {
            Facts::Node(facts) => self.put_node(&key, Some(facts)),
            Facts::Cache(facts) => self.put_cache(&key, Some(facts)),
            Facts::Pod(facts) => {
                self.drop_nomination(&key);
                self.put_pod(facts);
            }
            Facts::Nominated(facts) => self.put_nomination(key, facts),
            Facts::Volume(facts) => self.put_volume(&key, Some(facts)),
            Facts::Dataset(facts) => {
                let key = self.name(&key);
                self.now.datasets.insert(key, Arc::new(facts));
            }
            Facts::Job(facts) => self.put_job(&key, Some(facts)),
        }
    }

    fn forget(&mut self, kind: Kind, key: &Name) {
        self.versions.entry(kind).or_default().remove(key);
        match kind {
            Kind::Node => self.put_node(key, None),
            Kind::NodeCache => self.put_cache(key, None),
            Kind::Pod => {
                self.drop_nomination(key);
                self.drop_pod(key);
            }
            Kind::Volume => self.put_volume(key, None),
            Kind::Dataset => {
                self.now.datasets.remove(key);
            }
            Kind::TrainingJob => self.put_job(key, None),
            // The other kinds keep nothing of this.
            _ => {}
        }
    }

    /// Interns a name. When there are many names, the unused ones are dropped.
    fn name(&mut self, name: &Name) -> Name {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        if self.names.len() == self.names.capacity() {
            self.names.retain(|known| Arc::strong_count(known) > 1);
        }
        self.names.insert(Arc::clone(name));
        Arc::clone(name)
    }

    fn node_mut(&mut self, name: &Name) -> &mut NodeState {
        Arc::make_mut(self.now.nodes.or_default(name))
    }

    fn drop_if_nothing(&mut self, node: &Name) {
        if self.now.nodes.get(node).is_some_and(|state| state.is_nothing()) {
            self.now.nodes.remove(node);
        }
    }

    fn put_node(&mut self, name: &Name, facts: Option<NodeFacts>) {
        let facts = facts.map(|facts| {
            let (zone, rack) = (self.name(&facts.zone), self.name(&facts.rack));
            Arc::new(NodeFacts { zone, rack, ..facts })
        });
        let known = self.now.nodes.get(name).cloned().unwrap_or_default();
        if known.facts == facts {
            return self.drop_if_nothing(name);
        }
        let (zone, rack) =
            facts.as_ref().map_or_else(Default::default, |facts| (Arc::clone(&facts.zone), Arc::clone(&facts.rack)));
        let moves = known.zone() != &*zone || known.rack() != &*rack;
        if moves {
            self.count_node(&known, false);
        }
        self.node_mut(name).facts = facts;
        if moves {
            let now = self.now.nodes.get(name).cloned().unwrap_or_default();
            self.count_node(&now, true);
        }
        self.drop_if_nothing(name);
    }

    /// Adds a node's pods and bytes to the counts of its zone and rack, or subtracts them.
    fn count_node(&mut self, node: &NodeState, adds: bool) {
        for pod in &node.pods {
            self.count_in_group(pod, places(node), adds);
        }
        for held in node.cache.iter().flat_map(|cache| &*cache.held) {
            self.count_held(held, places(node).0, adds);
        }
    }

    fn count_in_group(&mut self, pod: &PodFacts, (zone, rack): (Name, Name), adds: bool) {
        let Some(group) = pod.group.as_ref().filter(|_| !pod.leaving) else { return };
        let state: &mut GroupState = Arc::make_mut(self.now.groups.or_default(group));
        count(&mut state.zones, zone, 1, adds);
        count(&mut state.racks, rack, 1, adds);
        state.pods = if adds { state.pods + 1 } else { state.pods.saturating_sub(1) };
        if state.pods == 0 {
            self.now.groups.remove(group);
        }
    }

    fn count_held(&mut self, held: &Held, zone: Name, adds: bool) {
        let spread: &mut Spread = Arc::make_mut(self.now.spreads.or_default(&held.cache));
        count(&mut spread.zones, zone, held.bytes, adds);
        spread.bytes =
            if adds { spread.bytes.saturating_add(held.bytes) } else { spread.bytes.saturating_sub(held.bytes) };
        if spread.bytes == 0 {
            self.now.spreads.remove(&held.cache);
        }
    }

    fn put_cache(&mut self, name: &Name, facts: Option<CacheFacts>) {
        let known = self.now.nodes.get(name).cloned().unwrap_or_default();
        let (before, after) = (known.cache.as_ref().map_or(&[][..], |cache| &cache.held), facts.as_ref());
        let after = after.map_or(&[][..], |cache| &cache.held);
        // Typically only one of many snapshots has changed.
        let changed = |some: &[Held], others: &[Held]| -> Vec<Held> {
            let is_there = |held: &Held| {
                let at = others.binary_search_by(|other| other.cache.0.cmp(&held.cache.0));
                at.is_ok_and(|at| others[at].bytes == held.bytes)
            };
            some.iter().filter(|held| !is_there(held)).copied().collect()
        };
        let (gone, new) = (changed(before, after), changed(after, before));
        for held in gone {
            self.count_held(&held, places(&known).0, false);
        }
        for held in new {
            self.count_held(&held, places(&known).0, true);
        }
        let snapshots = facts.iter().flat_map(|facts| &facts.held).map(|held| first_bytes(&held.cache));
        let node = self.node_mut(name);
        node.snapshots = snapshots.collect();
        node.cordon = facts.as_ref().and_then(|facts| facts.cordon.clone());
        node.cache = facts.map(Arc::new);
        self.drop_if_nothing(name);
    }

    fn put_volume(&mut self, name: &Name, facts: Option<VolumeFacts>) {
        if let Some(before) = self.volumes.remove(name) {
            // Another volume may belong to the claim by now.
            if self.claimed.get(&before.claim) == Some(name) {
                self.claimed.remove(&before.claim);
                self.now.claims.remove(&before.claim);
            }
        }
        let Some(facts) = facts else { return };
        let claim = Arc::clone(&facts.claim);
        self.now.claims.insert(Arc::clone(&claim), (Arc::clone(&facts.dataset), Arc::clone(&facts.uid)));
        self.claimed.insert(Arc::clone(&claim), Arc::clone(name));
        self.volumes.insert(Arc::clone(name), facts);
        for pod in self.unresolved.remove(&claim).unwrap_or_default() {
            if let Some(entry) = self.pods.get(&pod) {
                let facts = PodFacts::clone(&entry.facts);
                self.drop_pod(&pod);
                self.put_pod(facts);
            }
        }
    }

    fn put_job(&mut self, key: &Name, facts: Option<JobFacts>) {
        let state = Arc::make_mut(self.now.jobs.or_default(key));
        let waits = |facts: &Option<JobFacts>| facts.as_ref().is_some_and(|facts| facts.waits && !facts.leaving);
        let (waited, waits) = (waits(&state.facts), waits(&facts));
        state.facts = facts;
        let is_nothing = is_nothing(state);
        self.now.waiting_jobs = self.now.waiting_jobs + u32::from(waits) - u32::from(waited);
        if is_nothing {
            self.now.jobs.remove(key);
        }
    }

    fn put_pod(&mut self, facts: PodFacts) {
        if self.pods.get(&facts.key).is_some_and(|known| *known.facts == facts) {
            return;
        }
        self.drop_pod(&Arc::clone(&facts.key));
        let facts = Arc::new(PodFacts {
            node: self.name(&facts.node),
            requests: self.amounts(&facts.requests),
            group: facts.group.as_ref().map(|group| self.name(group)),
            ..facts
        });
        let mut datasets: Vec<Name> = facts.reads.iter().filter_map(|read| self.dataset_of(&facts.key, read)).collect();
        datasets.sort();
        datasets.dedup();
        let entry = PodEntry { facts: Arc::clone(&facts), datasets: datasets.into() };
        self.count_pod(&entry, true);
        self.now.pods.insert(Arc::clone(&facts.uid), Arc::clone(&facts));
        self.pods.insert(Arc::clone(&facts.key), entry);
    }

    fn drop_pod(&mut self, key: &Name) {
        let Some(entry) = self.pods.remove(key) else { return };
        for read in &entry.facts.reads {
            let Read::Claim(claim) = read else { continue };
            if let Some(pods) = self.unresolved.get_mut(claim) {
                pods.remove(key);
                if pods.is_empty() {
                    self.unresolved.remove(claim);
                }
            }
        }
        self.count_pod(&entry, false);
        self.now.pods.remove(&entry.facts.uid);
        self.drop_if_nothing(&entry.facts.node);
    }

    fn put_nomination(&mut self, pod: Name, Nomination { uid, node }: Nomination) {
        self.drop_pod(&pod);
        self.drop_nomination(&pod);
        let node = self.name(&node);
        self.now.nominated.insert(Arc::clone(&uid), node);
        self.nominated.insert(pod, uid);
    }

    fn drop_nomination(&mut self, pod: &Name) {
        if let Some(uid) = self.nominated.remove(pod) {
            self.now.nominated.remove(&uid);
        }
    }

    /// Resolves a read to its Dataset. A claim whose volume is not known yet is remembered.
    fn dataset_of(&mut self, pod: &Name, read: &Read) -> Option<Name> {
        let dataset = match read {
            // A pod of another namespace may have no permission, or not yet. Its fetch becomes visible when the volume
            // is mounted.
            Read::Dataset(key)
                if key.split_once('/').map(|(own, _)| own) != pod.split_once('/').map(|(own, _)| own) =>
            {
                return None;
            }
            Read::Dataset(key) => Arc::clone(key),
            Read::Claim(claim) => match self.now.claims.get(claim) {
                Some((dataset, _)) => Arc::clone(dataset),
                None => {
                    self.unresolved.entry(Arc::clone(claim)).or_default().insert(Arc::clone(pod));
                    return None;
                }
            },
        };
        Some(self.name(&dataset))
    }

    /// Adds a pod to the counts of its node, its group and its job, or subtracts it.
    fn count_pod(&mut self, entry: &PodEntry, adds: bool) {
        let pod = &entry.facts;
        let asked: Vec<u32> =
            self.devices.iter().map(|device| u32::try_from(pod.requests.get(device)).unwrap_or(u32::MAX)).collect();
        let node = self.node_mut(&pod.node);
        if adds {
            node.pods.push(Arc::clone(pod));
        } else {
            node.pods.retain(|other| other.uid != pod.uid);
        }
        if node.used.len() != asked.len() {
            node.used = vec![0; asked.len()].into();
        }
        for (used, asked) in node.used.iter_mut().zip(asked) {
            *used = if adds { used.saturating_add(asked) } else { used.saturating_sub(asked) };
        }
        for dataset in &entry.datasets {
            count(&mut node.readers, Arc::clone(dataset), 1, adds);
        }
        let serves = u32::from(pod.larderd == Some(true) && !pod.leaving);
        node.larderds = if adds { node.larderds + serves } else { node.larderds.saturating_sub(serves) };
        let places = places(node);
        let is_larderd = u32::from(pod.larderd.is_some());
        self.now.larderds = if adds { self.now.larderds + is_larderd } else { self.now.larderds - is_larderd };
        self.count_in_group(pod, places, adds);
        if let Some(seat) = pod.seat.as_ref().filter(|_| !pod.leaving) {
            let state: &mut JobState = Arc::make_mut(self.now.jobs.or_default(&seat.job));
            count(&mut state.live, Arc::clone(&seat.role), 1, adds);
            if is_nothing(state) {
                self.now.jobs.remove(&seat.job);
            }
        }
    }

    /// Interns amounts.
    fn amounts(&mut self, amounts: &Arc<Amounts>) -> Arc<Amounts> {
        let text: String = amounts.iter().map(|(resource, amount)| format!("{resource}={amount};")).collect();
        if self.requests.len() == self.requests.capacity() {
            self.requests.retain(|_, known| Arc::strong_count(known) > 1);
        }
        Arc::clone(self.requests.entry(text).or_insert_with(|| Arc::clone(amounts)))
    }
}

fn is_nothing(job: &JobState) -> bool {
    job.facts.is_none() && job.live.is_empty()
}

/// The zone and the rack of a node.
fn places(node: &NodeState) -> (Name, Name) {
    node.facts.as_ref().map_or_else(Default::default, |facts| (Arc::clone(&facts.zone), Arc::clone(&facts.rack)))
}

#[cfg(test)]
mod tests;
