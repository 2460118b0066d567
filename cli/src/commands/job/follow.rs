//! Follows a job until a condition holds.

use std::pin::pin;
use std::time::Duration;

use anyhow::{anyhow, bail};
use futures::StreamExt;
use larder_api::TrainingJob;
use larder_kube::api::{WatchEvent, WatchParams};
use larder_kube::{Error, ResourceExt};

use crate::args::cluster::ObjectKey;
use crate::cluster::{Asked, Cluster, JOB, typed};
use crate::output::{self, cell};

/// The timeout after which the API server ends a watch.
const WATCH_SECONDS: u32 = 240;
/// The first and the longest pause between attempts to reach the cluster; the pause doubles each time.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// Follows a job until it has succeeded or failed, and prints each change. Errors: the job was deleted or replaced, or
/// the user may not read it.
pub(super) async fn to_its_end(cluster: &Cluster, key: &ObjectKey, job: &TrainingJob) -> anyhow::Result<TrainingJob> {
    let mut shown = String::new();
    let ended = until(cluster, key, job.metadata.uid.as_deref(), |job| {
        let line = progress(key, job);
        if line != shown {
            output::note(format_args!("{line}"));
            shown = line;
        }
        job.status.as_ref().and_then(|status| status.phase).is_some_and(|phase| phase.is_terminal())
    });
    ended.await?.ok_or_else(|| anyhow!("{key} was deleted before it ended"))
}

/// A line about the progress of a job.
fn progress(key: &ObjectKey, job: &TrainingJob) -> String {
    let status = job.status.as_ref();
    let phase = status.and_then(|status| status.phase).map_or("Submitted".to_owned(), |phase| format!("{phase:?}"));
    let ready = status.and_then(|status| status.shown.as_ref()).map(|shown| cell(&shown.ready)).unwrap_or_default();
    let why = status.and_then(|status| status.waiting_for.as_deref()).map(cell).unwrap_or_default();
    let parts = [format!("{key}  {phase}"), ready, why];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ")
}

/// Follows the job of this uid until `is_done` returns true; `None` if the job was deleted or replaced by a job of the
/// same name. Retries while the cluster cannot be reached. Errors: the user may not read the job.
pub(super) async fn until(
    cluster: &Cluster,
    key: &ObjectKey,
    uid: Option<&str>,
    mut is_done: impl FnMut(&TrainingJob) -> bool,
) -> anyhow::Result<Option<TrainingJob>> {
    let [first, last] = PAUSES;
    let mut pause = first;
    loop {
        match watch(cluster, key, uid, &mut is_done).await {
            Ok(Some(end)) => return Ok(end),
            Ok(None) => pause = first,
            Err(error) if is_final(&error) => {
                return Err(cluster.in_words(error, &Asked::one("watch", JOB, &key.namespace, &key.name)));
            }
            Err(error) => {
                let error = cluster.in_words(error, &Asked::one("watch", JOB, &key.namespace, &key.name));
                output::note(format_args!("{error}; retrying in {} s", pause.as_secs()));
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(last);
    }
}

/// Whether a retry is useless.
pub(super) fn is_final(error: &Error) -> bool {
    match error {
        Error::Api(status) => [401, 403, 404].contains(&status.code),
        Error::SerdeError(_) | Error::Auth(_) => true,
        _ => false,
    }
}

/// Reads a job and watches it from that version on. The outer `None` means that the watch has ended without an error.
async fn watch(
    cluster: &Cluster,
    key: &ObjectKey,
    uid: Option<&str>,
    is_done: &mut impl FnMut(&TrainingJob) -> bool,
) -> Result<Option<Option<TrainingJob>>, Error> {
    let is_same = |job: &TrainingJob| uid.is_none() || job.metadata.uid.as_deref() == uid;
    let Some(object) = cluster.api(JOB, Some(&key.namespace)).get_opt(&key.name).await? else { return Ok(Some(None)) };
    let version = object.resource_version().unwrap_or_default();
    let job: TrainingJob = typed(object).map_err(Error::SerdeError)?;
    if !is_same(&job) {
        return Ok(Some(None));
    }
    if is_done(&job) {
        return Ok(Some(Some(job)));
    }
    let params = WatchParams::default().fields(&format!("metadata.name={}", key.name)).timeout(WATCH_SECONDS);
    let events = cluster.streams(JOB, Some(&key.namespace)).watch(&params, &version).await?;
    let mut events = pin!(events);
    while let Some(event) = events.next().await {
        let job = match event? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => typed(object).map_err(Error::SerdeError)?,
            // A job that is deleted right after its end may show its result only in this event.
            WatchEvent::Deleted(object) => {
                let last: TrainingJob = typed(object).map_err(Error::SerdeError)?;
                return Ok(Some(Some(last).filter(|last| is_same(last) && is_done(last))));
            }
            WatchEvent::Bookmark(_) => continue,
            // For example, the version is too old. The caller reads the job again.
            WatchEvent::Error(_) => return Ok(None),
        };
        if !is_same(&job) {
            return Ok(Some(None));
        }
        if is_done(&job) {
            return Ok(Some(Some(job)));
        }
    }
    Ok(None)
}

/// The uid of a job. Errors: the cluster returned none.
pub(super) fn uid<'a>(key: &ObjectKey, job: &'a TrainingJob) -> anyhow::Result<&'a str> {
    match job.metadata.uid.as_deref() {
        Some(uid) => Ok(uid),
        None => bail!("the cluster returned {key} without metadata.uid"),
    }
}
