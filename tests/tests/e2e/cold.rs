//! How bytes come from the origin: with as few GETs as possible, ahead of a reader that reads in order, and none twice.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use larder_e2e::{BUCKET, Lab, Mount};
use larder_testkit::Fault;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Packs 300 files of 30,000 bytes, 9 MB, into one pack, and mounts it with a cache of this size.
fn packed(lab: &Lab, cache: &str, flags: &[&str]) -> Mount {
    for n in 0..300 {
        lab.put(&format!("d/{n:03}"), bytes(n, 30_000));
    }
    lab.larder_ok(&["pack", &lab.url(), "s3://bucket/packed"]);
    let mount = lab.mount("m", "s3://bucket/packed", &[&["--cache-size", cache], flags].concat());
    lab.server.reset_counters();
    mount
}

fn read_shuffled(mount: &Mount) {
    let mut order: Vec<u64> = (0..300).collect();
    order.shuffle(&mut StdRng::seed_from_u64(7));
    for n in order {
        assert_eq!(mount.read_fresh(format!("d/{n:03}")).unwrap(), bytes(n, 30_000), "file {n}");
    }
    mount.settle();
}

// SEMANTICS: C8
#[test]
fn a_packed_file_brings_its_neighbours_along() {
    let lab = Lab::new();
    let mount = packed(&lab, "20MiB", &[]);
    read_shuffled(&mount);
    // Three times 3 MiB of the pack, and each byte once.
    let counters = lab.server.counters();
    assert_eq!((counters.gets, counters.get_bytes), (3, 9_000_000));
    assert_eq!(mount.metric("store_admitted_total"), 300);
    read_shuffled(&mount);
    assert_eq!(lab.server.counters().gets, 3);
}

// SEMANTICS: C8
#[test]
fn a_packed_file_brings_nothing_along_that_the_cache_has_no_room_for() {
    let lab = Lab::new();
    let mount = packed(&lab, "1MiB", &[]);
    read_shuffled(&mount);
    assert_eq!(lab.server.counters().get_bytes, 9_000_000, "each byte once, whatever was kept");
    lab.server.reset_counters();
    read_shuffled(&mount);
    let kept = mount.metric("store_admitted_bytes_total");
    assert!((900_000..=1 << 20).contains(&kept), "{kept}");
    assert_eq!(lab.server.counters().get_bytes, 9_000_000 - kept);
}

#[test]
fn a_packed_file_is_there_before_the_neighbours_behind_it_are_and_stays_if_they_never_come() {
    let lab = Lab::new();
    let mount = packed(&lab, "20MiB", &["--attempt-timeout", "300ms", "--read-deadline", "3s"]);
    // Half of the first 3 MiB arrives, and then nothing more.
    let first = AtomicBool::new(true);
    lab.proxy.set_hook(move |_| if first.swap(false, Relaxed) { Fault::Stall } else { Fault::StallBeforeHead });
    for n in 0..50 {
        assert_eq!(mount.read_fresh(format!("d/{n:03}")).unwrap(), bytes(n, 30_000), "file {n}");
    }
    assert!(mount.read_fresh("d/060").is_err(), "it lies behind the half");
    mount.settle();
    let admitted = mount.metric("store_admitted_total");
    assert!((50..60).contains(&admitted), "{admitted}");
    lab.proxy.set_hook(|_| Fault::None);
    read_shuffled(&mount);
    assert_eq!(mount.metric("store_admitted_total"), 300);
}

// SEMANTICS: C8
#[test]
fn warming_a_packed_dataset_takes_a_get_for_3_mib() {
    let lab = Lab::new();
    let mount = packed(&lab, "20MiB", &[]);
    lab.larder_ok(&["warm", mount.dir().to_str().unwrap(), "--wait"]);
    let counters = lab.server.counters();
    assert_eq!((counters.gets, counters.get_bytes), (3, 9_000_000));
    read_shuffled(&mount);
    assert_eq!(lab.server.counters().gets, 3);
}

// SEMANTICS: C9
#[test]
fn who_reads_a_large_file_in_order_is_read_ahead_of() {
    const LEN: usize = 40 << 20;
    let lab = Lab::new();
    let expected = bytes(1, LEN);
    lab.put("big", expected.clone());
    // The cache keeps two blocks of ten; the others only pass through memory.
    let mount = lab.mount("m", &lab.url(), &["--cache-size", "8MiB"]);
    lab.server.reset_counters();
    let file = std::fs::File::open(mount.path("big")).unwrap();
    let mut piece = vec![0; 1 << 20];
    for at in (0..6 << 20).step_by(1 << 20) {
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut piece, at).unwrap();
        assert_eq!(piece, expected[at as usize..][..1 << 20], "at {at}");
    }
    // Two blocks were read, and the kernel requests at most one more; the others are fetched ahead.
    mount.wait_until("blocks come ahead of the reader", |_| lab.gets_of("big") >= 4);
    assert_eq!(std::fs::read(mount.path("big")).unwrap(), expected);
    // Blocks may come by several GETs.
    assert_eq!(lab.server.counters().get_bytes, LEN as u64, "each byte once");
}

// SEMANTICS: C9
#[test]
fn who_reads_files_in_order_is_read_ahead_of_and_who_reads_a_few_is_not() {
    let lab = Lab::new();
    for n in 0..200 {
        lab.put(&format!("{n:03}"), bytes(n, 50_000));
    }
    let mount = lab.mount("m", &lab.url(), &["--cache-size", "100KB"]);
    let asked = || (0..200).filter(|n| lab.gets_of(&format!("{n:03}")) > 0).count();
    for n in [100, 50, 101, 7] {
        mount.read_fresh(format!("{n:03}")).unwrap();
    }
    mount.settle();
    assert_eq!(asked(), 4, "a shuffled reader");
    for n in 0..5 {
        assert_eq!(mount.read_fresh(format!("{n:03}")).unwrap(), bytes(n, 50_000), "file {n}");
    }
    mount.wait_until("files come ahead of the reader", |_| asked() >= 20);
    for n in 5..200 {
        assert_eq!(mount.read_fresh(format!("{n:03}")).unwrap(), bytes(n, 50_000), "file {n}");
    }
    mount.settle();
    let counters = lab.server.counters();
    // Four were read before. Those that the small cache did not keep are fetched again.
    assert!((200..=204).contains(&counters.gets), "{counters:?}");
    assert_eq!(lab.server.gets_of(BUCKET, "data/150"), 1);
}
