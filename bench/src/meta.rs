//! Names and attributes: how fast trees are walked and files are looked up, and what a daemon remembers for it.
//!
//! The cast: [`run`] goes through all [`systems`](crate::systems) in every round with a tree of small files; `synthetic`
//! mounts manifests of millions of files that exist nowhere, which only Larder can do; `walk` does what `find`, `ls -l`
//! and a training job's first epoch do.
//!
//! Invariant: every walk and look-up finds every file, of the right size; what does not is an error, not a figure.

mod synthetic;
mod walk;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use serde::Serialize;

use crate::epochs::drop_kernel_caches;
use crate::order::shuffled;
use crate::peers::{LeftOut, Progress, SystemInfo};
use crate::side_by_side::{Scratch, chosen, columns, footer, info, median, turns};
use crate::systems::process::Usage;
use crate::systems::{Source, SourceOptions, Stop, System, child};
pub use synthetic::SyntheticRow;
pub use walk::Rate;

/// Bytes of a file.
const FILE_BYTES: u64 = 1024;

/// Threads that look files up that were looked up before.
const THREADS: usize = 16;

/// The system that the others are compared with.
const BASE: &str = "ext4";

/// What to measure.
#[derive(Clone, Debug, Serialize)]
pub struct MetaConfig {
    /// Files, 200 in a folder; 0 measures no systems.
    pub files: u32,
    /// Files of manifests that are made up.
    pub synthetic: Vec<u32>,
    /// How often all of it is done.
    pub rounds: u32,
    /// The names of the systems to measure; all if there are none.
    pub only: Vec<String>,
    /// Seed of files and orders.
    pub seed: u64,
    /// An existing folder on the disk to measure; what is made there is removed in the end.
    #[serde(skip)]
    pub folder: PathBuf,
    /// The command `larder`.
    #[serde(skip)]
    pub binary: PathBuf,
}

/// One system in one round.
#[derive(Clone, Debug, Serialize)]
pub struct MetaRow {
    /// The system.
    pub system: String,
    /// The round, from 0.
    pub round: u32,
    /// Seconds from the start of the daemon to the first answer to a look-up.
    pub mount_seconds: f64,
    /// Seconds of a walk by names and kinds alone, as `find` does it; nothing in the kernel's caches.
    pub find_seconds: f64,
    /// Each file looked up once in a random order by one thread; nothing in the kernel's caches.
    pub first_stat: Rate,
    /// Seconds of CPU of the daemon for 1,000 of those.
    pub first_stat_cpu_seconds_a_thousand: f64,
    /// Seconds of a walk that looks at each entry, as `ls -lR` does it; nothing in the kernel's caches.
    pub list_seconds: f64,
    /// Each file looked up again, by 16 threads.
    pub second_stat: Rate,
    /// Resident memory of daemon and metadata engine after all that.
    pub rss_bytes: u64,
    /// The most it was.
    pub peak_rss_bytes: u64,
}

/// All that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct MetaOutcome {
    /// What was asked for.
    pub config: MetaConfig,
    /// The systems, in order.
    pub systems: Vec<SystemInfo>,
    /// Those that could not be measured, or not to the end.
    pub left_out: Vec<LeftOut>,
    /// Every system in every round.
    pub rows: Vec<MetaRow>,
    /// Every made-up manifest in every round.
    pub synthetic: Vec<SyntheticRow>,
}

/// Measures everything. Must be called as root, on the main thread. A system that fails is left out from then on; errors
/// are what stops the run.
pub fn run(config: &MetaConfig, progress: &dyn Progress) -> anyhow::Result<MetaOutcome> {
    child::own_mounts()?;
    let (systems, left_out) = chosen(&config.binary, &config.only)?;
    let (_scratch, folder) = Scratch::new(&config.folder, "meta-")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let stop = Stop::on_signals(runtime.handle())?;
    let mut outcome =
        MetaOutcome { config: config.clone(), systems: Vec::new(), left_out, rows: Vec::new(), synthetic: Vec::new() };
    let systems = if config.files == 0 { Vec::new() } else { systems };
    let steps = systems.len() + config.synthetic.len();
    progress.epochs(steps as u64 * u64::from(config.rounds));
    if !systems.is_empty() {
        progress.doing("making the dataset");
        let options = SourceOptions {
            sizes: vec![FILE_BYTES; config.files as usize],
            seed: config.seed,
            folder: folder.join("small"),
        };
        let (source, server) = Source::make(&options, runtime.handle(), &stop, |_| {})?;
        outcome.systems = systems.iter().map(|system| info(&**system)).collect();
        measure_all(&mut outcome, systems, &source, progress)?;
        runtime.block_on(server.shutdown());
    }
    for &files in &config.synthetic {
        progress.doing(&format!("a manifest of {files} files"));
        let made = synthetic::Made::new(&folder.join(format!("manifest-{files}")), files)?;
        for round in 0..config.rounds {
            stop.check()?;
            let row = made.measure(&config.binary, round, config.seed, &stop);
            let row = row.with_context(|| format!("a manifest of {files} files"))?;
            progress.measured(&format!(
                "{files} files made up: mounted in {:.2} s, {:.0} stat/s, {:.0} MB",
                row.mount_seconds,
                row.stat.per_second,
                row.rss_bytes as f64 / 1e6
            ));
            outcome.synthetic.push(row);
        }
    }
    Ok(outcome)
}

fn measure_all(
    outcome: &mut MetaOutcome,
    systems: Vec<Box<dyn System>>,
    source: &Source,
    progress: &dyn Progress,
) -> anyhow::Result<()> {
    let mut running: Vec<Option<Box<dyn System>>> = Vec::new();
    let leave_out = |outcome: &mut MetaOutcome, name: &str, error: &anyhow::Error| {
        progress.measured(&format!("{name}: left out: {error:#}"));
        outcome.left_out.push(LeftOut { name: name.to_owned(), why: format!("{error:#}") });
    };
    for mut system in systems {
        progress.doing(&format!("{}: prepare", system.name()));
        let prepared = system.prepare(source).with_context(|| format!("prepare {}", system.name()));
        source.stop.check()?;
        running.push(match prepared {
            Ok(()) => Some(system),
            Err(error) => {
                leave_out(outcome, system.name(), &error);
                None
            }
        });
    }
    for round in 0..outcome.config.rounds {
        for nth in turns(running.len(), round) {
            let Some(mut system) = running[nth].take() else { continue };
            progress.doing(&format!("round {}: {}", round + 1, system.name()));
            let measured = measure(&mut *system, source, round, outcome.config.seed);
            let unmounted = system.unmount();
            source.stop.check()?;
            match measured.and_then(|row| unmounted.map(|()| row)) {
                Ok(row) => {
                    progress.measured(&format!(
                        "round {}: {}: find {:.2} s, first stat {:.0}/s",
                        round + 1,
                        row.system,
                        row.find_seconds,
                        row.first_stat.per_second
                    ));
                    outcome.rows.push(row);
                    running[nth] = Some(system);
                }
                Err(error) => leave_out(outcome, system.name(), &error.context(format!("round {}", round + 1))),
            }
        }
    }
    Ok(())
}

/// All of one system in one round. It may be left mounted.
fn measure(system: &mut dyn System, source: &Source, round: u32, seed: u64) -> anyhow::Result<MetaRow> {
    drop_kernel_caches()?;
    let paths: Vec<&Path> = source.files.iter().map(|file| file.path.as_path()).collect();
    let first = paths.first().context("a dataset without files")?;
    let started = Instant::now();
    let folder = system.mount(source).context("mount")?;
    std::fs::symlink_metadata(folder.join(first)).with_context(|| format!("look at {}", first.display()))?;
    let mount_seconds = started.elapsed().as_secs_f64();
    let processes = system.processes();

    drop_kernel_caches()?;
    let find_seconds = walk::find(&folder, paths.len())?;

    drop_kernel_caches()?;
    let count = u32::try_from(paths.len()).context("count the files")?;
    let order = |nth: u64| shuffled(count, seed.wrapping_mul(1000).wrapping_add(2 * u64::from(round) + nth));
    let before = Usage::of(&processes);
    let first_stat = walk::stat(&folder, &paths, &order(0), 1, FILE_BYTES)?;
    let cpu_seconds = Usage::of(&processes).cpu_seconds - before.cpu_seconds;

    drop_kernel_caches()?;
    let list_seconds = walk::list(&folder, paths.len(), FILE_BYTES)?;

    let second_stat = walk::stat(&folder, &paths, &order(1), THREADS, FILE_BYTES)?;
    let usage = Usage::of(&processes);
    Ok(MetaRow {
        system: system.name().to_owned(),
        round,
        mount_seconds,
        find_seconds,
        first_stat,
        first_stat_cpu_seconds_a_thousand: cpu_seconds * 1000.0 / paths.len() as f64,
        list_seconds,
        second_stat,
        rss_bytes: usage.rss_bytes,
        peak_rss_bytes: usage.peak_rss_bytes,
    })
}

impl MetaOutcome {
    fn median_of(&self, system: &str, figure: impl Fn(&MetaRow) -> f64) -> Option<f64> {
        median(self.rows.iter().filter(|row| row.system == system).map(figure))
    }

    /// Medians over the rounds, with ratios to the disk itself.
    pub fn table(&self) -> String {
        let mut text = String::new();
        if !self.rows.is_empty() {
            text.push_str(&format!(
                "{} files of {FILE_BYTES} bytes, 200 in a folder; medians of {} rounds; x: as many times as {BASE}\n\n",
                self.config.files, self.config.rounds
            ));
            text.push_str(&columns(&self.system_rows()));
            text.push('\n');
            text.push_str(&footer(&self.systems, &self.left_out));
        }
        if !self.synthetic.is_empty() {
            text.push_str("\nManifests of files that exist nowhere, mounted by larder; medians of the rounds\n\n");
            text.push_str(&columns(&self.synthetic_rows()));
        }
        text
    }

    fn system_rows(&self) -> Vec<Vec<String>> {
        let heads = [
            "system",
            "mount s",
            "find s",
            "x",
            "first stat/s",
            "x",
            "p50 us",
            "p99 us",
            "CPU s/1000",
            "ls -l s",
            "x",
            "again/s",
            "x",
            "p99 us",
            "RSS MB",
        ];
        let mut table = vec![heads.map(str::to_owned).to_vec()];
        let names = self.systems.iter().map(|system| system.name.as_str());
        for name in names.filter(|name| self.rows.iter().any(|row| row.system == **name)) {
            let show = |digits: usize, figure: &dyn Fn(&MetaRow) -> f64| {
                self.median_of(name, figure).map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
            };
            let times = |figure: &dyn Fn(&MetaRow) -> f64| {
                let both = self.median_of(name, figure).zip(self.median_of(BASE, figure));
                both.map_or_else(|| "-".to_owned(), |(value, base)| format!("{:.2}", value / base))
            };
            table.push(vec![
                name.to_owned(),
                show(3, &|row| row.mount_seconds),
                show(2, &|row| row.find_seconds),
                times(&|row| row.find_seconds),
                show(0, &|row| row.first_stat.per_second),
                times(&|row| row.first_stat.per_second),
                show(1, &|row| row.first_stat.p50_us),
                show(1, &|row| row.first_stat.p99_us),
                show(3, &|row| row.first_stat_cpu_seconds_a_thousand),
                show(2, &|row| row.list_seconds),
                times(&|row| row.list_seconds),
                show(0, &|row| row.second_stat.per_second),
                times(&|row| row.second_stat.per_second),
                show(1, &|row| row.second_stat.p99_us),
                show(1, &|row| row.rss_bytes as f64 / 1e6),
            ]);
        }
        table
    }

    fn synthetic_rows(&self) -> Vec<Vec<String>> {
        let heads = ["files", "mount s", "RSS MB", "stat/s", "p50 us", "p99 us", "RSS MB then", "bytes a file"];
        let mut table = vec![heads.map(str::to_owned).to_vec()];
        for &files in &self.config.synthetic {
            let show = |digits: usize, figure: &dyn Fn(&SyntheticRow) -> f64| {
                let found = median(self.synthetic.iter().filter(|row| row.files == files).map(figure));
                found.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
            };
            table.push(vec![
                files.to_string(),
                show(3, &|row| row.mount_seconds),
                show(1, &|row| row.rss_bytes_mounted as f64 / 1e6),
                show(0, &|row| row.stat.per_second),
                show(1, &|row| row.stat.p50_us),
                show(1, &|row| row.stat.p99_us),
                show(1, &|row| row.rss_bytes as f64 / 1e6),
                show(1, &|row| row.manifest_bytes as f64 / f64::from(row.files)),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systems::Kind;

    fn rate(per_second: f64) -> Rate {
        Rate { per_second, p50_us: 7.0, p99_us: 13.0 }
    }

    fn row(system: &str, round: u32, find_seconds: f64, per_second: f64) -> MetaRow {
        MetaRow {
            system: system.to_owned(),
            round,
            mount_seconds: 0.01,
            find_seconds,
            first_stat: rate(per_second),
            first_stat_cpu_seconds_a_thousand: 0.001,
            list_seconds: 1.0,
            second_stat: rate(1e6),
            rss_bytes: 50_000_000,
            peak_rss_bytes: 60_000_000,
        }
    }

    #[test]
    fn the_table_has_medians_and_how_they_compare_with_the_disk() {
        let system = |name: &str| SystemInfo {
            name: name.to_owned(),
            kind: Kind::Floor,
            version: String::new(),
            options: "as it is".to_owned(),
        };
        let outcome = MetaOutcome {
            config: MetaConfig {
                files: 200_000,
                synthetic: vec![1_000_000],
                rounds: 3,
                only: Vec::new(),
                seed: 1,
                folder: PathBuf::new(),
                binary: PathBuf::new(),
            },
            systems: vec![system("ext4"), system("larder")],
            left_out: vec![LeftOut { name: "s3fs".to_owned(), why: "no s3fs".to_owned() }],
            rows: vec![
                row("ext4", 0, 0.2, 100_000.0),
                row("larder", 0, 0.9, 80_000.0),
                row("larder", 1, 0.4, 90_000.0),
                row("larder", 2, 0.3, 99_000.0),
            ],
            synthetic: vec![SyntheticRow {
                files: 1_000_000,
                round: 0,
                mount_seconds: 0.25,
                rss_bytes_mounted: 20_000_000,
                stat: rate(90_000.0),
                rss_bytes: 40_000_000,
                manifest_bytes: 76_000_000,
            }],
        };
        let table = outcome.table();
        let line = table.lines().find(|line| line.starts_with("larder")).unwrap();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells[..6], ["larder", "0.010", "0.40", "2.00", "90000", "0.90"]);
        let made_up = table.lines().find(|line| line.starts_with("1000000")).unwrap();
        let cells: Vec<&str> = made_up.split_whitespace().collect();
        assert_eq!(cells, ["1000000", "0.250", "20.0", "90000", "7.0", "13.0", "40.0", "76.0"]);
        assert!(table.contains("s3fs: left out: no s3fs"), "{table}");
    }
}
