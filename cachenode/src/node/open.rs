//! The open datasets of a node, and the counters of those that were closed.
//!
//! The cast: [`OpenDatasets`] is the table; [`OpenDataset`] is one user's hold on an entry. A dataset is open at most
//! once however many users it has. When the last of them is gone, the dataset is drained in the background: the blocks
//! in flight reach the store before it is closed.
//!
//! Invariant: a counter never falls. The counters of a dataset stay in the sums after it was closed.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_dataset::{CacheId, Placement};
use larder_origin::Origin;
use larder_peers::{AskedDataset, DatasetStats, OtherSnapshot, Token};
use larder_telemetry::{Sample, Sums, Value};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tracing::warn;

use super::error::{NodeError, shown_size};
use crate::dataset::Dataset;
use crate::history::History;
use crate::request::DatasetRequest;
use crate::sharing::Sharing;

/// The most datasets of which the metrics have the names at the same time.
const NAMED_MOST: usize = 50;

/// The name of all others in the metrics.
const OTHER: &str = "_other";

/// The open datasets of a node.
#[derive(Debug)]
pub(super) struct OpenDatasets {
    table: Mutex<Table>,
    /// How many datasets without users are still writing to the store.
    draining: watch::Sender<usize>,
    /// See [`Self::follow_again`].
    follow_again: Notify,
    /// Where the passes of their readers are written down.
    history: History,
    runtime: Handle,
}

#[derive(Debug, Default)]
struct Table {
    open: Vec<Entry>,
    draining: Vec<Arc<Dataset>>,
    /// Sums over the datasets that were closed.
    closed: BTreeMap<&'static str, u64>,
    /// The same of those that may have the name of the dataset as a label, by that label.
    closed_labelled: BTreeMap<String, Sums>,
    /// The same of all others with labels.
    closed_times: Sums,
    /// The names of datasets that have series of their own, the last that was opened at the end. The series of a closed
    /// dataset stay as they are until another name needs the place: if their counts moved to the series of all others
    /// when it is closed, these would seem to have grown by so much in that moment.
    named: Vec<String>,
}

impl Table {
    /// Those that are open or draining.
    fn datasets(&self) -> impl Iterator<Item = &Arc<Dataset>> {
        self.open.iter().map(|entry| &entry.dataset).chain(&self.draining)
    }

    /// Gives a dataset that is about to be opened series of its own, if there is a place. None gets or loses them while
    /// it is open or draining, so no counter falls.
    fn name(&mut self, name: &str) {
        if let Some(at) = self.named.iter().position(|named| named == name) {
            let name = self.named.remove(at);
            return self.named.push(name);
        }
        let is_used = |name: &str| self.datasets().any(|dataset| dataset.name() == name);
        if is_used(name) {
            return;
        }
        if self.named.len() == NAMED_MOST {
            let Some(at) = self.named.iter().position(|named| !is_used(named)) else { return };
            let left = self.named.remove(at);
            if let Some(counts) = self.closed_labelled.remove(&left) {
                let others = self.closed_labelled.entry(OTHER.to_owned()).or_default();
                counts.samples().for_each(|sample| others.add(sample));
            }
        }
        self.named.push(name.to_owned());
    }

    /// The name of a dataset in the metrics.
    fn label<'a>(&self, dataset: &'a Dataset) -> &'a str {
        if self.named.iter().any(|named| named == dataset.name()) { dataset.name() } else { OTHER }
    }
}

#[derive(Debug)]
struct Entry {
    id: String,
    dataset: Arc<Dataset>,
    users: usize,
    /// Those of the users that are connections.
    connections: usize,
}

/// The user that a dataset is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// A mount of this process, or the node itself. It gets the settings that it asks for, or an error.
    Mount,
    /// A connection that the keeper holds, too. Readers wait for it: it gets what there is.
    Connection,
}

impl OpenDatasets {
    pub(super) fn new(runtime: Handle, history: History) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            draining: watch::Sender::new(0),
            follow_again: Notify::new(),
            history,
            runtime,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a user to a dataset that is open already.
    pub(super) fn join(self: &Arc<Self>, id: &str, user: User) -> Option<OpenDataset> {
        let mut table = self.lock();
        let entry = table.open.iter_mut().find(|entry| entry.id == id)?;
        entry.users += 1;
        entry.connections += usize::from(user == User::Connection);
        let dataset = Some(Arc::clone(&entry.dataset));
        Some(OpenDataset { id: id.to_owned(), user, dataset, table: Arc::clone(self) })
    }

    /// True if a dataset has users.
    pub(super) fn has(&self, id: &str) -> bool {
        self.lock().open.iter().any(|entry| entry.id == id)
    }

    /// Adds a dataset, with its first user.
    pub(super) fn add(self: &Arc<Self>, id: String, dataset: Arc<Dataset>, user: User) -> OpenDataset {
        let connections = usize::from(user == User::Connection);
        let mut table = self.lock();
        table.name(dataset.name());
        table.open.push(Entry { id: id.clone(), dataset: Arc::clone(&dataset), users: 1, connections });
        drop(table);
        OpenDataset { id, user, dataset: Some(dataset), table: Arc::clone(self) }
    }

    /// Removes a user.
    fn leave(self: &Arc<Self>, id: &str, user: User) {
        let mut table = self.lock();
        let Some(at) = table.open.iter().position(|entry| entry.id == id) else { return };
        if user == User::Connection {
            table.open[at].connections -= 1;
            if table.open[at].connections == 0 {
                // In memory. Closing the dataset writes it down; until then a restart keeps what the keeper may still
                // hold.
                table.open[at].dataset.let_go(id);
            }
        }
        table.open[at].users -= 1;
        if table.open[at].users > 0 {
            return;
        }
        let Entry { dataset, .. } = table.open.swap_remove(at);
        table.draining.push(Arc::clone(&dataset));
        self.draining.send_modify(|count| *count += 1);
        drop(table);
        let datasets = Arc::clone(self);
        self.runtime.spawn(async move {
            // Counts the dataset as drained even if draining panics.
            let drained = Drained { datasets, dataset: Some(dataset) };
            if let Some(dataset) = &drained.dataset {
                dataset.drain().await;
                dataset.cut_pass().into_iter().for_each(|pass| drained.datasets.history.add(pass));
            }
            // Closing the dataset writes to the disk.
            let _ = tokio::task::spawn_blocking(move || drop(drained)).await;
        });
    }

    /// True if no dataset is draining.
    pub(super) fn is_drained(&self) -> bool {
        *self.draining.borrow() == 0
    }

    /// The number of draining datasets.
    pub(super) fn watch_draining(&self) -> watch::Receiver<usize> {
        self.draining.subscribe()
    }

    /// Has reservations follow the list of nodes though it is the same: one may follow that could not before.
    pub(super) fn follow_again(&self) {
        self.follow_again.notify_one();
    }

    /// Waits for [`Self::follow_again`]. Cancel-safe.
    pub(super) async fn is_to_follow_again(&self) {
        self.follow_again.notified().await;
    }

    /// The datasets that have users.
    pub(super) fn all(&self) -> Vec<Arc<Dataset>> {
        self.lock().open.iter().map(|entry| Arc::clone(&entry.dataset)).collect()
    }

    /// Counters and gauges by name, summed over the datasets. The counters of closed ones are included.
    pub(super) fn sums(&self) -> BTreeMap<&'static str, u64> {
        let table = self.lock();
        let mut sums = table.closed.clone();
        let mut add = |name, value| *sums.entry(name).or_default() += value;
        let mut counted = Vec::new();
        for dataset in table.datasets() {
            dataset.counters().values().for_each(|(name, value)| add(name, value));
            // A draining dataset and its successor share a part of the store.
            let cache = dataset.cache_id();
            if !counted.contains(&cache) {
                dataset.gauges().into_iter().for_each(|(name, value)| add(name, value));
                counted.push(cache);
            }
        }
        sums
    }

    /// The metrics that have labels, with the names of datasets or without. Both have the same sums. Closed datasets are
    /// included.
    pub(super) fn samples(&self, with_names: bool) -> Vec<Sample> {
        let table = self.lock();
        let named = |mut sample: Sample, name: &str| {
            if with_names {
                sample.labels.push(("dataset", name.to_owned()));
            }
            sample
        };
        let mut sums = table.closed_times.clone();
        for (name, closed) in &table.closed_labelled {
            closed.clone().samples().for_each(|sample| sums.add(named(sample, name)));
        }
        let mut oldest_wait = Duration::ZERO;
        let mut counted = Vec::new();
        for dataset in table.datasets() {
            let name = table.label(dataset);
            dataset.labelled().into_iter().for_each(|sample| sums.add(named(sample, name)));
            dataset.times().into_iter().for_each(|sample| sums.add(sample));
            let (waiting, oldest) = dataset.waiting();
            sums.add(named(Sample::new("reads_waiting", waiting), name));
            oldest_wait = oldest_wait.max(oldest);
            // Ratios cannot be added up: of two snapshots with one name, the first counts.
            if with_names && name != OTHER && !counted.contains(&name) {
                dataset.named_gauges().into_iter().for_each(|sample| sums.add(named(sample, name)));
                counted.push(name);
            }
        }
        sums.samples().chain([Sample::of("read_oldest_wait_seconds", [], Value::Time(oldest_wait))]).collect()
    }

    /// Counts for how long readers waited, and writes down the passes that have ended. The time in which their threads
    /// had no CPU is divided among the datasets by the requests since the last call.
    pub(super) fn look_at_readers(&self, without_cpu: Duration) {
        let datasets: Vec<_> = self.all().into_iter().map(|dataset| (dataset.new_reads(), dataset)).collect();
        let all = datasets.iter().map(|(reads, _)| reads).sum::<u64>().max(1) as f64;
        let ended = datasets
            .iter()
            .filter_map(|(reads, dataset)| dataset.look_at_readers(without_cpu.mul_f64(*reads as f64 / all)));
        ended.for_each(|pass| self.history.add(pass));
    }

    /// Writes down the passes that are running, and waits a bounded time until all are written.
    pub(super) async fn close_history(&self) {
        self.all().iter().filter_map(|dataset| dataset.cut_pass()).for_each(|pass| self.history.add(pass));
        self.history.close().await;
    }

    /// The store's cached blocks of each dataset, sorted by cache.
    pub(super) fn cached(&self) -> Vec<DatasetStats> {
        each_once(self.all().iter().map(|dataset| cached_of(dataset)))
    }

    /// The same of those that a peer asks about and may read.
    pub(super) fn cached_for_peer(&self, asked: &[AskedDataset]) -> Vec<DatasetStats> {
        let may_read = |dataset: &Arc<Dataset>| {
            let Some(sharing) = dataset.sharing() else { return false };
            let cache = dataset.cache_id();
            asked.iter().any(|asked| asked.cache == cache && sharing.admits(asked.token.as_ref()))
        };
        each_once(self.all().iter().filter(|dataset| may_read(dataset)).map(|dataset| cached_of(dataset)))
    }

    /// The snapshot that this node shares instead of the dataset that a peer asks about, of the same origin and under
    /// the same token: the newest.
    pub(super) fn other_for_peer(&self, asked: &AskedDataset) -> Option<OtherSnapshot> {
        let is_of_origin = |dataset: &Arc<Dataset>| {
            let Some(sharing) = dataset.sharing() else { return false };
            !sharing.origin().is_empty() && sharing.origin() == asked.origin && sharing.admits(asked.token.as_ref())
        };
        let all = self.all();
        let found = all.iter().filter(|dataset| is_of_origin(dataset)).map(|dataset| dataset.manifest());
        let newest = found.max_by_key(|manifest| manifest.created_ns())?;
        let shares_asked = all.iter().any(|it| it.cache_id() == asked.cache && is_of_origin(it));
        let (snapshot, listed_ns) = (newest.snapshot(), newest.created_ns());
        (!shares_asked).then_some(OtherSnapshot { asked: asked.cache, snapshot, listed_ns })
    }

    /// The datasets that this node shares, as it asks its peers for them.
    pub(super) fn shared(&self) -> Vec<AskedDataset> {
        self.all().iter().filter_map(|dataset| Some(dataset.sharing()?.asked())).collect()
    }

    /// The name of a dataset that this node shares.
    pub(super) fn name_of_shared(&self, cache: CacheId) -> Option<String> {
        let shared = |dataset: &Arc<Dataset>| dataset.sharing().is_some() && dataset.cache_id() == cache;
        self.all().iter().find(|dataset| shared(dataset)).map(|dataset| dataset.name().to_owned())
    }

    /// Looks for a dataset with this cache that this node shares and a peer with this token may read.
    pub(super) fn for_peer(&self, cache: CacheId, token: Option<&Token>) -> PeerAccess {
        let table = self.lock();
        let open = table.open.iter().map(|entry| &entry.dataset).filter(|it| it.cache_id() == cache);
        let mut access = PeerAccess::NotShared;
        for dataset in open {
            match dataset.sharing() {
                Some(sharing) if sharing.admits(token) => return PeerAccess::Granted(Arc::clone(dataset)),
                Some(_) => access = PeerAccess::Denied,
                None => {}
            }
        }
        access
    }
}

fn cached_of(dataset: &Dataset) -> DatasetStats {
    let usage = dataset.cache_usage();
    DatasetStats {
        cache: dataset.cache_id(),
        name: dataset.name().to_owned(),
        blocks_cached: usage.blocks_cached,
        bytes_cached: usage.used_bytes,
        capacity_bytes: usage.capacity_bytes,
    }
}

/// Each cache once, sorted.
fn each_once(cached: impl Iterator<Item = DatasetStats>) -> Vec<DatasetStats> {
    let mut cached: Vec<DatasetStats> = cached.collect();
    cached.sort_by_key(|dataset| dataset.cache);
    cached.dedup_by_key(|dataset| dataset.cache);
    cached
}

/// Whether a peer may read a cache.
#[derive(Debug)]
pub(super) enum PeerAccess {
    /// This node does not share it.
    NotShared,
    /// The token is wrong.
    Denied,
    /// The peer may read this dataset.
    Granted(Arc<Dataset>),
}

/// Removes a dataset from those that drain, and keeps its counters.
struct Drained {
    datasets: Arc<OpenDatasets>,
    /// Taken when it is dropped.
    dataset: Option<Arc<Dataset>>,
}

impl Drop for Drained {
    fn drop(&mut self) {
        let (mut removed, mut is_parted) = (None, false);
        if let Some(dataset) = self.dataset.take() {
            let mut table = self.datasets.lock();
            let at = table.draining.iter().position(|other| Arc::ptr_eq(other, &dataset));
            removed = at.map(|at| table.draining.swap_remove(at));
            for (name, value) in dataset.counters().totals() {
                *table.closed.entry(name).or_default() += value;
            }
            let label = table.label(&dataset).to_owned();
            let labelled = table.closed_labelled.entry(label).or_default();
            dataset.labelled().into_iter().for_each(|sample| labelled.add(sample));
            dataset.times().into_iter().for_each(|sample| table.closed_times.add(sample));
            let cache = dataset.cache_id();
            is_parted = table.open.iter().any(|entry| entry.dataset.cache_id() == cache);
        }
        // Closed before it counts as drained: a caller that waits for that may open it again.
        drop(removed);
        if is_parted {
            // The others have the cache for themselves.
            self.datasets.follow_again();
        }
        self.datasets.draining.send_modify(|count| *count -= 1);
    }
}

/// A user's hold on an open dataset. The dataset is closed when the last hold on it is dropped.
#[derive(Debug)]
pub struct OpenDataset {
    id: String,
    user: User,
    /// Taken when it is dropped.
    dataset: Option<Arc<Dataset>>,
    table: Arc<OpenDatasets>,
}

impl OpenDataset {
    /// The name of the dataset on this node: one for each snapshot, the server that it is read from, and the
    /// tenant with whose credentials.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The dataset itself.
    pub fn dataset(&self) -> &Arc<Dataset> {
        self.dataset.as_ref().expect("it is taken by drop alone")
    }
}

impl Deref for OpenDataset {
    type Target = Dataset;

    fn deref(&self) -> &Dataset {
        self.dataset()
    }
}

impl Drop for OpenDataset {
    fn drop(&mut self) {
        // First, so that the dataset is closed when it counts as drained.
        self.dataset = None;
        self.table.leave(&self.id, self.user);
    }
}

/// An open dataset is shared by all requests, whatever settings they state. Errors: `InUse`, for a user that must have
/// those that it stated.
pub(super) fn check_settings(open: &Dataset, request: &DatasetRequest, user: User) -> Result<(), NodeError> {
    for (what, has) in other_settings(open, request) {
        if user == User::Mount {
            return Err(NodeError::InUse { what, has });
        }
        warn!(
            dataset = open.name(),
            source = request.spec.source,
            what,
            has,
            "a volume requests another setting than the dataset is open with: the dataset keeps its own"
        );
    }
    check_placement(open, request).or_else(|error| match user {
        User::Mount => Err(error),
        User::Connection => {
            warn!(
                dataset = open.name(), source = request.spec.source, %error,
                "a volume requests another placement than the dataset is open with: the dataset keeps its own"
            );
            Ok(())
        }
    })
}

/// The settings of an open dataset that differ from those of a request, with their values.
fn other_settings(open: &Dataset, request: &DatasetRequest) -> Vec<(&'static str, String)> {
    let (spec, usage) = (&request.spec, open.cache_usage());
    let mut others = Vec::new();
    if spec.policy.is_some_and(|policy| policy != usage.policy) {
        others.push(("policy", usage.policy.to_string()));
    }
    // A reservation larger than the dataset is as good as one of its size.
    let all = open.manifest().totals().bytes;
    let sizes = [usage.capacity_bytes, usage.wanted_bytes].map(|bytes| bytes.min(all));
    if spec.cache_bytes.is_some_and(|bytes| !sizes.contains(&bytes.min(all))) {
        others.push(("cache size", shown_size(usage.capacity_bytes)));
    }
    others
}

/// All nodes must agree on the placement of a dataset.
pub(super) fn check_placement(open: &Dataset, request: &DatasetRequest) -> Result<(), NodeError> {
    let placement = open.sharing().map_or(Placement::Local, Sharing::placement);
    if request.spec.placement.is_some_and(|wanted| wanted != placement) {
        return Err(NodeError::InUse { what: "placement", has: placement.to_string() });
    }
    Ok(())
}

/// False if an open dataset that serves this request too stays as it is.
pub(super) fn is_changed_by(open: &Dataset, request: &DatasetRequest) -> bool {
    let will_follow = request.spec.cache_bytes.is_none() && open.sharing().is_some();
    open.followed().is_none() && (will_follow || !has_all(open, wanted_of(open, request)))
}

/// Bytes of an open dataset that a request wants. More than all of them are as good as all.
pub(super) fn wanted_of(open: &Dataset, request: &DatasetRequest) -> u64 {
    let all = open.manifest().totals().bytes;
    request.spec.cache_bytes.map_or(all, |bytes| bytes.min(all))
}

/// True if an open dataset has all that it wants, and wants as much as this.
pub(super) fn has_all(open: &Dataset, wanted_bytes: u64) -> bool {
    let usage = open.cache_usage();
    wanted_bytes <= usage.wanted_bytes && usage.wanted_bytes <= usage.capacity_bytes
}

/// Makes an open dataset use credentials that were just checked: those of its first user may have been replaced since.
pub(super) fn renew(open: &Dataset, origin: Arc<dyn Origin>, token: Option<Token>) {
    open.replace_origin(origin);
    if let Some(sharing) = open.sharing() {
        sharing.replace_token(token);
    }
}
