//! How old the listing is that a mount serves, and how a mount gets a newer one.

use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use larder_e2e::{Lab, Mount};
use larder_testkit::{Fault, RequestHead, seeded_bytes};
use rustix::io::Errno;
use serde_json::Value;

const FILES: u64 = 20;

/// Replaces all objects of the lab's dataset by those of this version.
fn put_version(lab: &Lab, version: u64) {
    for n in 0..FILES {
        lab.put(&format!("{n}"), bytes(version, n));
    }
}

fn bytes(version: u64, n: u64) -> Vec<u8> {
    seeded_bytes(version * FILES + n, 10_000)
}

fn assert_serves(mount: &Mount, version: u64) {
    for n in 0..FILES {
        assert!(mount.read_fresh(format!("{n}")).unwrap() == bytes(version, n), "file {n}");
    }
}

fn is_list(request: &RequestHead) -> bool {
    request.path.contains("list-type=2")
}

fn snapshot(mount: &Mount) -> String {
    mount.stats()["dataset"]["snapshot"].as_str().unwrap().to_owned()
}

// SEMANTICS: V4
#[test]
fn a_mount_of_a_bucket_that_changed_says_once_what_to_do_and_refresh_serves_what_is_there() {
    let lab = Lab::new();
    put_version(&lab, 1);
    drop(lab.mount("first", &lab.url(), &[]));
    put_version(&lab, 2);

    let old = lab.mount("old", &lab.url(), &[]);
    assert!(old.stats()["listing"]["stale"].is_null());
    for n in 0..FILES {
        let error = old.read_fresh(format!("{n}")).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::STALE));
    }
    let advice = old.stats()["listing"]["stale"].as_str().unwrap().to_owned();
    assert!(advice.contains("larder import s3://bucket/data") && advice.contains("--refresh"), "{advice}");
    let shown = lab.larder_ok(&["stats", old.dir().to_str().unwrap()]);
    assert!(shown.contains(&advice), "{shown}");
    assert_eq!(lab.logs().matches(&advice).count(), 1, "{}", lab.logs());

    let new = lab.mount("new", &lab.url(), &["--refresh"]);
    assert_serves(&new, 2);
    assert!(new.stats()["listing"]["stale"].is_null());
    assert_ne!(snapshot(&new), snapshot(&old), "a mount keeps its snapshot");
    // The next mount has the new listing, too.
    drop(new);
    assert_serves(&lab.mount("next", &lab.url(), &[]), 2);
}

// SEMANTICS: V4
#[test]
fn a_mount_tells_its_snapshot_and_the_age_of_its_listing() {
    let lab = Lab::new();
    put_version(&lab, 1);
    let dir = lab.folder().join("dir");
    std::fs::create_dir(&dir).unwrap();
    let cache = lab.cache_dir("m");
    let args = ["mount", &lab.url(), dir.to_str().unwrap(), "--cache-dir", cache.to_str().unwrap()];
    let told: Value = serde_json::from_str(&lab.larder_ok(&[&args[..], &["--json"]].concat())).unwrap();
    let mount = Mount::of(dir.clone());
    assert_eq!(told["snapshot"], snapshot(&mount));
    assert_eq!(told["listed_unix_seconds"], mount.stats()["listing"]["unix_seconds"]);
    assert!(told["age_seconds"].as_u64().unwrap() < 3600, "{told}");
    let short = &snapshot(&mount)[..12];
    let shown = lab.larder_ok(&["stats", dir.to_str().unwrap()]);
    assert!(shown.contains(short) && shown.contains("listed"), "{shown}");
    assert!(lab.logs().contains("listed_seconds_ago"), "{}", lab.logs());
    drop(mount);
    let said = lab.larder_ok(&args);
    let _mount = Mount::of(dir);
    assert!(said.contains(short) && said.contains("listed"), "{said}");
}

// SEMANTICS: V4
#[test]
fn a_listing_is_renewed_when_it_is_older_than_the_mount_accepts() {
    let lab = Lab::new();
    put_version(&lab, 1);
    let lists = |flags: &[&str]| {
        lab.server.reset_counters();
        drop(lab.mount("m", &lab.url(), flags));
        lab.server.counters().lists
    };
    assert_ne!(lists(&[]), 0, "there is none");
    for kept in [&[][..], &["--refresh=never"], &["--refresh=24h"]] {
        assert_eq!(lists(kept), 0, "{kept:?}");
    }
    for renewed in [&["--refresh"][..], &["--refresh=always"], &["--refresh=1ms"]] {
        assert_ne!(lists(renewed), 0, "{renewed:?}");
    }
    assert_eq!(lists(&["--refresh=24h"]), 0);
    for odd in ["--refresh=often", "--refresh=24"] {
        let error = lab.larder_fails(2, &["mount", &lab.url(), "/mnt", odd]);
        assert!(error.contains("--refresh") && error.contains("24h") && error.contains("unit"), "{error}");
    }
    assert_eq!(lists(&["--refresh=1d"]), 0);
}

// SEMANTICS: V4
#[test]
fn a_listing_that_cannot_be_renewed_is_served_and_the_mount_says_why() {
    let lab = Lab::new();
    put_version(&lab, 1);
    drop(lab.mount("m", &lab.url(), &[]));
    lab.proxy.set_hook(|request| match is_list(request) {
        true => Fault::Status { status: 403, code: "AccessDenied" },
        false => Fault::None,
    });
    let mount = lab.mount("m", &lab.url(), &["--refresh"]);
    assert_serves(&mount, 1);
    let failed = mount.stats()["listing"]["refresh_failed"].as_str().unwrap().to_owned();
    assert!(failed.contains("AccessDenied") || failed.contains("denied"), "{failed}");
    assert!(lab.larder_ok(&["stats", mount.dir().to_str().unwrap()]).contains(&failed));
    assert!(lab.logs().contains("could not be renewed"), "{}", lab.logs());
    drop(mount);
    lab.proxy.set_hook(|_| Fault::None);
    let mount = lab.mount("m", &lab.url(), &["--refresh"]);
    assert!(mount.stats()["listing"]["refresh_failed"].is_null());
}

// SEMANTICS: V5
#[test]
fn a_published_manifest_is_what_all_mounts_serve_and_none_lists_for_itself() {
    let lab = Lab::new();
    put_version(&lab, 1);
    let beside = format!("{}/.larder/manifest", lab.url());
    lab.larder_ok(&["import", &lab.url(), "--to", &beside]);
    put_version(&lab, 2);
    lab.server.reset_counters();
    let dir = lab.folder().join("dir");
    std::fs::create_dir(&dir).unwrap();
    let cache = lab.cache_dir("m");
    let args = ["mount", &lab.url(), dir.to_str().unwrap(), "--cache-dir", cache.to_str().unwrap()];
    // A script that requests new data does not get old data instead.
    let refused = lab.larder_fails(1, &[&args[..], &["--refresh"]].concat());
    let renewal = format!("`larder import {} --to {beside}`", lab.url());
    assert!(refused.contains(&renewal) && refused.contains("--refresh=best-effort"), "{refused}");
    let output = lab.larder(&[&args[..], &["--refresh=best-effort"]].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains(&renewal), "{said}");
    let mount = Mount::of(dir);
    assert_eq!(lab.server.counters().lists, 0);
    let first = snapshot(&mount);
    mount.read_fresh("0").unwrap_err();
    let advice = mount.stats()["listing"]["stale"].as_str().unwrap().to_owned();
    assert!(advice.contains(&format!("`larder import {} --to {beside}", lab.url())), "{advice}");
    assert!(!advice.contains("--refresh"), "{advice}");
    drop(mount);
    lab.larder_ok(&["import", &lab.url(), "--to", &beside]);
    for name in ["one", "two"] {
        let mount = lab.mount(name, &lab.url(), &["--refresh=best-effort"]);
        assert_ne!(snapshot(&mount), first, "the newest that is published");
        assert_serves(&mount, 2);
    }
}

// SEMANTICS: V4
#[test]
fn mounts_that_start_together_list_once() {
    const MOUNTS: usize = 6;
    let lab = Lab::new();
    put_version(&lab, 1);
    drop(lab.mount("m", &lab.url(), &[]));
    put_version(&lab, 2);
    // The first page waits until all mounts have looked for a published manifest, which comes before the listing.
    let asked = Arc::new((Mutex::new(0), Condvar::new()));
    let heads = Arc::clone(&asked);
    let pages = Arc::new(AtomicUsize::new(0));
    let listed = Arc::clone(&pages);
    lab.proxy.set_hook(move |request| {
        let (count, changed) = &*heads;
        if request.method == "HEAD" && request.path.ends_with(".larder/manifest") {
            *count.lock().unwrap() += 1;
            changed.notify_all();
        }
        if is_list(request) {
            listed.fetch_add(1, Ordering::Relaxed);
        }
        Fault::None
    });
    // Held by a lock of the test's own: the listing cannot begin before all of them want it.
    let held = std::fs::read_dir(lab.folder().join("larder/manifests")).unwrap().flatten().map(|entry| entry.path());
    let lock = held.into_iter().find(|path| path.extension().is_some_and(|it| it == "lock")).unwrap();
    let lock = std::fs::File::options().write(true).open(lock).unwrap();
    lock.lock().unwrap();
    let dirs: Vec<_> = (0..MOUNTS).map(|n| lab.folder().join(format!("mnt-{n}"))).collect();
    let mounting: Vec<_> = dirs
        .iter()
        .map(|dir| {
            std::fs::create_dir(dir).unwrap();
            let cache = lab.cache_dir("m");
            let url = lab.url();
            let args = ["mount", &url, dir.to_str().unwrap(), "--refresh", "--cache-dir", cache.to_str().unwrap()];
            lab.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let (count, changed) = &*asked;
    let all = changed.wait_timeout_while(count.lock().unwrap(), Duration::from_secs(60), |count| *count < MOUNTS);
    assert!(!all.unwrap().1.timed_out(), "not all mounts have begun");
    drop(lock);
    for mounting in mounting {
        let output = mounting.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    // One process serves all of them, and ends with the last.
    let mut mounts: Vec<_> = dirs.iter().skip(1).cloned().map(Mount::standing).collect();
    mounts.push(Mount::of(dirs[0].clone()));
    mounts.iter().for_each(|mount| assert_serves(mount, 2));
    assert_eq!(pages.load(Ordering::Relaxed), 1, "one page lists all of it");
}
