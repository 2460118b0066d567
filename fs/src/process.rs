//! What the processes `larderd` and `cachenode` have in common: the flags of a node, and serving until a signal.

use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use larder_peers::membership::Watcher;
use larder_peers::{Security, Source, Tls, TlsFiles};
use larder_daemon_api::size::{parse_bytes, parse_duration};
use larder_daemon_api::v1;
use larder_origin::OriginConfig;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use crate::Home;
use crate::daemon::{Daemon, DaemonConfig, PeerConfig, origin_of_process, raise_file_limit};

/// How long a start waits for folders that somebody else makes.
const FOLDER_PATIENCE: Duration = Duration::from_secs(60);

/// The longest pause before a dataset that could not be had is looked for again.
const RETRY_MOST: Duration = Duration::from_secs(30);

/// The flags of a node.
#[derive(Debug, Args)]
pub struct NodeFlags {
    /// Folder of the cache. One process at a time may have it.
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
    /// The S3 server of datasets that name none, for anything but AWS.
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
    #[command(flatten)]
    peers: PeerFlags,
}

/// How a node shares its caches with others.
#[derive(Debug, Default, Args)]
struct PeerFlags {
    /// The nodes that share their caches, this one among them: NAME=IP:PORT,..., @FILE with a node a line, or
    /// kubernetes:NAMESPACE/SERVICE.
    #[arg(long, value_name = "NODES", env = "LARDER_PEERS")]
    peers: Option<Source>,
    /// This node's name among them. By default the host's.
    #[arg(long, value_name = "NAME", env = "LARDER_NODE_NAME")]
    node_name: Option<String>,
    /// Where the others reach this node's cache. Without it this node asks and is not asked.
    #[arg(long, value_name = "IP:PORT", requires = "peers")]
    peer_listen: Option<SocketAddr>,
    /// PEM file of the CA that signed the nodes' certificates. It, the certificate and the key are read anew when they
    /// change.
    #[arg(long, value_name = "FILE", requires = "peer_cert")]
    peer_ca: Option<PathBuf>,
    /// PEM file of this node's certificate, for the DNS name cachenode.larder.dev.
    #[arg(long, value_name = "FILE", requires = "peer_key")]
    peer_cert: Option<PathBuf>,
    /// PEM file of its private key.
    #[arg(long, value_name = "FILE", requires = "peer_ca")]
    peer_key: Option<PathBuf>,
    /// Share without TLS: whoever reaches the port may ask, and whoever sees the packets reads the data.
    #[arg(long, conflicts_with = "peer_ca", requires = "peers")]
    peer_plaintext: bool,
}

impl PeerFlags {
    /// Errors: the nodes or the certificates cannot be read, or neither certificates nor plaintext were asked for.
    async fn open(self) -> anyhow::Result<Option<(PeerConfig, Watcher)>> {
        let Some(source) = self.peers else { return Ok(None) };
        let security = match (self.peer_ca, self.peer_cert, self.peer_key) {
            (Some(ca), Some(cert), Some(key)) => Security::Tls(
                Tls::load(TlsFiles { ca, cert, key }).context("use --peer-ca, --peer-cert and --peer-key")?,
            ),
            _ if self.peer_plaintext => Security::Plaintext,
            _ => anyhow::bail!(
                "--peers needs certificates (--peer-ca, --peer-cert, --peer-key), or --peer-plaintext to do without"
            ),
        };
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let (membership, watcher) = source.open().await.context("use --peers")?;
        let name = self.node_name.unwrap_or_else(host);
        Ok(Some((PeerConfig { name, listen: self.peer_listen, membership, security }, watcher)))
    }
}

impl NodeFlags {
    fn config(self, peers: Option<PeerConfig>) -> DaemonConfig {
        let beside = self.cache_dir.parent().map_or_else(|| PathBuf::from("home"), |parent| parent.join("home"));
        DaemonConfig {
            run_dir: self.run_dir.unwrap_or_else(|| self.cache_dir.clone()),
            home: Home::new(self.home.unwrap_or(beside)),
            cache_dir: self.cache_dir,
            cache_bytes: self.cache_size,
            admin: self.admin_address,
            origin: OriginConfig {
                endpoint: self.endpoint,
                attempt_timeout: self.attempt_timeout,
                deadline: self.read_deadline,
                concurrency: self.origin_concurrency as usize,
                ..origin_of_process()
            },
            peers,
            threads: self.threads as usize,
            stop_when_idle: false,
        }
    }
}

/// Serves until SIGTERM or SIGINT: mounts as they come, and to other nodes `datasets` too.
pub fn serve(mut flags: NodeFlags, datasets: Vec<v1::Dataset>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    // It ends with the process and not before: a task that is dropped answers its reader with EIO, while what a process has
    // not answered when it ends is asked of the next.
    let runtime = ManuallyDrop::new(runtime);
    let _in_runtime = runtime.enter();
    let (peers, watcher) = runtime.block_on(std::mem::take(&mut flags.peers).open())?.unzip();
    let config = flags.config(peers);
    info!(?config, "starting");
    raise_file_limit();
    wait_for_folder(&config.cache_dir)?;
    wait_for_folder(&config.run_dir)?;
    wait_for_folder(config.home.dir())?;
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
        if let Some(watcher) = watcher {
            tokio::spawn(watcher.run(daemon.stopping().clone()));
        }
        for dataset in datasets {
            let hold = hold(Arc::clone(&daemon), dataset);
            let stopping = daemon.stopping().clone();
            tokio::spawn(async move { stopping.run_until_cancelled(hold).await });
        }
        let outcome = Arc::clone(&daemon).run().await;
        signals.abort();
        daemon.stop().await?;
        outcome
    })
}

/// Holds a dataset for other nodes, however often its origin must be asked for it: the others do not wait for that.
async fn hold(daemon: Arc<Daemon>, dataset: v1::Dataset) {
    let mut pause = Duration::from_secs(1);
    while let Err(error) = daemon.hold(dataset.clone()).await {
        warn!(source = dataset.source, error = %crate::chain::Chain(&error), ?pause, "cannot hold a dataset yet");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MOST);
    }
}

/// Makes a folder, or waits until whoever has the right to has made it ours.
fn wait_for_folder(folder: &Path) -> anyhow::Result<()> {
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
