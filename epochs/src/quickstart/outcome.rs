//! The result of the quickstart, as a table and a plot.

use std::fmt::Write;
use std::time::Duration;

use larder_dataset::PolicyKind;
use larder_dataset::size::show_bytes;
use serde::Serialize;

use crate::epochs::Epoch;
use crate::fuse_requests::Requests;
use crate::plot::{Line, Plot};

/// Cache sizes as shares of the dataset: 10, 50, 100 and 160 GB of the 160 GB in the talk that introduced NR (see
/// README.md).
pub const SHARES: [f64; 4] = [0.0625, 0.3125, 0.625, 1.0];

/// The policies, in the table's order.
pub const POLICIES: [PolicyKind; 5] = PolicyKind::ALL;

/// The timeout of settling: until every block that an epoch fetched is in the store.
pub(super) const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);

/// One epoch, with the requests that the origin received for it.
#[derive(Clone, Debug, Serialize)]
pub struct Counted {
    /// Time and speed.
    pub epoch: Epoch,
    /// GETs that the S3 server answered.
    pub gets: u64,
    /// Bytes that the S3 server sent.
    pub get_bytes: u64,
    /// Share of the bytes read that the server did not send.
    pub hit_ratio_bytes: f64,
    /// Share of the files read that the server received no GET for.
    pub hit_ratio_files: f64,
    /// Seconds from the end of the epoch until its last block was in the store.
    pub settle_seconds: f64,
    /// Whether all blocks were in the store before the next epoch began. If not, its reads could share their fetches.
    pub settled: bool,
}

/// All epochs of one policy at one cache size.
#[derive(Clone, Debug, Serialize)]
pub struct QuickstartCell {
    pub policy: String,
    /// Cache size as a share of the dataset.
    pub share: f64,
    /// Blocks evicted in all epochs.
    pub evicted: u64,
    /// The epochs.
    pub epochs: Vec<Counted>,
}

impl QuickstartCell {
    /// Mean of a figure over the epochs after the first.
    pub fn steady(&self, figure: impl Fn(&Counted) -> f64) -> f64 {
        let steady = &self.epochs[1..];
        steady.iter().map(figure).sum::<f64>() / steady.len() as f64
    }
}

/// The result of the quickstart.
#[derive(Clone, Debug, Serialize)]
pub struct QuickstartOutcome {
    /// Files of the dataset.
    pub files: u32,
    /// Bytes of the dataset.
    pub bytes: u64,
    /// Bytes of the manifest per file.
    pub manifest_bytes_a_file: f64,
    /// One cell per policy and cache size.
    pub cells: Vec<QuickstartCell>,
    /// The first epoch with an empty cache, everything from S3.
    pub cold: Epoch,
    /// An epoch from the cache's disk over a new mount, with nothing in the kernel's caches.
    pub warm: Epoch,
    /// An epoch from the kernel's page cache.
    pub hot: Epoch,
    /// Requests of the kernel during the warm epoch; `None` if they could not be counted.
    pub warm_requests: Option<Requests>,
    /// Requests of the kernel during the hot epoch; `None` if they could not be counted.
    pub hot_requests: Option<Requests>,
    /// Why requests were not counted; `None` if they were.
    pub requests_not_counted: Option<String>,
}

/// The talk's hit ratio for a policy and cache size, in percent; a range if the talk gives one.
fn talk(policy: PolicyKind, share: f64) -> String {
    let percent = share * 100.0;
    match policy {
        PolicyKind::Nr => format!("{percent}"),
        PolicyKind::Smallest => "-".to_owned(),
        _ if share == 1.0 => "100".to_owned(),
        PolicyKind::Lru | PolicyKind::Fifo | PolicyKind::Random => format!("0-{percent}"),
    }
}

impl QuickstartOutcome {
    fn cell(&self, policy: PolicyKind, share: f64) -> Option<&QuickstartCell> {
        self.cells.iter().find(|cell| cell.policy == policy.to_string() && cell.share == share)
    }

    /// The table that the quickstart prints: the talk's hit ratios, the measured hit ratios, and the speeds.
    pub fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "Hit ratio in percent after the first epoch, counted from GETs at the origin: {} files, {}.\n\
             The talk is that of KubeCon China 2019, which introduced nr: of 160 GB, 10, 50, 100 and 160 GB were cached.\n",
            self.files,
            show_bytes(self.bytes)
        );
        let _ = write!(text, "{:<10}{:<12}", "policy", "");
        for (share, talk_gb) in SHARES.iter().zip([10, 50, 100, 160]) {
            let _ = write!(text, "{:>18}", format!("{:.2}% ({talk_gb}/160)", share * 100.0));
        }
        let _ = writeln!(text);
        for policy in POLICIES {
            for (row, label) in ["the talk", "by bytes", "by files"].into_iter().enumerate() {
                let _ = write!(text, "{:<10}{label:<12}", if row == 0 { policy.to_string() } else { String::new() });
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
        self.write_unsettled(&mut text);
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
        self.write_requests(&mut text);
        let _ = writeln!(text, "manifest            {:>9.1} bytes per file", self.manifest_bytes_a_file);
        text
    }

    fn write_unsettled(&self, text: &mut String) {
        let epochs = self.cells.iter().flat_map(|cell| &cell.epochs);
        let unsettled = epochs.filter(|counted| !counted.settled).count();
        if unsettled > 0 {
            let _ = writeln!(
                text,
                "\nWARNING: after {unsettled} epochs the cache disk had not written every block within {} s. The next \
                 epoch may have shared those fetches, so its hit ratio may be too high: use a faster disk (--keep).",
                SETTLE_TIMEOUT.as_secs()
            );
        }
    }

    fn write_requests(&self, text: &mut String) {
        let counted = self.warm_requests.as_ref().zip(self.hot_requests.as_ref());
        let _ = match (counted, &self.requests_not_counted) {
            (Some((warm, hot)), _) => {
                let (warm, hot) = (warm.per_file(self.warm.files), hot.per_file(self.hot.files));
                writeln!(text, "FUSE requests per file: warm{warm}; hot{hot}")
            }
            (None, Some(why)) => writeln!(text, "FUSE requests were not counted: {why}"),
            (None, None) => Ok(()),
        };
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
