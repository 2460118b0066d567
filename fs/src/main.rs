//! `larderd`, the node daemon: flags, then serve until a signal.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use larder_daemon_api::size::{parse_bytes, parse_duration};
use larder_fs::Home;
use larder_fs::daemon::{Daemon, DaemonConfig, origin_of_process, raise_file_limit};
use larder_origin::OriginConfig;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

/// How long a start waits for folders that somebody else makes.
const FOLDER_PATIENCE: Duration = Duration::from_secs(60);

/// Serves datasets to a node: one cache, many mounts.
///
/// It needs no privilege. The CSI node plugin mounts, hands the FUSE connections over, and keeps duplicates of them, so that
/// larderd may be killed and upgraded under its readers. `larder mount` talks to it as well.
#[derive(Debug, Parser)]
#[command(
    name = "larderd",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  larderd --cache-dir /nvme/larder --cache-size 2TiB
  larderd --cache-dir /nvme/larder --run-dir /run/larder --admin-address 0.0.0.0:9464
  larder mount s3://bucket/imagenet /data/train --cache-dir /nvme/larder      talks to the first

Credentials come from the AWS_*, GOOGLE_* and AZURE_* variables, unless a mount brings its own. LARDER_LOG sets what is logged."
)]
struct Flags {
    /// Folder of the cache. One larderd at a time may have it.
    #[arg(long, value_name = "DIR", env = "LARDER_CACHE_DIR")]
    cache_dir: PathBuf,
    /// Bytes that the cache may keep of all datasets together. By default four fifths of what the disk has free.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, env = "LARDER_CACHE_SIZE")]
    cache_size: Option<u64>,
    /// Folder of the sockets larderd.sock and handover.sock; whoever may enter it may use them. By default the cache's.
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Folder of manifests. By default LARDER_HOME, else `home` beside the cache folder.
    #[arg(long, value_name = "DIR", env = "LARDER_HOME")]
    home: Option<PathBuf>,
    /// Where to serve /metrics, /healthz and /readyz.
    #[arg(long, value_name = "IP:PORT")]
    admin_address: Option<SocketAddr>,
    /// The S3 server of mounts that name none, for anything but AWS.
    #[arg(long, value_name = "URL", env = "LARDER_ENDPOINT", hide_env_values = true)]
    endpoint: Option<String>,
    /// Ask again when an answer has not moved for this long.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    attempt_timeout: Duration,
    /// The longest a read may wait for the origin, all attempts together; then ETIMEDOUT.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    read_deadline: Duration,
    /// Requests to an origin at once.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    origin_concurrency: u32,
    /// Threads that serve the kernel, for each mount.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    if let Err(error) = larder_telemetry::init_logs("info") {
        eprintln!("error: {error}");
        return ExitCode::from(2);
    }
    match serve(flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(flags: Flags) -> anyhow::Result<()> {
    let config = config(flags);
    info!(?config, "starting");
    raise_file_limit();
    wait_for_folder(&config.cache_dir)?;
    wait_for_folder(&config.run_dir)?;
    wait_for_folder(config.home.dir())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let _in_runtime = runtime.enter();
    let daemon = Daemon::open(config).context("open the cache (--cache-dir)")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("listen for signals")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for signals")?;
        let stopping = daemon.stopping().clone();
        let signals = tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            stopping.cancel();
        });
        let outcome = Arc::clone(&daemon).run().await;
        signals.abort();
        daemon.stop().await?;
        outcome
    })
}

fn config(flags: Flags) -> DaemonConfig {
    let beside = flags.cache_dir.parent().map_or_else(|| PathBuf::from("home"), |parent| parent.join("home"));
    DaemonConfig {
        run_dir: flags.run_dir.unwrap_or_else(|| flags.cache_dir.clone()),
        home: Home::new(flags.home.unwrap_or(beside)),
        cache_dir: flags.cache_dir,
        cache_bytes: flags.cache_size,
        admin: flags.admin_address,
        origin: OriginConfig {
            endpoint: flags.endpoint,
            attempt_timeout: flags.attempt_timeout,
            deadline: flags.read_deadline,
            concurrency: flags.origin_concurrency as usize,
            ..origin_of_process()
        },
        threads: flags.threads as usize,
        stop_when_idle: false,
    }
}

/// Makes a folder, or waits until whoever has the right to has made it ours.
fn wait_for_folder(folder: &std::path::Path) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let made = std::fs::create_dir_all(folder);
        let usable = made.and_then(|()| Ok(rustix::fs::access(folder, rustix::fs::Access::WRITE_OK)?));
        match usable {
            Ok(()) => return Ok(()),
            Err(error) if started.elapsed() > FOLDER_PATIENCE => {
                return Err(error).with_context(|| {
                    format!(
                        "use the folder {}: it must belong to user {}",
                        folder.display(),
                        rustix::process::geteuid().as_raw()
                    )
                });
            }
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}
