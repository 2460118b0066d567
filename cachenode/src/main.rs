//! `cachenode`, a node that mounts nothing and holds datasets for its peers: parses flags, then serves until a signal.

use std::collections::HashSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use larder_cachenode::allocator::bound_kept_memory;
use larder_cachenode::node::{Node, NodeError, OpenDataset, User};
use larder_cachenode::process::{NodeFlags, raise_file_limit};
use larder_cachenode::request::DatasetRequest;
use larder_dataset::{Chain, DatasetSpec, Placement};
use larder_telemetry::Sample;
use larder_telemetry::admin::{self, Admin};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// The longest pause before the next attempt to open a dataset.
const RETRY_MOST: Duration = Duration::from_secs(30);

/// Caches datasets for other nodes: adds this machine's disk to the cluster's cache.
///
/// cachenode is larderd without mounts. Nodes that mount the same datasets with the same placement and list this node
/// among their peers read from it.
#[derive(Debug, Parser)]
#[command(
    name = "cachenode",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  cachenode --dataset s3://bucket/imagenet --cache-dir /nvme/larder --peers @/etc/larder/nodes
    --peer-listen 0.0.0.0:9466 --peer-ca ca.crt --peer-cert tls.crt --peer-key tls.key

Credentials come from the AWS_*, GOOGLE_* and AZURE_* variables, and the token that other nodes must
present from LARDER_PEER_TOKEN, or both from files (--origin-credentials-dir). LARDER_LOG sets the
log filter, such as `debug`."
)]
struct Flags {
    #[command(flatten)]
    node: NodeFlags,
    /// Dataset to cache: a URL or a manifest file. May be repeated.
    #[arg(long = "dataset", value_name = "SRC", required = true)]
    datasets: Vec<String>,
    /// How the datasets are distributed over the nodes.
    #[arg(long, value_name = "partitioned|replicated:N", default_value = "partitioned", value_parser = shared)]
    placement: Placement,
}

/// A placement by which peers read from this node.
fn shared(text: &str) -> Result<Placement, String> {
    match text.parse().map_err(|error: larder_dataset::PlacementError| error.to_string())? {
        Placement::Local => Err("local: no peer would read from this node".to_owned()),
        placement => Ok(placement),
    }
}

fn main() -> ExitCode {
    if let Some(code) = larder_cachenode::importer_process::run_if_asked() {
        return code;
    }
    bound_kept_memory();
    let flags = Flags::parse();
    larder_telemetry::program("cachenode", None, |stop| serve(flags, stop))
}

/// Serves until `stop`.
async fn serve(flags: Flags, stop: CancellationToken) -> anyhow::Result<()> {
    let admin_address = flags.node.admin();
    let opening = async {
        let (config, watcher) = flags.node.open().await?;
        if config.peers.as_ref().is_none_or(|peers| peers.listen.is_none()) {
            bail!("cachenode serves only other nodes: set --peers and --peer-listen");
        }
        info!(?config, "settings");
        raise_file_limit();
        let node = tokio::task::spawn_blocking(|| Node::open(config)).await?;
        Ok((node.context("open the cache (--cache-dir)")?, watcher))
    };
    // A stop does not wait for folders, the API server, or the cache's disk: nothing is served yet.
    let Some(opened) = stop.run_until_cancelled(opening).await else { return Ok(()) };
    let (node, watcher) = opened?;
    // Connections of a larderd that had the cache before are gone.
    node.keep_only(&HashSet::new());
    let stopping = node.stopping().clone();
    let mut tasks = tokio::task::JoinSet::new();
    if let Some(watcher) = watcher {
        tokio::spawn(watcher.run(stopping.clone()));
    }
    for source in flags.datasets {
        let request: DatasetRequest =
            DatasetSpec { placement: Some(flags.placement), ..DatasetSpec::new(source) }.into();
        let (node, stopping) = (Arc::clone(&node), stopping.clone());
        tokio::spawn(async move {
            let mut own = node.own_credentials();
            // The dataset stays open until the process stops.
            let Some(held) = stopping.run_until_cancelled(hold(&node, &request)).await else { return };
            while let Some(Ok(())) = stopping.run_until_cancelled(own.changed()).await {
                if let Err(error) = node.renew(held.id(), &request) {
                    warn!(mount = held.id(), error = %Chain(&error), "the changed credentials cannot be used");
                }
            }
        });
    }
    if let Some(at) = admin_address {
        let (node, stopping) = (Arc::new(Metrics(Arc::clone(&node))), stopping.clone());
        tasks.spawn(async move {
            let address = at.address;
            let served = admin::serve(at, node, stopping.cancelled_owned()).await;
            served.with_context(|| format!("serve the admin address {address} (--admin-address)"))
        });
    }
    let running = Arc::clone(&node);
    tasks.spawn(async move { running.run().await });
    tasks.spawn(async move {
        stop.cancelled().await;
        Ok(())
    });
    let outcome = match tasks.join_next().await {
        Some(ended) => ended.map_err(anyhow::Error::from).flatten(),
        None => Ok(()),
    };
    stopping.cancel();
    node.close().await?;
    outcome
}

/// Opens a dataset for peers, and retries until that succeeds. Other datasets do not wait for it.
async fn hold(node: &Arc<Node>, request: &DatasetRequest) -> OpenDataset {
    let mut pause = Duration::from_secs(1);
    loop {
        match open(node, request).await {
            Ok(held) => {
                info!(mount = held.id(), source = request.spec.source, "dataset held for other nodes");
                return held;
            }
            Err(error) => {
                warn!(
                    source = request.spec.source, error = %Chain(&error), ?pause,
                    "cannot hold the dataset yet, will retry"
                );
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETRY_MOST);
            }
        }
    }
}

async fn open(node: &Arc<Node>, request: &DatasetRequest) -> Result<OpenDataset, NodeError> {
    let found = node.find(request).await?;
    node.open_dataset(found, request, User::Mount).await
}

/// The node's values for the admin server.
struct Metrics(Arc<Node>);

impl Admin for Metrics {
    fn healthy(&self) -> Result<(), String> {
        // The process ends with its server for peers, and no other loop acts.
        Ok(())
    }

    fn ready(&self) -> Result<(), String> {
        if self.0.stopping().is_cancelled() { Err("stopping".to_owned()) } else { Ok(()) }
    }

    fn samples(&self) -> Vec<Sample> {
        self.0.samples(false)
    }

    fn named_samples(&self) -> Vec<Sample> {
        self.0.samples(true)
    }
}
