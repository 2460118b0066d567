//! Readers of what the cache does not keep: each byte comes once, however many they are and however busy the machine
//! is.

use std::fs::File;
use std::io::Read;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use larder_e2e::{Lab, Mount};
use larder_testkit::{scaled, seeded_bytes};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

const MIB: u64 = 1 << 20;

/// Reads all files once in this order by eight threads.
fn read_epoch(mount: &Mount, order: &[u64], size_of: impl Fn(u64) -> u64 + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|readers| {
        for _ in 0..8 {
            readers.spawn(|| {
                let mut bytes = Vec::new();
                while let Some(&n) = order.get(next.fetch_add(1, Relaxed)) {
                    let mut file = File::open(mount.path(format!("{n:04}"))).unwrap();
                    bytes.clear();
                    file.read_to_end(&mut bytes).unwrap();
                    assert_eq!(bytes.len() as u64, size_of(n), "file {n}");
                    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                }
            });
        }
    });
    mount.settle();
}

// SEMANTICS: C2
#[test]
fn every_epoch_gets_each_missing_file_once_on_a_busy_machine() {
    const FILES: u64 = 600;
    let size_of = |n: u64| 16_000 + n * 2_654_435_761 % 184_000;
    let lab = Lab::new();
    for n in 0..FILES {
        lab.put(&format!("{n:04}"), seeded_bytes(n, size_of(n)));
    }
    let eighth = (0..FILES).map(size_of).sum::<u64>() / 8;
    let mount = lab.mount("m", &lab.url(), &["--cache-size", &eighth.to_string()]);
    let read_shuffled = |seed| {
        let mut order: Vec<u64> = (0..FILES).collect();
        order.shuffle(&mut StdRng::seed_from_u64(seed));
        lab.server.reset_counters();
        read_epoch(&mount, &order, size_of);
        lab.server.counters().gets
    };
    assert_eq!(read_shuffled(0), FILES);
    let missing = FILES - mount.stats()["cache"]["blocks"].as_u64().unwrap();
    assert!(missing > FILES / 2);
    let done = AtomicBool::new(false);
    std::thread::scope(|busy| {
        for _ in 0..3 {
            busy.spawn(|| {
                while !done.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for epoch in 1..=u64::from(scaled(8)) {
                // The kernel may keep a page that it was asked to drop. Then it does not request all of the file, and
                // what is left waits in the window for the epoch after.
                let left = mount.metric("fs_window_bytes");
                let gets = read_shuffled(epoch);
                let twice: Vec<u64> = (0..FILES).filter(|n| lab.gets_of(&format!("{n:04}")) > 1).collect();
                assert!(twice.is_empty(), "epoch {epoch}: fetched twice: {twice:?}");
                assert!(gets <= missing, "epoch {epoch}: {gets} instead of {missing}");
                assert!(gets == missing || left > 0, "epoch {epoch}: {gets} instead of {missing}");
            }
        }));
        done.store(true, Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// A byte of a file.
fn byte_of(file: u64, at: u64) -> u8 {
    (file * 31 + at / 4096) as u8
}

fn read_piece(file: &File, n: u64, at: u64) {
    let mut piece = vec![0; MIB as usize];
    file.read_exact_at(&mut piece, at).unwrap();
    for page in (0..MIB).step_by(4096) {
        let bytes = &piece[page as usize..][..4096];
        assert!(bytes.iter().all(|&byte| byte == byte_of(n, at + page)), "file {n} at {at}");
    }
}

fn put_streams(lab: &Lab, files: u64, size: u64) {
    for n in 0..files {
        let bytes: Vec<u8> = (0..size).step_by(4096).flat_map(|at| [byte_of(n, at); 4096]).collect();
        lab.put(&format!("{n:04}"), bytes);
    }
}

/// Reads files at the same time, one by each reader: at full speed, with pauses, the second half first, or with a stall
/// in the middle until all others are done.
fn read_streams(mounts: &[&Mount], files: u64, size: u64) {
    let others_done = Barrier::new(files as usize);
    std::thread::scope(|readers| {
        for n in 0..files {
            let others_done = &others_done;
            let mount = mounts[n as usize % mounts.len()];
            readers.spawn(move || {
                let file = File::open(mount.path(format!("{n:04}"))).unwrap();
                let kind = n / mounts.len() as u64 % 4;
                let mut pieces: Vec<u64> = (0..size).step_by(MIB as usize).collect();
                if kind == 2 {
                    let half = pieces.len() / 2;
                    pieces.rotate_left(half);
                }
                for (nth, at) in pieces.iter().enumerate() {
                    if kind == 1 {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    if kind == 3 && nth == pieces.len() / 2 {
                        others_done.wait();
                    }
                    read_piece(&file, n, *at);
                }
                if kind != 3 {
                    others_done.wait();
                }
            });
        }
    });
    mounts.iter().for_each(|mount| mount.settle());
}

/// The highest resident memory of a process so far.
fn peak_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

// SEMANTICS: C14
#[test]
fn two_hundred_and_fifty_six_streams_get_each_byte_once_in_bounded_memory() {
    const FILES: u64 = 256;
    const SIZE: u64 = 6 * MIB;
    let lab = Lab::new();
    put_streams(&lab, FILES, SIZE);
    let mount = lab.mount("m", &lab.url(), &["--cache-size", "1"]);
    let before = peak_bytes(mount.pid());
    lab.server.reset_counters();
    read_streams(&[&mount], FILES, SIZE);
    let got = lab.server.counters().get_bytes;
    let peak = peak_bytes(mount.pid()) - before;
    println!("{} MiB peak, {} of {} bytes in {} GETs", peak >> 20, got, FILES * SIZE, lab.server.counters().gets);
    assert!(got.abs_diff(FILES * SIZE) <= FILES * SIZE / 50, "{got} of {}", FILES * SIZE);
    // The window and what is in flight, 64 MiB each, and half as much for buffers and what the allocator does not
    // return.
    assert!(peak <= 192 * MIB, "{peak}");
}

// SEMANTICS: C15
#[test]
fn a_loader_that_advises_gets_files_fetched_before_it_reads_them() {
    const FILES: u64 = 50;
    let lab = Lab::new();
    for n in 0..FILES {
        lab.put(&format!("{n:04}"), seeded_bytes(n, 100_000));
    }
    let mount = lab.mount("m", &lab.url(), &[]);
    // In an order that is not that of the files.
    for n in (0..FILES).map(|n| n * 7 % FILES) {
        let file = File::open(mount.path(format!("{n:04}"))).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::WillNeed).unwrap();
    }
    mount.wait_until("all files are in the store", |mount| mount.stats()["cache"]["blocks"] == FILES);
    assert_eq!(lab.server.counters().gets, FILES);
    let requests = mount.metric("fs_reads_total");
    for n in 0..FILES {
        assert_eq!(std::fs::read(mount.path(format!("{n:04}"))).unwrap(), seeded_bytes(n, 100_000), "file {n}");
    }
    assert_eq!(lab.server.counters().gets, FILES, "nothing is fetched again");
    // But for those of the stats, a request for each file at most.
    let requests = mount.metric("fs_reads_total") - requests;
    assert!(requests <= FILES + 4, "{requests}");
}

// SEMANTICS: C15
#[test]
fn one_advice_brings_the_beginning_of_a_large_file_and_advice_in_steps_all_of_it() {
    const SIZE: u64 = 40 * MIB;
    let lab = Lab::new();
    lab.put("large", seeded_bytes(1, SIZE));
    let mount = lab.mount("m", &lab.url(), &[]);
    lab.server.reset_counters();
    let file = File::open(mount.path("large")).unwrap();
    let advise = |offset, len| rustix::fs::fadvise(&file, offset, len, rustix::fs::Advice::WillNeed).unwrap();
    let blocks = |mount: &Mount| mount.stats()["cache"]["blocks"].as_u64().unwrap();
    advise(0, None);
    mount.wait_until("the first block is in the store", |mount| blocks(mount) > 0);
    mount.settle();
    assert!(blocks(&mount) <= 4, "the block that the kernel's 1 MiB touches, and 12 MiB: {}", blocks(&mount));
    for offset in (0..SIZE).step_by(MIB as usize) {
        advise(offset, NonZeroU64::new(MIB));
    }
    mount.wait_until("all of it is in the store", |mount| blocks(mount) == SIZE / (4 * MIB));
    assert_eq!(std::fs::read(mount.path("large")).unwrap(), seeded_bytes(1, SIZE));
    // Steps that the kernel cuts below 1 MiB, since nobody could raise the read-ahead, may be small reads.
    let got = lab.server.counters().get_bytes;
    assert!((SIZE..=SIZE + SIZE / 16).contains(&got), "{got}");
}

// SEMANTICS: C14
#[test]
fn a_few_reads_here_and_there_in_a_large_file_fetch_little() {
    const SIZE: u64 = 256 * MIB;
    let lab = Lab::new();
    let expected = seeded_bytes(1, SIZE);
    lab.put("large", expected.clone());
    let mount = lab.mount("m", &lab.url(), &[]);
    lab.server.reset_counters();
    let file = File::open(mount.path("large")).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    let mut piece = vec![0; 4096];
    for read in 0..60 {
        // One in each block, in no order.
        let at = read * 37 % 64 * 4 * MIB + MIB + read * 4096;
        file.read_exact_at(&mut piece, at).unwrap();
        assert!(piece == expected[at as usize..][..4096], "at {at}");
    }
    mount.settle();
    let got = lab.server.counters().get_bytes;
    assert!(got <= 60 * (64 << 10), "{got}");
}
