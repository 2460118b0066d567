//! Explains to the user of a Dataset, in one sentence, why it is ready or not, what happens next and what to do.
//!
//! Conditions state facts; this module adds what their reasons mean for the user. It is pure, and depends only on the
//! Dataset itself. [`job`] does the same for TrainingJobs.

pub mod job;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Serialize;

use crate::conditions::{ConditionKind, Reason};
use crate::dataset::Dataset;
use crate::names::SYSTEM_NAMESPACE;

/// The command that shows whether the controller runs.
const LOOK_AT_THE_CONTROLLER: &str = "kubectl get pods -n larder-system -l app.kubernetes.io/name=larder-controller";

/// Why a Dataset is ready or not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// True if a pod that starts now finds what the spec requests.
    pub ready: bool,
    /// The reason of the decisive condition, if there is one: `Ready`, or for a ready Dataset `Degraded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why the Dataset is ready or not.
    pub why: String,
    /// The next step that happens automatically; empty if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub next: String,
    /// What the user should do; empty if nothing.
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
        return unknown("larder-controller has not processed it yet", "a running controller needs a few seconds");
    };
    let observed = dataset.status.as_ref().and_then(|status| status.observed_generation);
    if in_use.is_none() && observed < dataset.metadata.generation {
        let why = "larder-controller has not processed the last change of the spec yet";
        return unknown(why, "a running controller needs a few seconds");
    }
    let degraded = ConditionKind::Degraded.find(conditions).filter(|degraded| degraded.status == "True");
    if ready.status != "True" {
        // A rejected write comes first, since there is no progress until it succeeds.
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

/// The explanation if the controller has not set a current condition.
fn unknown(why: &str, next: &str) -> Explanation {
    let todo = format!("otherwise check that it runs: {LOOK_AT_THE_CONTROLLER}");
    Explanation { why: why.to_owned(), next: next.to_owned(), todo, ..Explanation::default() }
}

fn by_reason(dataset: &Dataset, condition: &Condition) -> Explanation {
    let said = condition.message.trim().trim_end_matches('.');
    // `next` already says that it is retried, so the controller's own words are removed. Controllers of other releases
    // use other words.
    let said = ["; it is tried again", "; it is retried", "; retrying"]
        .iter()
        .fold(said, |said, end| said.trim_end_matches(end))
        .to_owned();
    let (why, next, todo) = match condition.reason.parse() {
        Ok(reason) => words(dataset, reason, said),
        // An unknown reason: the controller is newer than this program.
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
    let again = "it is retried automatically, at least every five minutes";
    match reason {
        Reason::Listed | Reason::Found | Reason::ListedByNodes | Reason::Promised | Reason::Cached => {
            (or("this step is done"), "", String::new())
        }
        Reason::NotWanted => (or("no node caches it until a pod uses it"), "", String::new()),
        Reason::AsWanted => (or("everything is as requested"), "", String::new()),
        Reason::Available => (format!("pods of {namespace} may mount the claim {name}"), "", String::new()),
        Reason::Importing => (
            or("its origin is being listed"),
            "after the listing, nodes are chosen and the claim is created",
            format!("if this takes too long, check its pod: {pods}"),
        ),
        Reason::SecretMissing => match secret {
            Some(secret) => (
                format!("the Secret {secret} of spec.origin.secretRef does not exist in {namespace}, or is empty"),
                "the import continues automatically once it exists",
                format!("create it, with keys for {source}: kubectl create secret generic {secret} -n {namespace} …"),
            ),
            None => (
                or("a Secret does not exist, or is empty"),
                "the import continues automatically once it exists",
                format!("create it in {namespace}"),
            ),
        },
        Reason::BucketMissing => (
            because(format!("{source} does not exist")),
            again,
            "put the data there or correct spec.origin.endpoint; the source is immutable, so if it is wrong, delete the \
             Dataset and create a new one"
                .to_owned(),
        ),
        Reason::AccessDenied => (
            because(format!("the origin rejects {}", credentials(secret, origin.anonymous))),
            again,
            format!("permit them to list and read {source}, or use other credentials in spec.origin.secretRef"),
        ),
        Reason::OriginUnreachable => (
            because(format!("{} does not answer", origin.endpoint.as_deref().unwrap_or(source))),
            again,
            format!("check spec.origin.endpoint, and whether pods of {namespace} can reach it"),
        ),
        Reason::SnapshotUnknown => (
            or("spec.snapshot is not a known snapshot"),
            again,
            format!("set spec.snapshot to {}latest", known_snapshots(dataset)),
        ),
        Reason::ImportFailed => (
            because("its import failed".to_owned()),
            again,
            format!("see the log: kubectl logs -n {namespace} -l larder.dev/dataset-uid={uid},larder.dev/role=import"),
        ),
        Reason::NotAllowed => (
            or("it uses a field that is reserved for the administrator's Datasets"),
            "nothing happens until it is changed",
            format!("remove the field, or ask the administrator, whose Datasets are in {SYSTEM_NAMESPACE}"),
        ),
        Reason::InvalidSpec => (
            or("its spec has an invalid value"),
            "nothing happens until it is corrected",
            format!("kubectl edit dset {name} -n {namespace}"),
        ),
        Reason::QuotaExceeded => (
            or("the CacheQuota of its namespace is used up"),
            "it continues automatically once the quota has room, and what is promised already stays",
            format!(
                "delete or unpin other Datasets of {namespace}, lower spec.nodes.count or spec.cache.size, or ask the \
                 administrator for a larger CacheQuota"
            ),
        ),
        Reason::Waiting => (
            or("the previous step is not done yet"),
            "larderd on each chosen node responds within seconds",
            "if it does not, check which nodes report: kubectl get nodecaches".to_owned(),
        ),
        Reason::NoNodeMatches => (
            or("too few nodes match spec.nodes.selector"),
            "it continues automatically once there are enough; its claim is created ten minutes after the import",
            selector(dataset),
        ),
        Reason::LargerThanAnyCache => (
            or("it is larger than the cache of any node"),
            "pods may mount its claim meanwhile, and read the rest from the origin",
            "set spec.cache.size to cache a part of it, or set spec.cache.placement to partitioned to spread it over nodes"
                .to_owned(),
        ),
        Reason::CachesLackRoom => (
            or("the caches of the nodes have no room on their disks"),
            "it continues automatically once there is room, and pods may mount its claim meanwhile",
            "follow what the message says for each node that is not ready: kubectl get nodecaches".to_owned(),
        ),
        Reason::NotEnoughRoom => (
            because("other datasets use the space".to_owned()),
            "it continues automatically once there is space, and pods may mount its claim meanwhile",
            "delete or unpin other Datasets, lower spec.nodes.count or spec.cache.size, or add nodes".to_owned(),
        ),
        Reason::Warming => {
            let eta = dataset.status.as_ref().and_then(|status| status.eta.as_ref());
            let eta = eta.map(|eta| format!(", until about {}", eta.0)).unwrap_or_default();
            (
                because(format!("its bytes are being fetched{eta}")),
                "its claim is created when that is done, or ten minutes after the import",
                String::new(),
            )
        }
        Reason::WarmingFailed => (
            because("fetching its bytes failed".to_owned()),
            again,
            format!("see the log: kubectl logs -n {namespace} -l larder.dev/dataset-uid={uid},larder.dev/role=warm"),
        ),
        Reason::NodeLost => (
            because("a node that holds it is lost".to_owned()),
            "the node counts again once it is back, and is replaced once it is deleted",
            "repair the node, or delete it: kubectl delete node NODE".to_owned(),
        ),
        Reason::RefreshFailed => (
            because("the last refresh failed".to_owned()),
            "pods read the previous snapshot, and the refresh is retried automatically",
            format!("see the log: kubectl logs -n {namespace} -l larder.dev/dataset-uid={uid},larder.dev/role=import"),
        ),
        Reason::MirrorBehind => (
            because("copying it to a mirror failed".to_owned()),
            "nodes read it from its other origins, and the copy is retried automatically",
            format!("see the log: kubectl logs -n {namespace} -l larder.dev/dataset-uid={uid},larder.dev/role=sync"),
        ),
        Reason::PromiseUnkept => (
            because("a node cannot keep its promise because its cache has shrunk".to_owned()),
            "pods on it read the rest from the origin",
            "give the node more cache space, or lower spec.nodes.count or spec.cache.size".to_owned(),
        ),
        Reason::InvalidClean => (
            or("the annotation larder.dev/clean is not a time"),
            "nothing is dropped until it is corrected",
            format!("kubectl annotate --overwrite dset {name} -n {namespace} larder.dev/clean=$(date -u +%FT%TZ)"),
        ),
        Reason::WriteRefused => (
            because("Kubernetes rejects one of its objects".to_owned()),
            "it is retried automatically, at least once a minute",
            "remove the obstacle: an object of the same name, a quota, a LimitRange or an admission policy"
                .to_owned(),
        ),
        Reason::InlineLimit => (
            or("it cannot be used in inline volumes"),
            "its claims work",
            format!(
                "mount a claim instead, or free a place: list fewer namespaces (\"*\" means all) or delete older Datasets of \
                 {namespace} without a Secret"
            ),
        ),
        Reason::InUse => (
            or("it was deleted, and pods use it"),
            "new pods cannot mount its claim, and it is removed when the last pod that uses it ends",
            "to remove it sooner, delete these pods".to_owned(),
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

/// The known snapshots, as the start of a list that ends with `latest`.
fn known_snapshots(dataset: &Dataset) -> String {
    let known = dataset.status.iter().flat_map(|status| &status.snapshots);
    let mut ids: Vec<&str> = known.map(|known| known.id.as_str()).collect();
    ids.push("");
    ids.join(" or ")
}

fn selector(dataset: &Dataset) -> String {
    let selector = &dataset.spec.nodes.selector;
    if selector.is_empty() {
        return "check which nodes are ready and report a cache: kubectl get nodes,nodecaches".to_owned();
    }
    let labels: Vec<String> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!("label more nodes (kubectl label node NODE {}), or change spec.nodes", labels.join(" "))
}

#[cfg(test)]
mod tests;
