//! The process `larderd`: its flags, and its run until a signal.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, ValueEnum};
use larder_cachenode::process::{NodeFlags, raise_file_limit, wait_for_folders};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::daemon::{Daemon, DaemonConfig, DescriptorStore};
use crate::pool::{Pool, default_threads};

/// The value of `--verify`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Verify {
    /// Once after each start of the serving process, before the kernel reads the file.
    Once,
    /// At each read.
    Always,
}

/// The flags of `larderd`.
#[derive(Debug, Args)]
pub struct DaemonFlags {
    #[command(flatten)]
    node: NodeFlags,
    /// Folder of the sockets larderd.sock and handover.sock. Anyone who may enter it may use them. May be repeated: the
    /// sockets are in each of these folders that is writable at the start, or once it becomes writable for this user.
    /// Default: the cache folders.
    #[arg(long, value_name = "DIR")]
    run_dir: Vec<PathBuf>,
    /// Most threads that serve one mount at the same time. All mounts share four times as many, or a quarter of the
    /// threads that the system allows if that is less. Default: half of the cores, at least 16 and at most 64.
    #[arg(long, value_name = "THREADS", value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Option<u32>,
    /// When cached files of more than 8 MiB are compared with their checksums. The kernel can read those that are
    /// wholly cached by itself, at the speed of the disk, but compares nothing (from Linux 6.9 on, beside a larder-csi
    /// of this version). A mount keeps what it was made with.
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = Verify::Once)]
    verify: Verify,
    /// Name of this node's NodeCache: the name of the node. larder-controller and this larderd communicate through this
    /// Kubernetes object. larderd keeps the room that its spec promises to datasets, and reports the cached bytes in
    /// its status. Set it where larder-controller runs; the component `datasets` of the deployment does so. Without it,
    /// this node promises no room to datasets.
    #[arg(long, value_name = "NAME", env = "LARDER_NODE_CACHE")]
    node_cache: Option<String>,
    /// Name of the systemd unit that runs this larderd: %n in a unit file. The mounts of `larder mount` then outlive
    /// the process: systemd keeps them over kill -9, a restart and an upgrade, until the unit is stopped. The unit
    /// needs Type=notify and FileDescriptorStoreMax=, three for each mount.
    #[arg(long, value_name = "UNIT")]
    systemd_unit: Option<String>,
}

/// Serves mounts until `stop` is cancelled.
pub async fn serve(flags: DaemonFlags, stop: CancellationToken) -> anyhow::Result<()> {
    let (run_dirs, run_dirs_flag) = match flags.run_dir {
        dirs if dirs.is_empty() => (
            flags.node.cache_dirs.clone(),
            "--cache-dir, which has the sockets unless --run-dir names a folder for them",
        ),
        dirs => (dirs, "--run-dir"),
    };
    let (admin, node_cache) = (flags.node.admin(), flags.node_cache);
    let (store, left) = flags.systemd_unit.map(|unit| DescriptorStore::of_process(&unit)).transpose()?.unzip();
    let service = store.clone();
    let opening = async {
        let (node, watcher) = flags.node.open().await?;
        let run_dirs = wait_for_folders(&run_dirs, run_dirs_flag).await?;
        let threads = flags.threads.map_or_else(default_threads, |threads| threads as usize);
        let verify_always = flags.verify == Verify::Always;
        let config = DaemonConfig { node, run_dirs, admin, threads, verify_always, store, stop_when_idle: false };
        info!(?config, "settings");
        raise_file_limit();
        let pool = Pool::for_many_mounts(threads).context("start the threads that serve mounts (--threads)")?;
        let daemon = tokio::task::spawn_blocking(|| Daemon::open(config, pool)).await?;
        anyhow::Ok((daemon.context("open the cache (--cache-dir)")?, watcher))
    };
    // A stop does not wait for folders, the API server, or the cache's disk: nothing is served yet.
    let Some(opened) = stop.run_until_cancelled(opening).await else {
        if let (Some(service), Some(left)) = (service, left) {
            tokio::task::spawn_blocking(move || service.end_left(&left)).await?;
        }
        return Ok(());
    };
    let (daemon, watcher) = opened?;
    let leaving = Arc::clone(&daemon);
    tokio::spawn(async move {
        stop.cancelled().await;
        leaving.wait_for_keeper().await;
        leaving.stopping().cancel();
    });
    if let Some(watcher) = watcher {
        tokio::spawn(watcher.run(daemon.stopping().clone()));
    }
    match node_cache {
        Some(name) => {
            let (node, stop) = (Arc::clone(daemon.node()), daemon.stopping().clone());
            tokio::spawn(larder_node_cache::follow(node, name, stop));
        }
        // Without a NodeCache, no controller makes promises and sets quotas, so earlier ones end.
        None => {
            if let Err(error) = daemon.node().set_quotas(Vec::new()).await {
                warn!(%error, "cannot forget the quotas that an earlier larderd had from a NodeCache");
            }
            if let Err(error) = daemon.node().promise(Vec::new()).await {
                warn!(%error, "cannot release the promises that an earlier larderd made with --node-cache");
            }
        }
    }
    daemon.resume(left.unwrap_or_default());
    let outcome = Arc::clone(&daemon).run().await;
    daemon.stop().await?;
    outcome
}
