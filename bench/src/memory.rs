//! The memory of larderd while many datasets are read cold at once, beside one dataset.
//!
//! The cast: [`run`] reads all files of one dataset and of many, each on a new [node](crate::node) with an empty cache;
//! `sampler` samples the resident memory of larderd meanwhile; `outcome` has the figures and their table.
//!
//! Invariant: each file is read from the origin, and every byte is checked. An epoch with fewer GETs than files is an
//! error, not a figure.

mod outcome;
mod sampler;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::node::{Node, Origin, OriginOptions};
use crate::reader::Reader;
use crate::side_by_side::{Progress, Scratch};
use crate::systems::{Stop, child};
use larder_epochs::epochs::write_expected;
use larder_epochs::kernel_caches::drop_kernel_caches;
pub use outcome::{MemoryConfig, MemoryOutcome, MemoryRow};
use sampler::Sampler;

/// Measures everything. Must be called as root, on the main thread. Errors stop the run.
pub fn run(config: &MemoryConfig, progress: &dyn Progress) -> anyhow::Result<MemoryOutcome> {
    child::own_mounts()?;
    let (_scratch, folder) = Scratch::new(&config.folder, "memory-")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let stop = Stop::on_signals(runtime.handle())?;
    let mut numbers = vec![1, config.datasets];
    numbers.dedup();
    progress.steps(numbers.len() as u64 * u64::from(config.rounds));
    progress.doing("making the datasets");
    let options = OriginOptions {
        datasets: config.datasets,
        files: config.files,
        file_bytes: config.file_bytes,
        seed: config.seed,
        delay: Duration::from_millis(config.origin_delay_ms),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let origin = Origin::start(&options, &stop)?;
    let lab = Lab { config, origin: &origin, runtime: &runtime, stop: &stop, progress };
    let mut outcome = MemoryOutcome { config: config.clone(), rows: Vec::new() };
    for round in 0..config.rounds {
        for &datasets in &numbers {
            stop.check()?;
            let home = folder.join(format!("round-{round}-{datasets}"));
            let row = lab.measure(&home, datasets, round)?;
            progress.measured(&format!("round {}: {row}", round + 1));
            outcome.rows.push(row);
            std::fs::remove_dir_all(&home).with_context(|| format!("remove {}", home.display()))?;
        }
    }
    Ok(outcome)
}

struct Lab<'a> {
    config: &'a MemoryConfig,
    origin: &'a Origin,
    runtime: &'a Runtime,
    stop: &'a Stop,
    progress: &'a dyn Progress,
}

impl Lab<'_> {
    /// Reads the first `datasets` datasets on a node in `home`.
    fn measure(&self, home: &Path, datasets: u32, round: u32) -> anyhow::Result<MemoryRow> {
        let config = self.config;
        let flags = [format!("--threads={}", config.threads)];
        let mut node = Node::start(&config.programs, home, self.origin, &flags, self.stop)?;
        let count = datasets as usize;
        node.publish(self.runtime, &self.origin.names()[..count], self.progress)?;
        let files = self.origin.datasets()[..count].concat();
        let expected = home.join("expected");
        write_expected(&expected, &files)?;
        let reader = Reader { binary: &config.programs.larder, expected: &expected, work: home, stop: self.stop };

        self.progress.doing(&format!("reading {datasets} datasets cold"));
        drop_kernel_caches()?;
        let larderd = node.larderd()?;
        let before = node.usage()?;
        let target_bytes = memory_target(&node.volumes().join(&self.origin.names()[0]))?;
        let sampler = Sampler::start(larderd)?;
        let seed = config.seed.wrapping_add(u64::from(round));
        let read = || reader.read(&node.volumes(), config.readers, datasets * config.files, seed);
        let (epoch, gets) = self.origin.counting_gets(read)?;
        let sampled_rss_bytes = sampler.peak();
        let usage = node.usage()?;
        ensure!(gets >= epoch.files, "{} files were read with {gets} GETs: they were not cold", epoch.files);
        Ok(MemoryRow {
            datasets,
            round,
            epoch,
            idle_rss_bytes: before.rss_bytes,
            sampled_rss_bytes,
            peak_rss_bytes: usage.peak_rss_bytes,
            target_bytes,
            cpu_seconds: usage.cpu_seconds - before.cpu_seconds,
        })
    }
}

/// The memory target of the larderd that serves `mount`.
fn memory_target(mount: &Path) -> anyhow::Result<u64> {
    let path = mount.join(".larder/stats.json");
    let text = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let stats: Value = serde_json::from_slice(&text).context("parse the stats of the mount")?;
    stats["metrics"]["fs_memory_target_bytes"].as_u64().context("the stats do not give larderd's memory target")
}
