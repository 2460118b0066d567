//! The settings of a run, its measurements, their goals, and the tables.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use larder_epochs::figures::{Goal, Spread, goals_table, median};
use larder_epochs::plot::{Line, Plot};
use larder_epochs::table::figures_table;
use serde::Serialize;

/// The readers of the work of many.
pub(super) const MANY: u32 = 16;

/// The rate at which many read while the origin is silent. Slower machines read more slowly.
pub(super) const SILENT_BYTES_PER_SECOND: f64 = 333e6;

/// How long the origin is silent.
pub(super) const SILENCE: Duration = Duration::from_millis(700);

/// The bytes per second of the origin behind the cache that has half of the dataset.
pub(super) const SLOW_BYTES_PER_SECOND: u64 = 200_000_000;

/// The shares of the bytes that are cached for the plot, in percent.
pub(super) const SHARES: [u64; 5] = [0, 25, 50, 75, 100];

/// The settings of a run.
#[derive(Clone, Debug, Serialize)]
pub struct PlanConfig {
    /// Number of files.
    pub files: u32,
    /// Their mean size in bytes.
    pub mean_size: u64,
    /// The shortest time that the S3 server takes for an answer, in milliseconds.
    pub origin_delay_ms: u64,
    /// Number of rounds.
    pub rounds: u32,
    /// Whether epochs with several shares of the dataset cached are measured, too.
    pub with_shares: bool,
    /// Seed of files and orders.
    pub seed: u64,
    /// An existing folder. The benchmark removes its files from it at the end.
    #[serde(skip)]
    pub folder: PathBuf,
    /// The executable of `larder`.
    #[serde(skip)]
    pub binary: PathBuf,
}

/// The kinds of work. Nothing is cached at first unless it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// One reader without a plan, of a part of the files.
    One,
    /// One reader with a plan.
    OnePlanned,
    /// One reader without a plan, with everything cached.
    OneWarm,
    /// Many readers without a plan.
    Many,
    /// Many readers with a plan.
    ManyPlanned,
    /// Many readers without a plan, with everything cached.
    ManyWarm,
    /// One reader with a plan, at a part of the rate that it could have.
    Paced,
    /// Many readers with a plan that is ahead of them, of an origin that falls silent.
    Silent,
    /// One reader with a plan of half of the files, beside a plan of the other half that nobody reads.
    Beside,
    /// Many readers with a plan, with half of the dataset cached, and an origin that sends few bytes.
    HalfCached,
    /// Many readers with a plan, with nothing in the cache and everything in the kernel's page cache.
    Hot,
}

impl Work {
    pub(super) const ALL: [Self; 11] = [
        Self::One,
        Self::OnePlanned,
        Self::OneWarm,
        Self::Many,
        Self::ManyPlanned,
        Self::ManyWarm,
        Self::Paced,
        Self::Silent,
        Self::Beside,
        Self::HalfCached,
        Self::Hot,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::One => "1 reader",
            Self::OnePlanned => "1 reader, plan",
            Self::OneWarm => "1 reader, all cached",
            Self::Many => "16 readers",
            Self::ManyPlanned => "16 readers, plan",
            Self::ManyWarm => "16 readers, all cached",
            Self::Paced => "1 reader at 0.8 x its rate, plan",
            Self::Silent => "16 readers, plan, origin silent",
            Self::Beside => "1 reader, plan, beside another plan",
            Self::HalfCached => "16 readers, plan, half cached",
            Self::Hot => "16 readers, plan, in the page cache",
        }
    }

    pub(super) fn readers(self) -> u32 {
        match self {
            Self::One | Self::OnePlanned | Self::OneWarm | Self::Paced | Self::Beside => 1,
            Self::Many | Self::ManyPlanned | Self::ManyWarm | Self::Silent | Self::HalfCached | Self::Hot => MANY,
        }
    }

    pub(super) fn is_planned(self) -> bool {
        !matches!(self, Self::One | Self::OneWarm | Self::Many | Self::ManyWarm)
    }
}

/// One epoch.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PlanRow {
    pub work: Work,
    /// The round, from 0.
    pub round: u32,
    pub files: u64,
    pub bytes: u64,
    pub seconds: f64,
    /// 99 of 100 files took at most this long to open, read and check.
    pub p99_ms: f64,
    /// GETs that the S3 server received.
    pub gets: u64,
    /// Bytes that it sent for them.
    pub get_bytes: u64,
    /// Seconds of CPU of the daemon.
    pub daemon_cpu_seconds: f64,
    /// Planned blocks that were here when they were read.
    pub in_time: u64,
    /// How long readers waited for planned blocks, over all readers.
    pub stalled_seconds: f64,
    /// Bytes that the plan fetched in vain.
    pub wasted_bytes: u64,
}

impl PlanRow {
    pub(super) fn files_per_second(&self) -> f64 {
        self.files as f64 / self.seconds
    }

    /// GETs for which a reader waited.
    fn late(&self) -> u64 {
        self.gets.saturating_sub(self.in_time)
    }

    fn daemon_cpu_of_1000(&self) -> f64 {
        self.daemon_cpu_seconds * 1000.0 / self.files as f64
    }
}

impl fmt::Display for PlanRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:.0} files/s, {} late", self.work.name(), self.files_per_second(), self.late())
    }
}

/// Two epochs of many readers, with a part of the dataset cached.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ShareRow {
    /// The cached part of the bytes, in percent.
    pub cached_percent: u64,
    /// The epoch without a plan.
    pub unplanned: PlanRow,
    /// The epoch with one.
    pub planned: PlanRow,
}

/// The measurements of a run.
#[derive(Clone, Debug, Serialize)]
pub struct PlanOutcome {
    pub config: PlanConfig,
    /// Size of the dataset.
    pub bytes: u64,
    /// One row per epoch.
    pub rows: Vec<PlanRow>,
    /// The epochs with shares of the dataset cached; empty unless they are measured.
    pub shares: Vec<ShareRow>,
}

impl PlanOutcome {
    /// The time that epochs lose to waiting, over the share that is cached: beside an epoch of which all is cached.
    pub fn plot(&self) -> Plot {
        let warm = self.spread(Work::ManyWarm, |row| row.seconds).map_or(0.0, |spread| spread.median);
        let line = |name: &str, epoch: fn(&ShareRow) -> &PlanRow| {
            let point = |percent: u64| {
                let rows = self.shares.iter().filter(|row| row.cached_percent == percent);
                let seconds = median(rows.map(|row| epoch(row).seconds))?;
                Some((percent as f64, (seconds - warm).max(0.0)))
            };
            let points = SHARES.into_iter().filter_map(point).collect();
            Line { name: name.to_owned(), points, is_reference: false }
        };
        Plot {
            title: format!("An epoch of {} files by {MANY} readers", self.config.files),
            x: "cached, % of the bytes".to_owned(),
            y: "seconds more than with everything cached".to_owned(),
            lines: vec![line("without a plan", |row| &row.unplanned), line("with a plan", |row| &row.planned)],
        }
    }

    /// The tables that the benchmark prints: the goals, then the figures as the median of the rounds, with minimum and
    /// maximum.
    pub fn table(&self) -> String {
        let PlanConfig { files, origin_delay_ms, rounds, .. } = self.config;
        let heads = ["", "files/s", "MB/s", "p99 ms", "GETs per file", "late", "stalled s", "daemon CPU s/1000"];
        let mut table = vec![heads.map(str::to_owned).to_vec()];
        for work in Work::ALL {
            let show = |digits: usize, figure: &dyn Fn(&PlanRow) -> f64| shown(digits, self.spread(work, figure));
            let of_plans = |digits: usize, figure: &dyn Fn(&PlanRow) -> f64| {
                if work.is_planned() { show(digits, figure) } else { "-".to_owned() }
            };
            table.push(vec![
                work.name().to_owned(),
                show(0, &PlanRow::files_per_second),
                show(0, &|row| row.bytes as f64 / 1e6 / row.seconds),
                show(2, &|row| row.p99_ms),
                show(3, &|row| row.gets as f64 / row.files as f64),
                show(0, &|row| row.late() as f64),
                of_plans(3, &|row| row.stalled_seconds),
                show(3, &PlanRow::daemon_cpu_of_1000),
            ]);
        }
        format!(
            "{files} files, {:.1} MB, at an S3 server with {origin_delay_ms} ms to each answer; {rounds} rounds: \
             median (least..greatest)\n\
             late: GETs for which a reader waited; stalled: how long all readers together waited for planned files\n\
             The origin is silent for {} ms, from the first read on; with half cached, it sends {} MB/s\n\n{}\n{}",
            self.bytes as f64 / 1e6,
            SILENCE.as_millis(),
            SLOW_BYTES_PER_SECOND / 1_000_000,
            goals_table(&self.goals()),
            figures_table(&table)
        )
    }

    fn spread(&self, work: Work, figure: impl Fn(&PlanRow) -> f64) -> Option<Spread> {
        Spread::of(self.rows.iter().filter(|row| row.work == work).map(figure))
    }

    /// A figure of one kind of work beside that of another, by round.
    fn ratio(&self, work: Work, base: Work, figure: impl Fn(&PlanRow) -> f64) -> Option<Spread> {
        let in_round = |round: u32| self.rows.iter().find(|row| row.work == base && row.round == round);
        let rows = self.rows.iter().filter(|row| row.work == work);
        Spread::of(rows.filter_map(|row| Some(figure(row) / figure(in_round(row.round)?))))
    }

    /// The seconds of an epoch of which half is cached, beside those of the reads or of the missing bytes alone,
    /// whichever is more.
    fn half_cached(&self) -> Option<Spread> {
        let warm = |round: u32| self.rows.iter().find(|row| row.work == Work::ManyWarm && row.round == round);
        let least = |row: &PlanRow| {
            let transfer = row.get_bytes as f64 / SLOW_BYTES_PER_SECOND as f64;
            Some(warm(row.round)?.seconds.max(transfer))
        };
        let rows = self.rows.iter().filter(|row| row.work == Work::HalfCached);
        Spread::of(rows.filter_map(|row| Some(row.seconds / least(row)?)))
    }

    fn goals(&self) -> Vec<Goal> {
        let mut goals = Vec::new();
        let mut add = |figure: &str, digits, measured: Option<Spread>, goal: &str, is_met: &dyn Fn(f64) -> bool| {
            let is_met = measured.is_some_and(|spread| is_met(spread.median));
            let (figure, measured) = (figure.to_owned(), shown(digits, measured));
            goals.push(Goal { figure, measured, goal: goal.to_owned(), is_met });
        };
        let rate = PlanRow::files_per_second;
        let gets = |row: &PlanRow| row.gets as f64 / row.files as f64;
        let wasted = |row: &PlanRow| 100.0 * row.wasted_bytes as f64 / row.bytes as f64;
        let of_warm = self.ratio(Work::OnePlanned, Work::OneWarm, rate);
        let is_as_warm = of_warm.is_some_and(|spread| spread.median >= 0.9);
        let one = self.spread(Work::OnePlanned, rate);
        let is_fast = |rate: f64| rate >= 2700.0 || is_as_warm;
        add("1 reader, plan: files/s", 0, one, ">= 2700, or the next", &is_fast);
        add("the same, x all cached", 2, of_warm, ">= 0.9, or the last", &|_| {
            one.is_some_and(|one| is_fast(one.median))
        });
        add("16 readers, plan: files/s", 0, self.spread(Work::ManyPlanned, rate), ">= 4000", &|rate| rate >= 4000.0);
        let stalls = self.spread(Work::Paced, |row| 100.0 * row.stalled_seconds / row.seconds);
        add("1 reader at 0.8 x its rate: % stalled", 2, stalls, "< 1", &|share| share < 1.0);
        let stalls = self.spread(Work::Silent, |row| row.stalled_seconds);
        add("origin silent for 0.7 s: s stalled", 3, stalls, "0", &|seconds| seconds < 0.001);
        let beside = self.ratio(Work::Beside, Work::OnePlanned, rate);
        add("beside another plan: x alone", 2, beside, ">= 0.9", &|ratio| ratio >= 0.9);
        add("half cached: x the least seconds", 2, self.half_cached(), "<= 1.1", &|ratio| ratio <= 1.1);
        let planned_gets = self.ratio(Work::ManyPlanned, Work::Many, gets);
        add("GETs, x without a plan", 4, planned_gets, "1 +- 0.001", &|ratio| (ratio - 1.0).abs() <= 0.001);
        add("in the page cache: GETs per file", 4, self.spread(Work::Hot, gets), "<= 0.001", &|gets| gets <= 0.001);
        add("% of bytes wasted", 3, self.spread(Work::ManyPlanned, wasted), "<= 0.1", &|share| share <= 0.1);
        let cpu = self.ratio(Work::ManyPlanned, Work::Many, PlanRow::daemon_cpu_of_1000);
        add("daemon CPU, x without a plan", 2, cpu, "<= 1.05", &|ratio| ratio <= 1.05);
        goals
    }
}

fn shown(digits: usize, spread: Option<Spread>) -> String {
    spread.map_or_else(|| "-".to_owned(), |spread| spread.shown(digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(work: Work, round: u32, seconds: f64) -> PlanRow {
        PlanRow {
            work,
            round,
            files: 1000,
            bytes: 100_000_000,
            seconds,
            p99_ms: 1.0,
            gets: 1000,
            get_bytes: 50_000_000,
            daemon_cpu_seconds: 0.2,
            in_time: 990,
            stalled_seconds: 0.005,
            wasted_bytes: 0,
        }
    }

    fn outcome(rows: Vec<PlanRow>) -> PlanOutcome {
        let config = PlanConfig {
            files: 1000,
            mean_size: 100_000,
            origin_delay_ms: 15,
            rounds: 2,
            with_shares: true,
            seed: 1,
            folder: PathBuf::new(),
            binary: PathBuf::new(),
        };
        PlanOutcome { config, bytes: 100_000_000, rows, shares: Vec::new() }
    }

    fn line<'a>(table: &'a str, start: &str) -> &'a str {
        table.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {table}"))
    }

    #[test]
    fn ratios_are_of_the_same_round_and_work_that_was_not_done_misses_its_goal() {
        let rows = vec![
            row(Work::OnePlanned, 0, 1.0),
            row(Work::OneWarm, 0, 0.5),
            row(Work::OnePlanned, 1, 2.0),
            row(Work::OneWarm, 1, 2.0),
            row(Work::Paced, 0, 1.0),
        ];
        let table = outcome(rows).table();
        assert!(line(&table, "the same, x all cached").contains("0.75 (0.50..1.00)"), "{table}");
        assert!(line(&table, "the same, x all cached").ends_with("MISSED"), "{table}");
        assert!(line(&table, "1 reader at 0.8 x its rate: % stalled").ends_with("met"), "{table}");
        assert!(line(&table, "16 readers, plan: files/s").ends_with("MISSED"), "{table}");
        let cells: Vec<&str> = line(&table, "1 reader, plan ").split_whitespace().collect();
        assert_eq!(cells[3..5], ["750", "(500..1000)"], "{table}");
    }

    #[test]
    fn an_epoch_is_beside_its_reads_or_its_missing_bytes_whichever_takes_longer() {
        // 50 MB at 200 MB/s take 0.25 s.
        let rows = vec![
            row(Work::ManyWarm, 0, 0.1),
            row(Work::HalfCached, 0, 0.5),
            row(Work::ManyWarm, 1, 0.4),
            row(Work::HalfCached, 1, 0.4),
        ];
        let spread = outcome(rows).half_cached().unwrap();
        assert_eq!((spread.min, spread.max), (1.0, 2.0));
    }

    #[test]
    fn the_plot_shows_the_seconds_that_are_lost_to_waiting() {
        let mut outcome = outcome(vec![row(Work::ManyWarm, 0, 1.0)]);
        let share = |cached_percent, unplanned, planned| ShareRow {
            cached_percent,
            unplanned: row(Work::Many, 0, unplanned),
            planned: row(Work::ManyPlanned, 0, planned),
        };
        outcome.shares = vec![share(0, 5.0, 2.0), share(100, 1.5, 0.5)];
        let points: Vec<_> = outcome.plot().lines.into_iter().map(|line| line.points).collect();
        assert_eq!(points, [[(0.0, 4.0), (100.0, 0.5)], [(0.0, 1.0), (100.0, 0.0)]]);
    }
}
