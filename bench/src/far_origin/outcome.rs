//! The settings of a run, its measurements, and the table.

use std::fmt;
use std::path::PathBuf;

use larder_dataset::size::show_bytes;
use serde::Serialize;

use larder_epochs::figures::Spread;
use larder_epochs::table::figures_table;

/// The settings of a run.
#[derive(Clone, Debug, Serialize)]
pub struct FarOriginConfig {
    /// Number of files.
    pub files: u32,
    /// Their mean size in bytes.
    pub mean_size: u64,
    /// Number of threads of a cold epoch, and of GETs in flight of `object_store` beside it.
    pub readers: u32,
    /// The most GETs in flight of Larder, and the GETs in flight of `object_store` beside a warm-up.
    pub gets: u32,
    /// The shortest time that the S3 server takes for an answer, in milliseconds.
    pub origin_delay_ms: u64,
    /// The most bytes that it sends per second; `None` for any number.
    pub origin_bytes_per_second: Option<u64>,
    /// Number of rounds.
    pub rounds: u32,
    /// Seed of files and shuffles.
    pub seed: u64,
    /// An existing folder. The benchmark removes its files from it at the end.
    #[serde(skip)]
    pub folder: PathBuf,
    /// The executable of `larder`.
    #[serde(skip)]
    pub binary: PathBuf,
}

/// The kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// `object_store` with as many GETs in flight as a cold epoch has readers.
    RawCold,
    /// A cold epoch through a new mount.
    Cold,
    /// `object_store` with as many GETs in flight as Larder may have.
    RawWarmUp,
    /// `larder warm` of a new mount.
    WarmUp,
}

impl Work {
    pub(super) const ALL: [Self; 4] = [Self::RawCold, Self::Cold, Self::RawWarmUp, Self::WarmUp];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RawCold => "object_store, a GET per reader",
            Self::Cold => "larder, cold epoch",
            Self::RawWarmUp => "object_store, all GETs",
            Self::WarmUp => "larder, warm-up",
        }
    }

    /// The work that this is compared with.
    fn floor(self) -> Option<Self> {
        match self {
            Self::Cold => Some(Self::RawCold),
            Self::WarmUp => Some(Self::RawWarmUp),
            Self::RawCold | Self::RawWarmUp => None,
        }
    }
}

/// One pass over all files.
#[derive(Clone, Debug, Serialize)]
pub struct FarOriginRow {
    pub work: Work,
    /// The round, from 0.
    pub round: u32,
    pub files: u64,
    pub seconds: f64,
    /// GETs that the S3 server received.
    pub gets: u64,
    /// Seconds of CPU of the daemon; `None` without one.
    pub daemon_cpu_seconds: Option<f64>,
}

impl FarOriginRow {
    fn files_per_second(&self) -> f64 {
        self.files as f64 / self.seconds
    }
}

impl fmt::Display for FarOriginRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:.0} files/s", self.work.name(), self.files_per_second())
    }
}

/// The measurements of a run.
#[derive(Clone, Debug, Serialize)]
pub struct FarOriginOutcome {
    pub config: FarOriginConfig,
    /// Size of the dataset.
    pub bytes: u64,
    /// One row per pass.
    pub rows: Vec<FarOriginRow>,
}

impl FarOriginOutcome {
    /// The table that the benchmark prints: the median of the rounds, with minimum and maximum.
    pub fn table(&self) -> String {
        let FarOriginConfig { files, readers, gets, origin_delay_ms, rounds, .. } = self.config;
        let rate = self.config.origin_bytes_per_second.map(|rate| format!(" and at most {}/s", show_bytes(rate)));
        let heads = ["", "files/s", "x object_store", "GETs per file", "daemon CPU s/1000"];
        let mut table = vec![heads.map(str::to_owned).to_vec()];
        for work in Work::ALL {
            let rows = || self.rows.iter().filter(move |row| row.work == work);
            let shown = |digits: usize, spread: Option<Spread>| {
                spread.map_or_else(|| "-".to_owned(), |spread| spread.shown(digits))
            };
            let a_thousand = |row: &FarOriginRow| Some(row.daemon_cpu_seconds? * 1000.0 / row.files as f64);
            table.push(vec![
                work.name().to_owned(),
                shown(0, Spread::of(rows().map(FarOriginRow::files_per_second))),
                shown(2, Spread::of(rows().filter_map(|row| self.ratio(row)))),
                shown(2, Spread::of(rows().map(|row| row.gets as f64 / row.files as f64))),
                shown(3, Spread::of(rows().filter_map(a_thousand))),
            ]);
        }
        format!(
            "{files} files, {:.1} MB, at an S3 server with {origin_delay_ms} ms to each answer{}; {rounds} rounds: \
             median (least..greatest)\n\
             Cold epoch: {readers} readers; object_store beside it has a GET in flight for each. Warm-up: at most \
             {gets} GETs in flight; object_store beside it has as many. x: files/s, by round\n\n{}",
            self.bytes as f64 / 1e6,
            rate.unwrap_or_default(),
            figures_table(&table)
        )
    }

    /// Files per second, times those of `object_store` in the same round.
    fn ratio(&self, row: &FarOriginRow) -> Option<f64> {
        let floor = row.work.floor()?;
        let base = self.rows.iter().find(|base| base.work == floor && base.round == row.round)?;
        Some(row.files_per_second() / base.files_per_second())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round() {
        let config = FarOriginConfig {
            files: 1000,
            mean_size: 111_000,
            readers: 64,
            gets: 512,
            origin_delay_ms: 40,
            origin_bytes_per_second: Some(1 << 30),
            rounds: 2,
            seed: 1,
            folder: PathBuf::new(),
            binary: PathBuf::new(),
        };
        let row = |work: Work, round: u32, seconds: f64| FarOriginRow {
            work,
            round,
            files: 1000,
            seconds,
            gets: 1000,
            daemon_cpu_seconds: work.floor().map(|_| 0.2),
        };
        let rows = vec![
            row(Work::RawCold, 0, 1.0),
            row(Work::Cold, 0, 2.0),
            row(Work::RawCold, 1, 3.2),
            row(Work::Cold, 1, 4.0),
        ];
        let table = FarOriginOutcome { config, bytes: 111_000_000, rows }.table();
        let line = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        let cold = line("larder, cold epoch");
        assert!(cold.contains("375 (250..500)") && cold.contains("0.65 (0.50..0.80)"), "{table}");
        assert!(cold.ends_with("0.200 (0.200..0.200)"), "{table}");
        assert!(line("object_store, a GET per reader").ends_with('-'), "{table}");
        assert!(line("larder, warm-up").ends_with('-') && table.contains("at most 1.0 GiB/s"), "{table}");
    }
}
