//! `larder-bench peers` as a user runs it: real mounts, real processes, counts that must be exact.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use larder_e2e::Lab;
use serde_json::Value;

/// The measurement of a system in a state.
fn one<'a>(outcome: &'a Value, system: &str, state: &str) -> &'a Value {
    let all = outcome["measurements"].as_array().unwrap();
    let mut found = all.iter().filter(|one| one["system"] == system && one["state"] == state);
    let one = found.next().unwrap_or_else(|| panic!("{system} {state}: {outcome:#}"));
    assert!(found.next().is_none(), "{system} {state} is measured once");
    one
}

#[test]
fn peers_are_measured_with_every_byte_checked_and_every_request_counted() {
    let lab = Lab::new();
    let (json, plot) = (lab.folder().join("peers.json"), lab.folder().join("peers.svg"));
    let folder = lab.folder().join("disk");
    let paths = [&json, &plot, &folder].map(|path| path.to_str().unwrap());
    let shown = lab.larder_bench(&[
        "peers",
        "--files=60",
        "--rounds=1",
        "--readers=2",
        "--only=ext4,larder,larder packed",
        "--json",
        paths[0],
        "--plot",
        paths[1],
        "--folder",
        paths[2],
    ]);
    for words in ["COLD:", "WARM:", "HOT:", "files/s, 2 readers", "larder packed", "x ext4", "Method: 60 files"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert!(!shown.contains("left out:"), "{shown}");
    assert!(std::fs::read_to_string(&plot).unwrap().contains("larder packed"));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "nothing is left behind");

    let outcome: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(one(&outcome, "object_store", "cold")["gets"], 60);
    for system in ["ext4", "larder", "larder packed"] {
        for state in ["cold", "warm", "hot"] {
            let measured = one(&outcome, system, state);
            assert_eq!(measured["epoch"]["files"], 60);
            assert_eq!(measured["epoch"]["bytes"], outcome["bytes"], "{system} {state}");
            if state != "cold" || system == "ext4" {
                assert_eq!(measured["gets"], 0, "{system} {state}: {measured:#}");
            }
            if state == "hot" && system != "ext4" {
                assert!(outcome["no_fuse_requests"].is_null(), "{outcome:#}");
                assert_eq!(measured["fuse"]["total"], 0, "{system}: {measured:#}");
            }
        }
    }
    assert_eq!(one(&outcome, "larder", "cold")["gets"], 60);
    let packed = one(&outcome, "larder packed", "cold")["gets"].as_u64().unwrap();
    assert!((1..60).contains(&packed), "{packed}");
    let lookups = one(&outcome, "larder", "warm")["fuse"]["kinds"]["lookup"].as_u64().unwrap();
    assert!(lookups >= 60, "the counters count: {lookups}");
}

/// A program in the lab's folder.
fn program(lab: &Lab, name: &str, script: &str) -> PathBuf {
    let path = lab.folder().join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Stands for a Python with torch: makes and reads files as `bench/python/loader.py` does, in the order of their names.
const LOADER: &str = r#"
if [ "$1" = -c ]; then
    exit 0
fi
if [ "$2" = make ]; then
    mkdir -p "$3/class-0000"
    n=0
    while [ $n -lt "$4" ]; do
        echo "image $n" >"$3/class-0000/image-$n.jpg"
        n=$((n + 1))
    done
    exit 0
fi
sum=$(cd "$3" && xargs cat <"$4" | cksum | cut -d' ' -f1)
samples=$(grep -c . "$4")
echo "{\"samples\": $samples, \"first_samples\": 0, \"seconds\": 2, \"first_seconds\": 1, \"empty_seconds\": 0.5, \"checksum\": $sum}"
"#;

/// Stands for DLIO.
const DLIO: &str = r#"
for option in "$@"; do
    case "$option" in
    ++workload.dataset.data_folder=*) data=${option#*=} ;;
    ++workload.workflow.generate_data=True) generate=1 ;;
    esac
done
if [ -n "$generate" ]; then
    mkdir -p "$data/train" "$data/valid"
    echo 1 >"$data/train/a.npz"
    echo 2 >"$data/valid/b.npz"
    exit 0
fi
cat "$data/train/a.npz" "$data/valid/b.npz" >/dev/null || exit 1
echo '{"metric": {"train_au_percentage": [50.0], "train_throughput_samples_per_second": [7.0]}}' >summary.json
"#;

#[test]
fn loaders_and_training_workloads_are_run_over_each_system_cold_and_warm() {
    let lab = Lab::new();
    let (python, dlio) = (program(&lab, "python", LOADER), program(&lab, "dlio", DLIO));
    let (json, folder) = (lab.folder().join("result.json"), lab.folder().join("disk"));
    let [python, dlio, json_path, folder_path] = [&python, &dlio, &json, &folder].map(|path| path.to_str().unwrap());
    let shared = ["--rounds=1", "--only=ext4,larder", "--json", json_path, "--folder", folder_path];
    for (benchmark, row, rows) in [
        // Larder without a plan, and with one.
        (["loader", "--python", python, "--files=30"], "warm  larder, plan", 6),
        (["mlperf", "--dlio", dlio, "--workloads=unet3d"], "epoch 2  larder", 4),
    ] {
        let shown = lab.larder_bench(&[&benchmark[..], &shared].concat());
        assert!(shown.contains(row) && !shown.contains("left out:"), "{shown}");
        let outcome: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        assert_eq!(outcome["rows"].as_array().unwrap().len(), rows, "{outcome:#}");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "nothing is left behind");
    }
}

#[test]
fn a_list_of_expected_files_is_held_against_what_is_read() {
    let lab = Lab::new();
    let folder = lab.folder().join("data");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("a"), b"hello").unwrap();
    std::fs::write(folder.join("b"), b"not in the list").unwrap();
    let (list, json) = (lab.folder().join("list"), lab.folder().join("json"));
    let paths = [&folder, &list, &json].map(|path| path.to_str().unwrap());
    let args = ["bench", "epochs", paths[0], "--epochs=1", "--expect", paths[1], "--json", paths[2]];
    std::fs::write(&list, format!("5 {:08x} a\n", larder_dataset::crc32c(b"hello"))).unwrap();
    lab.larder_ok(&args);
    let epochs: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!((&epochs[0]["files"], &epochs[0]["bytes"]), (&Value::from(1), &Value::from(5)));
    std::fs::write(folder.join("a"), b"hellO").unwrap();
    assert!(lab.larder_fails(1, &args).contains("WRONG BYTES"));
}

#[test]
fn the_extender_answers_about_a_made_up_cluster_in_a_process_of_its_own() {
    let lab = Lab::new();
    let json = lab.folder().join("extender.json");
    let args = ["--only=answers", "--known-nodes=50", "--asks=20", "--rounds=2", "--json", json.to_str().unwrap()];
    let shown = lab.larder_bench(&[&["extender"], &args[..]].concat());
    for words in ["50 nodes, 10 datasets and 500 pods known", "an empty request", "resident memory, MiB"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let outcome: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let rows = outcome["answers"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 8);
    assert!(rows.iter().all(|row| row["times"]["count"] == 20), "{outcome:#}");
    for server in outcome["answers"]["servers"].as_array().unwrap() {
        assert!(server["usage"]["rss_bytes"].as_u64().unwrap() > 0, "{server:#}");
        assert!(server["news"]["count"].as_u64().unwrap() > 0, "{server:#}");
    }
    assert!(lab.larder_fails(2, &["bench", "extender"]).contains("larder-bench"), "it says where that benchmark is");
}
