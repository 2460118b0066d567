//! `cachenode`, a node that mounts nothing and holds datasets for others: flags, then serve until a signal.

use std::process::ExitCode;

use clap::Parser;
use larder_daemon_api::v1;
use larder_dataset::Placement;
use larder_fs::process::{NodeFlags, serve};

/// Holds datasets for other nodes: its disk is part of the cluster's cache.
///
/// It is larderd without mounts. Nodes that mount the same datasets with the same placement, and name this one among their
/// peers, read from it.
#[derive(Debug, Parser)]
#[command(
    name = "cachenode",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  cachenode --dataset s3://bucket/imagenet --cache-dir /nvme/larder --peers @/etc/larder/nodes --peer-listen 0.0.0.0:9465
    --peer-ca ca.crt --peer-cert tls.crt --peer-key tls.key

Credentials come from the AWS_*, GOOGLE_* and AZURE_* variables, the token that opens the datasets to other nodes from
LARDER_PEER_TOKEN. LARDER_LOG sets what is logged."
)]
struct Flags {
    #[command(flatten)]
    node: NodeFlags,
    /// A dataset to hold: a URL, or a manifest file. May be repeated.
    #[arg(long = "dataset", value_name = "SRC", required = true)]
    datasets: Vec<String>,
    /// How they are spread over the nodes.
    #[arg(long, value_name = "partitioned|replicated:N", default_value = "partitioned", value_parser = shared)]
    placement: Placement,
}

/// A placement by which other nodes read from this one.
fn shared(text: &str) -> Result<Placement, String> {
    match text.parse().map_err(|error: larder_dataset::PlacementError| error.to_string())? {
        Placement::Local => Err("local: nobody would ask this node".to_owned()),
        placement => Ok(placement),
    }
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    if let Err(error) = larder_telemetry::init_logs("info") {
        eprintln!("error: {error}");
        return ExitCode::from(2);
    }
    let dataset =
        |source: String| v1::Dataset { source, placement: flags.placement.to_string(), ..v1::Dataset::default() };
    match serve(flags.node, flags.datasets.into_iter().map(dataset).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
