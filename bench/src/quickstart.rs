//! The main job in one run: files in an embedded S3, imported, mounted through the kernel, read for epochs under every
//! policy at four cache sizes. Hit ratios come from the GETs that the S3 server counted.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use larder_fs::{CacheSpec, Dataset, DatasetConfig, MountConfig, Mounted, open_manifest};
use larder_import::{ImportOptions, Silent, write_manifest};
use larder_origin::{Env, Origin, OriginConfig, OriginUrl};
use larder_s3_server::{S3Server, S3ServerConfig};
use larder_store::{PolicyKind, Store, StoreConfig, StoreCounters};
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::epochs::{Epoch, ReadOptions, Target, read_epoch};
use crate::order::epoch_seed;
use crate::plot::{Line, Plot};
use crate::tree::{self, MadeFile};

/// Cache sizes as shares of the dataset: 10, 50, 100 and 160 GB of the talk's 160 GB.
pub const SHARES: [f64; 4] = [0.0625, 0.3125, 0.625, 1.0];

/// The policies, in the table's order.
pub const POLICIES: [PolicyKind; 4] = [PolicyKind::Nr, PolicyKind::Lru, PolicyKind::Fifo, PolicyKind::Random];

const BUCKET: &str = "quickstart";
const PREFIX: &str = "train";

/// Keys of the embedded server, which nothing outside this process can reach for longer than the run.
const ACCESS_KEY: &str = "quickstart";

/// What to run.
#[derive(Clone, Debug)]
pub struct QuickstartConfig {
    /// Files.
    pub files: u32,
    /// Their mean size in bytes.
    pub mean_size: u64,
    /// Epochs for each policy and size; at least 2.
    pub epochs: u32,
    /// Reader threads.
    pub readers: usize,
    /// Seed of files and shuffles.
    pub seed: u64,
    /// An existing folder for all of it.
    pub folder: PathBuf,
}

/// One epoch with what the origin saw of it.
#[derive(Clone, Debug, Serialize)]
pub struct Counted {
    /// Time and speed.
    pub epoch: Epoch,
    /// GETs that the S3 server answered.
    pub gets: u64,
    /// Bytes that it sent.
    pub get_bytes: u64,
    /// Share of the bytes read that it did not send.
    pub hit_ratio_bytes: f64,
    /// Share of the files read that it was not asked for.
    pub hit_ratio_files: f64,
}

/// All epochs of one policy at one cache size.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The policy.
    pub policy: String,
    /// Cache size as a share of the dataset.
    pub share: f64,
    /// Blocks evicted in all epochs.
    pub evicted: u64,
    /// The epochs.
    pub epochs: Vec<Counted>,
}

impl Cell {
    /// Mean of a figure over the epochs after the first.
    pub fn steady(&self, figure: impl Fn(&Counted) -> f64) -> f64 {
        let steady = &self.epochs[1..];
        steady.iter().map(figure).sum::<f64>() / steady.len() as f64
    }
}

/// What the quickstart found.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Files of the dataset.
    pub files: u32,
    /// Bytes of the dataset.
    pub bytes: u64,
    /// Bytes of its manifest for each file.
    pub manifest_bytes_a_file: f64,
    /// Every policy at every size.
    pub cells: Vec<Cell>,
    /// The first epoch with an empty cache, everything from S3.
    pub cold: Epoch,
    /// An epoch from the cache's disk, the kernel's pages dropped.
    pub warm: Epoch,
    /// An epoch from the kernel's page cache.
    pub hot: Epoch,
}

struct Lab {
    runtime: Runtime,
    server: S3Server,
    origin: Arc<dyn Origin>,
    manifest: PathBuf,
    files: Vec<MadeFile>,
    bytes: u64,
    folder: PathBuf,
}

/// Runs it all; `bar` shows how far it is. Errors say which step failed; a wrong byte is one.
pub fn run(config: &QuickstartConfig, bar: &ProgressBar) -> anyhow::Result<Outcome> {
    let lab = Lab::set_up(config, bar)?;
    let combinations = (SHARES.len() * POLICIES.len()) as u64;
    let epochs = combinations * u64::from(config.epochs) + 2;
    restart_bar(bar, epochs * u64::from(config.files), "files read");
    let (mut cells, mut speed) = (Vec::new(), None);
    for share in SHARES {
        for policy in POLICIES {
            let full_nr = policy == PolicyKind::Nr && share == 1.0;
            let (cell, hot) = lab.measure(config, policy, share, full_nr, bar)?;
            if let Some(hot) = hot {
                speed = Some((cell.epochs[0].epoch.clone(), cell.epochs[1].epoch.clone(), hot));
            }
            cells.push(cell);
        }
    }
    bar.finish_and_clear();
    let (cold, warm, hot) = speed.context("no run at full size")?;
    let manifest_bytes = std::fs::metadata(&lab.manifest).context("look at the manifest")?.len();
    Ok(Outcome {
        files: config.files,
        bytes: lab.bytes,
        manifest_bytes_a_file: manifest_bytes as f64 / f64::from(config.files),
        cells,
        cold,
        warm,
        hot,
    })
}

fn restart_bar(bar: &ProgressBar, length: u64, what: &'static str) {
    bar.reset();
    bar.set_length(length);
    bar.set_style(
        ProgressStyle::with_template("{msg:34} {bar:30} {pos}/{len} {prefix} {per_sec} {eta}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar.set_prefix(what);
}

impl Lab {
    fn set_up(config: &QuickstartConfig, bar: &ProgressBar) -> anyhow::Result<Self> {
        let folder = config.folder.clone();
        let data = folder.join("s3");
        restart_bar(bar, u64::from(config.files), "files made");
        bar.set_message("making the dataset");
        let sizes = tree::sizes(config.files, config.mean_size, config.seed);
        let files = tree::make(&data, &sizes, config.seed, |_| bar.inc(1))?;

        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
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
        write_manifest(&manifest, &imported.built)?;
        imported.journal.discard()?;
        let bytes = imported.built.totals.bytes;
        Ok(Self { runtime, server, origin, manifest, files, bytes, folder })
    }

    fn mount(
        &self,
        policy: PolicyKind,
        share: f64,
        seed: u64,
        counters: &Arc<StoreCounters>,
    ) -> anyhow::Result<(Mounted, Arc<Dataset>, Store)> {
        let store = self.folder.join("store");
        if store.exists() {
            std::fs::remove_dir_all(&store).context("empty the store")?;
        }
        let store = Store::open(StoreConfig::new(&store), Arc::clone(counters))?;
        let reservation_bytes = (self.bytes as f64 * share).ceil() as u64;
        let dataset = Dataset::open(
            Arc::new(open_manifest(&self.manifest)?),
            &store,
            CacheSpec { reservation_bytes, policy, seed },
            Arc::clone(&self.origin),
            None,
            self.runtime.handle(),
            DatasetConfig::DEFAULT,
        )?;
        let mountpoint = self.folder.join("mnt");
        std::fs::create_dir_all(&mountpoint).context("make the mount point")?;
        let mounted = larder_fs::mount::mount(Arc::clone(&dataset), &MountConfig::new(mountpoint))?;
        Ok((mounted, dataset, store))
    }

    /// All epochs of one cell; for the one that caches everything, also an epoch out of the page cache.
    fn measure(
        &self,
        config: &QuickstartConfig,
        policy: PolicyKind,
        share: f64,
        then_hot: bool,
        bar: &ProgressBar,
    ) -> anyhow::Result<(Cell, Option<Epoch>)> {
        let counters = Arc::new(StoreCounters::default());
        let (mounted, dataset, store) = self.mount(policy, share, config.seed, &counters)?;
        let targets: Vec<Target> = self.files.iter().map(|file| target(mounted.path(), file)).collect();
        let sums = Mutex::new(HashMap::new());
        let read = |number: u32, drop_pages| {
            let seed = epoch_seed(config.seed, number);
            read_epoch(&targets, &sums, ReadOptions { readers: config.readers, drop_pages, seed }, bar)
        };
        let mut epochs = Vec::new();
        for number in 0..config.epochs {
            bar.set_message(format!("{policy} {:.2} % cached, epoch {}", share * 100.0, number + 1));
            self.server.reset_counters();
            let epoch = read(number, true)?;
            epochs.push(self.count(epoch));
        }
        let mut hot = None;
        if then_hot {
            bar.set_message("out of the page cache");
            read(config.epochs, false)?;
            hot = Some(read(config.epochs + 1, false)?);
        }
        mounted.unmount()?;
        self.runtime.block_on(dataset.drain());
        store.close()?;
        let evicted = counters.evicted.get();
        Ok((Cell { policy: policy.to_string(), share, evicted, epochs }, hot))
    }

    fn count(&self, epoch: Epoch) -> Counted {
        let counters = self.server.counters();
        let asked = self.files.iter().filter(|file| self.server.gets_of(BUCKET, &key(&file.path)) > 0).count();
        Counted {
            hit_ratio_bytes: 1.0 - counters.get_bytes as f64 / epoch.bytes as f64,
            hit_ratio_files: 1.0 - asked as f64 / epoch.files as f64,
            gets: counters.gets,
            get_bytes: counters.get_bytes,
            epoch,
        }
    }
}

fn key(path: &Path) -> String {
    format!("{PREFIX}/{}", path.display())
}

fn target(mountpoint: &Path, file: &MadeFile) -> Target {
    Target { path: mountpoint.join(&file.path), size: Some(file.size), crc32c: Some(file.crc32c) }
}

/// What the talk's table says of a policy at a cache size, in percent.
fn talk(policy: PolicyKind, share: f64) -> String {
    let percent = share * 100.0;
    match policy {
        PolicyKind::Nr => format!("{percent}"),
        _ if share == 1.0 => "100".to_owned(),
        PolicyKind::Lru | PolicyKind::Fifo | PolicyKind::Random => format!("0-{percent}"),
    }
}

impl Outcome {
    fn cell(&self, policy: PolicyKind, share: f64) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.policy == policy.to_string() && cell.share == share)
    }

    /// The talk's table beside ours, and the speeds.
    pub fn table(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "Hit ratio in percent after the first epoch, counted from GETs at the origin: {} files, {:.1} MB\n",
            self.files,
            self.bytes as f64 / 1e6
        );
        let _ = write!(text, "{:<8}{:<12}", "policy", "");
        for (share, talk_gb) in SHARES.iter().zip([10, 50, 100, 160]) {
            let _ = write!(text, "{:>18}", format!("{:.2}% ({talk_gb}/160)", share * 100.0));
        }
        let _ = writeln!(text);
        for policy in POLICIES {
            for (row, label) in ["the talk", "by bytes", "by files"].into_iter().enumerate() {
                let _ = write!(text, "{:<8}{label:<12}", if row == 0 { policy.to_string() } else { String::new() });
                for share in SHARES {
                    let value = match (row, self.cell(policy, share)) {
                        (0, _) => talk(policy, share),
                        (1, Some(cell)) => format!("{:.2}", 100.0 * cell.steady(|counted| counted.hit_ratio_bytes)),
                        (_, Some(cell)) => format!("{:.2}", 100.0 * cell.steady(|counted| counted.hit_ratio_files)),
                        (_, None) => "-".to_owned(),
                    };
                    let _ = write!(text, "{value:>18}");
                }
                let _ = writeln!(text);
            }
        }
        let evicted: u64 = SHARES.iter().filter_map(|&share| Some(self.cell(PolicyKind::Nr, share)?.evicted)).sum();
        let _ = writeln!(text, "\nnr evicted {evicted} blocks.\n");
        for (name, epoch) in
            [("cold (from S3)", &self.cold), ("warm (cache disk)", &self.warm), ("hot (page cache)", &self.hot)]
        {
            let _ = writeln!(
                text,
                "{name:<20}{:>9.0} files/s {:>8.0} MB/s   p50 {:.2} ms   p99 {:.2} ms",
                epoch.files_per_second, epoch.mb_per_second, epoch.p50_ms, epoch.p99_ms
            );
        }
        let _ = writeln!(text, "manifest            {:>9.1} bytes a file", self.manifest_bytes_a_file);
        text
    }

    /// Hit ratio over cache size, a line for each policy.
    pub fn plot(&self) -> Plot {
        let mut lines: Vec<Line> = POLICIES
            .into_iter()
            .map(|policy| Line {
                name: policy.to_string(),
                points: SHARES
                    .iter()
                    .filter_map(|&share| {
                        let hits = self.cell(policy, share)?.steady(|counted| counted.hit_ratio_bytes);
                        Some((share * 100.0, hits * 100.0))
                    })
                    .collect(),
                is_reference: false,
            })
            .collect();
        let promised = SHARES.iter().map(|share| (share * 100.0, share * 100.0)).collect();
        lines.push(Line { name: "cache / dataset".to_owned(), points: promised, is_reference: true });
        Plot {
            title: "Hit ratio of a shuffled epoch".to_owned(),
            x: "cache, % of the dataset".to_owned(),
            y: "hits, % of the bytes".to_owned(),
            lines,
        }
    }
}
