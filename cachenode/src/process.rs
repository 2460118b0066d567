//! The common parts of the processes `larderd` and `cachenode`: a node's flags, its folders, and running until a signal.

use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use larder_dataset::size::{parse_bytes, parse_duration};
use larder_origin::{Env, OriginConfig};
use larder_peers::membership::Watcher;
use larder_peers::{MemberSource, NodeList, Security, Tls, TlsFiles};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::home::Home;
use crate::node::{NodeConfig, PeerConfig};

/// How long a start waits for folders that another process creates.
const FOLDER_TIMEOUT: Duration = Duration::from_secs(60);

/// The flags of a node.
#[derive(Debug, Args)]
pub struct NodeFlags {
    /// Cache folder, used by one process at a time.
    #[arg(long, value_name = "DIR", env = "LARDER_CACHE_DIR")]
    pub cache_dir: PathBuf,
    /// Bytes that all datasets together may take on the disk. Default: four fifths of the free disk space.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, env = "LARDER_CACHE_SIZE")]
    cache_size: Option<u64>,
    /// Part of the disk of --cache-dir that the cache leaves free, whatever fills the rest. With less, nothing more is cached
    /// until there is room again. The kubelet evicts pods when less than 15 % of an image disk or 10 % of a node's disk is free.
    #[arg(long, value_name = "PERCENT", default_value = "20%", value_parser = parse_percent, env = "LARDER_KEEP_FREE")]
    keep_free: u8,
    /// Folder of manifests. Default: LARDER_HOME, else `home` beside the cache folder.
    #[arg(long, value_name = "DIR", env = "LARDER_HOME")]
    home: Option<PathBuf>,
    /// Address at which to serve /metrics, /healthz and /readyz.
    #[arg(long, value_name = "IP:PORT")]
    pub admin_address: Option<SocketAddr>,
    /// S3 server for datasets that do not name one. Not needed for AWS.
    #[arg(long, value_name = "URL", env = "LARDER_ENDPOINT", hide_env_values = true)]
    endpoint: Option<String>,
    /// Retry a request to an origin after this long without progress.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    attempt_timeout: Duration,
    /// Longest time that a read may wait for the origin, all attempts included. After that it fails with ETIMEDOUT.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    read_deadline: Duration,
    /// Most requests to an origin in flight at once.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    origin_concurrency: u32,
    #[command(flatten)]
    peers: PeerFlags,
}

/// How a node shares its cache with its peers.
#[derive(Debug, Default, Args)]
struct PeerFlags {
    /// Nodes that share their caches, this one included: NAME=IP:PORT,..., @FILE with one node per line, or
    /// kubernetes:NAMESPACE/SERVICE.
    #[arg(long, value_name = "NODES", env = "LARDER_PEERS")]
    peers: Option<MemberSource>,
    /// Name of this node in --peers. Default: the host name.
    #[arg(long, value_name = "NAME", env = "LARDER_NODE_NAME")]
    node_name: Option<String>,
    /// Address at which peers reach this node's cache. Without it this node reads from its peers and serves none.
    #[arg(long, value_name = "IP:PORT", requires = "peers")]
    peer_listen: Option<SocketAddr>,
    /// PEM file of the CA that signed the nodes' certificates. The CA, the certificate and the key are reloaded when they
    /// change.
    #[arg(long, value_name = "FILE", requires = "peer_cert")]
    peer_ca: Option<PathBuf>,
    /// PEM file of this node's certificate, for the DNS name cachenode.larder.dev.
    #[arg(long, value_name = "FILE", requires = "peer_key")]
    peer_cert: Option<PathBuf>,
    /// PEM file of its private key.
    #[arg(long, value_name = "FILE", requires = "peer_ca")]
    peer_key: Option<PathBuf>,
    /// File with the SHA-256 fingerprints of certificates that are refused although the CA signed them, one per line. It is
    /// reloaded when it changes, and connections with such a certificate are closed. A file that does not exist refuses none.
    #[arg(long, value_name = "FILE", requires = "peer_ca")]
    peer_deny: Option<PathBuf>,
    /// Share without TLS: anyone who reaches the port may request blocks, and anyone who sees the packets can read them.
    #[arg(long, conflicts_with = "peer_ca", requires = "peers")]
    peer_plaintext: bool,
}

impl PeerFlags {
    /// Errors: the members or the certificates cannot be read, neither certificates nor plaintext were requested, or a node that
    /// serves peers is not among those listed.
    async fn open(self) -> anyhow::Result<Option<(PeerConfig, Watcher)>> {
        let Some(source) = self.peers else { return Ok(None) };
        let security = match (self.peer_ca, self.peer_cert, self.peer_key) {
            (Some(ca), Some(cert), Some(key)) => Security::Tls(
                Tls::load(TlsFiles { ca, cert, key, denied: self.peer_deny })
                    .context("use --peer-ca, --peer-cert, --peer-key and --peer-deny")?,
            ),
            _ if self.peer_plaintext => Security::Plaintext,
            _ => anyhow::bail!(
                "--peers needs certificates (--peer-ca, --peer-cert, --peer-key), or --peer-plaintext to do without"
            ),
        };
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = self.node_name.unwrap_or_else(host);
        if let (MemberSource::Static(NodeList(nodes)), Some(_)) = (&source, self.peer_listen)
            && nodes.iter().all(|node| node.name != name)
        {
            let listed: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
            anyhow::bail!(
                "--node-name: {name} is not among --peers ({}), so no node would read from it: list it, or leave out \
                 --peer-listen",
                listed.join(", ")
            );
        }
        let (membership, watcher) = source.open().await.context("use --peers")?;
        if self.peer_listen.is_some() && membership.borrow().iter().all(|node| node.name != name) {
            warn!(name, "this node is not among --peers yet (--node-name): no node reads from it until it is");
        }
        Ok(Some((PeerConfig { name, listen: self.peer_listen, membership, security }, watcher)))
    }
}

impl NodeFlags {
    /// The node's configuration, and the task that keeps its membership current. Creates the folders, or waits for them.
    /// Errors name the flag.
    pub async fn open(self) -> anyhow::Result<(NodeConfig, Option<Watcher>)> {
        let (peers, watcher) = self.peers.open().await?.unzip();
        let beside = self.cache_dir.parent().map_or_else(|| PathBuf::from("home"), |parent| parent.join("home"));
        let home = Home::new(self.home.unwrap_or(beside));
        if let Err(error) = wait_for_folder(&self.cache_dir).await {
            warn!(error = format!("{error:#}"), "starting without a cache folder that can be written to (--cache-dir)");
        }
        let home = writable_home(home).await?;
        let config = NodeConfig {
            cache_dir: self.cache_dir,
            cache_bytes: self.cache_size,
            keep_free_percent: self.keep_free,
            home,
            origin: OriginConfig {
                endpoint: self.endpoint,
                attempt_timeout: self.attempt_timeout,
                deadline: self.read_deadline,
                concurrency: self.origin_concurrency as usize,
                env: Env::of_process(),
                ..OriginConfig::default()
            },
            peers,
            socket: None,
        };
        Ok((config, watcher))
    }
}

/// The home; or, if its disk is read-only, a temporary one that shows the manifests that are there.
async fn writable_home(home: Home) -> anyhow::Result<Home> {
    match wait_for_folder(home.dir()).await {
        Ok(()) => return Ok(home),
        Err(error) if error.downcast_ref().is_some_and(is_read_only) => {}
        Err(error) => return Err(error),
    }
    let dir = std::env::temp_dir().join(format!("larder-home-{}", std::process::id()));
    std::fs::create_dir(&dir).with_context(|| format!("make the folder {}", dir.display()))?;
    warn!(home = %home.dir().display(), instead = %dir.display(), "the folder of manifests is on a read-only disk: new manifests are kept until the process ends");
    let instead = Home::new(dir);
    for name in ["manifests", "mounts"] {
        let folder = instead.sub_folder(name)?;
        for kept in std::fs::read_dir(home.dir().join(name)).into_iter().flatten().flatten() {
            // A manifest that is not shown is fetched again.
            let _ = std::os::unix::fs::symlink(kept.path(), folder.join(kept.file_name()));
        }
    }
    Ok(instead)
}

/// A part of a whole, such as `20%`.
fn parse_percent(text: &str) -> Result<u8, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).trim().parse().ok().filter(|percent| *percent < 100);
    percent.ok_or_else(|| "not a part of the disk: write it like 20%, at most 99%".to_owned())
}

/// A runtime that is never shut down before the process ends. A task that a shutdown drops would answer its reader with EIO;
/// the requests that a process leaves unanswered when it ends are answered by the next process.
pub fn runtime() -> anyhow::Result<ManuallyDrop<Runtime>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    Ok(ManuallyDrop::new(runtime))
}

/// Cancels `stopping` at SIGTERM or SIGINT.
/// Must be called within a runtime. Errors: signals cannot be received.
pub fn stop_on_signal(stopping: CancellationToken) -> anyhow::Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for signals")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = stopping.cancelled() => {}
        }
        stopping.cancel();
    })
}

/// Raises the soft limit of open files to the hard one: segments, sockets and RocksDB need many, and the soft limit is often
/// 1,024.
pub fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        warn!(%error, "cannot raise the limit of open files");
    }
}

/// Waiting does not make a disk writable.
fn is_read_only(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::ReadOnlyFilesystem
}

/// Creates a folder, or waits until another process with the necessary rights has created it for this user.
pub async fn wait_for_folder(folder: &Path) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let made = std::fs::create_dir_all(folder);
        let usable = made.and_then(|()| Ok(rustix::fs::access(folder, rustix::fs::Access::WRITE_OK)?));
        match usable {
            Ok(()) => return Ok(()),
            Err(error) if is_read_only(&error) || started.elapsed() > FOLDER_TIMEOUT => {
                let user = rustix::process::geteuid().as_raw();
                return Err(error)
                    .with_context(|| format!("use the folder {}: it must belong to user {user}", folder.display()));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parse_percent;

    #[test]
    fn a_part_of_the_disk_is_a_whole_percentage_below_100() {
        assert_eq!([parse_percent("20%"), parse_percent("5 %"), parse_percent("0")], [Ok(20), Ok(5), Ok(0)]);
        for text in ["100%", "-1%", "1.5%", "20GiB", "", "%"] {
            assert!(parse_percent(text).unwrap_err().contains("20%"), "{text}");
        }
    }
}
