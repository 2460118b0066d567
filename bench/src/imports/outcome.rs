//! The settings of a run, its measurements, and the table.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use larder_epochs::figures::Spread;
use larder_epochs::table::figures_table;

/// The settings of a run.
#[derive(Clone, Debug, Serialize)]
pub struct ImportsConfig {
    /// Number of generated objects; 0 skips them.
    pub keys: u64,
    /// Whether to skip the import with one LIST call at a time.
    pub skip_one_call: bool,
    /// How long the server takes for a page of 1,000 keys.
    pub page_ms: u64,
    /// Number of empty files on the disk; 0 skips them.
    pub folder_entries: u64,
    /// Number of rounds.
    pub rounds: u32,
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
    /// An import with one LIST call at a time.
    OneLister,
    /// A listing with many concurrent calls that keeps nothing.
    Listing,
    /// An import with many concurrent LIST calls.
    Parallel,
    /// The same import after some objects were replaced.
    Again,
    /// An import of a directory on the disk.
    Folder,
}

impl Work {
    const ALL: [Self; 5] = [Self::OneLister, Self::Listing, Self::Parallel, Self::Again, Self::Folder];

    fn as_str(self) -> &'static str {
        match self {
            Self::OneLister => "import, one call at a time",
            Self::Listing => "listing alone, 16 calls",
            Self::Parallel => "import, 16 calls",
            Self::Again => "import again, 1 % replaced",
            Self::Folder => "import of a file:// folder",
        }
    }
}

/// One import or listing.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub work: Work,
    /// The round, from 0.
    pub round: u32,
    /// Number of listed files.
    pub files: u64,
    /// Seconds from the start of the process to its end.
    pub seconds: f64,
    /// Number of LIST calls.
    pub list_requests: u64,
    /// Peak resident memory of the process while it listed and sorted; 0 if the work sorts nothing.
    pub peak_memory_bytes: u64,
    /// Bytes that the import sorted on the disk.
    pub spilled_bytes: u64,
    /// Size of the manifest.
    pub manifest_bytes: u64,
}

impl Row {
    pub(super) fn new(work: Work, round: u32, files: u64, seconds: f64) -> Self {
        let (list_requests, peak_memory_bytes, spilled_bytes, manifest_bytes) = Default::default();
        Self { work, round, files, seconds, list_requests, peak_memory_bytes, spilled_bytes, manifest_bytes }
    }

    fn keys_per_second(&self) -> f64 {
        self.files as f64 / self.seconds
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:.1} s, {:.0} keys/s", self.work.as_str(), self.seconds, self.keys_per_second())
    }
}

/// One mount of the imported manifest.
#[derive(Clone, Debug, Serialize)]
pub struct MountRow {
    /// The round, from 0.
    pub round: u32,
    /// Seconds from the start of the daemon to its first answer to a look-up, with nothing in the kernel's caches.
    pub seconds: f64,
    /// Resident memory of the daemon after that look-up.
    pub rss_bytes: u64,
}

impl fmt::Display for MountRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mounted in {:.3} s, {:.0} MB resident", self.seconds, self.rss_bytes as f64 / 1e6)
    }
}

/// The measurements of a run.
#[derive(Clone, Debug, Serialize)]
pub struct ImportsOutcome {
    pub config: ImportsConfig,
    /// One row per import or listing.
    pub rows: Vec<Row>,
    /// One row per mount.
    pub mounts: Vec<MountRow>,
}

impl ImportsOutcome {
    pub(super) fn take(&mut self, row: Row, measured: impl Fn(&Row)) {
        measured(&row);
        self.rows.push(row);
    }

    fn spread(&self, work: Work, figure: impl Fn(&Row) -> f64) -> Option<Spread> {
        Spread::of(self.rows.iter().filter(|row| row.work == work).map(figure))
    }

    /// The table that the benchmark prints: the median of the rounds, with minimum and maximum.
    pub fn table(&self) -> String {
        let ImportsConfig { keys, page_ms, folder_entries, rounds, .. } = self.config;
        let mut text = format!(
            "{keys} generated objects, {page_ms} ms a page of 1,000 keys; {folder_entries} entries of a folder; {rounds} \
             rounds: median (least..greatest)\n\
             x one: keys/s, times those of one call at a time; x list: seconds, times those of the listing alone\n\n"
        );
        let heads = ["", "seconds", "keys/s", "x one", "x list", "peak MB", "spilled MB", "LIST calls", "bytes a file"];
        let mut table = vec![heads.map(str::to_owned).to_vec()];
        for work in Work::ALL {
            let show = |digits: usize, figure: &dyn Fn(&Row) -> f64| match self.spread(work, figure) {
                Some(spread) if spread.max > 0.0 => spread.shown(digits),
                _ => "-".to_owned(),
            };
            if self.rows.iter().all(|row| row.work != work) {
                continue;
            }
            table.push(vec![
                work.as_str().to_owned(),
                show(1, &|row| row.seconds),
                show(0, &Row::keys_per_second),
                self.ratio(work, Work::OneLister, Row::keys_per_second),
                self.ratio(work, Work::Listing, |row| row.seconds),
                show(0, &|row| row.peak_memory_bytes as f64 / 1e6),
                show(0, &|row| row.spilled_bytes as f64 / 1e6),
                show(0, &|row| row.list_requests as f64),
                show(1, &|row| row.manifest_bytes as f64 / row.files.max(1) as f64),
            ]);
        }
        text.push_str(&figures_table(&table));
        let mount = |figure: fn(&MountRow) -> f64| Spread::of(self.mounts.iter().map(figure));
        if let (Some(seconds), Some(rss)) = (mount(|row| row.seconds), mount(|row| row.rss_bytes as f64 / 1e6)) {
            text.push_str(&format!(
                "\nThe manifest is mounted in {} s, with {} MB resident\n",
                seconds.shown(3),
                rss.shown(0)
            ));
        }
        text
    }

    /// The ratio of a figure's median to the median of the same figure for other work.
    fn ratio(&self, work: Work, base: Work, figure: impl Fn(&Row) -> f64 + Copy) -> String {
        let both = self.spread(work, figure).zip(self.spread(base, figure));
        match both.filter(|_| work != Work::Folder && work != base) {
            Some((value, base)) => format!("{:.2}", value.median / base.median),
            None => "-".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_compares_with_one_lister_and_with_the_listing_alone() {
        let config = ImportsConfig {
            keys: 1000,
            skip_one_call: false,
            page_ms: 20,
            folder_entries: 10,
            rounds: 3,
            folder: PathBuf::new(),
            binary: PathBuf::new(),
        };
        let mut outcome = ImportsOutcome { config, rows: Vec::new(), mounts: Vec::new() };
        for (work, seconds) in [
            (Work::OneLister, 20.0),
            (Work::Listing, 2.0),
            (Work::Parallel, 2.5),
            (Work::Again, 3.0),
            (Work::Folder, 1.0),
        ] {
            for round in 0..3 {
                let seconds = seconds * f64::from(round + 1);
                outcome.take(Row { spilled_bytes: 7_000_000, ..Row::new(work, round, 1000, seconds) }, |_| {});
            }
        }
        outcome.mounts.push(MountRow { round: 0, seconds: 0.25, rss_bytes: 40_000_000 });
        let table = outcome.table();
        let line = table.lines().find(|line| line.starts_with("import, 16 calls")).unwrap();
        let cells: Vec<&str> = line.split_whitespace().skip(3).collect();
        assert_eq!(cells[..6], ["5.0", "(2.5..7.5)", "200", "(133..400)", "8.00", "1.25"], "{table}");
        let again = table.lines().find(|line| line.starts_with("import again")).unwrap();
        assert!(again.contains(" 1.50 ") && again.contains("7 (7..7)"), "{table}");
        assert!(table.contains("mounted in 0.250 (0.250..0.250) s, with 40 (40..40) MB"), "{table}");
    }
}
