//! The process `larderd`: its flags, and serving until a signal.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use larder_cachenode::process::{NodeFlags, raise_file_limit, runtime, stop_on_signal, wait_for_folder};
use tracing::info;

use crate::daemon::{Daemon, DaemonConfig};

/// The flags of `larderd`.
#[derive(Debug, Args)]
pub struct DaemonFlags {
    #[command(flatten)]
    node: NodeFlags,
    /// Folder of the sockets larderd.sock and handover.sock; anyone who may enter it may use them. Default: the cache
    /// folder.
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Threads that serve the kernel, for each mount.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
}

/// Serves mounts until SIGTERM or SIGINT.
pub fn serve(flags: DaemonFlags) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let _in_runtime = runtime.enter();
    let run_dir = flags.run_dir.unwrap_or_else(|| flags.node.cache_dir.clone());
    let admin = flags.node.admin_address;
    let (node, watcher) = runtime.block_on(flags.node.open())?;
    runtime.block_on(wait_for_folder(&run_dir))?;
    let config = DaemonConfig { node, run_dir, admin, threads: flags.threads as usize, stop_when_idle: false };
    info!(?config, "starting");
    raise_file_limit();
    let daemon = Daemon::open(config).context("open the cache (--cache-dir)")?;
    runtime.block_on(async {
        let signals = tokio::spawn(stop_on_signal(daemon.stopping().clone())?);
        if let Some(watcher) = watcher {
            tokio::spawn(watcher.run(daemon.stopping().clone()));
        }
        let outcome = Arc::clone(&daemon).run().await;
        signals.abort();
        daemon.stop().await?;
        outcome
    })
}
