//! `larder stats --history`

use std::path::PathBuf;
use std::process::ExitCode;

use larder_cachenode::Home;
use larder_cachenode::history::{self, PassRecord};

use crate::commands::mount::has_own_home;
use crate::output::{self, cell, table};
use crate::why;

/// The home of the service, which root may read.
const SERVICE_HOME: &str = "/var/lib/larder/home";

/// Prints the passes that have ended, also of mounts that are gone, oldest first.
pub(super) fn run(as_json: bool) -> anyhow::Result<ExitCode> {
    let mut homes = vec![Home::of_process()?.dir().to_owned()];
    if !has_own_home() {
        homes.push(SERVICE_HOME.into());
    }
    let records = records(&homes);
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

/// The passes of several homes, in the order in which they ended.
fn records(homes: &[PathBuf]) -> Vec<PassRecord> {
    let mut records: Vec<PassRecord> = homes.iter().flat_map(|home| history::read(home)).collect();
    records.sort_by_key(|record| record.ended_unix_seconds);
    records
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

    fn record(complete: bool) -> PassRecord {
        serde_json::from_value(serde_json::json!({
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
    }

    // SEMANTICS: W3
    #[test]
    fn the_passes_of_the_service_stand_among_those_of_the_user() {
        let folder = tempfile::tempdir().unwrap();
        let home = |name: &str, ended: &[i64]| {
            let home = folder.path().join(name);
            std::fs::create_dir(&home).unwrap();
            let line = |ended: &i64| {
                serde_json::to_string(&PassRecord { ended_unix_seconds: *ended, ..record(true) }).unwrap() + "\n"
            };
            std::fs::write(home.join("history.jsonl"), ended.iter().map(line).collect::<String>()).unwrap();
            home
        };
        let homes = [home("user", &[1, 4]), home("service", &[2, 3]), folder.path().join("none")];
        let ended: Vec<i64> = records(&homes).iter().map(|record| record.ended_unix_seconds).collect();
        assert_eq!(ended, [1, 2, 3, 4]);
    }

    #[test]
    fn a_row_shows_the_hits_beside_the_promise_and_the_longest_wait() {
        let rows = rows(&[record(true), record(false)]);
        assert_eq!(
            rows[0],
            ["1970-01-01T00:16:40Z", "pets [2J", "3", "62.4 %", "62.5 %", "240 s", "11 s", "the origin's answers"]
        );
        assert_eq!(rows[1][2], "3 (cut off)");
    }
}
