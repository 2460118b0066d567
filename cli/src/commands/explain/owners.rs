//! The owners of a pod: its Job, the JobSet that has made the Job, and so on up to the object that a user has
//! submitted; and the Workload of Kueue that has their quota. Owners are followed by their references, so no kind of
//! job is known here.

use std::fmt::Write;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use larder_api::names::KUEUE_QUEUE_LABEL;
use larder_kube::api::DynamicObject;
use larder_kube::core::{ApiResource, GroupVersionKind};
use larder_kube::fields::ConditionFields;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cluster::{Asked, Cluster, WORKLOADS, is_denied};
use crate::output::cell;

/// The most owners that are followed. From a pod of a TrainJob, it is three to the TrainJob.
const OWNERS_MAX: usize = 8;

/// The owners and the Workload of a pod, as far as the user may read them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Belongs {
    /// From the object that was submitted to the one that made the pod.
    pub(super) owners: Vec<Owner>,
    pub(super) workload: Option<Queued>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Owner {
    api_version: String,
    kind: String,
    name: String,
}

/// The Workload of Kueue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Queued {
    name: String,
    /// Its LocalQueue.
    queue: String,
    /// Its state in words: the reason why it waits, or that it has quota.
    state: String,
}

impl Belongs {
    /// The lines below a pod's table.
    pub(super) fn lines(&self) -> String {
        let mut text = String::new();
        let mut line = |what: &str, value: &str| {
            let _ = writeln!(text, "  {what:<9} {value}");
        };
        let owners: Vec<String> =
            self.owners.iter().map(|Owner { kind, name, .. }| format!("{} {}", cell(kind), cell(name))).collect();
        if !owners.is_empty() {
            line("job", &owners.join(" > "));
        }
        if let Some(Queued { name, queue, state }) = &self.workload {
            line("queue", &format!("{} of Kueue, as Workload {}: {}", cell(queue), cell(name), cell(state)));
        }
        text
    }
}

/// The owners and the Workload of a pod of this namespace, and notes about objects that cannot be read.
pub(super) async fn of(cluster: &Cluster, namespace: &str, pod: &ObjectMeta) -> (Belongs, Vec<String>) {
    let (mut belongs, mut notes) = (Belongs::default(), Vec::new());
    let mut uids: Vec<String> = pod.uid.iter().cloned().collect();
    let mut next = controller(pod);
    while let Some(owner) = next.take() {
        let found = match get(cluster, namespace, &owner).await {
            Ok(found) => found,
            Err(error) => {
                notes.push(format!("{} {} cannot be read: {error}", cell(&owner.kind), cell(&owner.name)));
                None
            }
        };
        let OwnerReference { api_version, kind, name, uid, .. } = owner;
        uids.push(uid);
        belongs.owners.push(Owner { api_version, kind, name });
        if belongs.owners.len() < OWNERS_MAX {
            next = found.and_then(|found| controller(&found.metadata));
        }
    }
    belongs.owners.reverse();
    let is_queued = pod.labels.as_ref().is_some_and(|labels| labels.contains_key(KUEUE_QUEUE_LABEL));
    if is_queued || !belongs.owners.is_empty() {
        match workload(cluster, namespace, &uids).await {
            Ok(workload) => belongs.workload = workload,
            Err(error) => notes.push(format!("Kueue's Workloads cannot be read: {error}")),
        }
    }
    (belongs, notes)
}

fn controller(object: &ObjectMeta) -> Option<OwnerReference> {
    object.owner_references.iter().flatten().find(|owner| owner.controller == Some(true)).cloned()
}

/// An owner; `None` if it does not exist any more, or the user may not read it.
async fn get(
    cluster: &Cluster,
    namespace: &str,
    owner: &OwnerReference,
) -> Result<Option<DynamicObject>, larder_kube::Error> {
    let (group, version) = owner.api_version.rsplit_once('/').unwrap_or(("", owner.api_version.as_str()));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &owner.kind));
    match cluster.objects(&resource, namespace).get_opt(&owner.name).await {
        // An object of the same name may have come after it.
        Ok(found) => Ok(found.filter(|found| found.metadata.uid.as_ref() == Some(&owner.uid))),
        Err(error) if is_denied(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The Workload of one of these objects; `None` if there is none, or the user may not list Workloads.
async fn workload(cluster: &Cluster, namespace: &str, uids: &[String]) -> Result<Option<Queued>, larder_kube::Error> {
    for kind in WORKLOADS {
        let mut found: Option<Workload> = None;
        let asked = Asked::all(kind, Some(namespace));
        let listed = cluster.list(&asked, None, |object| {
            let is_it = object.metadata.owner_references.iter().flatten().any(|owner| uids.contains(&owner.uid));
            if is_it {
                let next = Workload::read(object);
                // A job may have Workloads of earlier starts.
                let is_later = |before: &Workload| {
                    !next.is("Finished") && (before.is("Finished") || next.created > before.created)
                };
                if found.as_ref().is_none_or(is_later) {
                    found = Some(next);
                }
            }
        });
        match listed.await {
            Ok(()) => return Ok(found.map(|found| found.queued())),
            // Another version may be served.
            Err(error) if is_denied(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// A Workload, reduced to the fields that say what it waits for. A field that cannot be read counts as absent.
struct Workload {
    name: String,
    created: i64,
    queue: String,
    conditions: Vec<ConditionFields>,
    /// The checks that it waits for.
    checks: Vec<Check>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Check {
    name: String,
    state: String,
    message: String,
}

impl Workload {
    fn read(object: DynamicObject) -> Self {
        fn all<T: for<'de> Deserialize<'de>>(list: Option<&Value>) -> Vec<T> {
            list.and_then(Value::as_array).into_iter().flatten().filter_map(|one| T::deserialize(one).ok()).collect()
        }
        let DynamicObject { metadata, data, .. } = object;
        Self {
            name: metadata.name.unwrap_or_default(),
            created: metadata.creation_timestamp.map_or(0, |time| time.0.as_second()),
            queue: data.pointer("/spec/queueName").and_then(Value::as_str).unwrap_or_default().to_owned(),
            conditions: all(data.pointer("/status/conditions")),
            checks: all(data.pointer("/status/admissionChecks")),
        }
    }

    /// A condition, if it is true.
    fn condition(&self, kind: &str) -> Option<&ConditionFields> {
        self.conditions.iter().find(|condition| condition.kind == kind && condition.status == "True")
    }

    fn is(&self, condition: &str) -> bool {
        self.condition(condition).is_some()
    }

    fn queued(self) -> Queued {
        let state = self.state();
        Queued { name: self.name, queue: self.queue, state }
    }

    fn state(&self) -> String {
        if let Some(finished) = self.condition("Finished") {
            return with("it is finished", &finished.message);
        }
        if let Some(evicted) = self.condition("Evicted") {
            return with("it is evicted", &evicted.message);
        }
        if self.is("Admitted") {
            return "it is admitted".to_owned();
        }
        if self.is("QuotaReserved") {
            let waits = self.checks.iter().find(|check| check.state != "Ready");
            return waits.map_or_else(
                || "it has quota".to_owned(),
                |Check { name, message, .. }| with(&format!("it has quota and waits for the check {name}"), message),
            );
        }
        let quota = self.conditions.iter().find(|condition| condition.kind == "QuotaReserved");
        with("it waits for quota", quota.map_or("", |quota| quota.message.as_str()))
    }
}

fn with(state: &str, message: &str) -> String {
    if message.is_empty() { state.to_owned() } else { format!("{state}: {message}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn state(status: Value) -> String {
        let object = json!({"metadata": {"name": "w"}, "spec": {"queueName": "gpus"}, "status": status});
        Workload::read(serde_json::from_value(object).unwrap()).queued().state
    }

    fn condition(kind: &str, status: &str, message: &str) -> Value {
        json!({"type": kind, "status": status, "reason": "Why", "message": message})
    }

    #[test]
    fn a_workload_says_what_its_pods_wait_for() {
        let reserved = condition("QuotaReserved", "True", "Quota reserved in ClusterQueue a");
        let admitted = condition("Admitted", "True", "The workload is admitted");
        let check = |state: &str| json!({"name": "data", "state": state, "message": "a/pets 45 %"});
        for (status, said) in [
            (json!({}), "it waits for quota"),
            (
                json!({"conditions": [condition("QuotaReserved", "False", "insufficient quota for gpu")]}),
                "it waits for quota: insufficient quota for gpu",
            ),
            (json!({"conditions": [reserved]}), "it has quota"),
            (
                json!({"conditions": [reserved], "admissionChecks": [check("Pending")]}),
                "it has quota and waits for the check data: a/pets 45 %",
            ),
            (json!({"conditions": [reserved], "admissionChecks": [check("Ready")]}), "it has quota"),
            (json!({"conditions": [reserved, admitted]}), "it is admitted"),
            (
                json!({"conditions": [reserved, admitted, condition("Evicted", "True", "for another")]}),
                "it is evicted: for another",
            ),
            (json!({"conditions": [reserved, admitted, condition("Finished", "True", "")]}), "it is finished"),
            (json!({"conditions": [3, reserved, admitted], "admissionChecks": "all"}), "it is admitted"),
        ] {
            assert_eq!(state(status), said);
        }
    }

    #[test]
    fn the_lines_have_the_submitted_object_first() {
        let owner = |kind: &str, name: &str| Owner {
            api_version: "v1".to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
        };
        let workload =
            Queued { name: "w".to_owned(), queue: "gpus".to_owned(), state: "it is\u{1b}[31m admitted".to_owned() };
        let belongs =
            Belongs { owners: vec![owner("JobSet", "train"), owner("Job", "train-0")], workload: Some(workload) };
        assert_eq!(
            belongs.lines(),
            "  job       JobSet train > Job train-0\n  queue     gpus of Kueue, as Workload w: it is [31m admitted\n"
        );
        assert_eq!(Belongs::default().lines(), "");
    }
}
