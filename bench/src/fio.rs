//! fio over Larder, its peers and the disk itself: parts of one large file, and many small files, cold and warm.
//!
//! The cast: [`run`] goes through all [`systems`](crate::systems) in every round; the job files are those of `bench/fio`;
//! `output` reads what fio says.
//!
//! Invariant: *cold* is a new mount with an empty local cache, *warm* has everything in it; before each run the kernel's
//! caches are dropped, and no offset is read twice, so that the page cache answers nothing but read-ahead.

mod output;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use tokio::runtime::Handle;

use crate::epochs::drop_kernel_caches;
use crate::peers::{LeftOut, Progress, State, SystemInfo};
use crate::side_by_side::{Scratch, chosen, columns, footer, info, median, turns};
use crate::systems::process::Usage;
use crate::systems::{Source, SourceOptions, Stop, System, child, find_program};
use crate::tree;
pub use output::FioSaid;

/// The system that the others are compared with.
const BASE: &str = "ext4";

/// The oldest fio whose options and output are known to be as the job files and this code expect.
const OLDEST_FIO: (u32, u32) = (3, 33);

/// Mean size of the small files: the talk's images.
const SMALL_MEAN: u64 = 111_000;

/// What a cold large file is brought in with.
const COPY_BYTES: usize = 1 << 20;

/// A job file with the sections that are run.
struct Jobs {
    name: &'static str,
    text: &'static str,
    patterns: &'static [&'static str],
}

const LARGE: Jobs = Jobs {
    name: "large-file.fio",
    text: include_str!("../fio/large-file.fio"),
    patterns: &["read-1m", "randread-4k", "randread-128k", "randread-128k-4-jobs"],
};

const SMALL: Jobs =
    Jobs { name: "small-files.fio", text: include_str!("../fio/small-files.fio"), patterns: &["small-files"] };

/// What to measure.
#[derive(Clone, Debug, Serialize)]
pub struct FioConfig {
    /// Bytes of the large file; at least 4 MiB.
    pub size: u64,
    /// Small files; 0 measures none.
    pub files: u32,
    /// The longest one run may read.
    pub seconds: u32,
    /// How often all of it is done.
    pub rounds: u32,
    /// The names of the systems to measure; all if there are none.
    pub only: Vec<String>,
    /// Seed of files, offsets and orders.
    pub seed: u64,
    /// An existing folder on the disk to measure; what is made there is removed in the end.
    #[serde(skip)]
    pub folder: PathBuf,
    /// The command `larder`.
    #[serde(skip)]
    pub binary: PathBuf,
}

/// One run of fio.
#[derive(Clone, Debug, Serialize)]
pub struct FioRow {
    /// The system.
    pub system: String,
    /// The section of the job file.
    pub pattern: String,
    /// What was where.
    pub state: State,
    /// The round, from 0.
    pub round: u32,
    /// What fio says.
    pub said: FioSaid,
    /// Seconds of CPU of the daemon, and of the metadata engine.
    pub daemon_cpu_seconds: f64,
}

/// All that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct FioOutcome {
    /// What was asked for.
    pub config: FioConfig,
    /// What fio calls itself.
    pub fio: String,
    /// The systems, in order.
    pub systems: Vec<SystemInfo>,
    /// Those that could not be measured, or not to the end.
    pub left_out: Vec<LeftOut>,
    /// Every run.
    pub rows: Vec<FioRow>,
}

/// Measures everything. Must be called as root, on the main thread. A system that fails is left out from then on; errors
/// are what stops the run: above all, that there is no fio.
pub fn run(config: &FioConfig, progress: &dyn Progress) -> anyhow::Result<FioOutcome> {
    let (fio, version) = find_fio()?;
    child::own_mounts()?;
    let (systems, left_out) = chosen(&config.binary, &config.only)?;
    let (_scratch, folder) = Scratch::new(&config.folder, "fio-")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let stop = Stop::on_signals(runtime.handle())?;
    let mut outcome = FioOutcome {
        config: config.clone(),
        fio: version,
        systems: systems.iter().map(|system| info(&**system)).collect(),
        left_out,
        rows: Vec::new(),
    };
    let mut sets = vec![(LARGE, vec![config.size])];
    if config.files > 0 {
        sets.push((SMALL, tree::sizes(config.files, SMALL_MEAN, config.seed)));
    }
    let patterns: usize = sets.iter().map(|(jobs, _)| jobs.patterns.len()).sum();
    progress.epochs((systems.len() * patterns * 2) as u64 * u64::from(config.rounds));
    // Each set has systems of its own, since they have been given one source.
    drop(systems);
    for (jobs, sizes) in sets {
        let set = Set { fio: &fio, jobs: &jobs, folder: folder.join(jobs.name), progress };
        set.measure(&mut outcome, sizes, runtime.handle(), &stop)?;
    }
    Ok(outcome)
}

/// fio and its version. Errors say where to get it.
fn find_fio() -> anyhow::Result<(PathBuf, String)> {
    let needed = format!("fio {}.{} or newer is needed: bench/install-peers gets it", OLDEST_FIO.0, OLDEST_FIO.1);
    let fio = find_program("fio").with_context(|| format!("there is no fio on PATH; {needed}"))?;
    let output = Command::new(&fio).arg("--version").stdin(Stdio::null()).output().context("start fio")?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match parse_version(&version) {
        Some(found) if found >= OLDEST_FIO => Ok((fio, version)),
        _ => bail!("{} is {version:?}; {needed}", fio.display()),
    }
}

/// "fio-3.33" and "fio-3.36-5-gabc" have these two numbers.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.strip_prefix("fio-")?.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// One set of files with its job file.
struct Set<'a> {
    fio: &'a Path,
    jobs: &'a Jobs,
    folder: PathBuf,
    progress: &'a dyn Progress,
}

impl Set<'_> {
    fn measure(&self, outcome: &mut FioOutcome, sizes: Vec<u64>, runtime: &Handle, stop: &Stop) -> anyhow::Result<()> {
        let config = outcome.config.clone();
        self.progress.doing("making the dataset");
        let options = SourceOptions { sizes, seed: config.seed, folder: self.folder.clone() };
        let (source, server) = Source::make(&options, runtime, stop, |_| {})?;
        let jobs = self.folder.join(self.jobs.name);
        std::fs::write(&jobs, self.jobs.text).with_context(|| format!("write {}", jobs.display()))?;
        let (systems, _) = chosen(&config.binary, &config.only)?;
        let mut running: Vec<Option<Box<dyn System>>> = Vec::new();
        for mut system in systems {
            self.progress.doing(&format!("{}: prepare", system.name()));
            let prepared = system.prepare(&source).with_context(|| format!("prepare {}", system.name()));
            stop.check()?;
            running.push(match prepared {
                Ok(()) => Some(system),
                Err(error) => {
                    self.leave_out(outcome, system.name(), &error);
                    None
                }
            });
        }
        for round in 0..config.rounds {
            for nth in turns(running.len(), round) {
                let Some(mut system) = running[nth].take() else { continue };
                self.progress.doing(&format!("round {}: {}", round + 1, system.name()));
                let measured = self.measure_system(outcome, &mut *system, &source, round);
                let unmounted = system.unmount();
                stop.check()?;
                match measured.and(unmounted) {
                    Ok(()) => running[nth] = Some(system),
                    Err(error) => {
                        self.leave_out(outcome, system.name(), &error.context(format!("round {}", round + 1)));
                    }
                }
            }
        }
        drop(running);
        runtime.block_on(server.shutdown());
        // The next set needs the room.
        let _ = std::fs::remove_dir_all(&self.folder);
        Ok(())
    }

    fn leave_out(&self, outcome: &mut FioOutcome, name: &str, error: &anyhow::Error) {
        let why = format!("{}: {error:#}", self.jobs.name);
        self.progress.measured(&format!("{name}: left out: {why}"));
        outcome.left_out.push(LeftOut { name: name.to_owned(), why });
    }

    /// All of one system in one round. It may be left mounted.
    fn measure_system(
        &self,
        outcome: &mut FioOutcome,
        system: &mut dyn System,
        source: &Source,
        round: u32,
    ) -> anyhow::Result<()> {
        for pattern in self.jobs.patterns {
            let folder = system.mount(source).context("mount")?;
            self.run_pattern(outcome, system, source, &folder, pattern, State::Cold, round)?;
            system.unmount().context("unmount")?;
        }
        let folder = system.mount(source).context("mount")?;
        // Some keep nothing of what they are asked for while they are busy: what is warm has been read twice.
        for _ in 0..2 {
            drop_kernel_caches()?;
            for file in &source.files {
                read_all(&folder.join(&file.path), file.size)?;
                source.stop.check()?;
            }
        }
        for pattern in self.jobs.patterns {
            self.run_pattern(outcome, system, source, &folder, pattern, State::Warm, round)?;
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "one place where all that belongs to a run comes together")]
    fn run_pattern(
        &self,
        outcome: &mut FioOutcome,
        system: &dyn System,
        source: &Source,
        folder: &Path,
        pattern: &str,
        state: State,
        round: u32,
    ) -> anyhow::Result<()> {
        source.stop.check()?;
        drop_kernel_caches()?;
        let processes = system.processes();
        let before = Usage::of(&processes).cpu_seconds;
        let config = &outcome.config;
        let said = self.run_fio(config, source, folder, pattern, config.seed.wrapping_add(u64::from(round)));
        let said = said.with_context(|| format!("{} {pattern}", state.name()))?;
        let row = FioRow {
            system: system.name().to_owned(),
            pattern: pattern.to_owned(),
            state,
            round,
            said,
            daemon_cpu_seconds: Usage::of(&processes).cpu_seconds - before,
        };
        self.progress.measured(&format!(
            "round {}: {} {} {pattern}: {:.0} MB/s, {:.0} IOPS",
            round + 1,
            row.system,
            state.name(),
            row.said.mb_per_second,
            row.said.iops
        ));
        outcome.rows.push(row);
        Ok(())
    }

    fn run_fio(
        &self,
        config: &FioConfig,
        source: &Source,
        folder: &Path,
        pattern: &str,
        seed: u64,
    ) -> anyhow::Result<FioSaid> {
        let first = source.files.first().context("a dataset without files")?;
        let said = self.folder.join("fio.json");
        let [small, large, a_job] = bytes_to_read(config.size);
        let output = Command::new(self.fio)
            .args(["--readonly", "--output-format=json"])
            .arg(format!("--output={}", said.display()))
            .arg(format!("--section={pattern}"))
            .arg(self.folder.join(self.jobs.name))
            .env("TREE", folder)
            .env("FILE", folder.join(&first.path))
            .env("SEED", seed.to_string())
            .env("MOST_SECONDS", config.seconds.to_string())
            .env("READ_4K", small.to_string())
            .env("READ_128K", large.to_string())
            .env("READ_128K_A_JOB", a_job.to_string())
            .stdin(Stdio::null())
            .output()
            .context("start fio")?;
        let text = std::fs::read_to_string(&said).unwrap_or_default();
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            bail!("fio: {}: {} {}", output.status, words.trim(), text.lines().next().unwrap_or_default());
        }
        output::parse(&text)
    }
}

/// Bytes of a file of so many that are read in pieces of 4 KiB (at most 32 MiB), of 128 KiB (at most 256 MiB), and of
/// 128 KiB by each of four jobs.
fn bytes_to_read(size: u64) -> [u64; 3] {
    const PIECE: u64 = 128 << 10;
    let large = (size / (4 * PIECE) * (4 * PIECE)).clamp(4 * PIECE, 256 << 20);
    [large.min(32 << 20), large, large / 4]
}

fn read_all(path: &Path, size: u64) -> anyhow::Result<()> {
    let context = || format!("read {}", path.display());
    let mut file = File::open(path).with_context(context)?;
    let (mut buffer, mut found) = (vec![0; COPY_BYTES], 0);
    loop {
        let read = file.read(&mut buffer).with_context(context)?;
        if read == 0 {
            break;
        }
        found += read as u64;
    }
    ensure!(found == size, "{} has {found} bytes instead of {size}", path.display());
    Ok(())
}

impl FioOutcome {
    fn median_of(&self, system: &str, pattern: &str, state: State, figure: impl Fn(&FioRow) -> f64) -> Option<f64> {
        let rows = self.rows.iter();
        median(rows.filter(|row| row.system == system && row.pattern == pattern && row.state == state).map(figure))
    }

    /// Medians over the rounds, with ratios to the disk itself.
    pub fn table(&self) -> String {
        let heads = ["", "MB/s", "x", "IOPS", "p50 us", "p99 us", "CPU s/GB"];
        let mut table = vec![heads.map(str::to_owned).to_vec()];
        for pattern in LARGE.patterns.iter().chain(SMALL.patterns) {
            for state in [State::Cold, State::Warm] {
                for system in self.systems.iter().map(|system| system.name.as_str()) {
                    let of = |name: &str, figure: &dyn Fn(&FioRow) -> f64| self.median_of(name, pattern, state, figure);
                    let show = |digits: usize, figure: &dyn Fn(&FioRow) -> f64| {
                        of(system, figure).map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
                    };
                    let speed: &dyn Fn(&FioRow) -> f64 = &|row| row.said.mb_per_second;
                    let Some(own) = of(system, speed) else { continue };
                    table.push(vec![
                        format!("{pattern:<20}  {}  {system}", state.name()),
                        show(1, speed),
                        of(BASE, speed).map_or_else(|| "-".to_owned(), |base| format!("{:.2}", own / base)),
                        show(0, &|row| row.said.iops),
                        show(0, &|row| row.said.p50_us),
                        show(0, &|row| row.said.p99_us),
                        show(2, &|row| row.daemon_cpu_seconds * 1e9 / row.said.bytes as f64),
                    ]);
                }
            }
        }
        format!(
            "{}: one file of {:.0} MB, and {} small files of {} KB; medians of {} rounds; x: as many times as {BASE}\n\n{}\n{}",
            self.fio,
            self.config.size as f64 / 1e6,
            self.config.files,
            SMALL_MEAN / 1000,
            self.config.rounds,
            columns(&table),
            footer(&self.systems, &self.left_out)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_fio_writes_them() {
        assert_eq!(parse_version("fio-3.33"), Some((3, 33)));
        assert_eq!(parse_version("fio-3.36-5-gabc1"), Some((3, 36)));
        assert!(parse_version("fio-3.9") < Some(OLDEST_FIO));
        assert_eq!(parse_version("fio"), None);
    }

    #[test]
    fn no_offset_of_a_file_is_read_twice() {
        for size in [4 << 20, 5_000_000, 100 << 20, 1 << 30, 10 << 30] {
            let [small, large, a_job] = bytes_to_read(size);
            assert!(small <= large && large <= size && a_job * 4 <= large && a_job <= size / 4, "{size}");
            assert!(small % 4096 == 0 && large % (128 << 10) == 0 && a_job % (128 << 10) == 0, "{size}");
        }
        assert_eq!(bytes_to_read(1 << 30), [32 << 20, 256 << 20, 64 << 20]);
    }

    #[test]
    fn every_pattern_is_a_section_of_its_job_file() {
        for jobs in [LARGE, SMALL] {
            for pattern in jobs.patterns {
                assert!(jobs.text.contains(&format!("\n[{pattern}]\n")), "{pattern}");
            }
        }
    }

    #[test]
    fn the_table_has_medians_and_how_they_compare_with_the_disk() {
        let row = |system: &str, round, mb_per_second| FioRow {
            system: system.to_owned(),
            pattern: "randread-4k".to_owned(),
            state: State::Warm,
            round,
            said: FioSaid { bytes: 1_000_000_000, mb_per_second, iops: 100.0, p50_us: 9.0, p99_us: 99.0 },
            daemon_cpu_seconds: 0.5,
        };
        let system = |name: &str| SystemInfo {
            name: name.to_owned(),
            kind: crate::systems::Kind::Floor,
            version: String::new(),
            options: "as it is".to_owned(),
        };
        let outcome = FioOutcome {
            config: FioConfig {
                size: 1 << 30,
                files: 10,
                seconds: 60,
                rounds: 3,
                only: Vec::new(),
                seed: 1,
                folder: PathBuf::new(),
                binary: PathBuf::new(),
            },
            fio: "fio-3.33".to_owned(),
            systems: vec![system("ext4"), system("larder")],
            left_out: Vec::new(),
            rows: vec![row("ext4", 0, 80.0), row("larder", 0, 10.0), row("larder", 1, 60.0), row("larder", 2, 70.0)],
        };
        let table = outcome.table();
        let line = table.lines().find(|line| line.starts_with("randread-4k") && line.contains("larder")).unwrap();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells[1..], ["warm", "larder", "60.0", "0.75", "100", "9", "99", "0.50"]);
    }
}
