//! Waiting for a state of the cluster.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Node;
use larder_kube::api::ListParams;
use larder_kube::{Api, Client};

use super::objects::BENCH_LABEL;
use super::running::Running;
use crate::systems::Stop;

/// The interval at which a condition is checked.
const LOOK: Duration = Duration::from_millis(50);
/// The timeout until the nodes are ready, and the interval at which they are checked.
const NODES: Duration = Duration::from_secs(600);
const LOOK_AT_NODES: Duration = Duration::from_millis(500);

/// Waits until `done` returns true. Fails after `limit`, on Ctrl-C, and if the controller ends.
pub(crate) async fn until(
    stop: &Stop,
    what: &str,
    limit: Duration,
    mut controller: Option<&mut Running>,
    done: impl Fn() -> bool,
) -> anyhow::Result<()> {
    let started = Instant::now();
    while !done() {
        stop.check()?;
        if let Some(controller) = &mut controller {
            controller.check()?;
        }
        if started.elapsed() > limit {
            bail!("timed out after {} s waiting until {what}", limit.as_secs());
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Waits until `count` of the benchmark's nodes are ready.
pub(crate) async fn for_nodes(client: &Client, stop: &Stop, count: u32) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let started = Instant::now();
    while ready(&nodes).await? < count as usize {
        stop.check()?;
        if started.elapsed() > NODES {
            bail!(
                "the nodes did not become ready within {} s: check that kwok runs (tests/cluster/kwok.sh)",
                NODES.as_secs()
            );
        }
        tokio::time::sleep(LOOK_AT_NODES).await;
    }
    Ok(())
}

async fn ready(nodes: &Api<Node>) -> anyhow::Result<usize> {
    let nodes = nodes.list(&ListParams::default().labels(BENCH_LABEL)).await.context("list the nodes")?;
    let is_ready = |node: &&Node| {
        let conditions = node.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
        conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    Ok(nodes.items.iter().filter(is_ready).count())
}
