//! The quickstart's dataset, its origin and its mounts.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use larder_cachenode::{CacheSpec, Dataset, FetchConfig, open_manifest};
use larder_dataset::PolicyKind;
use larder_fs::{MountConfig, Mounted, Pool};
use larder_import::{ImportOptions, Silent};
use larder_origin::{Env, Origin, OriginConfig, OriginUrl};
use larder_s3_server::{S3Server, S3ServerConfig};
use larder_store::{Store, StoreConfig, StoreCounters};
use tokio::runtime::Handle;

use super::config::QuickstartConfig;
use super::outcome::{Counted, QuickstartCell, SETTLE_TIMEOUT};
use crate::epochs::{Epoch, ReadOptions, Target, read_epoch};
use crate::fuse_requests::{Counting, Requests};
use crate::order::epoch_seed;
use crate::tree::{self, MadeFile};

const BUCKET: &str = "quickstart";
const PREFIX: &str = "train";

/// Access key id of the embedded server, which ends with this process.
const ACCESS_KEY: &str = "quickstart";

/// The dataset, in an embedded S3, and the folder to mount it in.
pub(super) struct Lab {
    /// Runs the server.
    runtime: Handle,
    /// Runs the fetches of the mounts.
    fetches: Handle,
    server: S3Server,
    origin: Arc<dyn Origin>,
    pub(super) manifest: PathBuf,
    files: Vec<MadeFile>,
    pub(super) bytes: u64,
    folder: PathBuf,
}

/// The speed of the three sources, and the requests that the kernel sent for two of them.
pub(super) struct Speed {
    pub(super) cold: Epoch,
    pub(super) warm: Epoch,
    pub(super) hot: Epoch,
    pub(super) warm_requests: anyhow::Result<Requests>,
    pub(super) hot_requests: anyhow::Result<Requests>,
}

/// Resets the bar for a part of the run that counts `what`.
pub(super) fn restart_bar(bar: &ProgressBar, length: u64, what: &'static str) {
    bar.reset();
    bar.set_length(length);
    bar.set_style(
        ProgressStyle::with_template("{msg:34} {bar:30} {pos}/{len} {prefix} {per_sec} {eta}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar.set_prefix(what);
}

impl Lab {
    /// Makes the files, serves them from an embedded S3 on `runtime`, and imports them. Fetches of the mounts run on
    /// `fetches`.
    pub(super) fn set_up(
        config: &QuickstartConfig,
        runtime: Handle,
        fetches: Handle,
        bar: &ProgressBar,
    ) -> anyhow::Result<Self> {
        let folder = config.folder.clone();
        let data = folder.join("s3");
        restart_bar(bar, u64::from(config.files), "files made");
        bar.set_message("making the dataset");
        let sizes = tree::sizes(config.files, config.mean_size, config.seed);
        let files = tree::make(&data, &sizes, config.seed, |_| bar.inc(1))?;

        bar.set_message("starting S3, importing");
        let secret = format!("{:016x}", config.seed);
        let keys = S3ServerConfig {
            access_key: ACCESS_KEY.to_owned(),
            secret_key: secret.clone(),
            ..S3ServerConfig::default()
        };
        let server = runtime.block_on(S3Server::start(keys)).context("start the S3 server")?;
        for file in &files {
            let key = key(&file.path);
            let put = server.put_file(BUCKET, &key, data.join(&file.path), file.size, None);
            runtime.block_on(put).with_context(|| format!("put {key}"))?;
        }
        let url: OriginUrl = format!("s3://{BUCKET}/{PREFIX}").parse()?;
        let env: Env = [("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", &secret)].into_iter().collect();
        let settings = OriginConfig { endpoint: Some(server.endpoint()), env, ..OriginConfig::default() };
        let origin = runtime.block_on(async { larder_origin::open(&url, &settings) })?;

        let options = ImportOptions::new("quickstart", folder.join("import"));
        let imported = runtime.block_on(larder_import::import(Arc::clone(&origin), options, &Silent))?;
        let manifest = folder.join("quickstart.manifest");
        let bytes = imported.manifest.totals().bytes;
        imported.manifest.write(&manifest)?;
        Ok(Self { runtime, fetches, server, origin, manifest, files, bytes, folder })
    }

    fn open(
        &self,
        policy: PolicyKind,
        share: f64,
        seed: u64,
        counters: &Arc<StoreCounters>,
    ) -> anyhow::Result<(Arc<Dataset>, Store)> {
        let store = self.folder.join("store");
        if store.exists() {
            std::fs::remove_dir_all(&store).context("empty the store")?;
        }
        let store = Store::open(StoreConfig::new(&store), Arc::clone(counters))?;
        let reservation_bytes = (self.bytes as f64 * share).ceil() as u64;
        let manifest = Arc::new(open_manifest(&self.manifest)?);
        let spec = CacheSpec::exactly(manifest.snapshot(), reservation_bytes, policy, seed);
        // Every block may wait for the disk at once: one that may not would be missed in the next epoch.
        let unwritten_bytes = FetchConfig::DEFAULT.unwritten_bytes.max(2 * self.bytes);
        let config = FetchConfig { unwritten_bytes, ..FetchConfig::DEFAULT };
        let dataset = Dataset::open(manifest, &store, spec, Arc::clone(&self.origin), None, &self.fetches, config)?;
        Ok((dataset, store))
    }

    fn mount(&self, dataset: &Arc<Dataset>) -> anyhow::Result<Mounted> {
        let mountpoint = self.folder.join("mnt");
        std::fs::create_dir_all(&mountpoint).context("make the mount point")?;
        let config = MountConfig::new(mountpoint);
        let pool = Pool::for_many_mounts(config.threads).context("start the threads that serve the mount")?;
        Ok(larder_fs::mount::mount(&pool, Arc::clone(dataset), &config)?)
    }

    /// Measures all epochs of one cell. Each epoch starts after all blocks that the previous epoch fetched are in the
    /// store, so that no read shares a fetch of an earlier epoch and the hit ratio does not depend on the disk.
    pub(super) fn measure(
        &self,
        config: &QuickstartConfig,
        policy: PolicyKind,
        share: f64,
        bar: &ProgressBar,
    ) -> anyhow::Result<QuickstartCell> {
        let counters = Arc::new(StoreCounters::default());
        let (dataset, store) = self.open(policy, share, config.seed, &counters)?;
        let mounted = self.mount(&dataset)?;
        let reader = self.reader(config, bar);
        let mut epochs = Vec::new();
        for number in 0..config.epochs {
            bar.set_message(format!("{policy} {:.2} % cached, epoch {}", share * 100.0, number + 1));
            epochs.push(self.counted(&dataset, || reader.read(number, true))?);
        }
        self.close(mounted, &dataset, store)?;
        Ok(QuickstartCell { policy: policy.to_string(), share, evicted: counters.evicted.get(), epochs })
    }

    /// Measures the speed of the three sources with a cache of the whole dataset: S3, the cache's disk, the page cache.
    pub(super) fn measure_speed(&self, config: &QuickstartConfig, bar: &ProgressBar) -> anyhow::Result<Speed> {
        let (dataset, store) = self.open(PolicyKind::Nr, 1.0, config.seed, &Arc::default())?;
        let reader = self.reader(config, bar);
        bar.set_message("cold: from S3");
        let mounted = self.mount(&dataset)?;
        let cold = self.counted(&dataset, || reader.read(0, true))?.epoch;
        mounted.unmount()?;

        // A new mount, of which the kernel has cached no page, name or attribute.
        bar.set_message("warm: from the cache's disk");
        let mounted = self.mount(&dataset)?;
        let counting = Counting::of_mount(mounted.path());
        let warm = reader.read(1, true)?;
        let warm_requests = counting.and_then(|counting| counting.read());

        bar.set_message("hot: from the page cache");
        reader.read(2, false)?;
        let counting = Counting::of_mount(mounted.path());
        let hot = reader.read(3, false)?;
        let hot_requests = counting.and_then(|counting| counting.read());
        self.close(mounted, &dataset, store)?;
        Ok(Speed { cold, warm, hot, warm_requests, hot_requests })
    }

    fn close(&self, mounted: Mounted, dataset: &Dataset, store: Store) -> anyhow::Result<()> {
        mounted.unmount()?;
        self.runtime.block_on(dataset.drain());
        store.close()?;
        Ok(())
    }

    fn reader<'a>(&self, config: &'a QuickstartConfig, bar: &'a ProgressBar) -> Reader<'a> {
        let mountpoint = self.folder.join("mnt");
        Reader { config, targets: self.files.iter().map(|file| target(&mountpoint, file)).collect(), bar }
    }

    /// Reads an epoch, waits until its blocks are in the store, and counts its requests to the origin.
    fn counted(&self, dataset: &Dataset, read: impl FnOnce() -> anyhow::Result<Epoch>) -> anyhow::Result<Counted> {
        self.server.reset_counters();
        let epoch = read()?;
        let started = Instant::now();
        let settle = async { tokio::time::timeout(SETTLE_TIMEOUT, dataset.settle()).await };
        let settled = self.runtime.block_on(settle).is_ok();
        let settle_seconds = started.elapsed().as_secs_f64();
        let counters = self.server.counters();
        let requested = self.files.iter().filter(|file| self.server.gets_of(BUCKET, &key(&file.path)) > 0).count();
        Ok(Counted {
            hit_ratio_bytes: 1.0 - counters.get_bytes as f64 / epoch.bytes as f64,
            hit_ratio_files: 1.0 - requested as f64 / epoch.files as f64,
            gets: counters.gets,
            get_bytes: counters.get_bytes,
            epoch,
            settle_seconds,
            settled,
        })
    }
}

/// Reads the whole dataset through the mount.
struct Reader<'a> {
    config: &'a QuickstartConfig,
    targets: Vec<Target>,
    bar: &'a ProgressBar,
}

impl Reader<'_> {
    fn read(&self, number: u32, drop_pages: bool) -> anyhow::Result<Epoch> {
        let seed = epoch_seed(self.config.seed, number);
        let options = ReadOptions { readers: self.config.readers, drop_pages, files_per_second: None, seed };
        read_epoch(&self.targets, &Mutex::default(), options, self.bar)
    }
}

fn key(path: &Path) -> String {
    format!("{PREFIX}/{}", path.display())
}

fn target(mountpoint: &Path, file: &MadeFile) -> Target {
    Target { path: mountpoint.join(&file.path), size: Some(file.size), crc32c: Some(file.crc32c) }
}
