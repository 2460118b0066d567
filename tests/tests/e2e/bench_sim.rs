//! `larder bench sim` against a real mount: one reader that reads the same files in the same order misses the same
//! number.

use std::fmt::Write;

use larder_e2e::Lab;
use larder_testkit::seeded_bytes;
use serde_json::Value;

const FILES: u64 = 300;
const FILE_BYTES: u64 = 20_000;
const EPOCHS: usize = 4;

/// The misses of each epoch according to the simulation.
fn simulated(lab: &Lab, policy: &str, cache_bytes: &str, seed: &str) -> Vec<u64> {
    let json = lab.folder().join("sim.json");
    let (files, size, epochs) = (FILES.to_string(), FILE_BYTES.to_string(), EPOCHS.to_string());
    let dataset = ["bench", "sim", "--files", &files, "--equal-sizes", "--mean-size", &size, "--nodes", "1"];
    let run = ["--epochs", &epochs, "--policies", policy, "--cache", cache_bytes, "--seed", seed];
    lab.larder_ok(&[&dataset[..], &run, &["--json", json.to_str().unwrap()]].concat());
    let said: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let epochs = said["cells"][0]["epochs"].as_array().unwrap();
    epochs.iter().map(|epoch| epoch["missed_blocks"].as_u64().unwrap()).collect()
}

/// With one serving thread, the policy learns of a hit before the reader opens the next file. With several, the last
/// touches of one file and the first touches of the next may change places, which makes lru that much less exact.
#[test]
fn a_mount_with_one_reader_misses_just_what_the_simulation_says() {
    let lab = Lab::new();
    let mut list = String::new();
    for number in 0..FILES {
        let (name, bytes) = (format!("{number:04}"), seeded_bytes(number, FILE_BYTES));
        writeln!(list, "{FILE_BYTES} {:08x} {name}", larder_dataset::crc32c(&bytes)).unwrap();
        lab.put(&name, bytes);
        // A file that nobody reads lies between any two, so that no run of reads looks like reading in order, which
        // would fetch more.
        lab.put(&format!("{number:04}-unread"), vec![0]);
    }
    let expected = lab.folder().join("list");
    std::fs::write(&expected, list).unwrap();
    for policy in ["nr", "lru", "fifo", "random"] {
        for cache_bytes in ["375000", "1875000", "3750000"] {
            let name = format!("{policy}-{cache_bytes}");
            let mount =
                lab.mount(&name, &lab.url(), &["--policy", policy, "--cache-size", cache_bytes, "--threads", "1"]);
            // The daemon's process id seeds its random policy; the simulation also uses it for the shuffles.
            let seed = u64::from(mount.pid());
            let missed: Vec<u64> = (0..EPOCHS as u64)
                .map(|epoch| {
                    lab.server.reset_counters();
                    // `bench epochs` counts from 1.
                    let order = (seed * 1000 + epoch - 1).to_string();
                    let (dir, list) = (mount.dir().to_str().unwrap(), expected.to_str().unwrap());
                    let reader = ["bench", "epochs", dir, "--expect", list, "--epochs", "1", "--readers", "1"];
                    lab.larder_ok(&[&reader[..], &["--drop", "pages", "--seed", &order]].concat());
                    mount.settle();
                    lab.server.counters().gets
                })
                .collect();
            let expected = simulated(&lab, policy, cache_bytes, &seed.to_string());
            // Other policies evict: a block is a hit until its slot is cleared, which a busy machine does late.
            let most_apart = |expected: u64| if policy == "nr" { 0 } else { expected / 10 };
            let is_alike = missed
                .iter()
                .zip(&expected)
                .all(|(missed, expected)| missed.abs_diff(*expected) <= most_apart(*expected));
            assert!(is_alike, "{name}, seed {seed}: {missed:?} instead of {expected:?}");
            assert_eq!(missed[0], FILES, "{name}");
        }
    }
}

#[test]
fn a_wrong_size_policy_or_share_names_its_flag() {
    let lab = Lab::new();
    for (flag, value) in [("--cache", "120%"), ("--policies", "mru"), ("--nodes", "0"), ("--mean-size", "much")] {
        let output = lab.larder(&["bench", "sim", "--files", "10", flag, value]);
        assert_eq!(output.status.code(), Some(2), "{flag}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(flag) && said.contains(value), "{said}");
    }
}
