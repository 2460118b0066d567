//! The data that all systems serve, made once: files on a disk, and the same bytes as objects in an embedded S3 server.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use larder_s3_server::{Distance, S3Server, S3ServerConfig};
use tokio::runtime::Handle;

use super::stop::Stop;
use larder_epochs::process::total_memory;
use larder_epochs::tree::{self, MadeFile};

const BUCKET: &str = "bench";
const PREFIX: &str = "train";
const ACCESS_KEY: &str = "larder-bench";

/// The objects are kept in memory if they take at most one part in this many. Larder's packs and JuiceFS's blocks each
/// take the same amount again, and the page cache needs room for the files of the disk, of a cache and of a mount.
const PART_OF_MEMORY: u64 = 6;

/// The files to make.
#[derive(Clone, Debug)]
pub struct CorpusOptions {
    /// The size of each file.
    pub sizes: Vec<u64>,
    /// Seed of their bytes.
    pub seed: u64,
    /// An empty folder on the disk that is measured.
    pub folder: PathBuf,
    /// How far away the S3 server seems to be.
    pub distance: Distance,
}

/// The data that every system serves: files on the disk, and the same files as objects in the S3 server.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// The folder on the disk. Reading it directly gives the upper bound for every filesystem on top of it.
    pub tree: PathBuf,
    /// Its files, with paths below [`tree`](Self::tree) that are also the keys below [`prefix`](Self::prefix).
    pub files: Vec<MadeFile>,
    /// Bytes of all files.
    pub bytes: u64,
    /// The bucket of the objects.
    pub bucket: String,
    /// The prefix of all keys, without a trailing slash.
    pub prefix: String,
    /// The S3 server: `http://127.0.0.1:PORT`.
    pub endpoint: String,
    /// The access key id of the S3 server.
    pub access_key: String,
    /// The secret of that key.
    pub secret_key: String,
    /// Scratch space on the same disk, with a folder for each system.
    pub work: PathBuf,
    /// Whether the objects are in memory, so that a GET does not read from the disk.
    pub in_memory: bool,
    /// A stop request ends every wait.
    pub stop: Stop,
}

impl Corpus {
    /// Makes the files, starts an S3 server on `runtime` and fills it. Calls `made` with each file and its path before
    /// the server has it.
    pub fn make(
        options: &CorpusOptions,
        runtime: &Handle,
        stop: &Stop,
        mut made: impl FnMut(&Path, &MadeFile),
    ) -> anyhow::Result<(Self, S3Server)> {
        let (tree, work) = (options.folder.join("tree"), options.folder.join("work"));
        for folder in [&tree, &work] {
            std::fs::create_dir_all(folder).with_context(|| format!("create the directory {}", folder.display()))?;
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
                distance: options.distance,
                ..S3ServerConfig::default()
            }))
            .context("start the S3 server")?;
        let files = tree::make(&tree, &options.sizes, options.seed, |file| made(&tree.join(&file.path), file))?;
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
        let corpus = Self {
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
        Ok((corpus, server))
    }

    /// The folder of one system, created if missing.
    pub fn folder_of(&self, system: &str) -> anyhow::Result<PathBuf> {
        let folder = self.work.join(system.replace(' ', "-"));
        std::fs::create_dir_all(&folder).with_context(|| format!("create the directory {}", folder.display()))?;
        Ok(folder)
    }

    /// The variables in which most S3 clients take their keys.
    pub fn aws_variables(&self) -> [(&'static str, &str); 3] {
        [
            ("AWS_ACCESS_KEY_ID", &self.access_key),
            ("AWS_SECRET_ACCESS_KEY", &self.secret_key),
            ("AWS_REGION", "us-east-1"),
        ]
    }

    /// Fails if the data is too large for one more copy in the S3 server, which holds uploaded objects in memory.
    pub(super) fn room_for_a_copy(&self) -> anyhow::Result<()> {
        if !self.in_memory {
            bail!("the S3 server holds uploaded objects in memory, and the dataset exceeds 1/{PART_OF_MEMORY} of it");
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
