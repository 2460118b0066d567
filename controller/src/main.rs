//! `larder-controller`: reads its flags, waits for the Lease, then acts until it receives a signal or loses the Lease.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use k8s_openapi::api::core::v1::Pod;
use larder_controller::clusters::link::Kubeconfigs;
use larder_controller::{Config, run};
use larder_dataset::Chain;
use larder_dataset::size::parse_duration;
use larder_kube::Error;
use larder_kube::api::Api;
use larder_kube::client::Client;
use larder_telemetry::admin::AdminAddress;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Runs datasets and training jobs: imports, places, warms, labels and collects what `Dataset` objects describe, and
/// starts, recovers and ends `TrainingJob`s.
///
/// Several replicas may run; only the leader, which holds the Lease, acts.
#[derive(Debug, Parser)]
#[command(
    version,
    max_term_width = 100,
    after_help = "Examples:
  larder-controller
      in a pod, with its service account and the variables POD_NAME and NAMESPACE
  KUBECONFIG=admin.yaml larder-controller --image registry.example/larder
      outside the cluster
LARDER_LOG sets the log level, such as `info` or `larder_controller=debug`."
)]
struct Args {
    /// The image of the pods that import and warm, and of the agent in training jobs; it has the programs `larder` and
    /// `larder-agent`. Default: the image of this pod
    #[arg(long, env = "LARDER_IMAGE")]
    image: Option<String>,

    /// The namespace of the Lease and of the ConfigMap larder-registry. Only Datasets in larder-system have the
    /// administrator's rights, regardless of this flag
    #[arg(long, env = "NAMESPACE", default_value = "larder-system")]
    namespace: String,

    /// The name of this process in the Lease. Default: the name of the machine or pod
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,

    /// Maximum number of pods that warm at the same time
    #[arg(
        long,
        env = "LARDER_MAX_WARMING",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    max_warming: u32,

    /// An autoscaler adds nodes for pending pods: if the first TrainingJob of a queue has quota and lacks nodes, create
    /// its pods all the same, and give them up once none of them has got a node for this time, such as 15m. Default: no
    /// autoscaler
    #[arg(long, value_name = "TIME", env = "LARDER_WAIT_FOR_NODES", value_parser = parse_duration)]
    wait_for_nodes: Option<Duration>,

    /// How long ended TrainingJobs are kept, such as 30d. One with a shorter spec.ttlAfterFinished is deleted earlier.
    /// Default: until somebody deletes them
    #[arg(long, value_name = "TIME", env = "LARDER_KEEP_ENDED_JOBS", value_parser = parse_duration)]
    keep_ended_jobs: Option<Duration>,

    /// How long a node may be not ready before the pods of TrainingJobs on it are replaced, such as 5m. A job may set
    /// spec.restart.nodeLostAfter. While more than a third of a zone is not ready, none of its nodes counts as lost
    #[arg(
        long,
        value_name = "TIME",
        env = "LARDER_NODE_LOST_AFTER",
        default_value = "60s",
        value_parser = parse_duration
    )]
    node_lost_after: Duration,

    /// The address on which to serve /metrics, /healthz and /readyz over HTTP, such as 0.0.0.0:9467
    #[arg(long, env = "LARDER_ADMIN_ADDRESS")]
    admin_address: Option<SocketAddr>,

    /// The file with the token of the scrapers to which /metrics names namespaces and queues (`Authorization: Bearer
    /// TOKEN`). It is read at each such scrape. Default: /metrics names none
    #[arg(long, value_name = "FILE", requires = "admin_address")]
    metrics_token: Option<PathBuf>,
}

/// The pause before the API server is asked again.
const RETRY: Duration = Duration::from_secs(5);

impl Args {
    fn into_config(self, image: String) -> Config {
        let identity = self.identity.unwrap_or_else(|| {
            let host = std::fs::read_to_string(PathBuf::from("/proc/sys/kernel/hostname")).unwrap_or_default();
            format!("{}-{}", host.trim(), std::process::id())
        });
        Config {
            image,
            namespace: self.namespace,
            identity,
            max_warming: self.max_warming,
            wait_for_nodes: self.wait_for_nodes,
            keep_ended_jobs: self.keep_ended_jobs,
            node_lost_after: self.node_lost_after,
            admin_address: self.admin_address.map(|address| AdminAddress { address, names_token: self.metrics_token }),
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    larder_telemetry::program("larder-controller", Some(2), |stop| start(args, stop))
}

async fn start(args: Args, stop: CancellationToken) -> anyhow::Result<()> {
    let client = larder_kube::connect().await?;
    let image = match (&args.image, &args.identity) {
        (Some(image), _) => image.clone(),
        (None, Some(pod)) => match stop.run_until_cancelled(own_image(&client, &args.namespace, pod)).await {
            Some(image) => image?,
            None => return Ok(()),
        },
        (None, None) => bail!("--image is required outside of a pod, and in a pod without the variable POD_NAME"),
    };
    let config = args.into_config(image);
    info!(?config, "settings");
    let kubeconfigs = Arc::new(Kubeconfigs(client.clone()));
    run(client, kubeconfigs, config, stop).await
}

/// The image of this process's pod. An overlay that renames the image of the Deployment thus renames it everywhere.
/// Waits for an API server that does not answer. Errors: the pod cannot be read.
async fn own_image(client: &Client, namespace: &str, name: &str) -> anyhow::Result<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let what = || format!("find this process's image: get pod {namespace}/{name} (POD_NAME), or set --image");
    let pod = loop {
        match pods.get(name).await {
            Ok(pod) => break pod,
            Err(Error::Api(refused)) if refused.code < 500 => return Err(Error::Api(refused)).with_context(what),
            Err(error) => warn!(error = %Chain(&error), "cannot {}; retrying", what()),
        }
        tokio::time::sleep(RETRY).await;
    };
    let containers = pod.spec.map(|spec| spec.containers).unwrap_or_default();
    let own = containers.into_iter().find(|container| container.name == "larder-controller");
    own.and_then(|own| own.image)
        .with_context(|| format!("pod {namespace}/{name} has no container larder-controller: set --image"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_their_documented_defaults() {
        use clap::CommandFactory;
        Args::command().debug_assert();
        let config = Args::parse_from(["larder-controller"]).into_config("i".to_owned());
        assert_eq!((config.namespace.as_str(), config.max_warming), ("larder-system", 64));
        assert_eq!(config.node_lost_after, Duration::from_secs(60));
        assert!(!config.identity.is_empty());
    }
}
