//! Why a Dataset is ready or not, what happens next by itself, and what to do about it: one sentence for its user.
//!
//! The conditions have the facts and the words of whoever stated them. This adds what the reason means for the user.
//! It is pure, and looks at nothing but the Dataset itself. [`job`] does the same for TrainingJobs.

pub mod job;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Serialize;

use crate::conditions::{ConditionKind, Reason};
use crate::dataset::Dataset;
use crate::names::SYSTEM_NAMESPACE;

/// How to see whether the controller is there.
const LOOK_AT_THE_CONTROLLER: &str = "kubectl get pods -n larder-system -l app.kubernetes.io/name=larder-controller";

/// Why a Dataset is ready or not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// A pod that starts now finds what the spec asks for.
    pub ready: bool,
    /// The reason that counts, if there is one: that of `Ready`, or for a ready Dataset that of `Degraded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why.
    pub why: String,
    /// The next step, which happens by itself; empty: none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub next: String,
    /// The step for a person to take; empty: none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub todo: String,
}

impl Explanation {
    /// The sentence about the Dataset `key`.
    pub fn sentence(&self, key: &str) -> String {
        let is = if self.ready { "is ready" } else { "is not ready" };
        let parts = [&self.why, &self.next, &self.todo].into_iter().filter(|part| !part.is_empty());
        format!("{key} {is}: {}.", parts.map(String::as_str).collect::<Vec<_>>().join("; "))
    }
}

/// Explains the state of a Dataset.
pub fn explain(dataset: &Dataset) -> Explanation {
    let conditions = dataset.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let ready = ConditionKind::Ready.find(conditions);
    let in_use = ready.filter(|ready| ready.reason == Reason::InUse.as_str());
    if dataset.metadata.deletion_timestamp.is_some() && in_use.is_none() {
        let next = "a running larder-controller usually finishes this within a minute";
        return unknown("it was deleted, and its jobs, claims, volumes and promises are being removed", next);
    }
    let Some(ready) = ready else {
        return unknown("larder-controller has not looked at it yet", "a running controller does so within seconds");
    };
    let observed = dataset.status.as_ref().and_then(|status| status.observed_generation);
    if in_use.is_none() && observed < dataset.metadata.generation {
        let why = "larder-controller has not seen the last change of the spec yet";
        return unknown(why, "a running controller does so within seconds");
    }
    let degraded = ConditionKind::Degraded.find(conditions).filter(|degraded| degraded.status == "True");
    if ready.status != "True" {
        // Nothing goes on by itself while Kubernetes refuses what it needs.
        let refused = degraded.filter(|degraded| degraded.reason == Reason::WriteRefused.as_str() && in_use.is_none());
        return by_reason(dataset, refused.unwrap_or(ready));
    }
    degraded.map_or_else(
        || Explanation { ready: true, ..by_reason(dataset, ready) },
        |degraded| {
            let worse = by_reason(dataset, degraded);
            let why = format!("pods may mount it, but {}", worse.why);
            Explanation { ready: true, why, ..worse }
        },
    )
}

/// The controller has said nothing that counts.
fn unknown(why: &str, next: &str) -> Explanation {
    let todo = format!("otherwise check that it runs: {LOOK_AT_THE_CONTROLLER}");
    Explanation { why: why.to_owned(), next: next.to_owned(), todo, ..Explanation::default() }
}

fn by_reason(dataset: &Dataset, condition: &Condition) -> Explanation {
    let said = condition
        .message
        .trim()
        .trim_end_matches('.')
        .trim_end_matches("; it is tried again")
        .trim_end_matches("; retrying")
        .to_owned();
    let (why, next, todo) = match condition.reason.parse() {
        Ok(reason) => words(dataset, reason, said),
        // A controller that is newer than this program.
        Err(_) => (if said.is_empty() { condition.reason.clone() } else { said }, "", String::new()),
    };
    let reason = Some(condition.reason.clone());
    Explanation { ready: false, reason, why, next: next.to_owned(), todo }
}

/// The meaning of a reason: why, what happens next, what to do.
fn words(dataset: &Dataset, reason: Reason, said: String) -> (String, &'static str, String) {
    let namespace = dataset.metadata.namespace.as_deref().unwrap_or("default");
    let name = dataset.metadata.name.as_deref().unwrap_or_default();
    let uid = dataset.metadata.uid.as_deref().unwrap_or_default();
    let origin = &dataset.spec.origin;
    let source = &origin.source;
    let secret = origin.secret_ref.as_ref().map(|secret| secret.name.as_str());
    let because = |what: String| if said.is_empty() { what } else { format!("{what}: {said}") };
    let or = |what: &str| if said.is_empty() { what.to_owned() } else { said.clone() };
    let pods = format!("kubectl describe pods -n {namespace} -l larder.dev/dataset-uid={uid}");
    let again = "it is tried again by itself, after pauses of up to five minutes";
    match reason {
        Reason::Listed | Reason::Found | Reason::ListedByNodes | Reason::Promised | Reason::Cached => {
            (or("this step is done"), "", String::new())
        }
        Reason::NotWanted => (or("no node is to hold it before a pod asks"), "", String::new()),
        Reason::AsWanted => (or("all is as wanted"), "", String::new()),
        Reason::Available => (format!("pods of {namespace} may mount the claim {name}"), "", String::new()),
        Reason::Importing => (
            or("its origin is being listed"),
            "once it is listed, nodes are chosen and the claim appears",
            format!("if this takes too long, look at its pod: {pods}"),
        ),
        Reason::SecretMissing => match secret {
            Some(secret) => (
                format!("the Secret {secret}, which spec.origin.secretRef names, does not exist in {namespace}"),
                "the import goes on by itself once it does",
                format!("create it, with keys for {source}: kubectl create secret generic {secret} -n {namespace} …"),
            ),
            None => (
                or("a Secret does not exist"),
                "the import goes on by itself once it does",
                format!("create it in {namespace}"),
            ),
        },
        Reason::BucketMissing => (
            because(format!("there is nothing at {source}")),
            again,
            "put the data there or correct spec.origin.endpoint; the source itself cannot be changed, so if that is \
             wrong, delete the Dataset and apply another"
                .to_owned(),
        ),
        Reason::AccessDenied => (
            because(format!("the origin refuses {}", credentials(secret, origin.anonymous))),
            again,
            format!("let them list and read {source}, or name others in spec.origin.secretRef"),
        ),
        Reason::OriginUnreachable => (
            because(format!("{} does not answer", origin.endpoint.as_deref().unwrap_or(source))),
            again,
            format!("check spec.origin.endpoint, and whether pods of {namespace} can reach it"),
        ),
        Reason::SnapshotUnknown => (
            or("spec.snapshot is not one of its snapshots"),
            again,
            format!("set spec.snapshot to {}latest", known_snapshots(dataset)),
        ),
        Reason::ImportFailed => (
            because("its import failed".to_owned()),
            again,
            format!("see why: kubectl logs -n {namespace} -l larder.dev/dataset-uid={uid},larder.dev/role=import"),
        ),
        Reason::NotAllowed => (
            or("it uses something that only the administrator's Datasets may use"),
            "nothing is done until it is changed",
            format!("change it, or ask the administrator, whose Datasets are in {SYSTEM_NAMESPACE}"),
        ),
        Reason::InvalidSpec => (
            or("its spec has a value that is not accepted"),
            "nothing is done until it is corrected",
            format!("kubectl edit dset {name} -n {namespace}"),
        ),
        Reason::Waiting => (
            or("the step before is not done yet"),
            "larderd of each chosen node answers within seconds",
            "if it does not, see which nodes report: kubectl get nodecaches".to_owned(),
        ),
        Reason::NoNodeMatches => (
            or("too few nodes match spec.nodes.selector"),
            "it goes on by itself once there are such nodes; its claim appears ten minutes after the import",
            selector(dataset),
        ),
        Reason::LargerThanAnyCache => (
            or("it is larger than the cache of any node"),
            "pods may mount its claim meanwhile, and read what does not fit from the origin",
            "set spec.cache.size to hold a part of it, or spec.cache.placement to partitioned to spread it over nodes"
                .to_owned(),
        ),
        Reason::NotEnoughRoom => (
            because("other datasets have the room".to_owned()),
            "it goes on by itself once there is room, and pods may mount its claim meanwhile",
            "delete or unpin others, lower spec.nodes.count or spec.cache.size, or add nodes".to_owned(),
        ),
        Reason::Warming => {
            let eta = dataset.status.as_ref().and_then(|status| status.eta.as_ref());
            let eta = eta.map(|eta| format!(", until about {}", eta.0)).unwrap_or_default();
            (
                because(format!("its bytes are being fetched{eta}")),
                "its claim appears when that is done, or ten minutes after the import",
                String::new(),
            )
        }
        Reason::WarmingFailed => (
            because("fetching its bytes failed".to_owned()),
            again,
            format!("see why: kubectl logs -n {namespace} -l larder.dev/dataset-uid={uid},larder.dev/role=warm"),
        ),
        Reason::NodeLost => (
            because("a node that holds it is lost".to_owned()),
            "it counts again once it is back, and another takes its place once it is deleted",
            "repair it, or delete it: kubectl delete node NODE".to_owned(),
        ),
        Reason::RefreshFailed => (
            because("the last refresh failed".to_owned()),
            "pods read the snapshot before it, and the origin is listed again by itself",
            format!("see why: kubectl logs -n {namespace} -l larder.dev/dataset-uid={uid},larder.dev/role=import"),
        ),
        Reason::PromiseUnkept => (
            because("a node cannot keep its promise, since its cache has become smaller".to_owned()),
            "its pods read what does not fit from the origin",
            "give the cache of the node more room, or lower spec.nodes.count or spec.cache.size".to_owned(),
        ),
        Reason::InvalidClean => (
            or("the annotation larder.dev/clean is not a time"),
            "nothing is dropped until it is corrected",
            format!("kubectl annotate --overwrite dset {name} -n {namespace} larder.dev/clean=$(date -u +%FT%TZ)"),
        ),
        Reason::WriteRefused => (
            because("Kubernetes refuses one of its objects".to_owned()),
            "it is tried again by itself, after pauses of up to a minute",
            "remove what is in the way: an object of that name, a quota, a LimitRange or an admission policy"
                .to_owned(),
        ),
        Reason::InlineLimit => (
            or("inline volumes cannot name it"),
            "claims of it work",
            format!(
                "mount a claim instead, or make room: list fewer namespaces (\"*\" is all of them) or delete older Datasets \
                 of {namespace} that have no Secret"
            ),
        ),
        Reason::InUse => (
            or("it was deleted, and pods use it"),
            "new pods cannot mount its own claim, and it is removed with the last pod that uses it",
            "to remove it sooner, delete them".to_owned(),
        ),
    }
}

fn credentials(secret: Option<&str>, anonymous: bool) -> String {
    match secret {
        Some(secret) => format!("the keys of the Secret {secret}"),
        None if anonymous => "reading without credentials (spec.origin.anonymous)".to_owned(),
        None => "larderd's own credentials (the Secret larder-origin)".to_owned(),
    }
}

/// The snapshots that there are, for a list that `latest` ends.
fn known_snapshots(dataset: &Dataset) -> String {
    let known = dataset.status.iter().flat_map(|status| &status.snapshots);
    let mut ids: Vec<&str> = known.map(|known| known.id.as_str()).collect();
    ids.push("");
    ids.join(" or ")
}

fn selector(dataset: &Dataset) -> String {
    let selector = &dataset.spec.nodes.selector;
    if selector.is_empty() {
        return "see which are ready and report a cache: kubectl get nodes,nodecaches".to_owned();
    }
    let labels: Vec<String> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!("label more nodes (kubectl label node NODE {}), or change spec.nodes", labels.join(" "))
}

#[cfg(test)]
mod tests;
