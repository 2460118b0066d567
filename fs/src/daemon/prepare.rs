//! Finds datasets: in a job of its own for each source and set of credentials, so that a caller who stops waiting loses
//! nothing, and many pods that start at once ask the origin once.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_daemon_api::v1;
use larder_import::Progress;
use larder_origin::Origin;
use tokio::sync::watch;
use tracing::{info, warn};

use super::{Daemon, DaemonError, check_settings, lock, mount_id, renew};
use crate::manifest_file::MappedManifest;
use crate::source::{Source, check_access, open_source, resolve};

/// The longest that a caller may wait.
const WAIT_MOST: Duration = Duration::from_secs(60);

/// Jobs under way.
#[derive(Default)]
pub(super) struct Jobs(Mutex<HashMap<JobKey, Job>>);

impl fmt::Debug for Jobs {
    /// Their number alone: keys hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Jobs").field(&lock(&self.0).len()).finish()
    }
}

/// Jobs of the same key do the same. Credentials are part of it: what some may read, others may not.
#[derive(Clone, PartialEq, Eq, Hash)]
struct JobKey {
    source: String,
    endpoint: String,
    region: String,
    anonymous: bool,
    snapshot: String,
    credentials: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Debug)]
struct Job {
    listed: Arc<Listed>,
    outcome: watch::Receiver<Option<Result<Found, Arc<DaemonError>>>>,
}

/// How far a listing is.
#[derive(Debug, Default)]
struct Listed(AtomicU64);

impl Progress for Listed {
    fn listed(&self, files: u64, _bytes: u64, _prefixes_done: u64, _prefixes_known: u64) {
        self.0.store(files, Ordering::Relaxed);
    }
}

/// A dataset that can be opened.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) id: String,
    pub(super) manifest: Arc<MappedManifest>,
    pub(super) origin: Arc<dyn Origin>,
}

impl JobKey {
    fn of(spec: &v1::Dataset) -> Self {
        let given = |credentials: &v1::Credentials| credentials.variables.clone().into_iter().collect();
        Self {
            source: spec.source.clone(),
            endpoint: spec.endpoint.clone(),
            region: spec.region.clone(),
            anonymous: spec.anonymous,
            snapshot: spec.snapshot.clone(),
            credentials: spec.credentials.as_ref().map(given),
        }
    }
}

impl Daemon {
    /// Finds a dataset for somebody who will hand over its connection. `Ok(Err(files))`: the origin is still being listed.
    pub(super) async fn prepare(
        self: &Arc<Self>,
        spec: &v1::Dataset,
        wait: Duration,
    ) -> Result<Result<v1::Prepared, u64>, DaemonError> {
        self.check_sharing(spec)?;
        let mut job = self.job(JobKey::of(spec), spec);
        let finished = tokio::time::timeout(wait.min(WAIT_MOST), job.outcome.wait_for(Option::is_some)).await;
        let outcome = match finished {
            Err(_) => return Ok(Err(job.listed.0.load(Ordering::Relaxed))),
            Ok(Ok(outcome)) => outcome.clone(),
            // The job panicked and took its sender along.
            Ok(Err(_)) => None,
        };
        let found = match outcome {
            Some(Ok(found)) => found,
            Some(Err(error)) => return Err(DaemonError::Shared(error)),
            None => return Err(DaemonError::Internal { what: "looking for the dataset panicked; see larderd's log" }),
        };
        let served = self.join_served(&found, spec)?;
        let (name, _) = found.manifest.name_and_origin()?;
        Ok(Ok(v1::Prepared {
            mount: found.id.clone(),
            name: name.to_owned(),
            snapshot: found.manifest.snapshot().to_string(),
            files: found.manifest.totals().files.into(),
            bytes: found.manifest.totals().bytes,
            served,
        }))
    }

    /// True if a connection shows the dataset already, which is renewed. Errors: `Served`, if other settings are asked for.
    fn join_served(&self, found: &Found, spec: &v1::Dataset) -> Result<bool, DaemonError> {
        let mut served = false;
        for mount in lock(&self.mounts).iter().filter(|mount| mount.id == found.id && mount.held.is_some()) {
            check_settings(&mount.dataset, spec)?;
            served = true;
            renew(&mount.dataset, Arc::clone(&found.origin), spec)?;
            lock(&mount.spec).credentials.clone_from(&spec.credentials);
        }
        Ok(served)
    }

    /// The job for a key: the one under way, or a new one.
    fn job(self: &Arc<Self>, key: JobKey, spec: &v1::Dataset) -> Job {
        let mut jobs = lock(&self.jobs.0);
        if let Some(job) = jobs.get(&key) {
            return job.clone();
        }
        let (sender, outcome) = watch::channel(None);
        let job = Job { listed: Arc::default(), outcome };
        jobs.insert(key.clone(), job.clone());
        let (daemon, spec, listed) = (Arc::clone(self), spec.clone(), Arc::clone(&job.listed));
        self.runtime.spawn(async move {
            let _ended = Ended { jobs: &daemon.jobs, key };
            let found = daemon.look_up(&spec, &*listed).await;
            // Taken off the list with it: who calls later starts anew.
            sender.send_replace(Some(found.map_err(Arc::new)));
        });
        job
    }

    async fn look_up(&self, spec: &v1::Dataset, progress: &dyn Progress) -> Result<Found, DaemonError> {
        let config = self.origin_config(spec);
        let source = resolve(&spec.source, &config, &self.config.home, progress).await?;
        check_access(&source).await?;
        if !source.skipped.is_empty() {
            warn!(source = spec.source, keys = source.skipped.len(), "keys that cannot be files are left out");
        }
        let snapshot = source.manifest.snapshot().to_string();
        if !spec.snapshot.is_empty() && spec.snapshot != snapshot {
            return Err(DaemonError::Snapshot { wanted: spec.snapshot.clone(), found: snapshot });
        }
        let id = mount_id(&source.manifest, &spec.endpoint);
        self.keep_manifest(&id, &source)?;
        info!(mount = id, source = spec.source, snapshot, "dataset found");
        Ok(Found { id, manifest: source.manifest, origin: source.origin })
    }

    /// Finds a dataset for a mount of this machine: its caller has resolved it, and may see the file.
    pub(super) async fn find(&self, spec: &v1::Dataset) -> Result<Found, DaemonError> {
        let config = self.origin_config(spec);
        let source = resolve(&spec.source, &config, &self.config.home, &larder_import::Silent).await?;
        Ok(Found { id: mount_id(&source.manifest, &spec.endpoint), manifest: source.manifest, origin: source.origin })
    }

    /// Finds what a connection has shown so far, without the origin, which may be down: what is cached can be served.
    pub(super) async fn find_again(&self, id: &str, spec: &v1::Dataset) -> Result<Found, DaemonError> {
        if id.is_empty() || id.len() > 64 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(DaemonError::invalid("mount", format_args!("{id:?} names no mount")));
        }
        let config = self.origin_config(spec);
        let kept = self.kept_manifest(id)?;
        let source = match open_source(kept, &config) {
            Ok(source) => source,
            // The folder was lost: look for it anew.
            Err(_) => resolve(&spec.source, &config, &self.config.home, &larder_import::Silent).await?,
        };
        let found = mount_id(&source.manifest, &spec.endpoint);
        if found != id {
            let found = source.manifest.snapshot().to_string();
            return Err(DaemonError::Snapshot { wanted: format!("that of mount {id}"), found });
        }
        Ok(Found { id: found, manifest: source.manifest, origin: source.origin })
    }

    fn kept_manifest(&self, id: &str) -> std::io::Result<PathBuf> {
        Ok(self.config.home.sub_folder("mounts")?.join(format!("{id}.manifest")))
    }

    /// Keeps the manifest under the mount's name as well: by its URL's the next snapshot will be found.
    fn keep_manifest(&self, id: &str, source: &Source) -> std::io::Result<()> {
        let kept = self.kept_manifest(id)?;
        let fresh = kept.with_extension(format!("new-{:?}", std::thread::current().id()));
        let _ = std::fs::remove_file(&fresh);
        // A copy where the manifest was named by a path on another disk.
        std::fs::hard_link(&source.path, &fresh).or_else(|_| std::fs::copy(&source.path, &fresh).map(|_| ()))?;
        std::fs::rename(&fresh, &kept)?;
        // Two names of one file: the rename leaves the second.
        let _ = std::fs::remove_file(&fresh);
        Ok(())
    }
}

/// Takes a job off the list however it ends.
struct Ended<'a> {
    jobs: &'a Jobs,
    key: JobKey,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        lock(&self.jobs.0).remove(&self.key);
    }
}
