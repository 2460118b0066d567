//! Completes jobs as their pods would: an import job with a report, a warming job once its node has the bytes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use larder_api::names::{NODE_LABEL, ROLE_IMPORT, ROLE_LABEL, ROLE_WARM};
use larder_kube::api::{Patch, PatchParams, PostParams};
use larder_kube::runtime::{WatchStreamExt, watcher};
use larder_kube::{Api, Client, Error};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::config::{Config, Filled, Seen, snapshot_of};
use crate::larderd::{Message, Nodes};

/// The pause before a failed write is retried.
const RETRY: Duration = Duration::from_secs(1);

/// The `schedulerName` of the fake import pods. No scheduler has this name, so the pods never run.
const NO_SCHEDULER: &str = "larder.dev-fake";

#[derive(Clone)]
pub(crate) struct Jobs {
    pub(crate) client: Client,
    pub(crate) config: Arc<Config>,
    pub(crate) seen: Arc<Seen>,
    pub(crate) nodes: Nodes,
    pub(crate) writers: Arc<Semaphore>,
}

impl Jobs {
    /// Completes each job once. Never returns.
    pub(crate) async fn follow(self) {
        let config = watcher::Config::default().page_size(100);
        let api: Api<Job> = Api::namespaced(self.client.clone(), &self.config.namespace);
        let mut jobs = watcher::watcher(api, config).default_backoff().applied_objects().boxed();
        let mut begun: HashSet<String> = HashSet::new();
        let mut running = JoinSet::new();
        while let Some(job) = jobs.next().await {
            while running.try_join_next().is_some() {}
            // The watch restarts with a new list, so an error loses no events.
            let Ok(job) = job else { continue };
            let ended = job.status.as_ref().and_then(|status| status.conditions.as_ref()).is_some();
            let uid = job.metadata.uid.clone().unwrap_or_default();
            if !ended && begun.insert(uid) {
                running.spawn(self.clone().run(job));
            }
        }
    }

    async fn run(self, job: Job) {
        let labels = job.metadata.labels.clone().unwrap_or_default();
        let owners = job.metadata.owner_references.clone().unwrap_or_default();
        let name = job.metadata.name.clone().unwrap_or_default();
        let Some(dataset) = owners.first().map(|owner| owner.name.clone()) else { return };
        match labels.get(ROLE_LABEL).map(String::as_str) {
            Some(ROLE_IMPORT) => {
                if !self.import(&job, &name, &dataset).await {
                    return;
                }
            }
            Some(ROLE_WARM) => {
                let Some(node) = labels.get(NODE_LABEL) else { return };
                let Some(larderd) = self.nodes.get(node) else { return };
                let since = Instant::now();
                let snapshot = purpose(&job).unwrap_or_default();
                let _ = larderd.send(Message::Warming { snapshot, since }).await;
                tokio::time::sleep_until(since + self.config.warming).await;
                let at = (since + self.config.warming).into_std();
                self.seen.add_filled(Filled { node: node.clone(), dataset, at });
            }
            _ => return,
        }
        let api: Api<Job> = Api::namespaced(self.client.clone(), &self.config.namespace);
        let patch = Patch::Merge(ended());
        self.write(|| async { api.patch_status(&name, &PatchParams::default(), &patch).await.map(drop) }).await;
    }

    /// Creates the pod of an import job, completed with a report. Returns false if the job was deleted.
    async fn import(&self, job: &Job, name: &str, dataset: &str) -> bool {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.config.namespace);
        let report = json!({
            "snapshot": imported(job).unwrap_or_else(|| snapshot_of(dataset)),
            "files": self.config.files,
            "bytes": self.config.bytes,
            "published": true,
        });
        let Ok(pod) = serde_json::from_value::<Pod>(pod(job, name)) else { return false };
        let created = self.write(|| async {
            match api.create(&PostParams::default(), &pod).await {
                Err(Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
                other => other.map(drop),
            }
        });
        if !created.await {
            return false;
        }
        let patch = Patch::Merge(pod_ended(&report.to_string()));
        let pod = pod.metadata.name.unwrap_or_default();
        self.write(|| async { api.patch_status(&pod, &PatchParams::default(), &patch).await.map(drop) }).await
    }

    /// Retries a write until it succeeds. Returns false if the object was deleted.
    async fn write<F: Future<Output = Result<(), Error>> + Send>(&self, write: impl Fn() -> F) -> bool {
        loop {
            {
                // The semaphore is never closed.
                let _permit = self.writers.acquire().await;
                self.seen.add_write();
                match write().await {
                    Ok(()) => return true,
                    // The object was deleted, or its namespace is being deleted.
                    Err(Error::Api(status)) if [403, 404].contains(&status.code) => return false,
                    Err(_) => {}
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// The snapshot that a job warms: the second word of its purpose, `NODE SNAPSHOT`.
fn purpose(job: &Job) -> Option<String> {
    let purpose = job.metadata.annotations.as_ref()?.get("larder.dev/purpose")?;
    purpose.split_once(' ').map(|(_, snapshot)| snapshot.to_owned())
}

/// The snapshot whose manifest an import copies; `None` for an import that lists its origin.
fn imported(job: &Job) -> Option<String> {
    let container = job.spec.as_ref()?.template.spec.as_ref()?.containers.first()?;
    let manifest = container.args.as_ref()?.get(1)?.rsplit('/').next()?.strip_suffix(".manifest")?.to_owned();
    (manifest.len() == 64).then_some(manifest)
}

fn pod(job: &Job, name: &str) -> Value {
    let template = job.spec.as_ref().map(|spec| json!(spec.template)).unwrap_or_default();
    let mut labels = template["metadata"]["labels"].clone();
    labels["batch.kubernetes.io/job-name"] = name.into();
    let mut spec = template["spec"].clone();
    spec["schedulerName"] = NO_SCHEDULER.into();
    json!({
        "metadata": {
            "name": format!("{name}-fake"),
            "labels": labels,
            "ownerReferences": [{
                "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job.metadata.uid, "controller": true,
            }],
        },
        "spec": spec,
    })
}

fn pod_ended(message: &str) -> Value {
    let now = now();
    json!({"status": {
        "phase": "Succeeded",
        "containerStatuses": [{
            "name": "larder", "image": "fake", "imageID": "fake", "ready": false, "restartCount": 0,
            "state": {"terminated": {
                "exitCode": 0, "reason": "Completed", "message": message, "startedAt": now, "finishedAt": now,
            }},
        }],
    }})
}

/// The current time in whole seconds, in the API's format.
fn now() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or_default();
    Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

fn ended() -> Value {
    let now = now();
    let condition = |kind: &str| {
        json!({
            "type": kind, "status": "True", "reason": "CompletionsReached",
            "lastProbeTime": now, "lastTransitionTime": now,
        })
    };
    json!({"status": {
        "startTime": now, "completionTime": now, "succeeded": 1,
        "conditions": [condition("SuccessCriteriaMet"), condition("Complete")],
    }})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_import_of_a_kept_manifest_reports_its_snapshot() {
        let job = |argument: &str| -> Job {
            serde_json::from_value(json!({"spec": {"template": {"spec": {"containers": [
                {"name": "larder", "args": ["import", argument, "--to", "s3://b/.larder/manifest"]},
            ]}}}}))
            .unwrap()
        };
        let snapshot = snapshot_of("pets");
        assert_eq!(imported(&job(&format!("s3://b/.larder/{snapshot}.manifest"))), Some(snapshot));
        assert_eq!(imported(&job("s3://b")), None);
        assert_eq!(imported(&job("s3://b/other.manifest")), None);
    }
}
