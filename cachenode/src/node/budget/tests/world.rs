//! Nodes that share a cache folder one after the other. A kill is a copy of the folder: what another process would
//! find.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use larder_dataset::DatasetSpec;
use larder_origin::OriginConfig;
use larder_store::Usage;
use tempfile::TempDir;

use crate::home::Home;
use crate::importing::Importer;
use crate::node::{Found, Node, NodeConfig, OpenDataset, Prepared, User};
use crate::request::DatasetRequest;

/// Each file is one block; its record takes 12 KiB on the disk.
pub(super) const FILE_BYTES: u64 = 10_000;

/// A cache folder that outlives its nodes.
pub(super) struct World {
    pub(super) folder: TempDir,
    pub(super) kills: u32,
    pub(super) node: Arc<Node>,
    /// The budget of the next node, and what it leaves free.
    pub(super) budget: Option<u64>,
    pub(super) keep_free_percent: u8,
}

/// A dataset as `User::Connection` has it.
pub(super) struct Shown {
    pub(super) open: OpenDataset,
    pub(super) request: DatasetRequest,
}

impl World {
    pub(super) fn new(budget: Option<u64>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = Self::start(folder.path(), 0, budget, 0);
        Self { folder, kills: 0, node, budget, keep_free_percent: 0 }
    }

    pub(super) fn start(folder: &Path, kills: u32, budget: Option<u64>, keep_free_percent: u8) -> Arc<Node> {
        let config = NodeConfig {
            cache_dir: folder.join(format!("cache-{kills}")),
            more_cache_dirs: Vec::new(),
            cache_bytes: budget,
            keep_free_percent,
            home: Home::new(folder.join("home")),
            origin: OriginConfig::default(),
            importer: Importer::Here,
            peers: None,
            memory: Arc::default(),
            socket: None,
        };
        Node::open(config).unwrap()
    }

    pub(super) fn cache_dir(&self) -> PathBuf {
        self.folder.path().join(format!("cache-{}", self.kills))
    }

    /// Kills the process and starts the next one, after `meanwhile` has changed its cache folder.
    pub(super) fn kill(&mut self, shown: Vec<Shown>, meanwhile: impl FnOnce(&Path)) -> Vec<(String, DatasetRequest)> {
        let before = self.cache_dir();
        self.kills += 1;
        copy(&before, &self.cache_dir());
        meanwhile(&self.cache_dir());
        self.node = Self::start(self.folder.path(), self.kills, self.budget, self.keep_free_percent);
        shown.into_iter().map(|shown| (shown.open.id().to_owned(), shown.request)).collect()
    }

    /// Finds a dataset of this many files, which is made first.
    pub(super) async fn find(&self, name: &str, files: u64, spec: DatasetSpec) -> (Found, DatasetRequest) {
        let data = self.folder.path().join(name);
        std::fs::create_dir_all(&data).unwrap();
        for file in 0..files {
            // No two datasets are one snapshot.
            let mut bytes = vec![file as u8; FILE_BYTES as usize];
            bytes[..name.len()].copy_from_slice(name.as_bytes());
            let path = data.join(format!("{name}-{file}"));
            if !path.exists() {
                std::fs::write(path, bytes).unwrap();
            }
        }
        let request: DatasetRequest = DatasetSpec { source: format!("file://{}", data.display()), ..spec }.into();
        match self.node.prepare(&request, Duration::from_secs(60)).await.unwrap() {
            Prepared::Ready(found) => (found, request),
            Prepared::Importing { .. } => panic!("it takes longer than a minute"),
        }
    }

    /// Opens it for a connection, and reads all of it.
    pub(super) async fn show(&self, name: &str, files: u64, spec: DatasetSpec) -> Shown {
        let (found, request) = self.find(name, files, spec).await;
        let open = self.node.open_dataset(found, &request, User::Connection).await.unwrap();
        for file in 0..files {
            open.read_file(file as u32, 0, FILE_BYTES as u32).await.unwrap();
        }
        open.settle().await;
        Shown { open, request }
    }

    /// The keeper offers a connection again.
    pub(super) async fn offer(&self, (id, request): (String, DatasetRequest)) -> Shown {
        let found = self.node.find_again(&id, &request).await.unwrap();
        let open = self.node.open_dataset(found, &request, User::Connection).await.unwrap();
        while open.cache_usage().rebuilding {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Shown { open, request }
    }

    /// The snapshots that have a folder in the cache.
    pub(super) fn cached(&self) -> usize {
        std::fs::read_dir(self.cache_dir().join("datasets")).unwrap().count()
    }

    pub(super) async fn close(&self, shown: Shown) {
        drop(shown);
        self.node.drained().await;
    }
}

/// Copies what a killed process leaves behind. Links of one file stay links of one file.
fn copy(from: &Path, to: &Path) {
    copy_into(from, to, &mut HashMap::new());
}

fn copy_into(from: &Path, to: &Path, copied: &mut HashMap<u64, PathBuf>) {
    use std::os::unix::fs::MetadataExt;
    std::fs::create_dir(to).unwrap();
    // The process that counts as killed goes on: it renames and deletes files of its index, and what was released.
    let Ok(entries) = std::fs::read_dir(from) else { return };
    for entry in entries.flatten() {
        let to = to.join(entry.file_name());
        let Ok(found) = entry.metadata() else { continue };
        if found.is_dir() {
            copy_into(&entry.path(), &to, copied);
        } else if entry.file_name() != "LOCK" {
            // Only segments have several links.
            let is_segment = entry.path().extension().is_some_and(|extension| extension == "seg");
            let inode = if is_segment { found.ino() } else { 0 };
            match copied.get(&inode).filter(|_| is_segment) {
                Some(link) => std::fs::hard_link(link, &to).unwrap(),
                None => match std::fs::copy(entry.path(), &to) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    copied => assert!(copied.is_ok(), "{:?}", entry.path()),
                },
            }
            copied.entry(inode).or_insert(to);
        }
    }
}

pub(super) fn whole() -> DatasetSpec {
    DatasetSpec::default()
}

pub(super) fn sized(cache_bytes: u64) -> DatasetSpec {
    DatasetSpec { cache_bytes: Some(cache_bytes), ..DatasetSpec::default() }
}

/// The state that a restart must not change.
pub(super) fn has(shown: &Shown) -> (String, u64, u64, u64) {
    let Usage { capacity_bytes, wanted_bytes, blocks_cached, .. } = shown.open.cache_usage();
    (shown.open.id().to_owned(), capacity_bytes, wanted_bytes, blocks_cached)
}

pub(super) fn all(shown: &[Shown]) -> Vec<(String, u64, u64, u64)> {
    let mut all: Vec<_> = shown.iter().map(has).collect();
    all.sort();
    all
}

pub(super) fn ids(shown: &[Shown]) -> HashSet<String> {
    shown.iter().map(|shown| shown.open.id().to_owned()).collect()
}

/// Three datasets, of which the first takes most of the cache, the second the rest, and the third gets nothing.
pub(super) async fn crowded(world: &World) -> Vec<Shown> {
    let mut shown = Vec::new();
    for name in ["first", "second", "third"] {
        shown.push(world.show(name, 40, whole()).await);
    }
    let blocks: Vec<_> = shown.iter().map(|shown| shown.open.cache_usage().blocks_cached).collect();
    assert_eq!(blocks[0], 40);
    assert!(blocks[1] > 0 && blocks[1] < 40 && blocks[2] == 0, "{blocks:?}");
    shown
}
