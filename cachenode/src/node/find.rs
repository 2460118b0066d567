//! Finds the manifest and the origin of a dataset.
//!
//! The cast: [`Finder`] looks datasets up; [`Found`] is one that can be opened. Requests with the same source and
//! credentials share one look-up, which runs in a task of its own: a caller that stops waiting loses nothing, and many
//! pods that start together list the origin once. One that nobody has asked for during minutes ends; the next continues
//! its listing, unless it asks for a newer one. A listing that ended while nobody waited is delivered to the next caller,
//! so that the origin is not listed again; the credentials of that caller are checked anew.

mod wanted;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::{Duration, Instant};

use larder_dataset::environment::ANONYMOUS;
use larder_dataset::mirrors::MIRRORS_MAX;
use larder_dataset::{CacheId, CacheKey, Chain, DatasetSpec, Refresh, SnapshotId};
use larder_import::{Progress, PublishError};
use larder_origin::{Env, Origin, OriginConfig, OriginUrl, Sessions};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::{info, warn};

use super::error::NodeError;
use crate::counters::MirrorCounters;
use crate::folder::{HOME_FLAG, check_writable, is_unwritable};
use crate::home::Home;
use crate::importing::Importer;
use crate::kept_listing::age_of;
use crate::kept_manifests::{KeptManifests, MOUNTS};
use crate::manifest_file::{MappedManifest, open_manifest, order_of};
use crate::mirrors::{Mirrors, NodeLabels, PlaceConfig, Places, Surroundings};
use crate::renewal::{Renewal, renewal};
use crate::request::{Credentials, DatasetRequest, MirrorRequest};
use crate::source::{ResolvedSource, SourceError, check_access, open_source, resolve, short_hash};
use wanted::Wanted;

/// The longest time that a caller may wait.
const WAIT_MOST: Duration = Duration::from_secs(60);

/// How long a listing for which nobody waited is new enough for the next caller. The kubelet tries again within two
/// minutes.
const UNDELIVERED_MOST: Duration = Duration::from_secs(300);

/// A dataset that can be opened.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its name on this node.
    pub id: String,
    /// The snapshot, and for whom it is cached.
    pub key: CacheKey,
    /// The part of its name that distinguishes mounts of one place.
    pub(super) apart: String,
    /// Its manifest, mapped.
    pub manifest: Arc<MappedManifest>,
    /// Its origin.
    pub origin: Arc<dyn Origin>,
    /// Why its listing could not be renewed when that was last tried.
    pub refresh_failed: Option<String>,
    /// The list of what is warmed first, if there is such a file.
    pub order: PathBuf,
    /// How to renew its listing, in words.
    pub renewal: Renewal,
}

impl Found {
    /// The names of its mounts of a snapshot. How the files of an earlier one were shown does not matter.
    fn ids_of(&self, snapshot: SnapshotId) -> [String; 2] {
        let key = CacheKey::new(snapshot, self.key.place(), self.key.owner());
        [&*self.apart, key.owner()].map(|apart| mount_id(&key, apart))
    }
}

/// How far a look-up came while its caller waited.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a caller has one, for a moment")]
pub enum Prepared {
    /// The dataset was found.
    Ready(Found),
    /// Its origin is still being listed.
    Importing {
        /// Files listed so far.
        files_listed: u64,
    },
}

/// Finds datasets.
#[derive(Debug)]
pub(super) struct Finder {
    home: Home,
    /// The manifests of what was found.
    kept: KeptManifests,
    /// Those that earlier processes had kept of what they cached without keys: the mounts and their snapshots.
    kept_before: Vec<(String, SnapshotId)>,
    /// The URLs of the datasets that were found, so that only manifests of the same URL are opened as earlier ones.
    urls: Mutex<HashMap<CacheId, String>>,
    /// The settings for origins, where a request has none of its own.
    origin: RwLock<OriginConfig>,
    importer: Importer,
    runtime: Handle,
    look_ups: Arc<LookUps>,
    /// The places of each mount with mirrors, and their state.
    places: Mutex<HashMap<String, Weak<Places>>>,
    mirror_counters: Arc<MirrorCounters>,
    /// The labels of the node.
    labels: Arc<NodeLabels>,
}

/// The look-ups of a node.
#[derive(Default)]
struct LookUps(Mutex<Table>);

#[derive(Default)]
struct Table {
    in_flight: HashMap<LookUpKey, LookUp>,
    /// Listings that were not delivered to a caller yet, and when they were made.
    undelivered: HashMap<LookUpKey, Instant>,
}

impl LookUps {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for LookUps {
    /// Shows their number only: keys contain credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LookUps").field(&self.lock().in_flight.len()).finish()
    }
}

/// Look-ups with the same key have the same outcome. Credentials are part of it: one tenant's must not open a dataset
/// to another.
#[derive(Clone, PartialEq, Eq, Hash)]
struct LookUpKey {
    /// Without what only opening it needs.
    spec: DatasetSpec,
    credentials: Option<Credentials>,
    /// The quota that limits its import, if one does: nobody else waits for that.
    quota: Option<String>,
    mirrors: Vec<MirrorRequest>,
}

#[derive(Clone, Debug)]
struct LookUp {
    progress: Arc<FilesListed>,
    wanted: Arc<Wanted>,
    /// True while its import waits for its quota.
    waits: Arc<AtomicBool>,
    outcome: watch::Receiver<Option<Result<Found, Arc<NodeError>>>>,
}

/// Counts the files that an import has listed.
#[derive(Debug, Default)]
struct FilesListed(AtomicU64);

impl Progress for FilesListed {
    fn listed(&self, files: u64, _bytes: u64, _prefixes_done: u64, _prefixes_known: u64) {
        self.0.store(files, Ordering::Relaxed);
    }

    fn noted(&self, what: &str) {
        warn!("{what}");
    }
}

impl LookUpKey {
    fn of(request: &DatasetRequest, importer: &Importer) -> Self {
        Self {
            quota: importer.limit_of(&request.payer).map(|(quota, _)| quota.name),
            spec: DatasetSpec { cache_bytes: None, policy: None, placement: None, ..request.spec.clone() },
            credentials: request.credentials.clone(),
            mirrors: request.mirrors.clone(),
        }
    }
}

/// The snapshot of a manifest, the server and account that it is read from, and the tenant with whose credentials. So
/// no tenant's reads depend on another's credentials, nor on the bytes that another was given. `config` is that of its
/// request; the node's own endpoint and region are the same for all datasets and not part of a key.
fn key_of(manifest: &MappedManifest, request: &DatasetRequest, config: OriginConfig) -> Result<CacheKey, NodeError> {
    let (_, url) = manifest.name_and_origin()?;
    Ok(CacheKey::new(manifest.snapshot(), place_of(url, &request.spec, config), request.owner()))
}

/// The server and account that a URL is read from.
fn place_of(url: &str, spec: &DatasetSpec, config: OriginConfig) -> String {
    OriginConfig { endpoint: spec.endpoint.clone(), region: spec.region.clone(), ..config }.place(url)
}

/// The name of a dataset on a node: one for each key, and for each way in which its files are shown. `apart` is that of
/// its request.
fn mount_id(key: &CacheKey, apart: &str) -> String {
    let snapshot = key.snapshot().to_string();
    let parts = [&*snapshot, key.place(), apart];
    short_hash(if apart.is_empty() { &parts[..2] } else { &parts })
}

impl Finder {
    pub(super) fn new(
        home: Home,
        cache_dirs: Vec<PathBuf>,
        origin: OriginConfig,
        importer: Importer,
        runtime: Handle,
    ) -> Self {
        let kept = KeptManifests::new(home.clone(), cache_dirs);
        let (kept_before, origin) = (Vec::new(), RwLock::new(origin));
        let (urls, look_ups, places, mirror_counters, labels) = Default::default();
        Self { home, kept, kept_before, urls, origin, importer, runtime, look_ups, places, mirror_counters, labels }
    }

    /// These are the manifests that earlier processes had kept.
    pub(super) fn set_kept_before(&mut self, kept: Vec<(String, SnapshotId)>) {
        self.kept_before = kept;
    }

    /// The manifests of what was found.
    pub(super) fn kept(&self) -> &KeptManifests {
        &self.kept
    }

    /// The settings for the origin of a request.
    pub(super) fn origin_config(&self, request: &DatasetRequest) -> OriginConfig {
        request.origin_config(&self.own_config())
    }

    fn own_config(&self) -> RwLockReadGuard<'_, OriginConfig> {
        self.origin.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node's own variables. Their values may be secrets.
    pub(super) fn own_variables(&self) -> Env {
        self.own_config().env.clone()
    }

    /// The keys of the identities of pods.
    pub(super) fn sessions(&self) -> Sessions {
        self.own_config().sessions.clone()
    }

    /// Uses these as the node's own variables from now on.
    pub(super) fn set_own_variables(&self, env: Env) {
        self.origin.write().unwrap_or_else(PoisonError::into_inner).env = env;
    }

    /// The labels of the node, by which mirrors are near or not.
    pub(super) fn labels(&self) -> &NodeLabels {
        &self.labels
    }

    /// The counters of all mirrors.
    pub(super) fn mirror_counters(&self) -> &MirrorCounters {
        &self.mirror_counters
    }

    /// The origin of a dataset and its mirrors, for a request of the mount `id`. Sends no request to the origin.
    pub(super) fn origin(
        &self,
        id: &str,
        manifest: &Arc<MappedManifest>,
        request: &DatasetRequest,
    ) -> Result<Arc<dyn Origin>, NodeError> {
        let (_, url) = manifest.name_and_origin()?;
        let url: OriginUrl = url.parse().map_err(SourceError::Origin)?;
        let own = larder_origin::open(&url, &self.origin_config(request)).map_err(SourceError::Origin)?;
        Ok(self.with_mirrors(id, manifest, own, request))
    }

    /// A dataset's own origin with the mirrors of a request. One that cannot be opened is left out, with a word in the
    /// log.
    fn with_mirrors(
        &self,
        id: &str,
        manifest: &Arc<MappedManifest>,
        own: Arc<dyn Origin>,
        request: &DatasetRequest,
    ) -> Arc<dyn Origin> {
        let config = self.origin_config(request);
        let open = |mirror: &MirrorRequest| {
            let is_same_kind = mirror.source.starts_with(&format!("{}://", own.url().scheme().as_str()));
            let config = mirror.origin_config(config.clone(), is_same_kind);
            let opened = mirror.source.parse::<OriginUrl>().and_then(|url| larder_origin::open(&url, &config));
            let opened = opened.inspect_err(|error| {
                warn!(mount = id, mirror = mirror.name, error = %Chain(error), "a mirror cannot be used");
            });
            let place = config.listing_place(&mirror.source);
            opened.ok().map(|origin| PlaceConfig { mirror: Some(mirror.clone()), origin, place })
        };
        let mut places = vec![PlaceConfig { mirror: None, origin: Arc::clone(&own), place: String::new() }];
        places.extend(request.mirrors.iter().take(MIRRORS_MAX).filter_map(open));
        if places.len() == 1 {
            return own;
        }
        let mut table = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        table.retain(|_, places| places.strong_count() > 0);
        let before = table.get(id).and_then(Weak::upgrade);
        let (counters, labels) = (Arc::clone(&self.mirror_counters), Arc::clone(&self.labels));
        let surroundings = Surroundings { home: self.home.clone(), counters, labels, runtime: self.runtime.clone() };
        let mirrors = Mirrors::new(manifest, places, before, surroundings);
        table.insert(id.to_owned(), Arc::downgrade(mirrors.known()));
        Arc::new(mirrors)
    }

    /// A hash of the URL, the server, the account and the owner of a dataset's origin.
    pub(super) fn origin_hash(&self, manifest: &MappedManifest, request: &DatasetRequest) -> Result<String, NodeError> {
        let (_, url) = manifest.name_and_origin()?;
        let place = place_of(url, &request.spec, self.origin_config(request));
        let parts = [url.trim_end_matches('/'), &place, request.owner()];
        Ok(short_hash(if parts[2].is_empty() { &parts[..2] } else { &parts }))
    }

    /// Finds a dataset and checks that its credentials may read it. Waits at most `wait`; the look-up continues after
    /// that, for minutes unless it is asked for again. Cancel-safe.
    pub(super) async fn prepare(
        self: &Arc<Self>,
        request: &DatasetRequest,
        wait: Duration,
    ) -> Result<Prepared, NodeError> {
        let key = LookUpKey::of(request, &self.importer);
        let mut look_up = self.look_up(&key, request);
        let ended = look_up.outcome.wait_for(Option::is_some);
        let finished = tokio::time::timeout(wait.min(WAIT_MOST), ended).await.map(|ended| ended.map(|it| it.clone()));
        let outcome = match finished {
            Err(_) => {
                if look_up.waits.load(Ordering::Relaxed) {
                    self.check_imports(&request.payer)?;
                }
                return Ok(Prepared::Importing { files_listed: look_up.progress.0.load(Ordering::Relaxed) });
            }
            Ok(Ok(outcome)) => outcome,
            // The task panicked and dropped its sender.
            Ok(Err(_)) => None,
        };
        match outcome {
            Some(Ok(found)) => {
                self.look_ups.lock().undelivered.remove(&key);
                Ok(Prepared::Ready(found))
            }
            Some(Err(error)) => Err(NodeError::Shared(error)),
            None => Err(NodeError::LookUpPanicked),
        }
    }

    /// The look-up for a request: the one in flight, or a new one.
    fn look_up(self: &Arc<Self>, key: &LookUpKey, request: &DatasetRequest) -> LookUp {
        let mut look_ups = self.look_ups.lock();
        look_ups.undelivered.retain(|_, listed| listed.elapsed() < UNDELIVERED_MOST);
        if let Some(look_up) = look_ups.in_flight.get(key) {
            look_up.wanted.again();
            return look_up.clone();
        }
        let refresh = match look_ups.undelivered.contains_key(key) {
            true => Refresh::Never,
            false => request.spec.refresh.unwrap_or_default(),
        };
        let (sender, outcome) = watch::channel(None);
        let look_up = LookUp { progress: Arc::default(), wanted: Arc::default(), waits: Arc::default(), outcome };
        look_ups.in_flight.insert(key.clone(), look_up.clone());
        let (look_ups, key) = (Arc::clone(&self.look_ups), key.clone());
        let in_flight = InFlight { look_ups, key, outcome: sender, ended: false };
        let (finder, request) = (Arc::clone(self), request.clone());
        let LookUp { progress, wanted, waits, .. } = look_up.clone();
        self.runtime.spawn(async move {
            let in_flight = in_flight;
            let listed = || in_flight.listed();
            let found = tokio::select! {
                found = finder.find_readable(&request, refresh, &*progress, &waits, listed) => found,
                () = wanted.no_more() => {
                    info!(source = request.spec.source, "nobody waits for the dataset any more: its look-up ends");
                    Err(NodeError::Unwanted)
                }
            };
            let found = match found {
                Ok(found) => Ok(found),
                Err(error) => Err(finder.explained(error).await),
            };
            in_flight.end(found);
        });
        look_up
    }

    /// Checks that the quota of a namespace allows another import. Errors: `Quota`.
    fn check_imports(&self, payer: &str) -> Result<(), NodeError> {
        let Some((quota, running)) = self.importer.limit_of(payer) else { return Ok(()) };
        let Some(limit) = quota.imports.filter(|limit| running >= *limit as usize) else { return Ok(()) };
        Err(NodeError::Quota {
            namespace: payer.to_owned(),
            quota: quota.name,
            uses: format!("runs {running} of {limit} imports"),
            advice: "this dataset is listed once fewer run; ask an administrator for more",
        })
    }

    /// Finds a dataset whose credentials may read it. Calls `listed` once its origin was listed.
    async fn find_readable(
        &self,
        request: &DatasetRequest,
        refresh: Refresh,
        progress: &dyn Progress,
        waits: &AtomicBool,
        listed: impl FnOnce() + Send,
    ) -> Result<Found, NodeError> {
        let spec = &request.spec;
        // A token proves nothing about a pod if it finds the keys that another pod's token has obtained.
        let config = OriginConfig { sessions: Sessions::default(), ..self.origin_config(request) };
        let importer = self.importer.paid_by(&request.payer, waits);
        let source = resolve(&spec.source, &config, &self.home, refresh, &importer, progress).await?;
        if source.listed {
            listed();
        }
        check_access(&source).await?;
        if !source.skipped.is_empty() {
            warn!(
                source = spec.source,
                keys = source.skipped.values().sum::<u64>(),
                "keys that cannot be file names are skipped"
            );
        }
        let snapshot = source.manifest.snapshot();
        if let Some(wanted) = spec.snapshot.filter(|wanted| *wanted != snapshot) {
            return Err(NodeError::Snapshot { wanted: wanted.to_string(), found: snapshot.to_string() });
        }
        let key = key_of(&source.manifest, request, config)?;
        let id = mount_id(&key, &request.apart());
        self.keep(&id, &source).await?;
        Ok(self.found(id, key, source, request))
    }

    /// Finds a dataset for a caller that has resolved it already and may read its manifest.
    pub(super) async fn find(&self, request: &DatasetRequest) -> Result<Found, NodeError> {
        let spec = &request.spec;
        let config = self.origin_config(request);
        let refresh = spec.refresh.unwrap_or_default();
        let resolving = resolve(&spec.source, &config, &self.home, refresh, &self.importer, &larder_import::Silent);
        let source = match resolving.await {
            Ok(source) => source,
            Err(error) => return Err(self.explained(error.into()).await),
        };
        let key = key_of(&source.manifest, request, config)?;
        let id = mount_id(&key, &request.apart());
        if let Err(error) = self.keep(&id, &source).await {
            warn!(
                mount = id, %error,
                "cannot keep the manifest: the next snapshot cannot adopt blocks of this one"
            );
        }
        Ok(self.found(id, key, source, request))
    }

    /// Finds the dataset that was served under `id` before. Sends no request to the origin: cached files can be served
    /// while it is down.
    pub(super) async fn find_again(&self, id: &str, request: &DatasetRequest) -> Result<Found, NodeError> {
        if id.is_empty() || id.len() > 64 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(NodeError::invalid("mount", format_args!("{id:?} names no mount")));
        }
        let spec = &request.spec;
        let config = self.origin_config(request);
        let key_of = |source: &ResolvedSource| key_of(&source.manifest, request, config.clone());
        // A larderd that did not know of owners of files named the mount without them, and that of a dataset that is
        // read without credentials like one that is read with the node's own.
        let before = if spec.anonymous && request.owner() == ANONYMOUS { "" } else { request.owner() };
        let is_this = |key: &CacheKey| {
            [&*request.apart(), request.owner(), before].iter().any(|apart| mount_id(key, apart) == id)
        };
        if let Ok(source) = open_source(self.kept.path(id)?, &config)
            && let Ok(key) = key_of(&source)
            && is_this(&key)
        {
            return Ok(self.found(id.to_owned(), key, source, request));
        }
        // The folder of manifests was lost, or shows another snapshot.
        let resolving =
            resolve(&spec.source, &config, &self.home, Refresh::Never, &self.importer, &larder_import::Silent);
        let source = resolving.await?;
        let key = key_of(&source)?;
        if !is_this(&key) {
            let found = source.manifest.snapshot().to_string();
            return Err(NodeError::Snapshot { wanted: format!("that of mount {id}"), found });
        }
        if let Err(error) = self.keep(id, &source).await {
            warn!(mount = id, %error, "cannot keep the manifest for the next start");
        }
        Ok(self.found(id.to_owned(), key, source, request))
    }

    /// Keeps a manifest for the next process and the next snapshot.
    async fn keep(&self, id: &str, source: &ResolvedSource) -> io::Result<()> {
        let (kept, id, source) = (self.kept.clone(), id.to_owned(), source.clone());
        let keep = move || match kept.keep(&id, &source) {
            // The manifest is there from before. Should another process remove it as unused, the next start finds the
            // dataset by its source again.
            Err(error) if is_unwritable(&error) && kept.has(&id, source.manifest.snapshot()) => Ok(()),
            kept => kept,
        };
        tokio::task::spawn_blocking(keep).await.map_err(io::Error::other)?
    }

    /// Says what to do, in place of an error that comes of a home that cannot be written to.
    async fn explained(&self, error: NodeError) -> NodeError {
        let may_come_of_home = matches!(
            &error,
            NodeError::Io(_)
                | NodeError::Source(SourceError::Home(_) | SourceError::Publish(PublishError::File { .. }))
        );
        if !may_come_of_home {
            return error;
        }
        let home = self.home.dir().to_owned();
        match tokio::task::spawn_blocking(move || check_writable(&home, HOME_FLAG)).await {
            Ok(Err(refused)) => NodeError::Home(refused),
            _ => error,
        }
    }

    /// A dataset that was found, with a word in the log about its age.
    fn found(&self, id: String, key: CacheKey, source: ResolvedSource, request: &DatasetRequest) -> Found {
        let ResolvedSource { path, manifest, origin, refresh_failed, .. } = source;
        let (snapshot, listed_seconds_ago) = (manifest.snapshot(), age_of(manifest.created_ns()).as_secs());
        info!(mount = id, source = request.spec.source, %snapshot, listed_seconds_ago, "dataset found");
        if let Some(why) = &refresh_failed {
            warn!(mount = id, why, "serving an old listing, because it could not be renewed");
        }
        let (mounts, config) = (self.home.dir().join(MOUNTS), self.origin_config(request));
        let renewal = renewal(&path, &mounts, &manifest, &config, &self.home);
        if let Ok((_, url)) = manifest.name_and_origin() {
            self.found_at(key.id(), url);
        }
        let (apart, origin) = (request.apart(), self.with_mirrors(&id, &manifest, origin, request));
        Found { id, key, apart, manifest, origin, refresh_failed, order: order_of(&path), renewal }
    }

    /// The manifest of another snapshot that was found for the same URL, server, account and owner, and is cached as
    /// `cache`. Blocks on the disk.
    pub(super) fn earlier(&self, found: &Found, cache: CacheId, snapshot: SnapshotId) -> Option<Arc<MappedManifest>> {
        let (_, url) = found.manifest.name_and_origin().ok()?;
        // A node opens each of a thousand datasets beside the others.
        if self.urls().get(&cache).is_some_and(|other| other != url) {
            return None;
        }
        let kept = found.ids_of(snapshot).into_iter().filter_map(|id| self.kept.path(&id).ok());
        let earlier = open_manifest(&kept.into_iter().find(|path| path.exists())?).inspect_err(|error| {
            warn!(
                error = %Chain(error),
                "the manifest of an earlier snapshot cannot be used: its blocks are fetched again"
            );
        });
        let earlier = earlier.ok().filter(|earlier| earlier.snapshot() == snapshot)?;
        let (_, other) = earlier.name_and_origin().ok()?;
        self.found_at(cache, other);
        (other == url).then(|| Arc::new(earlier))
    }

    /// Notes the URL of a dataset.
    fn found_at(&self, cache: CacheId, url: &str) {
        self.urls().insert(cache, url.to_owned());
    }

    /// Forgets the URLs of datasets that the store does not know.
    pub(super) fn forget_urls(&self, is_known: impl Fn(&CacheId) -> bool) {
        self.urls().retain(|cache, _| is_known(cache));
    }

    fn urls(&self) -> MutexGuard<'_, HashMap<CacheId, String>> {
        self.urls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if nobody but the readers of this dataset, with another snapshot perhaps, had found this snapshot here before
    /// this process: a manifest is kept for each, as long as anything is cached of it. Those that this process keeps are
    /// no evidence: it keeps one for whoever asks.
    pub(super) fn is_only_of(&self, found: &Found, snapshot: SnapshotId) -> bool {
        let ids = found.ids_of(snapshot);
        let mut of_snapshot = self.kept_before.iter().filter(|(_, of)| *of == snapshot).peekable();
        of_snapshot.peek().is_some() && of_snapshot.all(|(mount, _)| ids.contains(mount))
    }
}

/// A look-up in the table, from which it is removed however it ends.
struct InFlight {
    look_ups: Arc<LookUps>,
    key: LookUpKey,
    outcome: watch::Sender<Option<Result<Found, Arc<NodeError>>>>,
    ended: bool,
}

impl InFlight {
    /// Notes that the origin was listed, for the first caller that gets the outcome.
    fn listed(&self) {
        // A request that accepts any listing needs no new one.
        if self.key.spec.refresh.is_some_and(|refresh| refresh != Refresh::Never) {
            self.look_ups.lock().undelivered.insert(self.key.clone(), Instant::now());
        }
    }

    /// Sends the outcome to the callers that wait.
    fn end(mut self, found: Result<Found, NodeError>) {
        self.look_ups.lock().in_flight.remove(&self.key);
        self.outcome.send_replace(Some(found.map_err(Arc::new)));
        self.ended = true;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.ended {
            self.look_ups.lock().in_flight.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests;
