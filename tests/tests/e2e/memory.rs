//! The memory of a node with many mounts: as many are read cold at once as there may be, and larderd is killed
//! meanwhile, as the kernel kills what exceeds its memory. Its successor gets the same reads, and stays within the same
//! limit.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use larder_daemon_api::v1;
use larder_e2e::{BUCKET, Keeper, Lab, Larderd, MemoryCgroup, SECRET, memory_mib_most, wait_until};
use larder_testkit::{Fault, FaultProxy, scaled, seeded_bytes};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::floods::{free_port, get};
use crate::origin_faults::open_direct;
use crate::takeover::{inherited, prepare};

const MOUNTS: usize = 100;

/// The first mounts are read cold, each from an origin of its own.
const COLD: usize = 24;

/// The readers of cold files, each of one file.
const READERS: usize = 320;

/// The size of a cold file: a whole block, so that all of it must arrive before its reader has anything.
const FILE_BYTES: usize = 4 << 20;

/// The cold files are sections of the same bytes that begin so far apart.
const APART: usize = 4 << 10;

/// The bytes of a reader's call.
const PIECE_BYTES: usize = 512 << 10;

/// One in so many datasets is cached whole. The others have room for their cached file alone.
const KEPT_EVERY: usize = 4;
const SMALL_CACHE_BYTES: u64 = 1 << 20;

/// Datasets that are listed at the same time.
const LISTED_AT_ONCE: usize = 4;

const THREADS: u64 = 16;

/// The default of `--memory-target` within the limit of this test: the least that there is.
const TARGET_MIB: u64 = 128;

/// The memory that a dataset which is read cold always gets: of its origin, of its readers, and of the disk's writes.
const LEAST_MIB: u64 = 8 + 4 + 4;

/// Each attempt at a GET brings half of the rest.
const ATTEMPTS: u32 = 3;

/// The origins of the cold datasets: one server at as many addresses.
struct Origins {
    proxies: Vec<FaultProxy>,
    /// How often each object was requested.
    requested: Arc<Mutex<BTreeMap<String, u32>>>,
}

impl Origins {
    fn start(lab: &Lab) -> Self {
        let start = |_| lab.runtime().block_on(FaultProxy::start(lab.server.address(), |_| Fault::None)).unwrap();
        Self { proxies: (0..COLD).map(start).collect(), requested: Arc::default() }
    }

    /// Each answer stops halfway from now on.
    fn stall(&self) {
        for proxy in &self.proxies {
            let requested = Arc::clone(&self.requested);
            proxy.set_hook(move |request| {
                *requested.lock().unwrap().entry(request.path.clone()).or_default() += 1;
                Fault::Stall
            });
        }
    }

    fn mend(&self) {
        self.proxies.iter().for_each(|proxy| proxy.set_hook(|_| Fault::None));
    }

    /// Waits until larderd has most bytes of one file of each origin. If it fetches more at the same time, it has most
    /// bytes of those, too.
    fn wait_until_most_has_arrived(&self) {
        self.requested.lock().unwrap().clear();
        wait_until("most bytes have arrived", || {
            let requested = self.requested.lock().unwrap();
            requested.values().filter(|times| **times >= ATTEMPTS).count() >= COLD
        });
    }
}

/// The dataset of a mount, with keys of its own.
fn dataset(lab: &Lab, origins: &Origins, mount: usize) -> v1::Dataset {
    let keys = [("AWS_ACCESS_KEY_ID", lab.server.access_key()), ("AWS_SECRET_ACCESS_KEY", SECRET)];
    let variables = keys.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    v1::Dataset {
        source: format!("s3://{BUCKET}/set-{mount}"),
        endpoint: origins.proxies.get(mount).unwrap_or(&lab.proxy).endpoint(),
        cache_bytes: (!mount.is_multiple_of(KEPT_EVERY)).then_some(SMALL_CACHE_BYTES),
        credentials: Some(v1::Credentials { variables }),
        ..v1::Dataset::default()
    }
}

/// The bytes of a mount's cached file.
fn warm(mount: usize) -> Vec<u8> {
    seeded_bytes(mount as u64, 100_000)
}

/// The bytes of a reader's file, which no other has.
fn cold(bytes: &'static [u8], reader: usize) -> &'static [u8] {
    &bytes[reader * APART..][..FILE_BYTES]
}

/// Reads the cached file of every mount past the kernel's page cache. In a thread of its own, so that a hang fails the
/// test instead of hanging it.
fn read_warm(dirs: &Arc<[PathBuf]>) {
    let dirs = Arc::clone(dirs);
    let reading = std::thread::spawn(move || {
        for (mount, dir) in dirs.iter().enumerate() {
            let mut file = File::open(dir.join("warm")).unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            let mut got = Vec::new();
            file.read_to_end(&mut got).unwrap();
            assert!(got == warm(mount), "the cached file of mount {mount} has wrong bytes");
        }
    });
    wait_until("the cached files are read", || reading.is_finished());
    reading.join().unwrap();
}

/// Reads a cold file with one READ at a time, and compares it.
fn read_cold(path: &Path, bytes: &[u8]) {
    let file = open_direct(path);
    let mut piece = vec![0; PIECE_BYTES];
    for (number, expected) in bytes.chunks(PIECE_BYTES).enumerate() {
        file.read_exact_at(&mut piece, (number * PIECE_BYTES) as u64).unwrap();
        assert!(piece == expected, "{} has wrong bytes", path.display());
    }
}

/// A larderd within a limit of memory.
struct Limited<'a> {
    lab: &'a Lab,
    larderd: Larderd,
    cgroup: &'a MemoryCgroup,
    admin: SocketAddr,
}

impl Limited<'_> {
    /// A metric of all datasets together. None: its page is not served yet.
    fn metric(&self, name: &str) -> Option<u64> {
        let page = self.lab.runtime().block_on(get(self.admin, "/metrics"));
        let value =
            page.lines().find_map(|line| line.strip_prefix("larder_")?.strip_prefix(name)?.strip_prefix(' '))?;
        Some(value.trim().parse().unwrap())
    }

    fn wait_until_all_readers_wait(&self) {
        wait_until("all readers wait for the origin", || {
            self.assert_not_killed();
            self.metric("fs_fetches_running") >= Some(READERS as u64)
        });
    }

    fn assert_not_killed(&self) {
        assert_eq!(self.cgroup.kills(), 0, "larderd needs more than its memory: {}", self.larderd.log());
    }

    /// The most memory that this process of larderd has had, in MiB. It is within the limit, and so is what it holds for
    /// data in flight.
    fn peak_mib(&self, limit_mib: u64) -> u64 {
        self.assert_not_killed();
        let peak_mib = self.larderd.memory_kib("VmHWM") >> 10;
        assert!(peak_mib < limit_mib, "larderd had {peak_mib} MiB of {limit_mib}");
        let used_mib = self.metric("fs_memory_used_bytes").unwrap() >> 20;
        let most_mib = TARGET_MIB + COLD as u64 * LEAST_MIB;
        assert!(used_mib <= most_mib, "{used_mib} MiB are in flight, and may be {most_mib}");
        peak_mib
    }
}

// SEMANTICS: C14, O5, K1, P8
#[test]
fn a_hundred_mounts_read_cold_and_killed_larderds_stay_within_the_memory_of_the_documents() {
    let limit_mib = memory_mib_most(THREADS, TARGET_MIB);
    let Some(cgroup) = MemoryCgroup::new(limit_mib << 20) else {
        eprintln!("SKIPPED: this machine has no memory controller that this user may use");
        return;
    };
    // Readers, proxies and the server are all in this process.
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).unwrap();
    let lab = Lab::new();
    let origins = Origins::start(&lab);
    let bytes: &'static [u8] = seeded_bytes(1, (FILE_BYTES + READERS * APART) as u64).leak();
    for mount in 0..MOUNTS {
        lab.server.put(BUCKET, &format!("set-{mount}/warm"), warm(mount));
    }
    for reader in 0..READERS {
        lab.server.put(BUCKET, &format!("set-{}/cold-{reader}", reader % COLD), cold(bytes, reader));
    }

    let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let (threads, admin_address) = (format!("--threads={THREADS}"), format!("--admin-address={admin}"));
    let flags = [&*threads, &*admin_address, "--attempt-timeout=2s", "--read-deadline=280s"];
    let mut larderd = Larderd::start(&lab, "memory", &flags);
    larderd.kill();
    larderd.set_cgroup(&cgroup);
    larderd.restart();
    let mut node = Limited { lab: &lab, larderd, cgroup: &cgroup, admin };
    let mut keeper = Keeper::new(node.larderd.run_dir());
    keeper.connect();
    let datasets: Vec<v1::Dataset> = (0..MOUNTS).map(|mount| dataset(&lab, &origins, mount)).collect();
    let mut dirs = Vec::new();
    for datasets in datasets.chunks(LISTED_AT_ONCE) {
        let prepared: Vec<v1::Prepared> = std::thread::scope(|scope| {
            let (lab, larderd) = (&lab, &node.larderd);
            let listing: Vec<_> =
                datasets.iter().map(|dataset| scope.spawn(move || prepare(lab, larderd, dataset))).collect();
            listing.into_iter().map(|listing| listing.join().unwrap()).collect()
        });
        for (dataset, prepared) in datasets.iter().zip(&prepared) {
            let dir = lab.folder().join(format!("mount-{}", dirs.len()));
            keeper.mount(prepared, dataset.clone(), &dir).unwrap();
            dirs.push(dir);
        }
    }
    wait_until("the metrics are served", || node.metric("fs_memory_target_bytes").is_some());
    assert_eq!(node.metric("fs_memory_target_bytes"), Some(TARGET_MIB << 20), "by the limit of the cgroup");

    let dirs: Arc<[PathBuf]> = dirs.into();
    read_warm(&dirs);
    wait_until("the files are cached", || node.metric("fs_fetches_running") == Some(0));
    origins.stall();
    let read = |reader: usize| {
        let (path, bytes) = (dirs[reader % COLD].join(format!("cold-{reader}")), cold(bytes, reader));
        std::thread::spawn(move || read_cold(&path, bytes))
    };
    let readers: Vec<_> = (0..READERS).map(read).collect();
    let mut peaks_mib = Vec::new();
    for kill in 0..=scaled(2) {
        if kill > 0 {
            let before = inherited(&node.larderd).0;
            node.larderd.kill();
            node.larderd.restart();
            assert_eq!(keeper.connect(), [] as [String; 0]);
            wait_until("larderd answers the reads that its predecessor had taken", || {
                inherited(&node.larderd).0 >= before + READERS as u64
            });
        }
        node.wait_until_all_readers_wait();
        origins.wait_until_most_has_arrived();
        read_warm(&dirs);
        peaks_mib.push(node.peak_mib(limit_mib));
    }
    origins.mend();
    for reader in readers {
        reader.join().unwrap();
    }
    read_warm(&dirs);
    peaks_mib.push(node.peak_mib(limit_mib));
    println!("{MOUNTS} mounts, {READERS} readers: larderd had {peaks_mib:?} MiB of {limit_mib}");
}
