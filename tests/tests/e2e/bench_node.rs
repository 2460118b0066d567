//! The benchmarks of a node and of a far origin as a user runs them, with few files: real mounts, real processes,
//! counts that must be exact. Each checks the bytes that it reads and fails at a wrong one.

use std::process::{Child, Command, Stdio};

use larder_daemon_api::mountinfo::mounts;
use larder_e2e::{Lab, wait_until};
use larder_testkit::built;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Runs a benchmark. Returns its table and its figures. It leaves nothing behind.
fn run(name: &str, args: &[&str]) -> (String, Value) {
    let lab = Lab::new();
    // It runs these.
    for program in ["larder", "larderd", "larder-csi"] {
        built(program);
    }
    let (json, folder) = (lab.folder().join("figures.json"), lab.folder().join("disk"));
    let paths = [&json, &folder].map(|path| path.to_str().unwrap());
    let table = lab.larder_bench(&[&[name, "--json", paths[0], "--folder", paths[1]], args].concat());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "nothing is left behind");
    assert!(mounts().unwrap().iter().all(|mount| !mount.path.starts_with(&folder)), "no mount is left behind");
    (table, serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap())
}

/// A benchmark that does not outlive the test.
struct Benchmark(Child);

impl Drop for Benchmark {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("not a number: {value}"))
}

#[test]
fn a_restart_is_timed_until_each_mount_has_answered_from_its_cache() {
    let (table, outcome) = run("restart", &["--mounts=3", "--files=2", "--rounds=2"]);
    for words in ["3 mounts", "first cached read, s", "all mounts, s", "2 restarts"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let rows = outcome["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!((&row["mounts"]["count"], &row["gets"]), (&Value::from(3), &Value::from(0)), "{row:#}");
        let (first, all) = (number(&row["first_seconds"]), number(&row["mounts"]["max"]));
        assert!(first > 0.0 && first <= all, "{row:#}");
        assert!(number(&row["threads"]) > 0.0 && number(&row["rss_bytes"]) > 0.0, "{row:#}");
    }
}

#[test]
fn cached_reads_are_timed_alone_and_while_others_hang() {
    let args = ["--hanging=20", "--cached=40", "--file-size=20KB", "--readers=2", "--rounds=1"];
    let (table, outcome) = run("outage", &args);
    for words in ["40 cached files and 20 others", "alone", "in an outage", "20 (20..20)"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let row = &outcome["rows"][0];
    assert_eq!(row["hanging"], 20);
    for epoch in [&row["alone"], &row["in_outage"]] {
        assert_eq!((&epoch["files"], &epoch["bytes"]), (&Value::from(40), &Value::from(800_000)), "{row:#}");
        assert!(number(&epoch["p99_ms"]) >= number(&epoch["p50_ms"]), "{row:#}");
    }
}

#[test]
fn the_memory_of_many_cold_datasets_is_sampled_beside_one() {
    let args = ["--datasets=3", "--files=4", "--file-size=1MiB", "--readers=6", "--threads=4", "--rounds=1"];
    let (table, outcome) = run("memory", &args);
    for words in ["3 datasets of 4 files", "RSS MB, sampled", "x one", "target MB", "most MB"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let rows = outcome["rows"].as_array().unwrap();
    let of = |field: &str| rows.iter().map(|row| row[field].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(of("datasets"), [1, 3]);
    for row in rows {
        assert_eq!(row["epoch"]["bytes"], (number(&row["datasets"]) as u64) * (4 << 20), "{row:#}");
        let (idle, peak) = (number(&row["idle_rss_bytes"]), number(&row["peak_rss_bytes"]));
        let (sampled, target) = (number(&row["sampled_rss_bytes"]), number(&row["target_bytes"]));
        assert!(idle > 0.0 && sampled > 0.0 && peak >= idle && target >= f64::from(64 << 20), "{row:#}");
    }
}

#[test]
fn a_far_origin_is_read_and_warmed_beside_as_many_gets_of_another_client() {
    let (table, outcome) =
        run("far-origin", &["--files=60", "--readers=4", "--gets=8", "--origin-delay=5ms", "--rounds=1"]);
    for words in ["5 ms to each answer", "larder, cold epoch", "larder, warm-up", "x object_store"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let rows = outcome["rows"].as_array().unwrap();
    let works: Vec<_> = rows.iter().map(|row| row["work"].as_str().unwrap()).collect();
    assert_eq!(works, ["raw_cold", "cold", "raw_warm_up", "warm_up"]);
    for (row, in_flight) in rows.iter().zip([4.0, 4.0, 8.0, 8.0]) {
        assert_eq!((&row["files"], &row["gets"]), (&Value::from(60), &Value::from(60)), "{row:#}");
        // Each GET takes 5 ms at least, and at most so many are in flight.
        assert!(number(&row["seconds"]) >= 60.0 * 0.005 / in_flight, "{row:#}");
    }
}

#[test]
fn reads_with_a_plan_are_counted_and_timed_beside_reads_without() {
    let args = ["--files=48", "--mean-size=30KB", "--origin-delay=1ms", "--rounds=1"];
    let (table, outcome) = run("plan", &args);
    for words in ["1 ms to each answer", "GETs, x without a plan", "16 readers, plan, half cached", "stalled s"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let rows = outcome["rows"].as_array().unwrap();
    let of = |work: &str| rows.iter().find(|row| row["work"] == work).unwrap_or_else(|| panic!("{work}: {outcome:#}"));
    assert_eq!(rows.len(), 11);
    let counted = [
        ("one", 3, 3),
        ("one_planned", 48, 48),
        ("one_warm", 48, 0),
        ("many", 48, 48),
        ("many_planned", 48, 48),
        ("many_warm", 48, 0),
        ("paced", 48, 48),
        ("silent", 48, 48),
        ("beside", 24, 24),
    ];
    for (work, files, gets) in counted {
        let row = of(work);
        assert_eq!((&row["files"], &row["gets"]), (&Value::from(files), &Value::from(gets)), "{row:#}");
    }
    // This plan was ahead of its readers.
    let silent = of("silent");
    assert_eq!((&silent["in_time"], &silent["wasted_bytes"]), (&Value::from(48), &Value::from(0)), "{silent:#}");
    let half = of("half_cached");
    assert!((1..48).contains(&half["gets"].as_u64().unwrap()), "{half:#}");
    assert_eq!(half["bytes"], outcome["bytes"]);
    // The kernel may have dropped pages.
    assert!(of("hot")["gets"].as_u64().unwrap() < 48, "{outcome:#}");
}

#[test]
fn copies_to_another_server_are_timed_beside_another_client_and_once_more_with_nothing_to_do() {
    let (table, outcome) = run("sync", &["--files=40", "--transfers=8", "--origin-delay=1ms", "--rounds=1"]);
    for words in ["1 ms to each answer", "larder sync", "x object_store", "again"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let rows = outcome["rows"].as_array().unwrap();
    let of = |tool: &str| rows.iter().find(|row| row["tool"] == tool).unwrap();
    let (raw, larder) = (of("object_store"), of("larder"));
    assert_eq!((&raw["requests"], &raw["again_seconds"]), (&Value::from(80), &Value::Null), "{raw:#}");
    // At least a GET and a PUT for each file; to find out that nothing is missing, less.
    assert!(larder["requests"].as_u64().unwrap() >= 80, "{larder:#}");
    assert!(larder["again_requests"].as_u64().unwrap() < 40, "{larder:#}");
}

#[test]
fn a_file_that_nodes_read_at_once_is_counted_at_the_origin_and_timed_beside_one_node() {
    const SIZE: u64 = 9 << 20;
    let args = ["--nodes=2", "--size=9MiB", "--origin-delay=1ms", "--origin-rate=100MiB/s", "--rounds=1"];
    let (table, outcome) = run("spread", &args);
    for words in ["x one node", "origin bytes / file", "1 ms to each answer"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let rows = outcome["rows"].as_array().unwrap();
    let nodes: Vec<_> = rows.iter().map(|row| row["nodes"].as_u64().unwrap()).collect();
    assert_eq!(nodes, [1, 2]);
    assert_eq!(rows[0]["origin_bytes"], SIZE);
    // On a machine that is too busy for a peer to answer in time, a node fetches a block itself.
    assert!((SIZE..=2 * SIZE).contains(&rows[1]["origin_bytes"].as_u64().unwrap()), "{outcome:#}");
    assert!(rows.iter().all(|row| number(&row["seconds"]) > 0.0), "{outcome:#}");
}

#[test]
fn a_benchmark_that_is_interrupted_leaves_nothing_behind() {
    let lab = Lab::new();
    let folder = lab.folder().join("disk");
    let benchmark = Command::new(built("larder-bench"))
        .args(["restart", "--mounts=2", "--rounds=1000", "--folder"])
        .arg(&folder)
        .env("LARDER_HOME", lab.folder().join("larder"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut benchmark = Benchmark(benchmark);
    let made = || std::fs::read_dir(&folder).into_iter().flatten().flatten().next();
    wait_until("larderd was started", || made().is_some_and(|run| run.path().join("node/larderd.log").exists()));
    kill_process(Pid::from_raw(benchmark.0.id().cast_signed()).unwrap(), Signal::INT).unwrap();
    assert!(!benchmark.0.wait().unwrap().success());
    assert!(made().is_none(), "nothing is left behind");
}
