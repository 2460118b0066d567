//! An origin in trouble: readers do not see faults that pass, faults that last end in one clear errno, and neither
//! affects other files.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use larder_e2e::{BUCKET, Lab, Mount, wait_until};
use larder_testkit::{Fault, seeded_bytes};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

const BLOCK: u64 = 4 << 20;

/// Long enough for everything that ends at all, on the slowest machine.
const NOT_HANGING: Duration = Duration::from_secs(60);

/// Every fault after which the next answer may be right, and the file that gets it.
const PASSING: [(&str, Fault); 9] = [
    ("internal-error", Fault::Status { status: 500, code: "InternalError" }),
    ("slow-down", Fault::Status { status: 503, code: "SlowDown" }),
    ("cut-at-once", Fault::Truncate { after: 0 }),
    ("cut-later", Fault::Truncate { after: 1000 }),
    ("length-too-small", Fault::WrongLength { delta: -1000 }),
    ("length-too-large", Fault::WrongLength { delta: 1000 }),
    ("stall", Fault::Stall),
    ("stall-before-head", Fault::StallBeforeHead),
    ("reset", Fault::Reset),
];

fn bytes_of(name: &str) -> Vec<u8> {
    seeded_bytes(name.len() as u64, 300_000)
}

/// Opens a file for reads without the page cache, so that each call is one READ.
pub(crate) fn open_direct(path: &Path) -> File {
    File::from(rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECT, Mode::empty()).unwrap())
}

fn errno_of<T: std::fmt::Debug>(read: std::io::Result<T>) -> Errno {
    Errno::from_io_error(&read.unwrap_err()).unwrap()
}

// SEMANTICS: O1
#[test]
fn passing_faults_of_the_origin_are_not_seen_by_readers() {
    let lab = Lab::new();
    for (name, _) in &PASSING {
        lab.put(name, bytes_of(name));
    }
    let mount = lab.mount("m", &lab.url(), &["--attempt-timeout", "300ms"]);
    let seen = Mutex::new(HashMap::<&str, u32>::new());
    lab.proxy.set_hook(move |head| {
        let Some((name, fault)) = PASSING.iter().find(|(name, _)| head.path.ends_with(&format!("/{name}"))) else {
            return Fault::None;
        };
        let mut seen = seen.lock().unwrap();
        let times = seen.entry(name).or_default();
        *times += 1;
        if *times <= 2 { fault.clone() } else { Fault::None }
    });
    std::thread::scope(|scope| {
        for (name, _) in &PASSING {
            let mount = &mount;
            scope.spawn(move || {
                let read = std::fs::read(mount.path(name));
                assert!(read.is_ok_and(|read| read == bytes_of(name)), "{name}");
            });
        }
    });
    assert!(lab.proxy.counters().faults >= 2 * PASSING.len() as u64);
    assert_eq!((mount.metric("fs_errors_total"), mount.metric("fs_origin_errors_total")), (0, 0));
}

// SEMANTICS: O2, O4
#[test]
fn lasting_faults_of_the_origin_end_in_one_clear_errno() {
    let lab = Lab::new();
    let final_answers = [
        ("denied", Fault::Status { status: 403, code: "AccessDenied" }, Errno::ACCESS),
        ("gone", Fault::Status { status: 404, code: "NoSuchKey" }, Errno::NOENT),
        ("another", Fault::Status { status: 412, code: "PreconditionFailed" }, Errno::STALE),
    ];
    let lasting = PASSING.iter().map(|(name, fault)| {
        let silent = matches!(fault, Fault::Stall | Fault::StallBeforeHead);
        (*name, fault.clone(), if silent { Errno::TIMEDOUT } else { Errno::IO })
    });
    let cases: Vec<_> = lasting.chain(final_answers).collect();
    for (name, ..) in &cases {
        lab.put(name, bytes_of(name));
    }
    for name in ["kept", "sound"] {
        lab.put(name, bytes_of(name));
    }
    let flags = ["--attempt-timeout", "300ms", "--read-deadline", "2s"];
    let mount = lab.mount("m", &lab.url(), &flags);
    assert_eq!(mount.read_fresh("kept").unwrap(), bytes_of("kept"));
    mount.settle();

    let faults = cases.clone();
    lab.proxy.set_hook(move |head| {
        let fault = faults.iter().find(|(name, ..)| head.path.ends_with(&format!("/{name}")));
        fault.map_or(Fault::None, |(_, fault, _)| fault.clone())
    });
    let started = Instant::now();
    std::thread::scope(|scope| {
        for (name, _, errno) in &cases {
            let mount = &mount;
            scope.spawn(move || {
                let got = errno_of(std::fs::read(mount.path(name)));
                // Even if the origin answers, the deadline may end the last attempt, which is then a timeout.
                assert!(got == *errno || (*errno == Errno::IO && got == Errno::TIMEDOUT), "{name}: {got}");
            });
        }
        for name in ["kept", "sound"] {
            assert_eq!(mount.read_fresh(name).unwrap(), bytes_of(name), "{name}");
        }
    });
    assert!(started.elapsed() < NOT_HANGING);
    let stats = mount.stats();
    let metric = |name: &str| stats["metrics"][name].as_u64().unwrap();
    assert!(metric("fs_errors_total") >= cases.len() as u64, "{stats:#}");
    assert!(metric("fs_origin_errors_total") >= cases.len() as u64, "{stats:#}");
    assert!(metric("fs_stale_total") >= 1, "{stats:#}");
    assert_eq!(metric("fs_panics_total"), 0, "{stats:#}");

    lab.proxy.set_hook(|_| Fault::None);
    mount.settle();
    for (name, ..) in &cases {
        assert_eq!(mount.read_fresh(name).unwrap(), bytes_of(name), "{name}");
    }
    // One line for many failures, not one for each.
    let complaints = lab.logs().matches("fetch from origin failed").count();
    assert!((1..=3).contains(&complaints), "{complaints} lines:\n{}", lab.logs());
}

/// The kernel stops sending any further read of a mount, cached or not, when as many as the mount allows are in flight
/// that are advised or read ahead. The part of a large read beyond the kernel's first window is such a read, too.
// SEMANTICS: O5, C15
#[test]
fn a_hung_origin_does_not_hang_cached_reads() {
    const ADVISED: usize = 1_500;
    let lab = Lab::new();
    let cached: Vec<String> = (0..20).map(|n| format!("cached/{n}")).collect();
    let missing: Vec<String> = (0..64).map(|n| format!("missing/{n}")).collect();
    let advised: Vec<String> = (0..ADVISED).map(|n| format!("advised/{n}")).collect();
    // Several times the read-ahead of a mount, and more in all than is in flight from the origin at once.
    let bytes_of_cached = |name: &str| seeded_bytes(name.len() as u64, 5_000_000);
    let bytes_of_advised = |name: &str| seeded_bytes(name.len() as u64, 50_000);
    for name in &cached {
        lab.put(name, bytes_of_cached(name));
    }
    for name in &missing {
        lab.put(name, bytes_of(name));
    }
    for name in &advised {
        lab.put(name, bytes_of_advised(name));
    }
    let mount = lab.mount("m", &lab.url(), &["--attempt-timeout", "1s", "--read-deadline", "300s"]);
    // Backwards, so that there is no read-ahead.
    for name in cached.iter().rev() {
        assert_eq!(mount.read_fresh(name).unwrap(), bytes_of_cached(name));
        mount.settle();
    }
    lab.proxy.set_hook(|_| Fault::StallBeforeHead);
    let ended = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for name in &missing {
            let (mount, ended) = (&mount, &ended);
            scope.spawn(move || {
                let read = std::fs::read(mount.path(name));
                ended.fetch_add(1, Ordering::SeqCst);
                assert_eq!(read.unwrap(), bytes_of(name), "{name}");
            });
        }
        // In a thread of its own, so that a hang fails the test instead of hanging it.
        let (cached_is_read, wait) = std::sync::mpsc::channel();
        let (mount, cached, advised, ended) = (&mount, &cached, &advised, &ended);
        scope.spawn(move || {
            for name in advised {
                let file = File::open(mount.path(name)).unwrap();
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::WillNeed).unwrap();
            }
            mount
                .wait_until("all reads are stuck", |mount| mount.metric("fs_fetches_running") >= (ADVISED + 64) as u64);
            for name in cached {
                assert_eq!(mount.read_fresh(name).unwrap(), bytes_of_cached(name), "{name}");
            }
            cached_is_read.send(ended.load(Ordering::SeqCst)).unwrap();
        });
        let ended_meanwhile = wait.recv_timeout(NOT_HANGING);
        lab.proxy.set_hook(|_| Fault::None);
        assert_eq!(ended_meanwhile, Ok(0), "cached files were read while all others were hanging");
    });
    assert_eq!(ended.load(Ordering::SeqCst), 64);
    for name in &advised {
        assert_eq!(std::fs::read(mount.path(name)).unwrap(), bytes_of_advised(name), "{name}");
    }
    mount.settle();
}

// SEMANTICS: V2
#[test]
fn a_replaced_object_is_estale_and_its_versions_never_mix() {
    let lab = Lab::new();
    let old = seeded_bytes(1, 3 * BLOCK + 777);
    lab.put("large", old.clone());
    for name in ["small", "other"] {
        lab.put(name, bytes_of(name));
    }
    let mount = lab.mount("m", &lab.url(), &[]);
    let large = open_direct(&mount.path("large"));
    let read_at = |at: u64| {
        let mut piece = vec![0; 100_000];
        large.read_exact_at(&mut piece, at).map(|()| piece)
    };
    let expected = |at: u64| old[at as usize..at as usize + 100_000].to_vec();
    assert_eq!(read_at(0).unwrap(), expected(0));
    mount.settle();

    // Of the same size, so that only the versions differ.
    lab.put("large", seeded_bytes(2, old.len() as u64));
    lab.put("small", seeded_bytes(3, 300_000));
    assert_eq!(read_at(BLOCK - 100_000).unwrap(), expected(BLOCK - 100_000), "the rest of the cached block");
    assert_eq!(errno_of(read_at(BLOCK)), Errno::STALE);
    assert_eq!(errno_of(read_at(BLOCK - 50_000)), Errno::STALE, "half of it would be old and half new");
    assert_eq!(errno_of(std::fs::read(mount.path("small"))), Errno::STALE);
    assert!(mount.metric("fs_stale_total") >= 3);
    assert_eq!(mount.read_fresh("other").unwrap(), bytes_of("other"));

    // The version that was imported is valid again.
    lab.put("large", old.clone());
    assert_eq!(mount.read_fresh("large").unwrap(), old);
}

// SEMANTICS: V3
#[test]
fn a_deleted_object_is_enoent_and_the_others_go_on() {
    let lab = Lab::new();
    for name in ["deleted", "deleted-but-cached", "other"] {
        lab.put(name, bytes_of(name));
    }
    let mount = lab.mount("m", &lab.url(), &[]);
    assert_eq!(mount.read_fresh("deleted-but-cached").unwrap(), bytes_of("deleted-but-cached"));
    mount.settle();
    for name in ["deleted", "deleted-but-cached"] {
        assert!(lab.server.delete(BUCKET, &format!("data/{name}")));
    }
    let mut file = File::open(mount.path("deleted")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 300_000, "the snapshot still has it");
    assert_eq!(errno_of(std::io::Read::read_to_end(&mut file, &mut Vec::new())), Errno::NOENT);
    for name in ["deleted-but-cached", "other"] {
        assert_eq!(mount.read_fresh(name).unwrap(), bytes_of(name), "{name}");
    }
}

// SEMANTICS: O3
#[test]
fn revoked_access_is_eacces_until_it_is_given_back() {
    let lab = Lab::new();
    for name in ["cached", "not-yet"] {
        lab.put(name, bytes_of(name));
    }
    let mount = lab.mount("m", &lab.url(), &[]);
    assert_eq!(mount.read_fresh("cached").unwrap(), bytes_of("cached"));
    mount.settle();
    lab.proxy.set_hook(|_| Fault::Status { status: 403, code: "AccessDenied" });
    assert_eq!(errno_of(std::fs::read(mount.path("not-yet"))), Errno::ACCESS);
    assert_eq!(mount.read_fresh("cached").unwrap(), bytes_of("cached"));
    lab.proxy.set_hook(|_| Fault::None);
    assert_eq!(mount.read_fresh("not-yet").unwrap(), bytes_of("not-yet"));
}

/// Reads a file in 32 threads at the same time, while the origin holds its answer back until all of them wait. `pieces`
/// returns each thread's offset and length.
fn read_by_32_at_once(lab: &Lab, mount: &Mount, name: &str, bytes: &[u8], pieces: impl Fn(usize) -> (usize, usize)) {
    let held = Arc::new(AtomicBool::new(true));
    let hook_held = Arc::clone(&held);
    lab.proxy.set_hook(move |_| {
        // An attempt without an answer is retried; only the GET that reaches the server counts.
        if hook_held.load(Ordering::SeqCst) { Fault::StallBeforeHead } else { Fault::None }
    });
    let reads = || mount.metric("fs_reads_total");
    // Reading the statistics is a read as well, always of the same number of pieces.
    let (first, second) = (reads(), reads());
    let looks_cost = second - first;
    let mut looks = 0;
    let file = open_direct(&mount.path(name));
    std::thread::scope(|scope| {
        for thread in 0..32 {
            let (file, (at, len)) = (&file, pieces(thread));
            scope.spawn(move || {
                let mut piece = vec![0; len];
                file.read_exact_at(&mut piece, at as u64).unwrap();
                assert!(piece == bytes[at..at + len], "wrong bytes at {at}");
            });
        }
        wait_until("all readers wait", || {
            looks += 1;
            reads() >= second + looks * looks_cost + 32
        });
        held.store(false, Ordering::SeqCst);
    });
    mount.settle();
    assert_eq!(lab.gets_of(name), 1, "{name}");
}

// SEMANTICS: C2
#[test]
fn concurrent_misses_of_a_kept_block_make_one_get() {
    let lab = Lab::new();
    let bytes = seeded_bytes(5, BLOCK);
    for name in ["whole", "pieces"] {
        lab.put(name, bytes.clone());
    }
    let mount = lab.mount("m", &lab.url(), &["--attempt-timeout", "300ms"]);
    read_by_32_at_once(&lab, &mount, "whole", &bytes, |_| (0, 100_000));
    read_by_32_at_once(&lab, &mount, "pieces", &bytes, |thread| (thread * (128 << 10), 128 << 10));
    assert_eq!(mount.metric("store_admitted_total"), 2);
}

// SEMANTICS: C2
#[test]
fn concurrent_misses_make_one_get_when_the_cache_is_full() {
    let lab = Lab::new();
    let bytes = seeded_bytes(5, BLOCK);
    for name in ["whole", "pieces"] {
        lab.put(name, bytes.clone());
    }
    // Room for no block at all.
    let mount = lab.mount("m", &lab.url(), &["--attempt-timeout", "300ms", "--cache-size", "1"]);
    read_by_32_at_once(&lab, &mount, "whole", &bytes, |_| (0, 100_000));
    read_by_32_at_once(&lab, &mount, "pieces", &bytes, |thread| (thread * (128 << 10), 128 << 10));
    assert_eq!(mount.metric("store_admitted_total"), 0);
}
