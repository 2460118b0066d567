//! The startup taint, which keeps pods off a new node until they can mount datasets there.
//!
//! The autoscaler or the kubelet gives it to the node. Removing it after the registration with the kubelet would be too
//! early: the scheduler knows a driver from the node's CSINode alone, and a pod that is there before larderd answers
//! waits in its kubelet, whose next attempt may be minutes away.
//!
//! Invariants: of the Node, only this taint is changed, and only as it was when it was read. It is removed while the
//! CSINode lists the driver and larderd answers, and at no other time.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::api::storage::v1::CSINode;
use larder_kube::Client;
use larder_kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::driver_name::DRIVER_NAME;

/// The key of the taint; its effect and value are the administrator's.
pub const STARTUP_TAINT: &str = "csi.larder.dev/agent-not-ready";

/// The pause between two looks at a node on which pods cannot mount yet. It doubles up to [`WAITING_MAX`]: a thousand
/// nodes may join at once, and a larderd may never answer.
const WAITING: Duration = Duration::from_secs(1);
const WAITING_MAX: Duration = Duration::from_secs(5);

/// The pause while the node lacks the taint. One that is created again under its name has it again.
const WITHOUT: Duration = Duration::from_secs(60);

/// The longest that one request may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest pause after a failed request. Pauses begin with [`WAITING`] and double.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// One node's startup taint.
#[derive(Debug)]
pub(crate) struct StartupTaint {
    node: String,
    /// True once the kubelet has listed the driver in the CSINode.
    is_listed: AtomicBool,
}

/// The outcome of one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// The node lacks the taint, or has lost it now.
    Without,
    /// Pods cannot mount on the node yet, for this reason.
    Waits(&'static str),
}

impl StartupTaint {
    pub(crate) fn new(node: String) -> Self {
        Self { node, is_listed: AtomicBool::new(false) }
    }

    /// Errors: the kubelet has not listed the driver yet.
    pub(crate) fn check_listed(&self) -> Result<(), String> {
        if self.is_listed.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(format!("the CSINode {} does not list {DRIVER_NAME}, or cannot be read (--startup-taint)", self.node))
    }

    /// Removes the taint whenever the node has it and pods can mount. `larderd_answers` is asked then. Never returns.
    pub(crate) async fn keep_off<F>(&self, larderd_answers: impl Fn() -> F)
    where
        F: Future<Output = bool>,
    {
        let client = loop {
            match larder_kube::connect().await {
                Ok(client) => break client,
                Err(error) => warn!(error = format!("{error:#}"), "cannot remove the startup taint (--startup-taint)"),
            }
            sleep(PAUSE_MAX).await;
        };
        self.keep_off_with(client, larderd_answers).await;
    }

    async fn keep_off_with<F>(&self, client: Client, larderd_answers: impl Fn() -> F)
    where
        F: Future<Output = bool>,
    {
        let (mut pause, mut said) = (WAITING, None);
        loop {
            let looked = self.look(&client, &larderd_answers).await;
            pause = match looked {
                Ok(Look::Without) => WITHOUT,
                Ok(Look::Waits(_)) => (pause * 2).min(WAITING_MAX),
                Err(_) => (pause * 2).min(PAUSE_MAX),
            };
            match &looked {
                // Once for each reason, although it is looked at every few seconds.
                Ok(Look::Waits(reason)) if said != Some(*reason) => {
                    info!(node = self.node, reason, "pods cannot mount on this node yet");
                    said = Some(*reason);
                }
                Ok(Look::Waits(_)) => {}
                Ok(Look::Without) => said = None,
                Err(error) => warn!(error = format!("{error:#}"), "cannot look at the startup taint"),
            }
            sleep(pause).await;
        }
    }

    async fn look<F>(&self, client: &Client, larderd_answers: &impl Fn() -> F) -> anyhow::Result<Look>
    where
        F: Future<Output = bool>,
    {
        let nodes: Api<Node> = Api::all(client.clone());
        let node = within(nodes.get(&self.node)).await.context("read the node")?;
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
        let others: Vec<&Taint> = taints.iter().filter(|taint| taint.key != STARTUP_TAINT).collect();
        let has_taint = others.len() < taints.len();
        if !has_taint && self.is_listed.load(Ordering::Acquire) {
            return Ok(Look::Without);
        }
        let csi_nodes: Api<CSINode> = Api::all(client.clone());
        let listed = within(csi_nodes.get_opt(&self.node)).await.context("read the CSINode")?;
        let is_listed = listed.is_some_and(|node| node.spec.drivers.iter().any(|driver| driver.name == DRIVER_NAME));
        self.is_listed.store(is_listed, Ordering::Release);
        if !is_listed {
            return Ok(Look::Waits("the CSINode does not list the driver yet"));
        }
        if !has_taint {
            return Ok(Look::Without);
        }
        if !larderd_answers().await {
            return Ok(Look::Waits("larderd does not answer yet"));
        }
        // The version makes the API server refuse the patch if anybody has changed the taints since.
        let version = &node.metadata.resource_version;
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": others}});
        let params = PatchParams::default();
        within(nodes.patch(&self.node, &params, &Patch::Merge(&patch))).await.context("remove the startup taint")?;
        info!(node = self.node, "startup taint removed: the node takes pods");
        Ok(Look::Without)
    }
}

async fn within<T>(request: impl Future<Output = larder_kube::Result<T>>) -> anyhow::Result<T> {
    Ok(timeout(PATIENCE, request).await.context("the API server did not answer in time")??)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use larder_testkit::FakeApi;
    use serde_json::Value;

    use super::*;

    /// A node with its keeper of the taint.
    struct World {
        api: FakeApi,
        startup: Arc<StartupTaint>,
        answers: Arc<AtomicBool>,
    }

    impl World {
        fn new() -> Self {
            let api = FakeApi::new();
            api.expect_only(&["nodes", "csinodes"]);
            let (startup, answers) = (StartupTaint::new("n1".to_owned()), AtomicBool::new(false));
            Self { api, startup: Arc::new(startup), answers: Arc::new(answers) }
        }

        fn client(&self) -> Client {
            Client::new(self.api.service(), "default")
        }

        /// The node joins, with the taint and another one.
        fn join(&self) {
            let taint = |key: &str| json!({"key": key, "effect": "NoExecute"});
            self.api.put(
                "nodes",
                json!({
                    "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"zone": "a"}},
                    "spec": {"providerID": "x", "taints": [taint("gpu"), taint(STARTUP_TAINT)]},
                }),
            );
        }

        fn register(&self, driver: &str) {
            let spec = json!({"drivers": [{"name": driver, "nodeID": "n1"}]});
            self.api.put(
                "csinodes",
                json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "n1"}, "spec": spec}),
            );
        }

        async fn look(&self) -> anyhow::Result<Look> {
            let answers = Arc::clone(&self.answers);
            self.startup.look(&self.client(), &|| std::future::ready(answers.load(Ordering::Relaxed))).await
        }

        fn taints(&self) -> Vec<String> {
            let node = self.api.get("nodes", "", "n1").unwrap();
            let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
            taints.iter().map(|taint| taint["key"].as_str().unwrap().to_owned()).collect()
        }
    }

    // SEMANTICS: K26
    #[tokio::test]
    async fn a_node_loses_the_taint_only_when_the_driver_is_listed_and_larderd_answers() {
        let world = World::new();
        assert!(world.look().await.is_err(), "the node has not joined");
        world.join();
        assert!(matches!(world.look().await.unwrap(), Look::Waits(reason) if reason.contains("CSINode")));
        assert!(world.startup.check_listed().is_err());
        world.register("ebs.csi.aws.com");
        world.answers.store(true, Ordering::Relaxed);
        assert!(matches!(world.look().await.unwrap(), Look::Waits(reason) if reason.contains("CSINode")));
        world.register(DRIVER_NAME);
        world.answers.store(false, Ordering::Relaxed);
        assert!(matches!(world.look().await.unwrap(), Look::Waits(reason) if reason.contains("larderd")));
        assert_eq!(world.startup.check_listed(), Ok(()));
        assert_eq!(world.taints(), ["gpu", STARTUP_TAINT]);
        assert!(world.api.writes().is_empty());

        let before = world.api.get("nodes", "", "n1").unwrap();
        world.answers.store(true, Ordering::Relaxed);
        assert_eq!(world.look().await.unwrap(), Look::Without);
        assert_eq!(world.taints(), ["gpu"], "and no other is touched");
        let after = world.api.get("nodes", "", "n1").unwrap();
        let rest = |node: &Value| (node["metadata"]["labels"].clone(), node["spec"]["providerID"].clone());
        assert_eq!(rest(&before), rest(&after));
        assert_eq!(world.look().await.unwrap(), Look::Without);
        assert_eq!(world.api.writes(), ["PATCH nodes/n1"], "once");
    }

    // SEMANTICS: K26
    #[tokio::test]
    async fn a_node_without_the_taint_is_looked_at_again_soon_until_the_driver_is_listed() {
        let world = World::new();
        world.api.put("nodes", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": {}}));
        assert!(matches!(world.look().await.unwrap(), Look::Waits(_)));
        assert!(world.startup.check_listed().is_err());
        world.register(DRIVER_NAME);
        assert_eq!(world.look().await.unwrap(), Look::Without);
        assert_eq!(world.startup.check_listed(), Ok(()));
        assert!(world.api.writes().is_empty());
    }

    // SEMANTICS: K26
    #[tokio::test]
    async fn a_taint_that_somebody_adds_meanwhile_is_not_lost() {
        let world = World::new();
        world.join();
        world.register(DRIVER_NAME);
        let api = world.api.clone();
        let answers = || {
            api.change("nodes", "", "n1", |node| {
                node["spec"]["taints"].as_array_mut().unwrap().push(json!({"key": "late", "effect": "NoSchedule"}));
            });
            std::future::ready(true)
        };
        let error = world.startup.look(&world.client(), &answers).await.unwrap_err();
        assert!(format!("{error:#}").contains("remove the startup taint"), "{error:#}");
        assert_eq!(world.taints(), ["gpu", STARTUP_TAINT, "late"]);
        world.answers.store(true, Ordering::Relaxed);
        assert_eq!(world.look().await.unwrap(), Look::Without);
        assert_eq!(world.taints(), ["gpu", "late"]);
    }

    // SEMANTICS: K26
    #[tokio::test(start_paused = true)]
    async fn a_node_that_joins_late_or_again_loses_the_taint_without_a_restart() {
        let world = World::new();
        let (client, answers) = (world.client(), Arc::clone(&world.answers));
        let startup = Arc::clone(&world.startup);
        let answering = move || std::future::ready(answers.load(Ordering::Relaxed));
        let task = tokio::spawn(async move { startup.keep_off_with(client, answering).await });
        let mut changes = world.api.changes();
        let mut without = async || {
            while world.api.get("nodes", "", "n1").is_none() || world.taints() != ["gpu"] {
                changes.changed().await.unwrap();
            }
        };
        sleep(Duration::from_secs(90)).await;
        world.register(DRIVER_NAME);
        world.answers.store(true, Ordering::Relaxed);
        world.join();
        without().await;
        world.api.delete("nodes", "", "n1");
        world.join();
        without().await;
        assert!(!task.is_finished());
        task.abort();
    }
}
