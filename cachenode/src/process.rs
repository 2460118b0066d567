//! The common parts of the processes `larderd` and `cachenode`: a node's flags and its folders.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use larder_dataset::size::{parse_bytes, parse_duration, show_bytes};
use larder_origin::{Env, OriginConfig};
use larder_peers::membership::Watcher;
use larder_peers::{MemberSource, NodeList, Security, Tls, TlsFiles};
use larder_store::probe::try_to_write;
use tracing::warn;

use crate::home::Home;
use crate::importing::Importer;
use crate::node::{NodeConfig, PeerConfig};
use crate::temporary_home;

/// How long a start waits for folders that another process creates.
const FOLDER_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval between two looks at such a folder.
const FOLDER_RETRY: Duration = Duration::from_millis(200);

/// The part of the disk that a node's cache leaves free by default, in percent.
pub const KEEP_FREE_DEFAULT: u8 = 20;

/// Interval between two looks at a home folder that could not be written to, while there is something new for it.
const BRING_EVERY: Duration = Duration::from_secs(10);

/// The flags of a node.
#[derive(Debug, Args)]
pub struct NodeFlags {
    /// Cache folder, used by one process at a time.
    #[arg(long, value_name = "DIR", env = "LARDER_CACHE_DIR")]
    pub cache_dir: PathBuf,
    /// Bytes that all datasets together may take on the disk. Default: four fifths of the free disk space. With 0
    /// nothing is cached, and every read asks the origin.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, env = "LARDER_CACHE_SIZE")]
    cache_size: Option<u64>,
    /// Part of the disk of --cache-dir that the cache leaves free, whatever fills the rest. With less, nothing more is
    /// cached until there is room again. The kubelet evicts pods when less than 15 % of an image disk or 10 % of a
    /// node's disk is free.
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
    /// Connections that this node accepts from one address. Nodes behind one address (NAT) share them; each makes 3.
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
    /// PEM file of its private key.
    #[arg(long, value_name = "FILE", requires = "peer_ca")]
    peer_key: Option<PathBuf>,
    /// File with the SHA-256 fingerprints of certificates that are refused although the CA signed them, one per line.
    /// It is reloaded when it changes, and connections with such a certificate are closed. A file that does not exist
    /// refuses none.
    #[arg(long, value_name = "FILE", requires = "peer_ca")]
    peer_deny: Option<PathBuf>,
    /// Share without TLS: anyone who reaches the port may request blocks, and anyone who sees the packets can read
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
    /// The node's configuration, and the task that keeps its membership current. Creates the folders, or waits for
    /// them. Errors name the flag.
    pub async fn open(self) -> anyhow::Result<(NodeConfig, Option<Watcher>)> {
        let (peers, watcher) = self.peers.open().await?.unzip();
        let beside = self.cache_dir.parent().map_or_else(|| PathBuf::from("home"), |parent| parent.join("home"));
        let home = Home::new(self.home.unwrap_or(beside));
        let (cache, home) =
            tokio::join!(wait_for_folders(std::slice::from_ref(&self.cache_dir), "--cache-dir"), writable_home(home));
        if let Err(error) = cache {
            warn!(error = format!("{error:#}"), "starting without a cache folder that can be written to");
        }
        if let Some(doubt) = self.cache_size.and_then(|bytes| doubt_cache_size(bytes, &self.cache_dir)) {
            warn!(doubt, "the size of the cache may be a mistake");
        }
        let home = home?;
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
            importer: Importer::own_process(),
            peers,
            socket: None,
        };
        Ok((config, watcher))
    }
}

/// The home; or, if nothing can be written there, a temporary one that shows its manifests.
async fn writable_home(home: Home) -> anyhow::Result<Home> {
    let tried = wait_for_folders(&[home.dir().to_owned()], "--home").await.map(drop);
    let instead = temporary_home::choose(&home, tried, &std::env::temp_dir())?;
    Ok(match instead {
        Some(instead) => {
            let used = instead.home().clone();
            // The task has its lock until the process ends.
            tokio::spawn(temporary_home::bring_home(instead, home, BRING_EVERY));
            used
        }
        None => home,
    })
}

/// Why a --cache-size is doubtful, in words: it is 0, or more than the disk of the cache folder holds.
pub fn doubt_cache_size(bytes: u64, cache_dir: &Path) -> Option<String> {
    if bytes == 0 {
        return Some("--cache-size is 0: nothing is cached, and every read asks the origin".to_owned());
    }
    let existing = cache_dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("."));
    let disk = rustix::fs::statvfs(existing).ok()?;
    let disk_bytes = disk.f_blocks.saturating_mul(disk.f_frsize);
    (bytes > disk_bytes).then(|| {
        let (wanted, there) = (show_bytes(bytes), show_bytes(disk_bytes));
        format!("--cache-size is {wanted}, but the disk of {} has only {there}: no more is cached", existing.display())
    })
}

/// A part of a whole, such as `20%`.
pub fn parse_percent(text: &str) -> Result<u8, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).trim().parse().ok().filter(|percent| *percent < 100);
    percent.ok_or_else(|| "not a part of the disk: write it like 20%, at most 99%".to_owned())
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

/// Creates these folders and tries to write to them, and waits until one can be used: another process may have to
/// create it for this user. Returns those that can, and after them those for which [`wait_for_folder`] can wait. Errors
/// concern the first, and name the flag and what to do.
pub async fn wait_for_folders(folders: &[PathBuf], flag: &str) -> anyhow::Result<Vec<PathBuf>> {
    let started = Instant::now();
    loop {
        let tried: Vec<_> = folders.iter().map(|folder| (folder, try_to_write(folder))).collect();
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
            let mut refusals =
                tried.into_iter().filter_map(|(folder, tried)| Some(refused(tried.err()?, folder, flag)));
            return Err(refusals.next().unwrap_or_else(|| anyhow::anyhow!("{flag} names no folder")));
        }
        let later: Vec<PathBuf> = tried.iter().filter(|it| can_wait(it)).map(|(folder, _)| (*folder).clone()).collect();
        for (folder, tried) in tried {
            if let Err(error) = tried {
                let error = refused(error, folder, flag);
                warn!(error = format!("{error:#}"), "going on with the other folders");
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

/// Says why nothing can be written to a folder, and what to do.
fn refused(error: std::io::Error, folder: &Path, flag: &str) -> anyhow::Error {
    let remedy = match error.kind() {
        ErrorKind::ReadOnlyFilesystem => {
            "its disk is read-only: mount it writable, or name a folder on another disk".to_owned()
        }
        ErrorKind::PermissionDenied => {
            format!("it must belong to user {}", rustix::process::geteuid().as_raw())
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "its disk is full: make room, or name a folder on another disk".to_owned()
        }
        _ => "repair its disk, or name another folder".to_owned(),
    };
    anyhow::Error::from(error).context(format!("write to the folder {} ({flag}): {remedy}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_of_nothing_or_beyond_the_disk_is_doubted_and_any_other_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let doubt = |bytes| doubt_cache_size(bytes, &folder.path().join("a/b"));
        let disk = rustix::fs::statvfs(folder.path()).unwrap();
        let disk_bytes = disk.f_blocks * disk.f_frsize;
        assert!(doubt(0).unwrap().contains("--cache-size is 0"));
        assert_eq!([doubt(1), doubt(disk_bytes)], [None, None]);
        for bytes in [disk_bytes + 1, u64::MAX] {
            let doubt = doubt(bytes).unwrap();
            assert!(doubt.contains("--cache-size") && doubt.contains(folder.path().to_str().unwrap()), "{doubt}");
        }
    }

    #[tokio::test]
    async fn of_several_folders_those_that_can_be_written_to_are_used_and_the_first_explains_why_none_can() {
        let folder = tempfile::tempdir().unwrap();
        let good = folder.path().join("good");
        let bad = PathBuf::from("/proc/larder");
        let usable = wait_for_folders(&[bad.clone(), good.clone()], "--run-dir").await.unwrap();
        assert_eq!(usable, std::slice::from_ref(&good));
        std::fs::write(good.join("file"), b"").unwrap();
        let error = format!("{:#}", wait_for_folders(&[bad, good.join("file/x")], "--run-dir").await.unwrap_err());
        assert!(error.contains("/proc/larder (--run-dir)"), "{error}");
    }

    /// As root this thread becomes another user, to whom the folder is forbidden.
    #[tokio::test]
    async fn a_folder_that_another_process_has_yet_to_give_is_used_later_and_one_that_fails_is_not() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let [forbidden, good] = ["forbidden", "good"].map(|name| folder.path().join(name));
        let set = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        std::fs::create_dir(&forbidden).unwrap();
        std::fs::create_dir(&good).unwrap();
        set(folder.path(), 0o755);
        set(&forbidden, 0o555);
        set(&good, 0o777);
        let become_user = |uid| {
            let own = rustix::process::getuid();
            if own.is_root() {
                rustix::thread::set_thread_res_uid(own, rustix::process::Uid::from_raw(uid), own).unwrap();
            }
        };
        become_user(65534);
        let found = wait_for_folders(&[forbidden.clone(), "/proc/larder".into(), good.clone()], "--run-dir").await;
        assert_eq!(found.unwrap(), [good.clone(), forbidden.clone()]);
        let wait = wait_for_folder(&forbidden);
        tokio::pin!(wait);
        assert!(tokio::time::timeout(Duration::from_millis(300), &mut wait).await.is_err());
        become_user(0);
        set(&forbidden, 0o777);
        become_user(65534);
        assert!(wait.await);
        assert!(!wait_for_folder(&good).await);
    }

    // SEMANTICS: C4
    #[tokio::test]
    async fn a_home_that_cannot_be_written_to_is_replaced_by_one_that_shows_its_manifests() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        std::fs::create_dir_all(home.join("manifests")).unwrap();
        std::fs::write(home.join("manifests/one.manifest"), b"rows").unwrap();
        assert_eq!(writable_home(Home::new(&home)).await.unwrap().dir(), home);
        // A folder in which nothing can be made, whoever asks: below a file.
        std::fs::write(home.join("file"), b"").unwrap();
        let (first, second) = (Home::new(home.join("file/x")), Home::new(home.join("file/x")));
        let (first, second) = (writable_home(first).await.unwrap(), writable_home(second).await.unwrap());
        assert_ne!(first.dir(), second.dir());
        for made in [first, second] {
            std::fs::write(made.sub_folder("manifests").unwrap().join("new.manifest"), b"rows").unwrap();
            std::fs::remove_dir_all(made.dir()).unwrap();
        }
    }

    #[test]
    fn a_folder_that_cannot_be_used_says_why_what_to_do_and_which_flag() {
        let said = |kind: rustix::io::Errno| format!("{:#}", refused(kind.into(), Path::new("/f"), "--home"));
        for (kind, remedy) in [
            (rustix::io::Errno::ROFS, "read-only"),
            (rustix::io::Errno::ACCESS, "must belong to user"),
            (rustix::io::Errno::NOSPC, "full"),
            (rustix::io::Errno::IO, "repair its disk"),
        ] {
            let said = said(kind);
            assert!(said.contains("/f (--home)") && said.contains(remedy), "{said}");
        }
    }

    #[test]
    fn the_default_part_of_the_disk_that_stays_free_is_that_of_the_flag() {
        use clap::Parser;
        #[derive(Parser)]
        struct Only {
            #[command(flatten)]
            node: NodeFlags,
        }
        let flags = Only::try_parse_from(["larderd", "--cache-dir=/c", "--keep-free=7%"]).unwrap();
        assert_eq!(flags.node.keep_free, 7);
        let command = <Only as clap::CommandFactory>::command();
        let flag = command.get_arguments().find(|flag| flag.get_id() == "keep_free").unwrap();
        assert_eq!(flag.get_default_values(), [format!("{KEEP_FREE_DEFAULT}%").as_str()]);
    }

    #[test]
    fn a_part_of_the_disk_is_a_whole_percentage_below_100() {
        assert_eq!([parse_percent("20%"), parse_percent("5 %"), parse_percent("0")], [Ok(20), Ok(5), Ok(0)]);
        for text in ["100%", "-1%", "1.5%", "20GiB", "", "%"] {
            assert!(parse_percent(text).unwrap_err().contains("20%"), "{text}");
        }
    }
}
