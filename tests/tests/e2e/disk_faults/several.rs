//! A cache on two disks, of which the second dies.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use larder_e2e::{Lab, Larderd, Mount};
use larder_testkit::FailingDisk;

use super::{MIB, assert_reads_right, put_files};

/// Long enough for everything that ends at all, on the slowest machine.
const NOT_HANGING: Duration = Duration::from_secs(60);

const FILES: u64 = 120;

/// The most reads that wait for a disk that hangs, on a machine with many cores.
const WAITING_MOST: u64 = 48;

/// A `larderd` with two disks, and a mount of it.
struct World {
    larderd: Larderd,
    second: FailingDisk,
    second_dir: PathBuf,
    _first: FailingDisk,
    files: Vec<(String, Vec<u8>)>,
    mounts: u32,
    /// Declared last: everything else is in its folder.
    lab: Lab,
}

impl World {
    /// The second disk is twice as large as the first.
    fn new(file_bytes: u64, flags: &[&str]) -> Self {
        let lab = Lab::new();
        let files = put_files(&lab, FILES, file_bytes);
        let second_dir = lab.folder().join("second");
        let first = FailingDisk::new(&lab.folder().join("node-two/cache"), 64 * MIB).unwrap();
        let second = FailingDisk::new(&second_dir, 128 * MIB).unwrap();
        let cache_dir = format!("--cache-dir={}", second_dir.display());
        let larderd = Larderd::start(&lab, "two", &[&[cache_dir.as_str()][..], flags].concat());
        larderd.wait_until_it_answers();
        Self { larderd, second, second_dir, _first: first, files, mounts: 0, lab }
    }

    fn mount(&mut self) -> Mount {
        self.mounts += 1;
        let dir = self.lab.folder().join(format!("m{}", self.mounts));
        std::fs::create_dir(&dir).unwrap();
        let cache = self.larderd.run_dir().to_str().unwrap();
        self.lab.larder_ok(&["mount", &self.lab.url(), dir.to_str().unwrap(), "--cache-dir", cache]);
        Mount::standing(dir)
    }

    /// `kill -9`; the mount ends with the process.
    fn restart(&mut self, mount: Mount) -> Mount {
        self.kill(mount);
        self.start()
    }

    fn kill(&mut self, mount: Mount) {
        self.larderd.kill();
        drop(mount);
    }

    fn start(&mut self) -> Mount {
        self.larderd.restart();
        self.larderd.wait_until_it_answers();
        self.mount()
    }

    /// Reads all files, and returns how many of them were fetched.
    fn fetched(&self, mount: &Mount) -> usize {
        self.lab.server.reset_counters();
        assert_reads_right(mount, &self.files);
        assert_eq!((mount.metric("fs_errors_total"), mount.metric("fs_origin_errors_total")), (0, 0));
        self.files.iter().filter(|(key, _)| self.lab.gets_of(key) > 0).count()
    }

    /// Reads all files until all of them are cached.
    fn fill(&self, mount: &Mount) {
        let started = Instant::now();
        while self.fetched(mount) > 0 {
            assert!(started.elapsed() < NOT_HANGING, "{:#}\n{}", mount.stats(), self.larderd.log());
        }
    }
}

/// Bytes of the segments below a folder.
fn segment_bytes(dir: &Path) -> u64 {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.extension() {
            _ if path.is_dir() => bytes += segment_bytes(&path),
            Some(extension) if extension == "seg" => bytes += entry.metadata().map_or(0, |about| about.len()),
            _ => {}
        }
    }
    bytes
}

/// Neither disk has room for the dataset.
// SEMANTICS: C20
#[test]
fn two_disks_hold_what_neither_could_and_the_larger_one_holds_more() {
    let mut world = World::new(880_000, &[]);
    let mount = world.mount();
    world.fill(&mount);
    let (first, second) = (segment_bytes(world.larderd.run_dir()), segment_bytes(&world.second_dir));
    assert!(first > 20 * MIB && second > first + first / 3, "{first} {second}");
    let mount = world.restart(mount);
    assert_eq!(world.fetched(&mount), 0);
}

// SEMANTICS: C20
#[test]
fn a_disk_that_dies_costs_its_blocks_and_is_used_again_once_it_works() {
    let mut world = World::new(100_000, &[]);
    let mount = world.mount();
    world.fill(&mount);

    world.second.break_all();
    let lost = world.fetched(&mount);
    assert!((1..world.files.len()).contains(&lost), "{lost}");
    assert!(mount.metric("store_read_errors_total") > 0);
    assert!(mount.stats()["cache"]["degraded"].is_null(), "blocks are admitted");

    // The next process has one disk.
    let mount = world.restart(mount);
    world.fill(&mount);
    assert!(mount.stats()["cache"]["degraded"].is_null());

    // The disk is back.
    world.second.mend();
    world.kill(mount);
    world.second.remount().unwrap();
    let mount = world.start();
    assert_eq!(world.fetched(&mount), 0, "nothing was forgotten meanwhile");
}

/// A thread that waits for a disk cannot be interrupted, so the few reads that were on their way end with the disk.
// SEMANTICS: C20
#[test]
fn a_disk_that_hangs_holds_few_reads() {
    let mut world = World::new(100_000, &["--read-deadline=20s"]);
    let mount = world.mount();
    world.fill(&mount);
    world.second.hang();
    std::thread::scope(|scope| {
        let (read, wait) = mpsc::channel();
        for (key, bytes) in &world.files {
            let (mount, read) = (&mount, read.clone());
            scope.spawn(move || {
                let found = mount.read_fresh(key).unwrap();
                read.send(found == *bytes).unwrap();
            });
        }
        let mut right = (WAITING_MOST..FILES).map(|_| wait.recv_timeout(NOT_HANGING));
        let all_right = right.try_fold(true, |all, right| right.map(|right| all && right));
        world.second.mend();
        assert_eq!(all_right, Ok(true), "reads wait for a disk that hangs");
        assert!((0..WAITING_MOST).all(|_| wait.recv_timeout(NOT_HANGING) == Ok(true)));
    });
    assert_eq!(mount.metric("fs_errors_total"), 0);
    world.fill(&mount);
}
