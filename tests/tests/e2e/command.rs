//! The command as scripts and users see it.

use larder_e2e::Lab;
use larder_testkit::{Fault, seeded_bytes};
use serde_json::Value;

#[test]
fn wrong_use_exits_with_2_and_names_the_flag() {
    let lab = Lab::new();
    for (args, words) in [
        (&["mount", "s3://b/p", "/mnt", "--cache-size", "lots"][..], &["--cache-size", "100GiB"][..]),
        (&["mount", "s3://b/p", "/mnt", "--policy", "mru"], &["--policy", "nr"]),
        (&["mount", "s3://b/p"], &["<DIR>"]),
        (&["quickstart", "--files", "1"], &["--files", "16"]),
        (&["frobnicate"], &["frobnicate"]),
        (&["import", "s3://b/p", "--read-deadline", "0s"], &["--read-deadline", "60s"]),
    ] {
        let error = lab.larder_fails(2, args);
        for word in words {
            assert!(error.contains(word), "{args:?}: {error}");
        }
    }
}

#[test]
fn failures_exit_with_1_and_say_what_to_do() {
    let lab = Lab::new();
    lab.put("a", b"1".to_vec());
    let (url, dir) = (lab.url(), lab.folder().join("dir"));
    std::fs::create_dir(&dir).unwrap();
    let dir = dir.to_str().unwrap();
    let broken = lab.folder().join("broken.manifest");
    std::fs::write(&broken, b"hello").unwrap();
    for (args, words) in [
        (&["mount", &url, "/nonexistent/dir"][..], &["/nonexistent/dir", "mkdir -p"][..]),
        (&["mount", "ftp://host/x", dir], &["unknown kind of origin", "s3://"]),
        (&["mount", dir, dir], &["file://"]),
        (&["mount", broken.to_str().unwrap(), dir], &["not a Larder manifest"]),
        (&["mount", "/nonexistent.manifest", dir], &["/nonexistent.manifest"]),
        (&["umount", dir], &["not a Larder mount"]),
        (&["stats", dir], &["is", "Larder mount"]),
        (&["warm", dir], &["Larder mount"]),
        (&["import", &url, "--to", "s3://bucket/odd"], &["--to", ".manifest"]),
        (&["import", "s3://user:pass@bucket/x"], &["credentials"]),
    ] {
        let error = lab.larder_fails(1, args);
        for word in words {
            assert!(error.contains(word), "{args:?} should say {word}: {error}");
        }
    }
}

#[test]
fn every_command_has_help_and_the_main_ones_examples() {
    let lab = Lab::new();
    assert!(lab.larder_ok(&["--help"]).contains("Examples:"));
    for command in ["quickstart", "import", "pack", "mount", "umount", "warm", "verify", "stats", "doctor", "bench"] {
        assert!(lab.larder_ok(&[command, "--help"]).contains("Usage: larder"), "{command}");
    }
    for command in ["quickstart", "import", "pack", "mount", "verify", "stats"] {
        assert!(lab.larder_ok(&[command, "--help"]).contains("Examples:"), "{command}");
    }
}

#[test]
fn a_busy_mount_says_so_and_leaves_only_when_told_to() {
    let lab = Lab::new();
    lab.put("a", b"1".to_vec());
    let mount = lab.mount("m", &lab.url(), &[]);
    let dir = mount.dir().to_str().unwrap();
    let open = std::fs::File::open(mount.path("a")).unwrap();
    let error = lab.larder_fails(1, &["umount", dir]);
    assert!(error.contains("--lazy"), "{error}");
    lab.larder_ok(&["umount", "--lazy", dir]);
    assert!(!mount.path("a").exists());
    assert_eq!(std::io::read_to_string(open).unwrap(), "1", "an open file can still be read");
}

#[test]
fn after_an_umount_the_cache_is_free_for_the_next_mount() {
    let lab = Lab::new();
    lab.put("a", b"1".to_vec());
    for _ in 0..5 {
        let mount = lab.mount("m", &lab.url(), &[]);
        assert_eq!(std::fs::read(mount.path("a")).unwrap(), b"1");
        lab.larder_ok(&["umount", mount.dir().to_str().unwrap()]);
        // Dropping it would unmount the next one.
        std::mem::forget(mount);
    }
}

#[test]
fn mounting_over_a_mount_is_refused() {
    let lab = Lab::new();
    lab.put("a", b"1".to_vec());
    let mount = lab.mount("m", &lab.url(), &[]);
    let other = lab.cache_dir("other");
    let error = lab
        .larder_fails(1, &["mount", &lab.url(), mount.dir().to_str().unwrap(), "--cache-dir", other.to_str().unwrap()]);
    assert!(error.contains("umount"), "{error}");
    assert_eq!(std::fs::read(mount.path("a")).unwrap(), b"1");
}

#[test]
fn warming_fills_the_cache_so_that_readers_ask_the_origin_for_nothing() {
    let lab = Lab::new();
    for n in 0..100 {
        lab.put(&format!("{n}"), seeded_bytes(n, 10_000));
    }
    let mount = lab.mount("m", &lab.url(), &[]);
    let said = lab.larder_ok(&["warm", mount.dir().to_str().unwrap(), "--wait", "--json"]);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said["blocks_kept"], &said["running"], &said["full"]), (&100.into(), &false.into(), &false.into()));
    mount.settle();
    lab.server.reset_counters();
    for n in 0..100 {
        assert_eq!(mount.read_fresh(format!("{n}")).unwrap(), seeded_bytes(n, 10_000));
    }
    assert_eq!(lab.server.counters().gets, 0);
}

#[test]
fn warming_stops_when_the_cache_is_full_and_evicts_nothing_under_any_policy() {
    for policy in ["nr", "lru", "fifo", "random"] {
        let lab = Lab::new();
        for n in 0..100 {
            lab.put(&format!("{n}"), seeded_bytes(n, 10_000));
        }
        let mount = lab.mount("m", &lab.url(), &["--cache-size", "300000", "--policy", policy]);
        let said = lab.larder_ok(&["warm", mount.dir().to_str().unwrap(), "--wait", "--json"]);
        assert_eq!(serde_json::from_str::<Value>(&said).unwrap()["full"], true, "{policy}");
        mount.settle();
        assert_eq!(mount.metric("store_evicted_total"), 0, "{policy}");
        assert!(mount.metric("store_blocks") >= 25, "{policy}: {}", mount.stats());
    }
}

#[test]
fn verify_finds_what_changed_at_the_origin() {
    let lab = Lab::new();
    for n in 0..10 {
        lab.put(&format!("{n}"), seeded_bytes(n, 100));
    }
    lab.larder_ok(&["import", &lab.url()]);
    lab.larder_ok(&["verify", &lab.url()]);
    lab.larder_ok(&["verify", &lab.url(), "--deep"]);
    lab.put("3", seeded_bytes(99, 100));
    lab.server.delete("bucket", "data/7");
    let output = lab.larder(&["verify", &lab.url(), "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["problems"]["changed"]["first"][0]["path"], "3");
    assert_eq!(said["problems"]["missing"]["first"][0]["path"], "7");
    assert_eq!(said["files_ok"], 8);
}

#[test]
fn a_manifest_beside_the_data_is_found_by_every_node_and_cannot_point_elsewhere() {
    let lab = Lab::new();
    lab.put("a", b"1".to_vec());
    let beside = format!("{}/.larder/manifest", lab.url());
    lab.larder_ok(&["import", &lab.url(), "--to", &beside]);
    // Like a node that has never listed this origin, and now cannot.
    lab.proxy.set_hook(|head| {
        if head.path.contains("list-type=2") {
            Fault::Status { status: 403, code: "AccessDenied" }
        } else {
            Fault::None
        }
    });
    let mount = lab.mount("m", &lab.url(), &[]);
    assert_eq!(std::fs::read(mount.path("a")).unwrap(), b"1");
    drop(mount);
    lab.proxy.set_hook(|_| Fault::None);

    lab.larder_ok(&["import", "s3://bucket/elsewhere", "--to", &beside]);
    let dir = lab.folder().join("dir");
    std::fs::create_dir(&dir).unwrap();
    let error = lab.larder_fails(1, &["mount", &lab.url(), dir.to_str().unwrap()]);
    assert!(error.contains("describes s3://bucket/elsewhere"), "{error}");
}

#[test]
fn a_manifest_from_afar_cannot_open_a_folder_of_this_machine() {
    let lab = Lab::new();
    let folder = lab.folder().join("private");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("secret"), b"secret").unwrap();
    lab.larder_ok(&["import", &format!("file://{}", folder.display()), "--to", "s3://bucket/trap.manifest"]);
    let dir = lab.folder().join("dir");
    std::fs::create_dir(&dir).unwrap();
    let error = lab.larder_fails(1, &["mount", "s3://bucket/trap.manifest", dir.to_str().unwrap()]);
    assert!(error.contains("folder of the machine that made it"), "{error}");
}

#[test]
fn the_quickstart_keeps_what_nr_promises_and_leaves_a_plot() {
    let lab = Lab::new();
    let (plot, json) = (lab.folder().join("plot.svg"), lab.folder().join("result.json"));
    let said = lab.larder_ok(&[
        "quickstart",
        "--files",
        "300",
        "--epochs",
        "2",
        "--plot",
        plot.to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
    ]);
    assert!(said.contains("the talk") && said.contains("cold (from S3)"), "{said}");
    assert!(std::fs::read_to_string(plot).unwrap().contains("<polyline"));
    let outcome: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let nr = outcome["cells"].as_array().unwrap().iter().filter(|cell| cell["policy"] == "nr");
    let mut sizes = 0;
    for cell in nr {
        sizes += 1;
        let (share, hits) = (cell["share"].as_f64().unwrap(), cell["epochs"][1]["hit_ratio_bytes"].as_f64().unwrap());
        assert!((share - hits).abs() <= 0.005, "{hits} instead of {share}: {cell:#}");
        assert_eq!(cell["evicted"], 0);
    }
    assert_eq!(sizes, 4);
    let left: Vec<_> = std::fs::read_dir(lab.folder().join("larder/quickstart")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn bench_epochs_and_doctor_give_tables_and_json() {
    let lab = Lab::new();
    for n in 0..20 {
        lab.put(&format!("{n}"), seeded_bytes(n, 1000));
    }
    let mount = lab.mount("m", &lab.url(), &[]);
    let json = lab.folder().join("epochs.json");
    let args = [
        "bench",
        "epochs",
        mount.dir().to_str().unwrap(),
        "--epochs",
        "2",
        "--drop",
        "pages",
        "--json",
        json.to_str().unwrap(),
    ];
    assert!(lab.larder_ok(&args).contains("files/s"));
    let epochs: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!((epochs.as_array().unwrap().len(), epochs[1]["files"].as_u64()), (2, Some(20)));
    let findings: Value = serde_json::from_slice(&lab.larder(&["doctor", "--json"]).stdout).unwrap();
    assert!(findings.as_array().unwrap().iter().any(|finding| finding["what"] == "fuse" && finding["verdict"] == "ok"));
}
