//! Keeps the node's object at the API server: our labels and our condition, and nothing else of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use larder_kube::Client;
use larder_kube::api::{Api, GetParams, Patch, PatchParams};
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::condition::{self, Condition};
use super::counters::Counters;
use super::events::REPORTER;
use super::labels;
use crate::names::DEVICE_FAULT_CONDITION;
use crate::pace::{part, pauses};
use crate::view::View;

/// The least time between two looks at the object.
const LOOKS_APART: Duration = Duration::from_secs(1);
/// How often the object is looked at while nothing changes: somebody else may have changed it, or made it again.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The longest that one request may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the object is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    labels: BTreeMap<&'static str, String>,
    condition: Condition,
}

impl Wanted {
    pub(super) fn of(view: &View) -> Self {
        Self { labels: labels::of(&view.machine), condition: condition::of(view) }
    }

    /// The labels to change, with `null` for those to take off. `None`: they are as they should be.
    fn labels_patch(&self, node: &Node) -> Option<Value> {
        let there = node.metadata.labels.iter().flatten();
        let gone = there.filter(|(key, _)| key.starts_with(labels::PREFIX) && !self.labels.contains_key(key.as_str()));
        let mut changes: Map<String, Value> = gone.map(|(key, _)| (key.clone(), Value::Null)).collect();
        for (key, value) in &self.labels {
            let is_there = node.metadata.labels.as_ref().and_then(|labels| labels.get(*key)) == Some(value);
            if !is_there {
                changes.insert((*key).to_owned(), json!(value));
            }
        }
        (!changes.is_empty()).then(|| json!({"metadata": {"labels": changes}}))
    }

    /// The condition as a strategic merge patch, which leaves the others alone. `None`: it is as it should be.
    fn condition_patch(&self, node: &Node, now: Timestamp) -> Option<Value> {
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let there = conditions.into_iter().find(|condition| condition.type_ == DEVICE_FAULT_CONDITION);
        let Condition { reason, message, .. } = &self.condition;
        let status = self.condition.status_text();
        let is_same_status = there.is_some_and(|there| there.status == status);
        let said = |text: &Option<String>, wanted: &str| text.as_deref() == Some(wanted);
        if is_same_status && there.is_some_and(|there| said(&there.reason, reason) && said(&there.message, message)) {
            return None;
        }
        let mut condition = json!({
            "type": DEVICE_FAULT_CONDITION,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        });
        if !is_same_status {
            condition["lastTransitionTime"] = condition["lastHeartbeatTime"].clone();
        }
        Some(json!({"status": {"conditions": [condition]}}))
    }
}

/// Keeps the object of `node` as the view says, until there will be no more views.
pub(super) async fn keep(client: Client, node: String, mut view: watch::Receiver<Arc<View>>, counters: Arc<Counters>) {
    let api: Api<Node> = Api::all(client);
    let look_every = LOOK_EVERY + part(&node, LOOK_EVERY / 2);
    let mut backoff = pauses();
    // From the API server's memory: in a large cluster all nodes ask.
    let mut read = GetParams::any();
    loop {
        let wanted = Wanted::of(&view.borrow_and_update());
        match look(&api, &node, &wanted, &mut read, &counters).await {
            Ok(()) => {
                backoff = pauses();
                sleep(LOOKS_APART).await;
                if let Ok(Err(_)) = timeout(look_every, view.changed()).await {
                    return;
                }
            }
            Err(error) => {
                counters.api_errors.fetch_add(1, Ordering::Relaxed);
                let pause = backoff.next().unwrap_or_default();
                warn!(error = format!("{error:#}"), node, pause = ?pause, "the node's labels and condition are out of date");
                sleep(pause).await;
                if view.has_changed().is_err() {
                    return;
                }
            }
        }
    }
}

/// One look, and what has to be written. What can be written is, if one of the two cannot. The next look will see an object that
/// is not older than what this one has seen or written: else ours of before could pass for what is there.
async fn look(
    api: &Api<Node>,
    name: &str,
    wanted: &Wanted,
    read: &mut GetParams,
    counters: &Counters,
) -> anyhow::Result<()> {
    let node = match within(api.get_with(name, read)).await.context("read the node") {
        Ok(node) => node,
        Err(error) => {
            if read.resource_version.as_deref().is_some_and(|version| version != "0") {
                // The API server's memory may be behind, or etcd was restored and will not have that version: then it counts.
                *read = GetParams::default();
            }
            return Err(error);
        }
    };
    let mut see = |node: &Node| {
        *read = node.metadata.resource_version.as_deref().map_or_else(GetParams::any, GetParams::at);
    };
    see(&node);
    let params = PatchParams { field_manager: Some(REPORTER.to_owned()), ..PatchParams::default() };
    let mut failed = None;
    if let Some(patch) = wanted.condition_patch(&node, Timestamp::now()) {
        match within(api.patch_status(name, &params, &Patch::Strategic(&patch))).await {
            Ok(written) => {
                see(&written);
                counters.node_writes.fetch_add(1, Ordering::Relaxed);
                let Condition { reason, message, .. } = &wanted.condition;
                info!(status = wanted.condition.status_text(), reason, message, "node condition updated");
            }
            Err(error) => failed = Some(error.context("write the node's condition")),
        }
    }
    if let Some(patch) = wanted.labels_patch(&node) {
        let written = within(api.patch(name, &params, &Patch::Merge(&patch))).await;
        see(&written.context("write the node's labels")?);
        counters.node_writes.fetch_add(1, Ordering::Relaxed);
    }
    failed.map_or(Ok(()), Err)
}

async fn within<T>(request: impl Future<Output = larder_kube::Result<T>>) -> anyhow::Result<T> {
    Ok(timeout(PATIENCE, request).await.context("the API server did not answer in time")??)
}
