//! The data that all systems serve, made once: files on a disk, and the same bytes as objects in an embedded S3 server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use larder_s3_server::{S3Server, S3ServerConfig};
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};

use crate::tree::{self, MadeFile};

const BUCKET: &str = "bench";
const PREFIX: &str = "train";
const ACCESS_KEY: &str = "larder-bench";

/// Objects stay in memory up to this part of it. Larder's packs and JuiceFS's blocks are as much again, each, and the
/// page cache needs room for the files of the disk, of a cache and of a mount.
const PART_OF_MEMORY: u64 = 6;

/// Asked of a running benchmark: to end soon, with everything taken down.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// One that SIGINT and SIGTERM ask for; the second signal ends the process at once. `runtime` listens for them.
    pub fn on_signals(runtime: &Handle) -> anyhow::Result<Self> {
        let stop = Self::default();
        let asked = stop.clone();
        let _in_runtime = runtime.enter();
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        runtime.spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if asked.0.swap(true, Ordering::Relaxed) {
                    std::process::exit(130);
                }
            }
        });
        Ok(stop)
    }

    /// Asks.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody asked.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails if somebody asked.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.asked() {
            bail!("stopped by a signal");
        }
        Ok(())
    }
}

/// What to make.
#[derive(Clone, Debug)]
pub struct SourceOptions {
    /// Sizes of the files.
    pub sizes: Vec<u64>,
    /// Seed of their bytes.
    pub seed: u64,
    /// An empty folder on the disk that is measured.
    pub folder: PathBuf,
}

/// The data that every system serves: files on the disk, and the same as objects in the S3 server.
#[derive(Clone, Debug)]
pub struct Source {
    /// The folder on the disk; reading it is the floor that no filesystem over it can beat.
    pub tree: PathBuf,
    /// Its files, with paths below [`tree`](Self::tree) that are also the keys below [`prefix`](Self::prefix).
    pub files: Vec<MadeFile>,
    /// Bytes of all files.
    pub bytes: u64,
    /// The bucket of the objects.
    pub bucket: String,
    /// Their prefix, without a slash at its end.
    pub prefix: String,
    /// The S3 server: `http://127.0.0.1:PORT`.
    pub endpoint: String,
    /// Its key id.
    pub access_key: String,
    /// The secret of that key.
    pub secret_key: String,
    /// Scratch on the same disk; each system has a folder there.
    pub work: PathBuf,
    /// Whether the objects are in memory, so that no disk is read when they are asked for.
    pub in_memory: bool,
    /// Ends every wait.
    pub stop: Stop,
}

impl Source {
    /// Makes the files, starts an S3 server on `runtime` and fills it. `made` hears of each file.
    pub fn make(
        options: &SourceOptions,
        runtime: &Handle,
        stop: &Stop,
        mut made: impl FnMut(&MadeFile),
    ) -> anyhow::Result<(Self, S3Server)> {
        let (tree, work) = (options.folder.join("tree"), options.folder.join("work"));
        for folder in [&tree, &work] {
            std::fs::create_dir_all(folder).with_context(|| format!("make the folder {}", folder.display()))?;
        }
        let bytes: u64 = options.sizes.iter().sum();
        let in_memory = bytes <= total_memory()? / PART_OF_MEMORY;
        let secret_key = format!("{:016x}", options.seed ^ u64::from(std::process::id()).rotate_left(32));
        let server = runtime
            .block_on(S3Server::start(S3ServerConfig {
                access_key: ACCESS_KEY.to_owned(),
                secret_key: secret_key.clone(),
                buckets: vec![BUCKET.to_owned()],
                unchecked_gets: true,
                ..S3ServerConfig::default()
            }))
            .context("start the S3 server")?;
        let files = tree::make(&tree, &options.sizes, options.seed, |file| made(file))?;
        for file in &files {
            stop.check()?;
            let (path, key) = (tree.join(&file.path), format!("{PREFIX}/{}", file.path.display()));
            if in_memory {
                let bytes = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
                server.put(BUCKET, &key, bytes);
            } else {
                let put = server.put_file(BUCKET, &key, path, file.size, None);
                runtime.block_on(put).with_context(|| format!("put {key}"))?;
            }
        }
        let source = Self {
            tree,
            files,
            bytes,
            bucket: BUCKET.to_owned(),
            prefix: PREFIX.to_owned(),
            endpoint: server.endpoint(),
            access_key: ACCESS_KEY.to_owned(),
            secret_key,
            work,
            in_memory,
            stop: stop.clone(),
        };
        Ok((source, server))
    }

    /// The folder of one system, made if need be.
    pub fn folder_of(&self, system: &str) -> anyhow::Result<PathBuf> {
        let folder = self.work.join(system.replace(' ', "-"));
        std::fs::create_dir_all(&folder).with_context(|| format!("make the folder {}", folder.display()))?;
        Ok(folder)
    }

    /// The variables by which most S3 clients are given their keys.
    pub fn aws_variables(&self) -> [(&'static str, &str); 3] {
        [
            ("AWS_ACCESS_KEY_ID", &self.access_key),
            ("AWS_SECRET_ACCESS_KEY", &self.secret_key),
            ("AWS_REGION", "us-east-1"),
        ]
    }

    /// Fails if the data is too large for one more copy of it in the S3 server, which keeps what is put in memory.
    pub(super) fn room_for_a_copy(&self) -> anyhow::Result<()> {
        if !self.in_memory {
            bail!("the S3 server keeps what is put in memory, and the data is more than 1/{PART_OF_MEMORY} of it");
        }
        Ok(())
    }
}

/// Writes a file that only its owner may read.
pub(super) fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let write = || options.open(path)?.write_all(text.as_bytes());
    write().with_context(|| format!("write {}", path.display()))
}

/// Bytes of memory of this machine.
pub(crate) fn total_memory() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(kib.context("find MemTotal in /proc/meminfo")? << 10)
}
