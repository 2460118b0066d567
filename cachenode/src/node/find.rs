//! Finds the manifest and the origin of a dataset.
//!
//! The cast: [`Finder`] looks datasets up; [`Found`] is one that can be opened. Requests with the same source and credentials
//! share one look-up, which runs in a task of its own: a caller that stops waiting loses nothing, and many pods that start
//! together list the origin once.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_dataset::{DatasetSpec, SnapshotId};
use larder_import::Progress;
use larder_origin::{Origin, OriginConfig, OriginUrl};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::{info, warn};

use super::error::NodeError;
use crate::home::Home;
use crate::manifest_file::{MappedManifest, open_manifest};
use crate::request::{Credentials, DatasetRequest};
use crate::source::{ResolvedSource, SourceError, check_access, open_source, resolve, short_hash};

/// The longest time that a caller may wait.
const WAIT_MOST: Duration = Duration::from_secs(60);

/// The folder of the manifests that were found for mounts.
const MOUNTS: &str = "mounts";

/// A dataset that can be opened.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its name on this node.
    pub id: String,
    /// Its manifest, mapped.
    pub manifest: Arc<MappedManifest>,
    /// Its origin.
    pub origin: Arc<dyn Origin>,
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
    /// The settings for origins, where a request has none of its own.
    origin: OriginConfig,
    runtime: Handle,
    look_ups: Arc<LookUps>,
}

/// The look-ups in flight.
#[derive(Default)]
struct LookUps(Mutex<HashMap<LookUpKey, LookUp>>);

impl LookUps {
    fn lock(&self) -> MutexGuard<'_, HashMap<LookUpKey, LookUp>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for LookUps {
    /// Shows their number only: keys contain credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LookUps").field(&self.lock().len()).finish()
    }
}

/// Look-ups with the same key have the same outcome. Credentials are part of it: one tenant's must not open a dataset to
/// another.
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
}

impl LookUpKey {
    fn of(request: &DatasetRequest) -> Self {
        Self {
            spec: DatasetSpec { cache_bytes: None, policy: None, placement: None, ..request.spec.clone() },
            credentials: request.credentials.clone(),
        }
    }
}

/// The name of a dataset on a node: one for each snapshot and the server and account that it is read from. `config` is that of its
/// request; the node's own endpoint is the same for all datasets and not part of a name.
fn dataset_id(manifest: &MappedManifest, spec: &DatasetSpec, config: OriginConfig) -> Result<String, NodeError> {
    let (_, url) = manifest.name_and_origin()?;
    let place = OriginConfig { endpoint: spec.endpoint.clone(), ..config }.place(url);
    Ok(short_hash(&[&manifest.snapshot().to_string(), &place]))
}

impl Finder {
    pub(super) fn new(home: Home, origin: OriginConfig, runtime: Handle) -> Self {
        Self { home, origin, runtime, look_ups: Arc::default() }
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

    /// Finds a dataset and checks that its credentials may read it. Waits at most `wait`; the look-up continues after that.
    /// Cancel-safe.
    pub(super) async fn prepare(
        self: &Arc<Self>,
        request: &DatasetRequest,
        wait: Duration,
    ) -> Result<Prepared, NodeError> {
        let mut look_up = self.look_up(request);
        let finished = tokio::time::timeout(wait.min(WAIT_MOST), look_up.outcome.wait_for(Option::is_some)).await;
        let outcome = match finished {
            Err(_) => {
                return Ok(Prepared::Importing { files_listed: look_up.progress.0.load(Ordering::Relaxed) });
            }
            Ok(Ok(outcome)) => outcome.clone(),
            // The task panicked and took its sender along.
            Ok(Err(_)) => None,
        };
        match outcome {
            Some(Ok(found)) => Ok(Prepared::Ready(found)),
            Some(Err(error)) => Err(NodeError::Shared(error)),
            None => Err(NodeError::LookUpPanicked),
        }
    }

    /// The look-up for a request: the one in flight, or a new one.
    fn look_up(self: &Arc<Self>, request: &DatasetRequest) -> LookUp {
        let key = LookUpKey::of(request);
        let mut look_ups = self.look_ups.lock();
        if let Some(look_up) = look_ups.get(&key) {
            return look_up.clone();
        }
        let (sender, outcome) = watch::channel(None);
        let look_up = LookUp { progress: Arc::default(), outcome };
        look_ups.insert(key.clone(), look_up.clone());
        let in_flight = InFlight { look_ups: Arc::clone(&self.look_ups), key };
        let (finder, request, progress) = (Arc::clone(self), request.clone(), Arc::clone(&look_up.progress));
        self.runtime.spawn(async move {
            let in_flight = in_flight;
            let found = finder.find_readable(&request, &*progress).await;
            sender.send_replace(Some(found.map_err(Arc::new)));
            // Later callers start a look-up of their own.
            drop(in_flight);
        });
        look_up
    }

    async fn find_readable(&self, request: &DatasetRequest, progress: &dyn Progress) -> Result<Found, NodeError> {
        let spec = &request.spec;
        let config = self.origin_config(request);
        let source = resolve(&spec.source, &config, &self.home, progress).await?;
        check_access(&source).await?;
        if !source.skipped.is_empty() {
            warn!(source = spec.source, keys = source.skipped.len(), "keys that cannot be file names are skipped");
        }
        let snapshot = source.manifest.snapshot();
        if let Some(wanted) = spec.snapshot.filter(|wanted| *wanted != snapshot) {
            return Err(NodeError::Snapshot { wanted: wanted.to_string(), found: snapshot.to_string() });
        }
        let id = dataset_id(&source.manifest, spec, config)?;
        self.keep_manifest(&id, &source)?;
        info!(mount = id, source = spec.source, %snapshot, "dataset found");
        Ok(Found { id, manifest: source.manifest, origin: source.origin })
    }

    /// Finds a dataset for a caller that has resolved it already and may read its manifest.
    pub(super) async fn find(&self, request: &DatasetRequest) -> Result<Found, NodeError> {
        let spec = &request.spec;
        let config = self.origin_config(request);
        let source = resolve(&spec.source, &config, &self.home, &larder_import::Silent).await?;
        let id = dataset_id(&source.manifest, spec, config)?;
        Ok(Found { id, manifest: source.manifest, origin: source.origin })
    }

    /// Finds the dataset that was served under `id` before. Sends no request to the origin: cached files can be served while it
    /// is down.
    pub(super) async fn find_again(&self, id: &str, request: &DatasetRequest) -> Result<Found, NodeError> {
        if id.is_empty() || id.len() > 64 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(NodeError::invalid("mount", format_args!("{id:?} names no mount")));
        }
        let spec = &request.spec;
        let config = self.origin_config(request);
        let (source, lost) = match open_source(self.kept_manifest(id)?, &config) {
            Ok(source) => (source, false),
            // The folder of manifests was lost.
            Err(_) => (resolve(&spec.source, &config, &self.home, &larder_import::Silent).await?, true),
        };
        let found = dataset_id(&source.manifest, spec, config)?;
        if found != id {
            let found = source.manifest.snapshot().to_string();
            return Err(NodeError::Snapshot { wanted: format!("that of mount {id}"), found });
        }
        if lost && let Err(error) = self.keep_manifest(id, &source) {
            warn!(mount = id, %error, "cannot keep the manifest for the next start");
        }
        Ok(Found { id: found, manifest: source.manifest, origin: source.origin })
    }

    fn kept_manifest(&self, id: &str) -> std::io::Result<PathBuf> {
        Ok(self.home.sub_folder(MOUNTS)?.join(format!("{id}.manifest")))
    }

    /// The mounts whose manifests were kept, and their snapshots. Blocks on the disk.
    pub(super) fn kept_manifests(&self) -> Vec<(String, SnapshotId)> {
        let folder = self.home.sub_folder(MOUNTS).and_then(std::fs::read_dir);
        let kept = folder.into_iter().flatten().flatten().filter_map(|entry| {
            let path = entry.path();
            let id = path.file_name()?.to_str()?.strip_suffix(".manifest")?.to_owned();
            Some((id, open_manifest(&path).ok()?.snapshot()))
        });
        kept.collect()
    }

    /// Keeps the manifest under the dataset's id too: the next snapshot will replace the one under its URL's hash.
    fn keep_manifest(&self, id: &str, source: &ResolvedSource) -> std::io::Result<()> {
        let kept = self.kept_manifest(id)?;
        let fresh = kept.with_extension(format!("new-{:?}", std::thread::current().id()));
        let _ = std::fs::remove_file(&fresh);
        // A manifest that was named by a path on another disk is copied.
        std::fs::hard_link(&source.path, &fresh).or_else(|_| std::fs::copy(&source.path, &fresh).map(|_| ()))?;
        std::fs::rename(&fresh, &kept)?;
        // If both names are links to one file, the rename does nothing and leaves the second.
        let _ = std::fs::remove_file(&fresh);
        Ok(())
    }
}

/// Removes a look-up from the table, however it ends.
struct InFlight {
    look_ups: Arc<LookUps>,
    key: LookUpKey,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.look_ups.lock().remove(&self.key);
    }
}
