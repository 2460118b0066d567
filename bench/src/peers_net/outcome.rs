//! The measurements of a run, and the table.

use std::fmt::Write;

use serde::Serialize;

use super::kind::ServerKind;
use larder_epochs::epochs::Epoch;
use larder_epochs::figures::Spread;
use larder_epochs::table::figures_table;

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct PeersNetRow {
    /// The server that was read from.
    pub kind: ServerKind,
    /// Size of each record.
    pub record_bytes: u32,
    /// Number of concurrent reads.
    pub readers: u32,
    /// The round, from 1.
    pub round: u32,
    /// The result; each record counts as a file.
    pub epoch: Epoch,
    /// Seconds of CPU of the serving process per GB (10^9 bytes).
    pub server_cpu_seconds_per_gb: f64,
    /// Seconds of CPU of the reading process per GB.
    pub reader_cpu_seconds_per_gb: f64,
}

/// The measurements of a run.
#[derive(Clone, Debug, Serialize)]
pub struct PeersNetOutcome {
    /// One row per kind, size, number of readers and round.
    pub rows: Vec<PeersNetRow>,
}

impl PeersNetOutcome {
    fn spread(
        &self,
        kind: ServerKind,
        record_bytes: u32,
        readers: u32,
        figure: impl Fn(&PeersNetRow) -> f64,
    ) -> Option<Spread> {
        let wanted = |row: &&PeersNetRow| (row.kind, row.record_bytes, row.readers) == (kind, record_bytes, readers);
        Spread::of(self.rows.iter().filter(wanted).map(figure))
    }

    /// The table that the benchmark prints: medians over the rounds, minimum and maximum throughput, and the ratios to
    /// raw TCP and, for encrypted servers, to raw TLS.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let mut cells: Vec<(u32, u32)> = self.rows.iter().map(|row| (row.record_bytes, row.readers)).collect();
        cells.sort_unstable();
        cells.dedup();
        for (record_bytes, readers) in cells {
            let median = |kind, figure: &dyn Fn(&PeersNetRow) -> f64| {
                self.spread(kind, record_bytes, readers, figure).map_or(f64::NAN, |spread| spread.median)
            };
            let head = ["", "MB/s", "x TCP", "x TLS", "p50 ms", "p99 ms", "server s/GB", "reader s/GB"];
            let mut rows = vec![head.map(str::to_owned).to_vec()];
            let [tcp, tls] =
                [ServerKind::RawTcp, ServerKind::RawTls].map(|raw| median(raw, &|row| row.epoch.mb_per_second));
            for kind in ServerKind::ALL {
                let speeds = self.spread(kind, record_bytes, readers, |row| row.epoch.mb_per_second);
                let Some(Spread { median: speed, min, max }) = speeds else { continue };
                rows.push(vec![
                    kind.name().to_owned(),
                    format!("{speed:.0} ({min:.0}..{max:.0})"),
                    format!("{:.2}", speed / tcp),
                    if kind.is_encrypted() { format!("{:.2}", speed / tls) } else { "-".to_owned() },
                    format!("{:.2}", median(kind, &|row| row.epoch.p50_ms)),
                    format!("{:.2}", median(kind, &|row| row.epoch.p99_ms)),
                    format!("{:.3}", median(kind, &|row| row.server_cpu_seconds_per_gb)),
                    format!("{:.3}", median(kind, &|row| row.reader_cpu_seconds_per_gb)),
                ]);
            }
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{record_bytes} B, {readers} concurrent reads\n{}", figures_table(&rows));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_table_has_medians_and_how_they_compare_with_raw_tcp_and_raw_tls() {
        let row = |kind, round, seconds| PeersNetRow {
            kind,
            record_bytes: 1000,
            readers: 1,
            round,
            epoch: Epoch::new(vec![Duration::from_millis(2); 10], 1_000_000_000, seconds, 0.5),
            server_cpu_seconds_per_gb: 0.25,
            reader_cpu_seconds_per_gb: 0.5,
        };
        let rows = vec![
            row(ServerKind::RawTcp, 1, 1.0),
            row(ServerKind::Peer, 1, 2.0),
            row(ServerKind::Peer, 2, 4.0),
            row(ServerKind::Peer, 3, 1.0),
            row(ServerKind::RawTls, 1, 2.5),
            row(ServerKind::PeerStoreTls, 1, 5.0),
        ];
        let table = PeersNetOutcome { rows }.table();
        let line = table.lines().find(|line| line.starts_with("peer, memory")).unwrap();
        let cells: Vec<&str> = line.split_whitespace().skip(2).collect();
        assert_eq!(cells, ["500", "(250..1000)", "0.50", "-", "2.00", "2.00", "0.250", "0.500"]);
        let line = table.lines().find(|line| line.starts_with("peer, store, mTLS")).unwrap();
        let cells: Vec<&str> = line.split_whitespace().skip(3).collect();
        assert_eq!(cells[..4], ["200", "(200..200)", "0.20", "0.50"]);
        assert!(!table.contains("peer, memory, mTLS"), "{table}");
    }
}
