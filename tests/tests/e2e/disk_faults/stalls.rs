//! A disk that takes writes slowly, or not for a while: readers get their bytes from the origin, and what the disk does
//! not take is not kept.

use std::sync::mpsc;
use std::time::Duration;

use larder_e2e::Lab;
use larder_testkit::FailingDisk;

use super::{MIB, assert_reads_right, put_files};

/// Long enough for everything that ends at all, on the slowest machine.
const NOT_HANGING: Duration = Duration::from_secs(60);

/// The log message when blocks are not kept because of that.
const COMPLAINT: &str = "the cache's disk writes more slowly than blocks arrive";

// SEMANTICS: C4
#[test]
fn a_frozen_file_system_costs_hits_and_reads_go_on() {
    let lab = Lab::new();
    // More than the 64 MiB that may wait for the disk.
    let files = put_files(&lab, 160, 600_000);
    let disk = FailingDisk::new(&lab.cache_dir("m"), 512 * MIB).unwrap();
    let mount = lab.mount("m", &lab.url(), &[]);
    let cached = &files[150..];
    assert_reads_right(&mount, cached);

    let frozen = disk.freeze().unwrap();
    std::thread::scope(|scope| {
        // In a thread of its own, so that a hang fails the test instead of hanging it.
        let (done, wait) = mpsc::channel();
        let (mount, files) = (&mount, &files);
        scope.spawn(move || {
            // Backwards: what is cached, then the rest without read-ahead.
            for (key, bytes) in files.iter().rev() {
                assert!(mount.read_fresh(key).unwrap() == *bytes, "wrong bytes in {key}");
            }
            done.send(()).unwrap();
        });
        let read = wait.recv_timeout(NOT_HANGING);
        drop(frozen);
        assert_eq!(read, Ok(()), "reads wait for a frozen file system");
    });
    assert!(mount.metric("store_unwritten_total") > 0 && lab.logs().contains(COMPLAINT));
    assert_eq!((mount.metric("fs_errors_total"), mount.metric("fs_origin_errors_total")), (0, 0));

    mount.settle();
    let is_all_cached = || {
        lab.server.reset_counters();
        assert_reads_right(&mount, &files);
        lab.server.counters().gets == 0
    };
    assert!((0..5).any(|_| is_all_cached()), "what the disk did not take is kept when it is read again");
}

/// The disk would need eight minutes for what the readers want within one.
// SEMANTICS: C4
#[test]
fn a_disk_that_is_slower_than_the_origin_fails_no_read() {
    let lab = Lab::new();
    let files = put_files(&lab, 64, 2 * MIB);
    let disk = FailingDisk::new(&lab.cache_dir("m"), 512 * MIB).unwrap();
    let mount = lab.mount("m", &lab.url(), &[]);
    disk.slow_writes(MIB / 4);
    std::thread::scope(|scope| {
        for (key, bytes) in &files {
            let mount = &mount;
            scope.spawn(move || assert!(mount.read_fresh(key).unwrap() == *bytes, "wrong bytes in {key}"));
        }
    });
    assert!(mount.metric("store_unwritten_total") > 0);
    assert_eq!((mount.metric("fs_errors_total"), mount.metric("fs_origin_errors_total")), (0, 0));
    disk.mend();
    mount.settle();
    assert_reads_right(&mount, &files);
}
