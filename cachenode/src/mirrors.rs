//! Reading a dataset from several origins: its own, and its mirrors.
//!
//! [`Mirrors`] is an [`Origin`] over all of them, so nothing else that reads a dataset knows of mirrors. `health` knows
//! which of them answers; `copy` finds an object of the snapshot in a mirror, by the mirror's manifest.
//!
//! Places are read in this order: those that are near by the node's labels first, then by cost; the dataset's own
//! origin is before all others of its cost. A read goes to the first that is well. If it fails there, or the object is
//! not there as the manifest says, it goes on at the next, from the byte at which it stopped. A place that gives
//! nothing for 10 s while a read waits is left, and with it go the reads that wait there; it is asked again 5 to 55 s
//! apart, and used again once it answers.
//!
//! Invariant: a mirror is used only with a manifest that names the snapshot that is read. So bytes are those of the
//! snapshot wherever they come from, and the cache need not know where that was. The dataset's own origin is always
//! among the places.

mod copy;
mod health;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use larder_dataset::Chain;
use larder_import::ObjectRange;
use larder_origin::{
    Depth, Key, ObjectInfo, Origin, OriginError, OriginUrl, Page, PlaceReport, Sink, Urgency, Version,
};
use tokio::runtime::Handle;
use tracing::{info, warn};

use crate::counters::{MirrorCounters, add};
use crate::home::Home;
use crate::manifest_file::MappedManifest;
use crate::request::MirrorRequest;
use crate::source::fetch_mirror;
use copy::Copied;
use health::Health;

/// The first pause before a place that was left is asked again, and the longest. A question takes up to
/// [`PROBE_MOST`] more.
const PROBE_FIRST: Duration = Duration::from_secs(5);
const PROBE_LAST: Duration = Duration::from_secs(50);
const PROBE_MOST: Duration = Duration::from_secs(5);

/// The pause before a mirror without the snapshot is looked at again.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The labels of the node, which may change.
#[derive(Debug, Default)]
pub(crate) struct NodeLabels(RwLock<Arc<BTreeMap<String, String>>>);

impl NodeLabels {
    pub(crate) fn set(&self, labels: BTreeMap<String, String>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(labels);
    }

    fn get(&self) -> Arc<BTreeMap<String, String>> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The context that all datasets of a node share.
#[derive(Clone, Debug)]
pub(crate) struct Surroundings {
    pub(crate) home: Home,
    pub(crate) counters: Arc<MirrorCounters>,
    pub(crate) labels: Arc<NodeLabels>,
    pub(crate) runtime: Handle,
}

/// A place to read from.
#[derive(Debug)]
pub(crate) struct PlaceConfig {
    /// `None` for the dataset's own origin.
    pub(crate) mirror: Option<MirrorRequest>,
    pub(crate) origin: Arc<dyn Origin>,
    /// Where the server and the account are, for the manifest that is kept of it.
    pub(crate) place: String,
}

/// A dataset's origin and its mirrors, as one origin.
#[derive(Clone, Debug)]
pub(crate) struct Mirrors {
    places: Arc<Places>,
    /// As the places.
    origins: Arc<[Arc<dyn Origin>]>,
    /// A bit for each place that is not read from.
    skipped: u32,
}

/// The labels of the node at some time.
type LabelsNow = Arc<BTreeMap<String, String>>;

/// The places of a dataset and their state, which all of its readers share. Outlives the credentials of the places.
#[derive(Debug)]
pub(crate) struct Places {
    url: OriginUrl,
    /// The snapshot that is read.
    manifest: Arc<MappedManifest>,
    places: Vec<Place>,
    /// The origins with the newest credentials.
    newest: RwLock<Arc<[Arc<dyn Origin>]>>,
    /// The labels of the node, and the order of the places by them.
    order: RwLock<(LabelsNow, Arc<[usize]>)>,
    around: Surroundings,
}

#[derive(Debug)]
struct Place {
    /// `None` for the dataset's own origin.
    mirror: Option<MirrorRequest>,
    url: OriginUrl,
    place: String,
    health: Health,
    /// Of a mirror.
    copy: RwLock<CopyState>,
    gets: AtomicU64,
    bytes: AtomicU64,
    missing: AtomicU64,
    failures: AtomicU64,
}

/// The state of the snapshot in a mirror.
#[derive(Clone, Debug)]
enum CopyState {
    /// It is not there, or not known to be; why.
    Missing(String),
    There(Arc<Copied>),
}

impl Mirrors {
    /// Reads `manifest` from these places. `before` are the places of the same dataset, if it is open: they are used
    /// again if they are the same.
    pub(crate) fn new(
        manifest: &Arc<MappedManifest>,
        configs: Vec<PlaceConfig>,
        before: Option<Arc<Places>>,
        around: Surroundings,
    ) -> Self {
        let origins: Arc<[Arc<dyn Origin>]> = configs.iter().map(|config| Arc::clone(&config.origin)).collect();
        let is_same = |places: &Arc<Places>| places.are(manifest, &configs);
        if let Some(places) = before.filter(is_same) {
            *places.newest.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&origins);
            return Self { places, origins, skipped: 0 };
        }
        let own = configs.iter().find(|config| config.mirror.is_none()).or(configs.first());
        let url = own.map(|own| own.origin.url().clone()).expect("a dataset has its own origin");
        let places: Vec<Place> = configs.into_iter().map(Place::new).collect();
        let newest = RwLock::new(Arc::clone(&origins));
        let (manifest, labels) = (Arc::clone(manifest), around.labels.get());
        let order = RwLock::new((Arc::clone(&labels), order(&places, &labels)));
        let places = Arc::new(Places { url, manifest, places, newest, order, around });
        for at in (0..places.places.len()).filter(|at| places.places[*at].mirror.is_some()) {
            places.around.runtime.spawn(find_copy(Arc::downgrade(&places), at));
        }
        Self { places, origins, skipped: 0 }
    }

    /// The places, for the next [`Self::new`].
    pub(crate) fn known(&self) -> &Arc<Places> {
        &self.places
    }

    /// The places to try, in order: those that are well, then those that were left.
    fn candidates(&self) -> Vec<usize> {
        let is_usable = |at: &usize| self.skipped & (1 << at) == 0 && self.places.places[*at].is_usable();
        let (well, left): (Vec<usize>, Vec<usize>) = self
            .places
            .order()
            .iter()
            .copied()
            .filter(is_usable)
            .partition(|at| !self.places.places[*at].health.is_left());
        [well, left].concat()
    }

    /// Reads what is left of a range from a place. Without `alone`, gives up when the place is left.
    async fn read_from(
        &self,
        at: usize,
        object: &ObjectRange,
        alone: bool,
        sink: &mut Sink<'_>,
    ) -> Result<(), OriginError> {
        let place = &self.places.places[at];
        let began = place.health.now();
        let mut passed = 0;
        let outcome = {
            let mut noted = |bytes: &[u8]| {
                place.health.is_alive();
                passed += bytes.len() as u64;
                sink(bytes);
            };
            let ObjectRange { key, range, version } = object;
            let read = self.origins[at].read_to(key, range.clone(), version.as_ref(), &mut noted);
            if alone {
                read.await
            } else {
                let mut read = pin!(read);
                tokio::select! {
                    biased;
                    outcome = &mut read => outcome,
                    () = place.health.silent(began) => {
                        self.places.leave(at, key);
                        Err(OriginError::TimedOut { key: Key::from(key.as_slice()), after: health::LEFT_AFTER })
                    }
                }
            }
        };
        if place.mirror.is_some() {
            add(&self.places.around.counters.bytes, passed);
        }
        place.bytes.fetch_add(passed, Ordering::Relaxed);
        self.places.note(at, &object.key, &outcome);
        outcome
    }

    async fn head_from(&self, at: usize, key: &[u8], alone: bool) -> Result<ObjectInfo, OriginError> {
        let place = &self.places.places[at];
        let Some(object) = self.places.object(at, key, 0..0, None) else { return Err(not_found(key)) };
        let began = place.health.now();
        let head = self.origins[at].head(&object.key);
        let head = if alone {
            head.await
        } else {
            let mut head = pin!(head);
            tokio::select! {
                biased;
                head = &mut head => head,
                () = place.health.silent(began) => {
                    self.places.leave(at, &object.key);
                    Err(OriginError::TimedOut { key: Key::from(key), after: health::LEFT_AFTER })
                }
            }
        };
        self.places.note(at, &object.key, &head);
        let found = head?;
        if place.mirror.is_none() {
            return Ok(found);
        }
        let is_the_copy = object.version.is_none_or(|version| version == found.version);
        copy::described(&self.places.manifest, key).filter(|_| is_the_copy).ok_or_else(|| not_found(key))
    }
}

fn not_found(key: &[u8]) -> OriginError {
    OriginError::NotFound { key: Key::from(key) }
}

impl Place {
    fn new(config: PlaceConfig) -> Self {
        let PlaceConfig { mirror, origin, place } = config;
        Self {
            mirror,
            url: origin.url().clone(),
            place,
            health: Health::new(),
            copy: RwLock::new(CopyState::Missing("its manifest was not read yet".into())),
            gets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            missing: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    fn copy(&self) -> CopyState {
        self.copy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_usable(&self) -> bool {
        self.mirror.is_none() || matches!(self.copy(), CopyState::There(_))
    }

    fn name(&self) -> &str {
        self.mirror.as_ref().map_or("the dataset's own origin", |mirror| &mirror.name)
    }
}

impl Places {
    /// True if these are the places of `configs` for the same snapshot.
    fn are(&self, manifest: &MappedManifest, configs: &[PlaceConfig]) -> bool {
        let is_same = |(place, config): (&Place, &PlaceConfig)| {
            place.mirror == config.mirror && place.url == *config.origin.url() && place.place == config.place
        };
        self.manifest.snapshot() == manifest.snapshot()
            && self.places.len() == configs.len()
            && self.places.iter().zip(configs).all(is_same)
    }

    /// The places in the order in which they are read.
    fn order(&self) -> Arc<[usize]> {
        let labels = self.around.labels.get();
        let (by, known) = self.order.read().unwrap_or_else(PoisonError::into_inner).clone();
        if Arc::ptr_eq(&by, &labels) {
            return known;
        }
        let order = order(&self.places, &labels);
        *self.order.write().unwrap_or_else(PoisonError::into_inner) = (labels, Arc::clone(&order));
        order
    }

    fn newest(&self, at: usize) -> Arc<dyn Origin> {
        Arc::clone(&self.newest.read().unwrap_or_else(PoisonError::into_inner)[at])
    }

    /// Where a range of an object of the snapshot is at a place. `None` if the place is not known to have it.
    fn object(&self, at: usize, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Option<ObjectRange> {
        let place = &self.places[at];
        match place.copy() {
            _ if place.mirror.is_none() => Some(ObjectRange { key: key.to_vec(), range, version: version.cloned() }),
            CopyState::There(copied) => copied.object(key, range),
            CopyState::Missing(_) => None,
        }
    }

    /// Notes the outcome of a call.
    fn note<T>(self: &Arc<Self>, at: usize, key: &[u8], outcome: &Result<T, OriginError>) {
        let place = &self.places[at];
        place.gets.fetch_add(1, Ordering::Relaxed);
        if place.mirror.is_some() {
            add(&self.around.counters.gets, 1);
        }
        match outcome {
            Ok(_) => place.health.is_alive(),
            Err(OriginError::NotFound { .. } | OriginError::Stale { .. } | OriginError::TooLarge { .. }) => {
                place.health.is_alive();
                self.lacks(at);
            }
            Err(
                OriginError::Denied { .. }
                | OriginError::Busy { .. }
                | OriginError::TimedOut { .. }
                | OriginError::Invalid { .. }
                | OriginError::Truncated { .. }
                | OriginError::Unavailable { .. },
            ) => {
                place.failures.fetch_add(1, Ordering::Relaxed);
                if place.health.has_failed() {
                    self.leave(at, key);
                }
            }
        }
    }

    /// Counts an object that a place does not have as the manifest says.
    fn lacks(&self, at: usize) {
        self.places[at].missing.fetch_add(1, Ordering::Relaxed);
        if self.places[at].mirror.is_some() {
            add(&self.around.counters.missing, 1);
        }
    }

    /// Leaves a place, unless it was left already, and asks it for this object from time to time.
    fn leave(self: &Arc<Self>, at: usize, key: &[u8]) {
        let place = &self.places[at];
        if place.health.leave() {
            add(&self.around.counters.left, 1);
            let (origin, place) = (&place.url, place.name());
            warn!(%origin, place, "the origin gives nothing for 10 s: others are read instead");
            tokio::spawn(ask_again(Arc::downgrade(self), at, key.to_vec()));
        }
    }
}

/// The order of places on a node with these labels.
fn order(places: &[Place], labels: &BTreeMap<String, String>) -> Arc<[usize]> {
    let rank = |at: &usize| match &places[*at].mirror {
        Some(MirrorRequest { near, cost, always_near, .. }) => {
            let has_all = || near.iter().all(|(name, value)| labels.get(name) == Some(value));
            (!(*always_near || !near.is_empty() && has_all()), *cost, *at)
        }
        // The first of its cost.
        None => (true, 0, 0),
    };
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(rank);
    order.into()
}

/// Asks a place that was left whether it answers, until it does or the dataset is closed.
async fn ask_again(places: Weak<Places>, at: usize, key: Vec<u8>) {
    let mut pause = PROBE_FIRST;
    loop {
        tokio::time::sleep(pause).await;
        let Some(places) = places.upgrade() else { return };
        let origin = places.newest(at);
        let answer = tokio::time::timeout(PROBE_MOST, origin.head(&key)).await;
        if let Ok(Ok(_) | Err(OriginError::NotFound { .. } | OriginError::Stale { .. })) = answer {
            let place = &places.places[at];
            place.health.is_back();
            info!(origin = %place.url, place = place.name(), "the origin answers again and is used again");
            return;
        }
        pause = (pause * 2).min(PROBE_LAST);
    }
}

/// Looks for the snapshot in a mirror, until it is there or the dataset is closed.
async fn find_copy(places: Weak<Places>, at: usize) {
    loop {
        let Some(places) = places.upgrade() else { return };
        let place = &places.places[at];
        let why = match fetch_mirror(&*places.newest(at), &place.place, &places.around.home).await {
            Ok(Some(mirror)) => match Copied::of(&places.manifest, mirror) {
                Ok(copied) => {
                    info!(origin = %place.url, mirror = place.name(), "the mirror has the snapshot");
                    *place.copy.write().unwrap_or_else(PoisonError::into_inner) = CopyState::There(Arc::new(copied));
                    return;
                }
                Err(why) => why,
            },
            Ok(None) => "it has no manifest: `larder sync` has not completed a copy".to_owned(),
            Err(error) => format!("its manifest cannot be read: {}", Chain(&error)),
        };
        {
            let mut copy = place.copy.write().unwrap_or_else(PoisonError::into_inner);
            if !matches!(&*copy, CopyState::Missing(before) if *before == why) {
                warn!(origin = %place.url, mirror = place.name(), %why, "the mirror is not read from yet");
                *copy = CopyState::Missing(why);
            }
        }
        drop(places);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[async_trait]
impl Origin for Mirrors {
    fn url(&self) -> &OriginUrl {
        &self.places.url
    }

    fn with_urgency(&self, urgency: &Urgency) -> Option<Arc<dyn Origin>> {
        let with = |origin: &Arc<dyn Origin>| origin.with_urgency(urgency).unwrap_or_else(|| Arc::clone(origin));
        let origins = self.origins.iter().map(with).collect();
        Some(Arc::new(Self { places: Arc::clone(&self.places), origins, skipped: self.skipped }))
    }

    fn places(&self) -> usize {
        self.candidates().first().map_or(usize::MAX, |at| self.origins[*at].places())
    }

    fn elsewhere(&self) -> Option<Arc<dyn Origin>> {
        let candidates = self.candidates();
        let (first, _next) = (candidates.first()?, candidates.get(1)?);
        Some(Arc::new(Self { skipped: self.skipped | 1 << first, ..self.clone() }))
    }

    fn is_costly(&self) -> bool {
        let nearest = self.places.order().iter().copied().find(|at| self.places.places[*at].is_usable());
        nearest.is_some() && nearest != self.candidates().first().copied()
    }

    fn report(&self) -> Vec<PlaceReport> {
        let report = |place: &Place| PlaceReport {
            mirror: place.mirror.as_ref().map(|mirror| mirror.name.clone()),
            url: place.url.to_string(),
            unused: match place.copy() {
                CopyState::Missing(why) if place.mirror.is_some() => Some(why),
                _ if place.health.is_left() => Some("it gives nothing: it is asked again from time to time".into()),
                _ => None,
            },
            gets: place.gets.load(Ordering::Relaxed),
            bytes: place.bytes.load(Ordering::Relaxed),
            missing: place.missing.load(Ordering::Relaxed),
            failures: place.failures.load(Ordering::Relaxed),
        };
        self.places.order().iter().map(|at| report(&self.places.places[*at])).collect()
    }

    async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
        self.own().list(prefix, after, depth).await
    }

    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError> {
        let mut bytes = Vec::with_capacity(range.end.saturating_sub(range.start) as usize);
        self.read_to(key, range, version, &mut |piece| bytes.extend_from_slice(piece)).await?;
        Ok(bytes.into())
    }

    async fn read_to(
        &self,
        key: &[u8],
        range: Range<u64>,
        version: Option<&Version>,
        sink: &mut Sink<'_>,
    ) -> Result<(), OriginError> {
        let candidates = self.candidates();
        let mut start = range.start;
        let mut failure = None;
        for (nth, &at) in candidates.iter().enumerate() {
            let Some(object) = self.places.object(at, key, start..range.end, version) else {
                self.places.lacks(at);
                continue;
            };
            let mut passed = |bytes: &[u8]| {
                start += bytes.len() as u64;
                sink(bytes);
            };
            // On the heap, so that the thousands of reads that may wait are small.
            let read = Box::pin(self.read_from(at, &object, nth + 1 == candidates.len(), &mut passed));
            match read.await {
                Ok(()) => return Ok(()),
                // The dataset's own origin says most about the dataset.
                Err(error) if failure.is_none() || self.places.places[at].mirror.is_none() => failure = Some(error),
                Err(_) => {}
            }
        }
        Err(failure.unwrap_or_else(|| not_found(key)))
    }

    async fn head(&self, key: &[u8]) -> Result<ObjectInfo, OriginError> {
        let candidates = self.candidates();
        let mut failure = None;
        for (nth, &at) in candidates.iter().enumerate() {
            match self.head_from(at, key, nth + 1 == candidates.len()).await {
                Ok(found) => return Ok(found),
                Err(error) if failure.is_none() || self.places.places[at].mirror.is_none() => failure = Some(error),
                Err(_) => {}
            }
        }
        Err(failure.unwrap_or_else(|| not_found(key)))
    }

    async fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError> {
        self.own().read_all(key, limit).await
    }

    async fn put(&self, key: &[u8], bytes: Bytes) -> Result<Version, OriginError> {
        self.own().put(key, bytes).await
    }

    async fn put_stream(
        &self,
        key: &[u8],
        chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Version, OriginError> {
        self.own().put_stream(key, chunks).await
    }
}

impl Mirrors {
    /// The dataset's own origin.
    fn own(&self) -> &Arc<dyn Origin> {
        let own = self.places.places.iter().position(|place| place.mirror.is_none());
        &self.origins[own.unwrap_or(0)]
    }
}
