//! `larder-controller`: reads its flags, waits for the lease, then acts until a signal or until the lease is lost.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use larder_controller::{Config, run};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// Runs datasets and training jobs: imports, places, warms, labels and collects what `Dataset` objects describe, and
/// starts, recovers and ends `TrainingJob`s.
///
/// Several may run; the holder of a Lease acts.
#[derive(Debug, Parser)]
#[command(
    version,
    max_term_width = 100,
    after_help = "Examples:
  larder-controller --image larder.dev/larder:0.2.0
      in a pod, with its service account
  KUBECONFIG=admin.yaml larder-controller --image larder.dev/larder:0.2.0
      outside of the cluster
LARDER_LOG sets the log level, such as `info` or `larder_controller=debug`."
)]
struct Args {
    /// The image of the pods that import and warm, and of the agent in training jobs; it has the programs `larder` and
    /// `larder-agent`
    #[arg(long, env = "LARDER_IMAGE")]
    image: String,

    /// The namespace of the Lease and of the ConfigMaps larder-endpoints, larder-registry and larder-job-types. Only
    /// Datasets of larder-system have the administrator's rights, whatever this is
    #[arg(long, env = "NAMESPACE", default_value = "larder-system")]
    namespace: String,

    /// The name of this process in the Lease. Default: the name of the machine or pod
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,

    /// The most pods that warm at the same time
    #[arg(
        long,
        env = "LARDER_MAX_WARMING",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    max_warming: u32,

    /// The address on which to serve /metrics, /healthz and /readyz over HTTP, such as 0.0.0.0:9467
    #[arg(long, env = "LARDER_ADMIN_ADDRESS")]
    admin_address: Option<SocketAddr>,
}

impl Args {
    fn into_config(self) -> Config {
        let identity = self.identity.unwrap_or_else(|| {
            let host = std::fs::read_to_string(PathBuf::from("/proc/sys/kernel/hostname")).unwrap_or_default();
            format!("{}-{}", host.trim(), std::process::id())
        });
        Config {
            image: self.image,
            namespace: self.namespace,
            identity,
            max_warming: self.max_warming,
            admin_address: self.admin_address,
        }
    }
}

fn main() -> ExitCode {
    let config = Args::parse().into_config();
    larder_telemetry::program("larder-controller", Some(2), |stop| start(config, stop))
}

async fn start(config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    info!(?config, "settings");
    let client = larder_kube::connect().await?;
    run(client, config, stop).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_their_documented_defaults() {
        use clap::CommandFactory;
        Args::command().debug_assert();
        let config = Args::parse_from(["larder-controller", "--image", "i"]).into_config();
        assert_eq!((config.namespace.as_str(), config.max_warming), ("larder-system", 64));
        assert!(!config.identity.is_empty());
    }
}
