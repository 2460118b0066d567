//! The command as scripts and users see it.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use larder_e2e::{Lab, Mount};
use larder_testkit::{Fault, larder_binary, seeded_bytes};
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
    for command in [
        "quickstart",
        "import",
        "pack",
        "sync",
        "mount",
        "umount",
        "warm",
        "verify",
        "stats",
        "top",
        "ui",
        "cache",
        "doctor",
        "explain",
        "bench",
    ] {
        assert!(lab.larder_ok(&[command, "--help"]).contains("Usage: larder"), "{command}");
    }
    for command in ["quickstart", "import", "pack", "sync", "mount", "verify", "stats", "top", "ui", "cache", "explain"]
    {
        assert!(lab.larder_ok(&[command, "--help"]).contains("Examples:"), "{command}");
    }
}

// SEMANTICS: P2
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

// SEMANTICS: P2
#[test]
fn a_mount_that_is_looked_at_can_be_unmounted() {
    let lab = Lab::new();
    lab.put("a", b"1".to_vec());
    let mount = lab.mount("m", &lab.url(), &[]);
    // As `larder top` and `larder ui` do for a moment.
    let looked_at = std::fs::File::open(mount.path(".larder/stats.json")).unwrap();
    let unmounting = lab.command(&["umount", mount.dir().to_str().unwrap()]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    drop(looked_at);
    assert!(unmounting.wait_with_output().unwrap().status.success());
}

// SEMANTICS: P1
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

// SEMANTICS: C7
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

// SEMANTICS: C7
#[test]
fn warming_stops_when_the_cache_is_full_and_evicts_nothing_under_any_policy() {
    for policy in ["nr", "smallest", "lru", "fifo", "random"] {
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

// SEMANTICS: C7
#[test]
fn warming_more_than_the_reservation_says_how_much_does_not_fit_and_is_no_failure() {
    let lab = Lab::new();
    for n in 0..100 {
        lab.put(&format!("{n}"), seeded_bytes(n, 10_000));
    }
    let mount = lab.mount("m", &lab.url(), &["--cache-size", "300000"]);
    for _ in 0..2 {
        let said = lab.larder_ok(&["warm", mount.dir().to_str().unwrap(), "--wait"]);
        let words = ["30 of 100 blocks are cached", "70 do not fit into the dataset's 293.0 KiB", "--cache-size"];
        assert!(words.iter().all(|words| said.contains(words)), "{said}");
    }
}

#[test]
fn the_fields_that_the_documents_give_to_jq_exist() {
    let lab = Lab::new();
    lab.put("a", b"1".to_vec());
    let mount = lab.mount("m", &lab.url(), &[]);
    let stats: Value =
        serde_json::from_str(&lab.larder_ok(&["stats", mount.dir().to_str().unwrap(), "--json"])).unwrap();
    let mut fields = 0;
    let root = larder_testkit::repository();
    let mut documents =
        ["docs/COMMANDS.md", "docs/MOUNT.md", "docs/START.md", "README.md"].map(|path| root.join(path)).to_vec();
    documents.extend(std::fs::read_dir(root.join("docs/kubernetes")).unwrap().map(|page| page.unwrap().path()));
    for document in documents {
        let text = std::fs::read_to_string(&document).unwrap();
        for line in text.lines().filter(|line| line.contains("larder stats")) {
            let Some((_, field)) = line.split_once("| jq .") else { continue };
            let field = field.split_whitespace().next().unwrap();
            let found = field.split('.').try_fold(&stats, |value, name| value.get(name));
            assert!(
                found.is_some_and(|found| !found.is_null()),
                "{}: .{field} is not in {stats:#}",
                document.display()
            );
            fields += 1;
        }
    }
    assert!(fields > 0);
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

// SEMANTICS: V5, I2
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

    lab.put_other("a", b"2".to_vec());
    lab.larder_ok(&["import", &lab.other_url(), "--to", &beside]);
    let dir = lab.folder().join("dir");
    std::fs::create_dir(&dir).unwrap();
    let error = lab.larder_fails(1, &["mount", &lab.url(), dir.to_str().unwrap()]);
    assert!(error.contains("describes s3://bucket/other"), "{error}");
}

// SEMANTICS: I2
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

// SEMANTICS: C1
#[test]
fn the_quickstart_keeps_what_nr_and_smallest_promise_and_leaves_a_plot() {
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
    let cells = outcome["cells"].as_array().unwrap();
    let mut gets = Vec::new();
    for cell in cells.iter().filter(|cell| cell["policy"] == "nr" || cell["policy"] == "smallest") {
        let (share, second) = (cell["share"].as_f64().unwrap(), &cell["epochs"][1]);
        let hits = second["hit_ratio_bytes"].as_f64().unwrap();
        // A file of the largest size that smallest keeps may have no room, which is more of 300 files than of many.
        let tolerance = if cell["policy"] == "smallest" && share > 0.5 { 0.01 } else { 0.005 };
        assert!((share - hits).abs() <= tolerance, "{hits} instead of {share}: {cell:#}");
        assert_eq!(cell["evicted"], 0);
        gets.push((share, second["gets"].as_u64().unwrap()));
    }
    // The cells are sorted by share, and then by policy.
    for pair in gets.chunks(2) {
        let &[(share, nr), (_, smallest)] = pair else { panic!("{gets:?}") };
        assert!(smallest < nr || share == 1.0, "{gets:?}");
    }
    assert_eq!(gets.len(), 8);
    let left: Vec<_> = std::fs::read_dir(lab.folder().join("larder/quickstart")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_command_whose_reader_goes_away_ends_without_a_word() {
    let lab = Lab::new();
    for args in [&["doctor"][..], &["doctor", "--json"], &["help-page"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = lab.command(args).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!((ended.status.code(), &*said), (Some(141), ""), "{args:?}");
    }
    // Nor does it matter that nobody reads its errors.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let failed = lab.command(&["stats", "/no/such/mount"]).stderr(writer).output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
}

#[test]
fn doctor_judges_the_folder_that_mounts_use_and_makes_none() {
    let lab = Lab::new();
    let home = lab.folder().join("larder");
    std::fs::create_dir_all(home.join("store")).unwrap();
    let findings: Value = serde_json::from_slice(&lab.larder(&["doctor", "--json"]).stdout).unwrap();
    let disk = findings.as_array().unwrap().iter().find(|finding| finding["what"] == "disk").unwrap();
    assert!(disk["found"].as_str().unwrap().ends_with("/larder/store"), "{disk}");
    let names: Vec<_> = std::fs::read_dir(&home).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["store"]);
}

#[test]
fn doctor_judges_a_folder_that_is_yet_to_be_made_by_the_disk_that_it_will_be_on_and_leaves_a_part_free() {
    let lab = Lab::new();
    let here = lab.folder().canonicalize().unwrap();
    let disk = |args: &[&str]| {
        let output = lab.command(&[&["doctor", "--json"], args].concat()).current_dir(&here).output().unwrap();
        let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
        let finding = findings.as_array().unwrap().iter().find(|finding| finding["what"] == "disk").unwrap();
        finding["found"].as_str().unwrap().to_owned()
    };
    let absolute = here.join("a/b");
    for dir in ["a", "a/b", "./a", absolute.to_str().unwrap()] {
        let found = disk(&["--cache-dir", dir]);
        assert!(found.ends_with(&format!("free in {}", here.display())), "{dir}: {found}");
        let found = disk(&["--cache-dir", dir, "--keep-free", "40%"]);
        assert!(found.contains("the cache may take") && found.contains("--keep-free 40%"), "{found}");
    }
    let error = lab.larder_fails(2, &["doctor", "--keep-free", "much"]);
    assert!(error.contains("--keep-free") && error.contains("20%"), "{error}");
}

/// Runs its argument as a user without rights, where no systemd is and `/dev/fuse` is as `$DEVICE` says: as in a
/// container, and in a mount namespace that ends with it.
const CONTAINER: &str = r#"
set -e
mount -t tmpfs none /run
mkdir /run/data /run/home /run/mnt
echo hello >/run/data/f
chown 65534:65534 /run/home /run/mnt
touch /run/larder
mount --bind "$LARDER" /run/larder
case $DEVICE in
    missing) mount -t tmpfs none /dev ;;
    *) mknod -m "$DEVICE" /run/fuse c 10 229; mount --bind /run/fuse /dev/fuse ;;
esac
cd /run/home
exec setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/run/home PATH="$PATH:/run" sh -c "$0"
"#;

fn in_a_container(device: &str, run: &str) -> Output {
    Command::new("unshare")
        .args(["--mount", "sh", "-c", CONTAINER, run])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("LARDER", larder_binary())
        .env("DEVICE", device)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn doctor_says_what_works_without_root_and_systemd_in_a_container() {
    for (device, remedy) in [("666", None), ("600", Some("chmod 0666 /dev/fuse")), ("missing", Some("modprobe fuse"))] {
        let works = remedy.is_none();
        let output = in_a_container(device, "larder doctor --json");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(if works { 0 } else { 1 }), "{device}: {said}");
        let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
        let of = |what: &str| {
            let found = findings.as_array().unwrap().iter().find(|finding| finding["what"] == what);
            found.unwrap_or_else(|| panic!("{what} of {findings:#}"))
        };
        assert_eq!(of("fuse")["verdict"], if works { "ok" } else { "fail" }, "{device}");
        if let Some(remedy) = remedy {
            let named = of("fuse")["remedy"].as_str().unwrap();
            assert!(named.contains(remedy) && named.contains("--device /dev/fuse"), "{device}: {named}");
        }
        assert_eq!(of("fusermount3")["verdict"], "ok");
        assert!(of("service")["found"].as_str().unwrap().starts_with("no systemd: mounts end with their process"));
        assert!(of("read size")["found"].as_str().unwrap().contains("only root can raise"), "{findings:#}");
        assert_eq!(of("direct I/O")["verdict"], "ok", "the cache is in the user's home");
        // It is right about what works.
        let output = in_a_container(
            device,
            "larder mount file:///run/data /run/mnt && cat /run/mnt/f && larder umount /run/mnt",
        );
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.success(), works, "{device}: {out}{err}");
        assert_eq!(out.contains("hello\n"), works, "{device}: {out}{err}");
    }
}

#[test]
fn a_cache_size_that_is_likely_a_mistake_is_doubted_and_used() {
    let lab = Lab::new();
    lab.put("a", b"1".to_vec());
    for (name, size) in [("nothing", "0"), ("beyond", "8000000TiB")] {
        let dir = lab.folder().join(name);
        std::fs::create_dir(&dir).unwrap();
        let cache = lab.folder().join(format!("cache of {name}"));
        let args =
            ["mount", &lab.url(), dir.to_str().unwrap(), "--cache-size", size, "--cache-dir", cache.to_str().unwrap()];
        let mounted = lab.larder(&args);
        let said = String::from_utf8_lossy(&mounted.stderr);
        assert!(mounted.status.success() && said.contains("--cache-size is"), "{said}");
        assert_eq!(std::fs::read(dir.join("a")).unwrap(), b"1");
        lab.larder_ok(&["umount", dir.to_str().unwrap()]);
    }
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

#[test]
fn a_mount_over_a_dead_one_speaks_of_no_hidden_files() {
    let lab = Lab::new();
    lab.put("a", b"1".to_vec());
    let dead = lab.mount("m", &lab.url(), &[]);
    // The kernel keeps the listing.
    assert_eq!(std::fs::read_dir(dead.dir()).unwrap().count(), 1);
    dead.kill();
    let (dir, cache) = (dead.dir().to_owned(), lab.cache_dir("m"));
    std::mem::forget(dead);
    let said = lab.larder(&["mount", &lab.url(), dir.to_str().unwrap(), "--cache-dir", cache.to_str().unwrap()]);
    let mount = Mount::of(dir);
    assert_eq!(String::from_utf8_lossy(&said.stderr), "");
    assert_eq!(std::fs::read(mount.path("a")).unwrap(), b"1");
}

#[test]
fn a_command_that_waits_for_a_silent_origin_says_so_and_names_the_flag() {
    let lab = Lab::new();
    lab.put("a", b"1".to_vec());
    lab.proxy.set_hook(|_| Fault::StallBeforeHead);
    for command in ["mount", "import"] {
        let dir = lab.folder().join("dir");
        std::fs::create_dir_all(&dir).unwrap();
        let url = lab.url();
        let mut args = vec![command, &url, "--attempt-timeout", "2s", "--read-deadline", "6s"];
        if command == "mount" {
            args.push(dir.to_str().unwrap());
        }
        let said = lab.larder_fails(1, &args);
        assert!(said.contains("waiting for the origin") && said.contains("--read-deadline"), "{command}: {said}");
    }
}

#[test]
fn a_dead_mount_does_not_hide_the_stats_of_the_others() {
    let lab = Lab::new();
    lab.put("a", b"1".to_vec());
    let (dead, alive) = (lab.mount("dead", &lab.url(), &[]), lab.mount("alive", &lab.url(), &[]));
    dead.kill();
    for args in [&["stats"][..], &["stats", "--json"], &["stats", "--cluster"]] {
        let said = lab.larder(args);
        assert_eq!(said.status.code(), Some(1), "{args:?}");
        let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
        // The living one has no cluster to show, and says that.
        let alive = alive.dir().to_str().unwrap();
        assert!(
            out.contains(alive) || err.contains(&format!("{alive}: this node does not share")),
            "{args:?}: {out}{err}"
        );
        let about_it = err.lines().find(|line| line.contains(dead.dir().to_str().unwrap())).unwrap_or_default();
        assert!(about_it.contains("is gone") && about_it.contains("larder umount"), "{args:?}: {err}");
    }
}

#[test]
fn a_deep_check_of_a_mount_is_refused_and_names_what_to_check_instead() {
    let lab = Lab::new();
    lab.put("a", b"1".to_vec());
    let mount = lab.mount("m", &lab.url(), &[]);
    let refused = lab.larder_fails(1, &["verify", mount.dir().to_str().unwrap(), "--deep"]);
    assert!(refused.contains("--deep") && refused.contains("URL"), "{refused}");
    lab.larder_ok(&["verify", mount.dir().to_str().unwrap()]);
}
