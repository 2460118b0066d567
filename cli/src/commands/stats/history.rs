//! `larder stats --history`

use std::process::ExitCode;

use larder_cachenode::Home;
use larder_cachenode::history::{self, PassRecord};

use crate::output::{self, cell, table};
use crate::why;

/// Prints the passes that have ended, also of mounts that are gone, oldest first.
pub(super) fn run(as_json: bool) -> anyhow::Result<ExitCode> {
    let records = history::read(Home::of_process()?.dir());
    if as_json {
        output::json(&records)?;
    } else if records.is_empty() {
        output::note(format_args!("no pass over a dataset has ended yet"));
    } else {
        output::text(&table(
            ["ENDED", "DATASET", "PASS", "HIT", "PROMISED", "TOOK", "WAITED", "FOR"],
            &rows(&records),
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn rows(records: &[PassRecord]) -> Vec<[String; 8]> {
    let row = |record: &PassRecord| {
        let pass = &record.pass;
        let part = if pass.complete { String::new() } else { " (cut off)".to_owned() };
        [
            why::time(record.ended_unix_seconds),
            cell(&record.name),
            format!("{}{part}", pass.number),
            pass.hit_ratio.map_or("-".to_owned(), why::percent),
            why::percent(pass.promised_ratio),
            why::seconds(pass.seconds),
            why::seconds(pass.stall_seconds),
            why::longest(pass).map_or("", why::awaited).to_owned(),
        ]
    };
    records.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_the_hits_beside_the_promise_and_the_longest_wait() {
        let record = |complete: bool| {
            serde_json::from_value::<PassRecord>(serde_json::json!({
                "name": "pets\u{1b}[2J", "origin": "s3://b/pets", "snapshot": "ab", "cache": "ab", "policy": "nr",
                "ended_unix_seconds": 1_000,
                "pass": {
                    "number": 3, "started_unix_seconds": 760, "seconds": 240.0, "complete": complete,
                    "dataset_bytes": 160, "capacity_bytes": 100, "cached_bytes": 100, "hit_ratio": 0.624,
                    "promised_ratio": 0.625, "bytes": {"store": 100, "window": 0, "peer": 0, "origin": 60},
                    "reads": 9, "read_errors": 0, "stall_seconds": 11.0, "stalls": {"origin": 10.0, "disk": 1.0},
                    "origin_errors": 0, "origin_retries": {}, "origin_p50_seconds": null, "origin_p99_seconds": null,
                },
            }))
            .unwrap()
        };
        let rows = rows(&[record(true), record(false)]);
        assert_eq!(
            rows[0],
            ["1970-01-01T00:16:40Z", "pets [2J", "3", "62.4 %", "62.5 %", "240 s", "11 s", "the origin's answers"]
        );
        assert_eq!(rows[1][2], "3 (cut off)");
    }
}
