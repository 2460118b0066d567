//! The kinds of objects that the controller watches. A kind consists of an implementation of `Watched` and a line in
//! `row`: how an object is parsed, where it is stored, and which work its changes cause.

use std::collections::BTreeSet;
use std::fmt::Debug;

use larder_kube::api::DynamicObject;
use larder_kube::fields::uid;
use larder_kube::key::{Key, Meta};
use larder_kube::kinds::{Kind, KueueKind};
use larder_kube::store::{Put, Store, Stored};
use larder_kube::unparsed::Unparsed;
use serde_json::Error;

use super::State;
use super::affected::{put_into, take_from};
use crate::clusters::objects::ClusterObject;
use crate::jobs::objects::{ClassObject, JobObject, QueueObject, TypeObject};
use crate::jobs::pod_group::known::KnownGroup;
use crate::kueue::objects::{Check, Class, Config, Flavor};
use crate::kueue::workload::Workload;
use crate::objects::{
    CacheObject, Claim, ConfigMap, DatasetObject, Deployment, Job, Node, Pod, QuotaObject, SettingsObject, Volume,
};
use crate::read::{self, Unreadable};
use crate::work_queue::Work;
use larder_api::names::ROLE_WARM;

/// A watched kind. The type is the reduced form of its objects.
pub(crate) trait Watched: Stored + Debug + Send + Sized + 'static {
    /// Parses an object; `None` if it does not matter.
    fn read(object: DynamicObject) -> Result<Option<Self>, Error>;

    /// The store of the kind.
    fn store(state: &State) -> &Store<Self>;

    fn store_mut(state: &mut State) -> &mut Store<Self>;

    /// Stores an object, and adds the resulting work.
    fn put(self, state: &mut State, work: &mut Vec<Work>);

    /// Removes an object, and adds the resulting work.
    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>);

    /// Handles that the API has accepted the controller's deletion of the object with this uid.
    fn leaves(state: &mut State, key: &Key, uid: &str, _: &mut Vec<Work>) {
        Self::store_mut(state).mark_deleting(key, uid);
    }
}

/// An object of any watched kind.
#[derive(Debug)]
pub struct Object(Box<dyn AnyWatched>);

/// The part of [`Watched`] that a parsed object needs.
trait AnyWatched: Debug + Send {
    fn meta(&self) -> &Meta;
    fn put(self: Box<Self>, state: &mut State, work: &mut Vec<Work>);
}

impl<T: Watched> AnyWatched for T {
    fn meta(&self) -> &Meta {
        Stored::meta(self)
    }

    fn put(self: Box<Self>, state: &mut State, work: &mut Vec<Work>) {
        Watched::put(*self, state, work);
    }
}

impl Object {
    /// Parses an object; `None` if it does not matter.
    ///
    /// # Errors
    /// A field has another type than in the definition of the kind.
    pub fn read(kind: Kind, mut object: DynamicObject) -> Result<Option<Self>, Unreadable> {
        let Some(Row { read, .. }) = row(kind) else { return Ok(None) };
        // Never used, and often larger than the rest of the object.
        object.metadata.managed_fields = None;
        let (key, uid) = (Key::of(&object), uid(&object).to_owned());
        read(object).map_err(|error| Unreadable { kind, key, uid, why: error.to_string() })
    }

    /// As [`Self::read`], for an object that is not parsed yet.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(kind: Kind, object: &Unparsed) -> Result<Option<Self>, Unreadable> {
        let unreadable = |error: Error| {
            let (key, uid) = (Key::of(object), uid(object).to_owned());
            Unreadable { kind, key, uid, why: error.to_string() }
        };
        Self::read(kind, object.parse().map_err(unreadable)?)
    }

    pub fn key(&self) -> Key {
        self.meta().key.clone()
    }

    pub fn meta(&self) -> &Meta {
        self.0.meta()
    }

    pub(super) fn put(self, state: &mut State, work: &mut Vec<Work>) {
        self.0.put(state, work);
    }
}

struct Row {
    read: fn(DynamicObject) -> Result<Option<Object>, Error>,
    keys: fn(&State) -> BTreeSet<Key>,
    meta: for<'s> fn(&'s State, &Key) -> Option<&'s Meta>,
    remove: fn(&mut State, &Key, &mut Vec<Work>),
    leaves: fn(&mut State, &Key, &str, &mut Vec<Work>),
}

impl Row {
    const fn of<T: Watched>() -> Self {
        Self {
            read: |object| Ok(T::read(object)?.map(|object| Object(Box::new(object)))),
            keys: |state| T::store(state).keys(),
            meta: |state, key| T::store(state).get(key).map(Stored::meta),
            remove: T::remove,
            leaves: T::leaves,
        }
    }
}

/// The functions of a kind; `None` for a kind that the controller writes without reading it.
const fn row(kind: Kind) -> Option<Row> {
    Some(match kind {
        Kind::Dataset => Row::of::<DatasetObject>(),
        Kind::CacheQuota => Row::of::<QuotaObject>(),
        Kind::NodeCache => Row::of::<CacheObject>(),
        Kind::Node => Row::of::<Node>(),
        Kind::Pod => Row::of::<Pod>(),
        Kind::Job => Row::of::<Job>(),
        Kind::Volume => Row::of::<Volume>(),
        Kind::Claim => Row::of::<Claim>(),
        Kind::Deployment => Row::of::<Deployment>(),
        Kind::ConfigMap => Row::of::<ConfigMap>(),
        Kind::LarderSettings => Row::of::<SettingsObject>(),
        Kind::TrainingJob => Row::of::<JobObject>(),
        Kind::JobType => Row::of::<TypeObject>(),
        Kind::JobQueue => Row::of::<QueueObject>(),
        Kind::PriorityClass => Row::of::<ClassObject>(),
        Kind::PodGroup => Row::of::<KnownGroup>(),
        Kind::Cluster => Row::of::<ClusterObject>(),
        Kind::Kueue(KueueKind::Workload, _) => Row::of::<Workload>(),
        Kind::Kueue(KueueKind::AdmissionCheck, _) => Row::of::<Check>(),
        Kind::Kueue(KueueKind::ResourceFlavor, _) => Row::of::<Flavor>(),
        Kind::Kueue(KueueKind::PriorityClass, _) => Row::of::<Class>(),
        Kind::Kueue(KueueKind::MultiKueueConfig, _) => Row::of::<Config>(),
        Kind::Event | Kind::Service | Kind::Secret => return None,
    })
}

impl State {
    pub(super) fn keys(&self, kind: Kind) -> BTreeSet<Key> {
        row(kind).map(|row| (row.keys)(self)).unwrap_or_default()
    }

    /// The metadata of a known object.
    pub(super) fn meta(&self, kind: Kind, key: &Key) -> Option<&Meta> {
        row(kind).and_then(|row| (row.meta)(self, key))
    }

    pub(super) fn remove(&mut self, kind: Kind, key: &Key, work: &mut Vec<Work>) {
        if let Some(row) = row(kind) {
            (row.remove)(self, key, work);
        }
    }

    pub(super) fn leaves(&mut self, kind: Kind, key: &Key, uid: &str, work: &mut Vec<Work>) {
        if let Some(row) = row(kind) {
            (row.leaves)(self, key, uid, work);
        }
    }
}

/// Implements where a kind is stored, and how it is parsed.
macro_rules! kept {
    ($($field:ident).+, $read:path) => {
        fn read(object: DynamicObject) -> Result<Option<Self>, Error> {
            $read(object)
        }

        fn store(state: &State) -> &Store<Self> {
            &state.$($field).+
        }

        fn store_mut(state: &mut State) -> &mut Store<Self> {
            &mut state.$($field).+
        }
    };
}

pub(super) use kept;

impl Watched for DatasetObject {
    kept!(datasets, read::dataset);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        let key = self.meta.key.clone();
        // Another Dataset has the name of the unreadable one now, so the objects of the unreadable one are orphaned.
        if let Some(uid) = state.unreadable.remove(&key)
            && uid != self.meta.uid
        {
            work.push(Work::Orphans(uid));
            state.everything_on_nodes(work);
        }
        if let Put::Changed(before) = state.datasets.put(self) {
            state.dataset_changed(before, &key, work);
        }
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        if let Some(uid) = state.unreadable.remove(key) {
            work.extend([Work::Orphans(uid), Work::Registry]);
            state.everything_on_nodes(work);
        }
        let before = state.datasets.take(key);
        state.dataset_changed(before, key, work);
    }
}

impl Watched for CacheObject {
    kept!(caches, read::cache);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        let key = self.meta.key.clone();
        if let Put::Changed(before) = state.caches.put(self) {
            state.cache_changed(before, &key, work);
        }
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        let before = state.caches.take(key);
        state.cache_changed(before, key, work);
    }
}

impl Watched for Node {
    kept!(nodes, read::node);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        let key = self.meta.key.clone();
        if let Put::Changed(before) = state.nodes.put(self) {
            state.node_changed(before, &key, work);
        }
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        let before = state.nodes.take(key);
        state.node_changed(before, key, work);
    }
}

impl Watched for Job {
    kept!(batch_jobs, read::job);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        let ended = self.end.is_some() && self.role.role == ROLE_WARM;
        let key = self.meta.key.clone();
        put_into(&mut state.batch_jobs, self, &state.datasets, &state.claims, work);
        state.mark_warming(&key);
        state.mark_importing(&key, work);
        if ended {
            state.slots_are_free(work);
        }
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        take_from(&mut state.batch_jobs, key, &state.datasets, &state.claims, work);
        state.warming.remove(key);
        state.mark_importing(key, work);
        state.slots_are_free(work);
    }

    fn leaves(state: &mut State, key: &Key, uid: &str, work: &mut Vec<Work>) {
        state.batch_jobs.mark_deleting(key, uid);
        state.mark_warming(key);
        state.mark_importing(key, work);
    }
}

impl Watched for Volume {
    kept!(volumes, read::volume);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        put_into(&mut state.volumes, self, &state.datasets, &state.claims, work);
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        take_from(&mut state.volumes, key, &state.datasets, &state.claims, work);
    }
}

impl Watched for Claim {
    kept!(claims, read::claim);

    /// Claims belong only to datasets, so no other owners are looked up.
    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        let own = self.meta.key.clone();
        put_into(&mut state.claims, self, &state.datasets, &Store::default(), work);
        work.push(Work::Dataset(own));
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        take_from(&mut state.claims, key, &state.datasets, &Store::default(), work);
        work.push(Work::Dataset(key.clone()));
    }
}

impl Watched for Deployment {
    kept!(deployments, read::deployment);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        put_into(&mut state.deployments, self, &state.datasets, &state.claims, work);
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        take_from(&mut state.deployments, key, &state.datasets, &state.claims, work);
    }
}

impl Watched for ConfigMap {
    kept!(config_maps, read::config_map);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        if let Put::Changed(_) = state.config_maps.put(self) {
            work.push(Work::Registry);
        }
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        state.config_maps.take(key);
        work.push(Work::Registry);
    }
}

impl Watched for SettingsObject {
    kept!(larder_settings, read::settings);

    fn put(self, state: &mut State, work: &mut Vec<Work>) {
        if let Put::Changed(_) = state.larder_settings.put(self) {
            state.settings_changed(work);
        }
    }

    fn remove(state: &mut State, key: &Key, work: &mut Vec<Work>) {
        state.larder_settings.take(key);
        state.settings_changed(work);
    }
}

impl State {
    /// Schedules the datasets that get the slot of a warming job that has ended.
    fn slots_are_free(&self, work: &mut Vec<Work>) {
        if !self.slot_needs.is_empty() {
            work.push(Work::Slots);
        }
    }

    pub(super) fn put_unreadable(&mut self, object: Unreadable) {
        if object.kind == Kind::Dataset
            && self.datasets.get(&object.key).is_none_or(|known| known.meta.uid != object.uid)
        {
            self.unreadable.insert(object.key, object.uid);
        }
    }
}
