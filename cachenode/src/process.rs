//! The common parts of the processes `larderd` and `cachenode`: a node's flags and its folders.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use futures::future::join_all;
use larder_dataset::Chain;
use larder_dataset::size::{parse_bytes, parse_duration, parse_rate, show_bytes};
use larder_origin::{CONCURRENCY, Env, OriginConfig, RateCaps, SharedLimits};
use larder_peers::membership::Watcher;
use larder_peers::{MemberSource, NodeList, Security, Tls, TlsFiles};
use larder_store::probe::try_to_write;
use larder_telemetry::admin::AdminAddress;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use crate::folder::{FolderRefused, HOME_FLAG};
use crate::home::{Home, HomeLimits};
use crate::importing::{Importer, PROCESSES_BYTES};
use crate::memory::{MemoryBudget, default_target, memory_limit};
use crate::node::{NodeConfig, PeerConfig};

/// How long a start waits for folders that another process creates, and for their disks.
const FOLDER_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval between two looks at such a folder.
const FOLDER_RETRY: Duration = Duration::from_millis(200);

/// The part of the disk that a node's cache leaves free by default, in percent.
pub const KEEP_FREE_DEFAULT: u8 = 20;

/// The flags of a node.
#[derive(Debug, Args)]
pub struct NodeFlags {
    /// Cache folder. One process at a time may use it. May be repeated, once for each disk of the cache: blocks are
    /// spread over the disks by free space, and a disk that fails costs its blocks alone. The first folder also has the
    /// tables of all blocks. The variable names one folder.
    #[arg(long = "cache-dir", value_name = "DIR", env = "LARDER_CACHE_DIR", required = true)]
    pub cache_dirs: Vec<PathBuf>,
    /// Disk space that all datasets together may take, on all disks. Default: four fifths of the free disk space. With
    /// 0, nothing is cached and every read goes to the origin.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, env = "LARDER_CACHE_SIZE")]
    cache_size: Option<u64>,
    /// Part of each disk of --cache-dir that the cache leaves free, whatever fills the rest. While less is free,
    /// nothing more is cached there. The kubelet evicts pods when less than 15 % of an image disk or 10 % of a node's
    /// disk is free. On the disk of --home, manifests and listings may take a quarter of this part.
    #[arg(long, value_name = "PERCENT", default_value = "20%", value_parser = parse_percent, env = "LARDER_KEEP_FREE")]
    keep_free: u8,
    /// Folder of manifests. If it cannot be written to, datasets that are new to this node cannot be mounted. Default:
    /// `home` beside the first cache folder.
    #[arg(long, value_name = "DIR", env = "LARDER_HOME")]
    home: Option<PathBuf>,
    /// Disk space in --home that one dataset may take: its manifest, and while it is listed, the journal and the files
    /// in which the listing is sorted, a few hundred bytes for each object. A dataset that needs more cannot be
    /// mounted.
    #[arg(long, value_name = "SIZE", default_value = "16GiB", value_parser = parse_bytes, env = "LARDER_LISTING_SIZE")]
    listing_size: u64,
    /// Address at which to serve /metrics, /healthz and /readyz.
    #[arg(long, value_name = "IP:PORT")]
    admin_address: Option<SocketAddr>,
    /// File with the token of the scrapers to which /metrics names datasets (`Authorization: Bearer TOKEN`). It is read
    /// at each such scrape. Default: /metrics names no dataset.
    #[arg(long, value_name = "FILE", requires = "admin_address")]
    metrics_token: Option<PathBuf>,
    /// S3 endpoint of datasets that name none. Not needed for AWS.
    #[arg(long, value_name = "URL", env = "LARDER_ENDPOINT", hide_env_values = true)]
    endpoint: Option<String>,
    /// Folder of the credentials for datasets that bring none, such as a mounted Secret: one file for each AWS_*,
    /// GOOGLE_* or AZURE_* variable and for LARDER_PEER_TOKEN, with the variable's name. Files precede variables. They
    /// are read again when they change. Default: variables alone.
    #[arg(long, value_name = "DIR", env = "LARDER_ORIGIN_CREDENTIALS_DIR")]
    origin_credentials_dir: Option<PathBuf>,
    /// Retry a request to an origin after this long without progress.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    attempt_timeout: Duration,
    /// Fail a read with ETIMEDOUT after waiting this long for the origin, all attempts included.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    read_deadline: Duration,
    /// Maximum number of requests in flight to an origin, which all datasets of a bucket share. Fewer are sent while
    /// more would bring nothing, and while the origin rejects requests or slows down.
    #[arg(long, value_name = "N", default_value_t = CONCURRENCY as u32,
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    origin_concurrency: u32,
    /// Maximum bytes per second to read from an origin, which all datasets of a bucket share, such as 1GiB/s. Readers
    /// come before warm-ups. Default: no limit.
    #[arg(long, value_name = "SIZE/s", value_parser = parse_rate)]
    origin_rate: Option<u64>,
    /// Maximum bytes per second that all warm-ups of this node fetch together, such as 200MiB/s. Default: no limit.
    #[arg(long, value_name = "SIZE/s", value_parser = parse_rate)]
    warm_rate: Option<u64>,
    /// Memory for the data in flight of all datasets together: blocks that are fetched, read, or wait for the cache's
    /// disk. Default: half of the memory that the container or the machine leaves beside 1.5 GiB for the process and
    /// its imports; at least 128MiB and at most 4GiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory_target, env = "LARDER_MEMORY_TARGET")]
    memory_target: Option<u64>,
    #[command(flatten)]
    peers: PeerFlags,
}

/// How a node shares its cache with its peers.
#[derive(Debug, Default, Args)]
struct PeerFlags {
    /// Nodes that share their caches, including this one: NAME=IP:PORT,..., @FILE with one node per line, or
    /// kubernetes:NAMESPACE/SERVICE.
    #[arg(long, value_name = "NODES", env = "LARDER_PEERS")]
    peers: Option<MemberSource>,
    /// Name of this node in --peers. Default: the host name.
    #[arg(long, value_name = "NAME", env = "LARDER_NODE_NAME")]
    node_name: Option<String>,
    /// Address at which to serve this node's cache to its peers. Without it, this node reads from its peers and serves
    /// none.
    #[arg(long, value_name = "IP:PORT", requires = "peers")]
    peer_listen: Option<SocketAddr>,
    /// Maximum number of connections from one address. Nodes behind one address (NAT) share them; each node makes 3.
    #[arg(long, value_name = "N", default_value_t = 256, requires = "peer_listen",
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    peer_connections: u32,
    /// PEM file of the CA that signed the nodes' certificates. The CA, the certificate and the key are reloaded when
    /// they change.
    #[arg(long, value_name = "FILE", requires = "peer_cert")]
    peer_ca: Option<PathBuf>,
    /// PEM file of this node's certificate, for the DNS name cachenode.larder.dev.
    #[arg(long, value_name = "FILE", requires = "peer_key")]
    peer_cert: Option<PathBuf>,
    /// PEM file of the private key of --peer-cert.
    #[arg(long, value_name = "FILE", requires = "peer_ca")]
    peer_key: Option<PathBuf>,
    /// File with the SHA-256 fingerprints of certificates to refuse although the CA signed them, one per line. It is
    /// reloaded when it changes, and connections with such a certificate are closed. A missing file refuses none.
    #[arg(long, value_name = "FILE", requires = "peer_ca")]
    peer_deny: Option<PathBuf>,
    /// Share without TLS. Anyone who can reach the port may request blocks, and anyone who sees the packets can read
    /// them.
    #[arg(long, conflicts_with = "peer_ca", requires = "peers")]
    peer_plaintext: bool,
}

impl PeerFlags {
    /// Errors: the members or the certificates cannot be read, neither certificates nor plaintext were requested, or a
    /// node that serves peers is not among those listed.
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
        let (listen, connections_each_most) = (self.peer_listen, self.peer_connections as usize);
        Ok(Some((PeerConfig { name, listen, connections_each_most, membership, security }, watcher)))
    }
}

impl NodeFlags {
    /// Where to serve the metrics, if anywhere.
    pub fn admin(&self) -> Option<AdminAddress> {
        Some(AdminAddress { address: self.admin_address?, names_token: self.metrics_token.clone() })
    }

    /// The node's configuration, and the task that keeps its membership current. Creates the folders, or waits for
    /// them. Errors name the flag.
    pub async fn open(self) -> anyhow::Result<(NodeConfig, Option<Watcher>)> {
        let (peers, watcher) = self.peers.open().await?.unzip();
        let cache_dirs = self.cache_dirs;
        if let Some(at) = (1..cache_dirs.len()).find(|&at| cache_dirs[..at].contains(&cache_dirs[at])) {
            anyhow::bail!("--cache-dir {} is given twice: name each folder once", cache_dirs[at].display());
        }
        let beside = cache_dirs[0].parent().map_or_else(|| PathBuf::from("home"), |parent| parent.join("home"));
        let limits =
            HomeLimits { keep_free_percent: self.keep_free, listing_bytes: self.listing_size, ..HomeLimits::default() };
        let home = Home::limited(self.home.unwrap_or(beside), limits);
        let home_dir = home.dir().to_owned();
        let home_dirs = std::slice::from_ref(&home_dir);
        let (mut cache_dirs, home_tried) =
            tokio::join!(wait_for_caches(cache_dirs), wait_for_folders(home_dirs, HOME_FLAG));
        drop_same_disks(&mut cache_dirs);
        if let Err(error) = home_tried {
            warn!(
                error = %Chain(&error),
                "starting without a writable home folder: datasets that are new to this node cannot be mounted"
            );
        }
        if let Some(doubt) = self.cache_size.and_then(|bytes| doubt_cache_size(bytes, &cache_dirs)) {
            warn!(doubt, "the cache size may be a mistake");
        }
        let env = match &self.origin_credentials_dir {
            Some(folder) => {
                Env::of_process().with_files(folder).context("read the credentials (--origin-credentials-dir)")?
            }
            None => Env::of_process(),
        };
        env.warn_of_left_out();
        let config = NodeConfig {
            cache_dir: cache_dirs.remove(0),
            more_cache_dirs: cache_dirs,
            cache_bytes: self.cache_size,
            keep_free_percent: self.keep_free,
            home,
            origin: OriginConfig {
                endpoint: self.endpoint,
                attempt_timeout: self.attempt_timeout,
                deadline: self.read_deadline,
                concurrency: self.origin_concurrency as usize,
                limits: SharedLimits::new(
                    self.origin_concurrency as usize,
                    RateCaps { origin: self.origin_rate, warming: self.warm_rate },
                ),
                env,
                ..OriginConfig::default()
            },
            importer: Importer::own_process(),
            peers,
            memory: memory_budget(self.memory_target),
            socket: None,
        };
        Ok((config, watcher))
    }
}

/// The least value of --memory-target.
const MEMORY_TARGET_LEAST: u64 = 64 << 20;

/// The value of --memory-target.
pub fn parse_memory_target(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes < MEMORY_TARGET_LEAST => {
            Err(format!("`{text}` is too little for the fetches of a few datasets: write 64MiB or more"))
        }
        bytes => Ok(bytes),
    }
}

/// The memory for data in flight: `target`, the value of --memory-target, or the default of this machine or container.
/// Logs it.
pub fn memory_budget(target: Option<u64>) -> Arc<MemoryBudget> {
    let limit = memory_limit(Path::new("/proc"), Path::new("/sys/fs/cgroup"));
    let bytes = target.unwrap_or_else(|| default_target(limit.unwrap_or(0), PROCESSES_BYTES));
    let limit_bytes = limit.unwrap_or(u64::MAX);
    if bytes > limit_bytes {
        warn!(
            "--memory-target is {}, but the container or the machine has only {}: the process may be killed",
            show_bytes(bytes),
            show_bytes(limit_bytes)
        );
    }
    info!(target_bytes = bytes, limit_bytes, "memory for data in flight (--memory-target)");
    Arc::new(MemoryBudget::new(bytes))
}

/// Drops folders that are on the disk of an earlier one. They would add no room, and the disk that should be there is
/// probably not mounted.
fn drop_same_disks(cache_dirs: &mut Vec<PathBuf>) {
    let mut disks = BTreeSet::new();
    cache_dirs.retain(|dir| {
        let is_other = std::fs::metadata(dir).map_or(true, |about| disks.insert(about.dev()));
        if !is_other {
            warn!(
                dir = %dir.display(),
                "a cache folder is on the disk of an earlier one and is not used: is its disk mounted? (--cache-dir)"
            );
        }
        is_other
    });
}

/// Why a --cache-size is doubtful, in words: it is 0, or more than the disks of the cache folders hold.
pub fn doubt_cache_size(bytes: u64, cache_dirs: &[PathBuf]) -> Option<String> {
    if bytes == 0 {
        return Some("--cache-size is 0: nothing is cached, and every read goes to the origin".to_owned());
    }
    let existing = |dir: &PathBuf| dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new(".")).to_owned();
    let mut existing: Vec<PathBuf> = cache_dirs.iter().map(existing).collect();
    existing.dedup();
    let mut disks = BTreeMap::new();
    for dir in &existing {
        let disk = rustix::fs::statvfs(dir).ok()?;
        disks.insert(std::fs::metadata(dir).ok()?.dev(), disk.f_blocks.saturating_mul(disk.f_frsize));
    }
    let disk_bytes: u64 = disks.values().sum();
    (bytes > disk_bytes).then(|| {
        let (wanted, there) = (show_bytes(bytes), show_bytes(disk_bytes));
        let dirs: Vec<_> = existing.iter().map(|dir| dir.display().to_string()).collect();
        format!("--cache-size is {wanted}, but the disk of {} has only {there}: no more is cached", dirs.join(" and "))
    })
}

/// A part of a whole, such as `20%`.
pub fn parse_percent(text: &str) -> Result<u8, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).trim().parse().ok().filter(|percent| *percent < 100);
    percent.ok_or_else(|| "not a percentage: write for example 20%, at most 99%".to_owned())
}

/// Raises the soft limit of open files to the hard one: segments, sockets and RocksDB need many, and the soft limit is
/// often 1,024.
pub fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        warn!(%error, "cannot raise the limit of open files");
    }
}

/// Waits for all cache folders at once, and for each in any case: without it, a start would forget its blocks. Leaves
/// out those whose disks do not answer, unless none does: everything that uses them would wait for them.
async fn wait_for_caches(dirs: Vec<PathBuf>) -> Vec<PathBuf> {
    let waits = dirs.iter().map(|dir| wait_for_folders(std::slice::from_ref(dir), "--cache-dir"));
    let mut answering = Vec::new();
    for (dir, tried) in dirs.iter().zip(join_all(waits).await) {
        match tried {
            Ok(_) => answering.push(dir.clone()),
            Err(error) if error.is_unanswered() => {
                warn!(error = %Chain(&error), "the disk of a cache folder does not answer");
            }
            Err(error) => {
                let error = Chain(&error);
                warn!(%error, "starting without a writable cache folder: hits may be lost, reads are not");
                answering.push(dir.clone());
            }
        }
    }
    if answering.is_empty() { dirs } else { answering }
}

/// Creates a folder and tries to write to it, on a thread of its own. A disk that does not answer in time fails with
/// `TimedOut`.
async fn try_folder(folder: &Path) -> std::io::Result<()> {
    let folder = folder.to_owned();
    let trying = tokio::task::spawn_blocking(move || try_to_write(&folder));
    match timeout(FOLDER_TIMEOUT, trying).await {
        Ok(tried) => tried.map_err(std::io::Error::other)?,
        Err(_) => Err(ErrorKind::TimedOut.into()),
    }
}

/// Creates these folders and tries to write to them, and waits until one can be used: another process may have to
/// create it for this user. Returns those that can, and after them those for which [`wait_for_folder`] can wait. Errors
/// concern the first, and name the flag and what to do.
pub async fn wait_for_folders(folders: &[PathBuf], flag: &'static str) -> Result<Vec<PathBuf>, FolderRefused> {
    let started = Instant::now();
    loop {
        let tries = folders.iter().map(|folder| async move { (folder, try_folder(folder).await) });
        let tried: Vec<_> = join_all(tries).await;
        let mut usable: Vec<PathBuf> =
            tried.iter().filter(|(_, tried)| tried.is_ok()).map(|(folder, _)| (*folder).clone()).collect();
        let can_wait = |(_, tried): &(_, std::io::Result<()>)| {
            tried.as_ref().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
        };
        // Waiting mends nothing else.
        if usable.is_empty() && tried.iter().any(can_wait) && started.elapsed() < FOLDER_TIMEOUT {
            tokio::time::sleep(FOLDER_RETRY).await;
            continue;
        }
        if usable.is_empty() {
            let refused =
                |(folder, tried): (&PathBuf, std::io::Result<()>)| Some(FolderRefused::new(tried.err()?, folder, flag));
            // No folder at all is not refused: there is nothing to write.
            return tried.into_iter().find_map(refused).map_or(Ok(usable), Err);
        }
        let later: Vec<PathBuf> = tried.iter().filter(|it| can_wait(it)).map(|(folder, _)| (*folder).clone()).collect();
        for (folder, tried) in tried {
            if let Err(error) = tried {
                let error = FolderRefused::new(error, folder, flag);
                warn!(error = %Chain(&error), "one of several folders cannot be written to: using the others");
            }
        }
        usable.extend(later);
        return Ok(usable);
    }
}

/// Waits until a folder can be written to. True if that took a while.
pub async fn wait_for_folder(folder: &Path) -> bool {
    let mut waited = false;
    while try_to_write(folder).is_err() {
        waited = true;
        tokio::time::sleep(FOLDER_RETRY).await;
    }
    waited
}
