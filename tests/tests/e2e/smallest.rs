//! Mounts whose caches keep the smallest files.

use std::collections::BTreeMap;

use larder_e2e::{Lab, Mount};
use larder_testkit::seeded_bytes;

const SMALL: u64 = 10_000;
const LARGE: u64 = 100_000;

/// Room for all small files and ten of the large ones: 31.8 % of the bytes.
const CACHE_BYTES: u64 = 40 * SMALL + 10 * LARGE;

/// 40 files of each size, one after the other.
fn put_files(lab: &Lab) -> BTreeMap<String, Vec<u8>> {
    let file = |n: u64| (format!("{n:03}"), seeded_bytes(n, if n.is_multiple_of(2) { LARGE } else { SMALL }));
    let files: BTreeMap<_, _> = (0..80).map(file).collect();
    files.iter().for_each(|(key, bytes)| lab.put(key, bytes.clone()));
    files
}

fn mount(lab: &Lab, policy: &str) -> Mount {
    lab.mount(policy, &lab.url(), &["--policy", policy, "--cache-size", &CACHE_BYTES.to_string()])
}

/// Reads all of the files, and returns the GETs and bytes that the origin was asked for.
fn epoch<'a>(lab: &Lab, mount: &Mount, files: impl IntoIterator<Item = (&'a String, &'a Vec<u8>)>) -> (u64, u64) {
    lab.server.reset_counters();
    for (key, bytes) in files {
        assert!(mount.read_fresh(key).unwrap() == *bytes, "wrong bytes in {key}");
    }
    mount.settle();
    let counters = lab.server.counters();
    (counters.gets, counters.get_bytes)
}

// SEMANTICS: C1, C3
#[test]
fn smallest_asks_for_as_many_bytes_as_nr_in_fewer_requests_also_after_a_kill() {
    let lab = Lab::new();
    let files = put_files(&lab);
    let all: u64 = files.values().map(|bytes| bytes.len() as u64).sum();

    let nr = mount(&lab, "nr");
    assert_eq!(epoch(&lab, &nr, &files), (80, all));
    let (nr_gets, nr_bytes) = epoch(&lab, &nr, files.iter().rev());
    assert_eq!(nr_bytes, all - CACHE_BYTES);

    let smallest = mount(&lab, "smallest");
    assert_eq!(epoch(&lab, &smallest, &files), (80, all));
    assert_eq!(epoch(&lab, &smallest, files.iter().rev()), (30, all - CACHE_BYTES));
    assert!(nr_gets > 40, "{nr_gets}");
    assert_eq!(smallest.metric("store_evicted_total"), 0);

    smallest.kill();
    let again = mount(&lab, "smallest");
    // Dropping it would unmount its successor.
    std::mem::forget(smallest);
    again.wait_until("the blocks are counted", |mount| mount.metric("store_blocks") == 50);
    assert_eq!(epoch(&lab, &again, &files), (30, all - CACHE_BYTES));
}

// SEMANTICS: C1
#[test]
fn a_program_that_reads_large_files_alone_has_them_cached_after_its_second_epoch() {
    let lab = Lab::new();
    let files = put_files(&lab);
    let mount = mount(&lab, "smallest");
    let large = || files.iter().filter(|(_, bytes)| bytes.len() as u64 == LARGE);
    // Ten of them are below the limit.
    assert_eq!(epoch(&lab, &mount, large()).0, 40);
    assert_eq!(epoch(&lab, &mount, large()).0, 30);
    assert_eq!(epoch(&lab, &mount, large()).0, 26);
}
