//! `larder-scheduler-ext`: reads its flags, then answers kube-scheduler until it receives a signal.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use larder_scheduler_ext::config::Settings;
use larder_scheduler_ext::http::LIMITS;
use larder_scheduler_ext::http::tls::TlsFiles;
use larder_scheduler_ext::replay::{Replayed, replay};
use larder_scheduler_ext::{Config, run};
use larder_telemetry::server::Limits;
use tokio_util::sync::CancellationToken;
use tracing::info;

/// Tells kube-scheduler where data is: an extender with the verbs filter, prioritize and preempt.
///
/// It reads nodes, pods, volumes, NodeCaches, Datasets and TrainingJobs. The only objects that it writes are Events
/// about pods that name Datasets which do not exist.
#[derive(Debug, Parser)]
#[command(
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  larder-scheduler-ext
      in the same pod as kube-scheduler, which calls http://127.0.0.1:9468
  larder-scheduler-ext --address 0.0.0.0:9468 --tls-cert tls.crt --tls-key tls.key
      for a scheduler in another pod
  curl -s http://127.0.0.1:9468/decisions?pod=team-a/notebook > decisions.json
      the last decisions about a pod
  larder-scheduler-ext replay decisions.json
      replays them
LARDER_LOG sets the log level, such as `info` or `larder_scheduler_ext=debug`."
)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    /// The address on which to answer the scheduler over HTTP. Any client that can reach it can read the last
    /// decisions, including the names of pods
    #[arg(long, env = "LARDER_ADDRESS", default_value = "127.0.0.1:9468")]
    address: SocketAddr,

    /// The TLS certificate, in PEM format; it is reloaded when it changes
    #[arg(long, env = "LARDER_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The private key of the certificate, in PEM format
    #[arg(long, env = "LARDER_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// A YAML file: profiles with the weights of each reason to prefer a node, labels, devices
    #[arg(long, env = "LARDER_SCHEDULER_CONFIG")]
    config: Option<PathBuf>,

    /// Maximum concurrent connections; beyond that, a new connection replaces the oldest idle one
    #[arg(
        long,
        env = "LARDER_MAX_CONNECTIONS",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=65_536)
    )]
    max_connections: u32,

    /// The address on which to serve /metrics, /healthz and /readyz over HTTP, such as 0.0.0.0:9469
    #[arg(long, env = "LARDER_ADMIN_ADDRESS")]
    admin_address: Option<SocketAddr>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Replays recorded decisions, and fails if an answer differs
    Replay {
        /// A file with the output of /decisions
        file: PathBuf,
    },
}

impl Args {
    fn into_config(self) -> anyhow::Result<Config> {
        let settings = self.config.as_deref().map_or_else(|| Ok(Settings::default()), Settings::open)?;
        let tls = self.tls_cert.zip(self.tls_key).map(|(cert, key)| TlsFiles { cert, key });
        let limits = Limits { connections: self.max_connections as usize, ..LIMITS };
        Ok(Config { address: self.address, tls, settings, limits, admin_address: self.admin_address })
    }
}

fn main() -> ExitCode {
    let mut args = Args::parse();
    larder_telemetry::program("larder-scheduler-ext", Some(2), |stop| async move {
        match args.command.take() {
            Some(Command::Replay { file }) => replay_file(&file),
            None => start(args.into_config()?, stop).await,
        }
    })
}

fn replay_file(file: &std::path::Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let Replayed(decisions) = replay(&text)?;
    info!(decisions, "all decisions reproduced");
    Ok(())
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
        let config = Args::parse_from(["larder-scheduler-ext"]).into_config().unwrap();
        assert_eq!(config.address, "127.0.0.1:9468".parse().unwrap());
        assert_eq!((config.limits, config.settings), (LIMITS, Settings::default()));
        assert!(Args::try_parse_from(["larder-scheduler-ext", "--tls-cert", "a"]).is_err());
    }

    #[test]
    fn a_file_that_is_no_list_of_decisions_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{}").unwrap();
        let error = format!("{:#}", replay_file(file.path()).unwrap_err());
        assert!(error.contains("not what /decisions serves"), "{error}");
    }
}
