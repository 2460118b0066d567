//! Finds the manifest and the origin of a dataset.
//!
//! The cast: [`Finder`] looks datasets up; [`Found`] is one that can be opened. Requests with the same source and
//! credentials share one look-up, which runs in a task of its own: a caller that stops waiting loses nothing, and many
//! pods that start together list the origin once. A listing that ended while nobody waited is delivered to the next
//! caller, so that the origin is not listed again; the credentials of that caller are checked anew.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use larder_dataset::{Chain, DatasetSpec, Refresh, SnapshotId};
use larder_import::{Progress, PublishError};
use larder_origin::{Origin, OriginConfig, OriginUrl};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::{info, warn};

use super::error::NodeError;
use crate::folder::{HOME_FLAG, check_writable, is_unwritable};
use crate::home::Home;
use crate::importing::Importer;
use crate::kept_listing::age_of;
use crate::kept_manifests::{KeptManifests, MOUNTS};
use crate::manifest_file::{MappedManifest, open_manifest, order_of};
use crate::renewal::{Renewal, renewal};
use crate::request::{Credentials, DatasetRequest};
use crate::source::{ResolvedSource, SourceError, check_access, open_source, resolve, short_hash};

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

/// How far a look-up came while its caller waited.
#[derive(Clone, Debug)]
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
    /// The settings for origins, where a request has none of its own.
    origin: OriginConfig,
    importer: Importer,
    runtime: Handle,
    look_ups: Arc<LookUps>,
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
}

#[derive(Clone, Debug)]
struct LookUp {
    progress: Arc<FilesListed>,
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
    fn of(request: &DatasetRequest) -> Self {
        Self {
            spec: DatasetSpec { cache_bytes: None, policy: None, placement: None, ..request.spec.clone() },
            credentials: request.credentials.clone(),
        }
    }
}

/// The name of a dataset on a node: one for each snapshot, the server and account that it is read from, and the tenant
/// with whose credentials. So no tenant's reads depend on another's credentials. `config` is that of its request; the
/// node's own endpoint is the same for all datasets and not part of a name.
fn dataset_id(manifest: &MappedManifest, request: &DatasetRequest, config: OriginConfig) -> Result<String, NodeError> {
    let (_, url) = manifest.name_and_origin()?;
    Ok(id_of(&manifest.snapshot(), &place_of(url, &request.spec, config), request.owner()))
}

/// The server and account that a URL is read from.
fn place_of(url: &str, spec: &DatasetSpec, config: OriginConfig) -> String {
    OriginConfig { endpoint: spec.endpoint.clone(), ..config }.place(url)
}

fn id_of(snapshot: &SnapshotId, place: &str, owner: &str) -> String {
    let snapshot = snapshot.to_string();
    let parts = [&snapshot, place, owner];
    short_hash(if owner.is_empty() { &parts[..2] } else { &parts })
}

impl Finder {
    pub(super) fn new(
        home: Home,
        cache_dir: PathBuf,
        origin: OriginConfig,
        importer: Importer,
        runtime: Handle,
    ) -> Self {
        let kept = KeptManifests::new(home.clone(), cache_dir);
        Self { home, kept, origin, importer, runtime, look_ups: Arc::default() }
    }

    /// The manifests of what was found.
    pub(super) fn kept(&self) -> &KeptManifests {
        &self.kept
    }

    /// The settings for the origin of a request.
    pub(super) fn origin_config(&self, request: &DatasetRequest) -> OriginConfig {
        request.origin_config(&self.origin)
    }

    /// The origin of a dataset, for a request. Sends no request to it.
    pub(super) fn origin(
        &self,
        manifest: &MappedManifest,
        request: &DatasetRequest,
    ) -> Result<Arc<dyn Origin>, NodeError> {
        let (_, url) = manifest.name_and_origin()?;
        let url: OriginUrl = url.parse().map_err(SourceError::Origin)?;
        Ok(larder_origin::open(&url, &self.origin_config(request)).map_err(SourceError::Origin)?)
    }

    /// A hash of the URL, the server and the account of a dataset's origin.
    pub(super) fn origin_hash(&self, manifest: &MappedManifest, request: &DatasetRequest) -> Result<String, NodeError> {
        let (_, url) = manifest.name_and_origin()?;
        Ok(short_hash(&[url.trim_end_matches('/'), &place_of(url, &request.spec, self.origin_config(request))]))
    }

    /// Finds a dataset and checks that its credentials may read it. Waits at most `wait`; the look-up continues after
    /// that. Cancel-safe.
    pub(super) async fn prepare(
        self: &Arc<Self>,
        request: &DatasetRequest,
        wait: Duration,
    ) -> Result<Prepared, NodeError> {
        let mut look_up = self.look_up(request);
        let ended = look_up.outcome.wait_for(Option::is_some);
        let finished = tokio::time::timeout(wait.min(WAIT_MOST), ended).await.map(|ended| ended.map(|it| it.clone()));
        let outcome = match finished {
            Err(_) => {
                return Ok(Prepared::Importing { files_listed: look_up.progress.0.load(Ordering::Relaxed) });
            }
            Ok(Ok(outcome)) => outcome,
            // The task panicked and dropped its sender.
            Ok(Err(_)) => None,
        };
        match outcome {
            Some(Ok(found)) => {
                self.look_ups.lock().undelivered.remove(&LookUpKey::of(request));
                Ok(Prepared::Ready(found))
            }
            Some(Err(error)) => Err(NodeError::Shared(error)),
            None => Err(NodeError::LookUpPanicked),
        }
    }

    /// The look-up for a request: the one in flight, or a new one.
    fn look_up(self: &Arc<Self>, request: &DatasetRequest) -> LookUp {
        let key = LookUpKey::of(request);
        let mut look_ups = self.look_ups.lock();
        look_ups.undelivered.retain(|_, listed| listed.elapsed() < UNDELIVERED_MOST);
        if let Some(look_up) = look_ups.in_flight.get(&key) {
            return look_up.clone();
        }
        let refresh = match look_ups.undelivered.contains_key(&key) {
            true => Refresh::Never,
            false => request.spec.refresh.unwrap_or_default(),
        };
        let (sender, outcome) = watch::channel(None);
        let look_up = LookUp { progress: Arc::default(), outcome };
        look_ups.in_flight.insert(key.clone(), look_up.clone());
        let in_flight = InFlight { look_ups: Arc::clone(&self.look_ups), key, outcome: sender, ended: false };
        let (finder, request, progress) = (Arc::clone(self), request.clone(), Arc::clone(&look_up.progress));
        self.runtime.spawn(async move {
            let in_flight = in_flight;
            let listed = || in_flight.listed();
            let found = match finder.find_readable(&request, refresh, &*progress, listed).await {
                Ok(found) => Ok(found),
                Err(error) => Err(finder.explained(error).await),
            };
            in_flight.end(found);
        });
        look_up
    }

    /// Finds a dataset whose credentials may read it. Calls `listed` once its origin was listed.
    async fn find_readable(
        &self,
        request: &DatasetRequest,
        refresh: Refresh,
        progress: &dyn Progress,
        listed: impl FnOnce() + Send,
    ) -> Result<Found, NodeError> {
        let spec = &request.spec;
        let config = self.origin_config(request);
        let source = resolve(&spec.source, &config, &self.home, refresh, &self.importer, progress).await?;
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
        let id = dataset_id(&source.manifest, request, config)?;
        self.keep(&id, &source).await?;
        Ok(self.found(id, source, request))
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
        let id = dataset_id(&source.manifest, request, config)?;
        if let Err(error) = self.keep(&id, &source).await {
            warn!(
                mount = id, %error,
                "cannot keep the manifest: the next snapshot cannot adopt blocks of this one"
            );
        }
        Ok(self.found(id, source, request))
    }

    /// Finds the dataset that was served under `id` before. Sends no request to the origin: cached files can be served
    /// while it is down.
    pub(super) async fn find_again(&self, id: &str, request: &DatasetRequest) -> Result<Found, NodeError> {
        if id.is_empty() || id.len() > 64 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(NodeError::invalid("mount", format_args!("{id:?} names no mount")));
        }
        let spec = &request.spec;
        let config = self.origin_config(request);
        let is_this =
            |source: &ResolvedSource| dataset_id(&source.manifest, request, config.clone()).map(|found| found == id);
        if let Ok(source) = open_source(self.kept.path(id)?, &config)
            && matches!(is_this(&source), Ok(true))
        {
            return Ok(self.found(id.to_owned(), source, request));
        }
        // The folder of manifests was lost, or shows another snapshot.
        let resolving =
            resolve(&spec.source, &config, &self.home, Refresh::Never, &self.importer, &larder_import::Silent);
        let source = resolving.await?;
        if !is_this(&source)? {
            let found = source.manifest.snapshot().to_string();
            return Err(NodeError::Snapshot { wanted: format!("that of mount {id}"), found });
        }
        if let Err(error) = self.keep(id, &source).await {
            warn!(mount = id, %error, "cannot keep the manifest for the next start");
        }
        Ok(self.found(id.to_owned(), source, request))
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
    fn found(&self, id: String, source: ResolvedSource, request: &DatasetRequest) -> Found {
        let ResolvedSource { path, manifest, origin, refresh_failed, .. } = source;
        let (snapshot, listed_seconds_ago) = (manifest.snapshot(), age_of(manifest.created_ns()).as_secs());
        info!(mount = id, source = request.spec.source, %snapshot, listed_seconds_ago, "dataset found");
        if let Some(why) = &refresh_failed {
            warn!(mount = id, why, "serving an old listing, because it could not be renewed");
        }
        let (mounts, config) = (self.home.dir().join(MOUNTS), self.origin_config(request));
        let renewal = renewal(&path, &mounts, &manifest, &config, &self.home);
        Found { id, manifest, origin, refresh_failed, order: order_of(&path), renewal }
    }

    /// The manifests of those of these snapshots that were found for the same URL, server, account and owner as
    /// `manifest`.
    /// Blocks on the disk.
    pub(super) fn earlier(
        &self,
        manifest: &MappedManifest,
        request: &DatasetRequest,
        snapshots: impl Iterator<Item = SnapshotId>,
    ) -> Vec<Arc<MappedManifest>> {
        let Ok((_, url)) = manifest.name_and_origin() else { return Vec::new() };
        let place = place_of(url, &request.spec, self.origin_config(request));
        let of_this_origin = |snapshot| {
            let kept = self.kept.path(&id_of(&snapshot, &place, request.owner())).ok().filter(|path| path.exists())?;
            let earlier = open_manifest(&kept).inspect_err(|error| {
                warn!(
                    error = %Chain(error),
                    "the manifest of an earlier snapshot cannot be used: its blocks are fetched again"
                );
            });
            let earlier = earlier.ok().filter(|earlier| earlier.snapshot() == snapshot)?;
            earlier.name_and_origin().is_ok_and(|(_, other)| other == url).then(|| Arc::new(earlier))
        };
        snapshots.filter_map(of_this_origin).collect()
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
