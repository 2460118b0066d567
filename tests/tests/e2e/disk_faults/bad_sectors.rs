//! Sectors that the disk cannot read or write, under each kind of file: the processes live, other datasets notice
//! nothing, and what cannot be read is fetched again, or an error where it cannot be.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use larder_e2e::{BUCKET, Lab, Mount};
use larder_testkit::{FailingDisk, seeded_bytes};
use rustix::mount::UnmountFlags;

use super::{MIB, assert_reads_right, cache_files, set_len, unmount};

/// A mapped file that is cut off fails as one with bad sectors does: with SIGBUS.
// SEMANTICS: C4
#[test]
fn a_disk_that_loses_what_is_mapped_costs_its_dataset_hits_or_clear_errors_and_no_process() {
    let lab = Lab::new();
    let put = |set: &str| -> Vec<(String, Vec<u8>)> {
        let file = |n| (format!("f{n:04}"), seeded_bytes(n, 300));
        let files: Vec<_> = (0..1500).map(file).collect();
        files.iter().for_each(|(key, bytes)| lab.put(&format!("{set}/{key}"), bytes.clone()));
        files
    };
    let (hurt, sound) = (put("hurt"), put("sound"));
    let manifest = lab.folder().join("hurt.manifest");
    let url = |set: &str| format!("{}/{set}", lab.url());
    lab.larder_ok(&["import", &url("hurt"), "--to", manifest.to_str().unwrap()]);
    let (other_dir, cache) = (lab.folder().join("other"), lab.cache_dir("m"));
    std::fs::create_dir(&other_dir).unwrap();
    let mount_other = || {
        let args = ["mount", &url("sound"), other_dir.to_str().unwrap(), "--cache-dir", cache.to_str().unwrap()];
        lab.larder_ok(&args);
    };
    let other_is_right = || {
        for (key, bytes) in &sound {
            let file = File::open(other_dir.join(key)).unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            assert!(std::fs::read(other_dir.join(key)).unwrap() == *bytes, "wrong bytes in {key}");
        }
    };
    let mount = lab.mount("m", manifest.to_str().unwrap(), &[]);
    mount_other();
    assert_reads_right(&mount, &hurt);
    other_is_right();
    mount.settle();
    let pid = mount.pid();

    // The slot table: blocks are missing and are fetched again.
    let snapshot = mount.stats()["dataset"]["snapshot"].as_str().unwrap().to_owned();
    let slots =
        cache_files(&lab, "/slots").into_iter().find(|path| path.to_str().unwrap().contains(&snapshot)).unwrap();
    set_len(&slots, 8192);
    lab.server.reset_counters();
    for _ in 0..2 {
        assert_reads_right(&mount, &hurt);
    }
    other_is_right();
    let gets = |set: &str, files: &[(String, Vec<u8>)]| -> u64 {
        files.iter().map(|(key, _)| lab.gets_of(&format!("{set}/{key}"))).sum()
    };
    // The cache was full: until a restart they count as kept, and are not kept again. The others are hits.
    assert!(gets("hurt", &hurt[512..]) >= 1500 - 512);
    assert_eq!((gets("hurt", &hurt[..512]), gets("sound", &sound)), (0, 0));
    assert!(mount.stats()["cache"]["degraded"].is_null());

    // The manifest: EIO or right, until it can be read again.
    let bytes = std::fs::read(&manifest).unwrap();
    set_len(&manifest, 16_384);
    let mut errors = 0;
    for (key, bytes) in &hurt {
        match mount.read_fresh(key) {
            Ok(read) => assert!(read == *bytes, "wrong bytes in {key}"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{key}");
                errors += 1;
            }
        }
    }
    assert!(errors > 1000, "{errors}");
    let listed = std::fs::read_dir(mount.dir()).into_iter().flatten().flatten();
    assert!(listed.map(|entry| entry.file_name()).all(|name| hurt.iter().any(|(key, _)| name == **key)));
    other_is_right();
    OpenOptions::new().write(true).open(&manifest).unwrap().write_all_at(&bytes, 0).unwrap();
    mount.wait_until("the manifest can be read again", |mount| mount.read_fresh("f1400").is_ok());
    lab.server.reset_counters();
    assert_reads_right(&mount, &hurt);
    other_is_right();
    assert_eq!((gets("hurt", &hurt[..512]), gets("sound", &sound)), (0, 0));
    assert_eq!(mount.stats()["process"]["pid"], pid, "the same process");

    // A restart finds what was there.
    mount.kill();
    rustix::mount::unmount(&other_dir, UnmountFlags::DETACH).unwrap();
    std::mem::forget(mount);
    let mount = lab.mount("m", manifest.to_str().unwrap(), &[]);
    mount_other();
    lab.server.reset_counters();
    assert_reads_right(&mount, &hurt);
    other_is_right();
    assert_eq!(lab.server.counters().gets, 0);
    lab.larder_ok(&["umount", other_dir.to_str().unwrap()]);
}

/// Two datasets of small files, which are mounted on one cache.
struct Pair {
    lab: Lab,
    hurt: Vec<(String, Vec<u8>)>,
    sound: Vec<(String, Vec<u8>)>,
}

impl Pair {
    fn new(count: u64, size: u64) -> Self {
        let lab = Lab::new();
        let files =
            |first| -> Vec<_> { (0..count).map(|n| (format!("f{n:04}"), seeded_bytes(first + n, size))).collect() };
        let (hurt, sound) = (files(0), files(count));
        hurt.iter().for_each(|(key, bytes)| lab.put(key, bytes.clone()));
        sound.iter().for_each(|(key, bytes)| lab.put_other(key, bytes.clone()));
        Self { lab, hurt, sound }
    }

    /// Mounts the first dataset from `source`, and the second beside it.
    fn mount(&self, source: &str) -> (Mount, Mount) {
        let hurt = self.lab.mount("m", source, &[]);
        let dir = self.lab.folder().join("mnt-other");
        std::fs::create_dir_all(&dir).unwrap();
        let cache = self.lab.cache_dir("m");
        let (other, cache) = (self.lab.other_url(), cache.to_str().unwrap());
        self.lab.larder_ok(&["mount", &other, dir.to_str().unwrap(), "--cache-dir", cache]);
        (hurt, Mount::standing(dir))
    }

    fn unmount(&self, mounts: (Mount, Mount)) {
        self.lab.larder_ok(&["umount", mounts.1.dir().to_str().unwrap()]);
        unmount(&self.lab, mounts.0);
    }

    /// GETs of the first dataset and of the second since the last reset.
    fn gets(&self) -> (u64, u64) {
        let gets = |prefix, files: &[(String, Vec<u8>)]| {
            files.iter().map(|(key, _)| self.lab.server.gets_of(BUCKET, &format!("{prefix}/{key}"))).sum()
        };
        (gets("data", &self.hurt), gets("other", &self.sound))
    }

    /// The file with this ending of the first dataset's part of the cache.
    fn file_of(&self, mount: &Mount, ending: &str) -> PathBuf {
        let snapshot = mount.stats()["dataset"]["snapshot"].as_str().unwrap().to_owned();
        let mut files = cache_files(&self.lab, ending);
        files.retain(|path| path.to_str().unwrap().contains(&snapshot));
        files.remove(0)
    }
}

// SEMANTICS: C4
#[test]
fn bad_sectors_under_the_slot_table_are_found_at_the_start_restored_from_the_index_and_written_anew() {
    let pair = Pair::new(1500, 300);
    let disk = FailingDisk::new(&pair.lab.cache_dir("m"), 256 * MIB).unwrap();
    let mounts = pair.mount(&pair.lab.url());
    assert_reads_right(&mounts.0, &pair.hurt);
    assert_reads_right(&mounts.1, &pair.sound);
    let slots = pair.file_of(&mounts.0, "/slots");
    pair.unmount(mounts);
    disk.break_reads(&slots, 4096..3 * 4096).unwrap();
    assert_eq!(disk.unreadable(), 2);
    pair.lab.server.reset_counters();
    let mounts = pair.mount(&pair.lab.url());
    let pid = mounts.0.pid();
    for (mount, files) in [(&mounts.0, &pair.hurt), (&mounts.1, &pair.sound)] {
        assert_reads_right(mount, files);
        mount.wait_until("the blocks are counted", |mount| mount.metric("store_blocks") == 1500);
    }
    assert_eq!(pair.gets().1, 0, "the other dataset notices nothing");
    assert!(disk.errors().reads > 0 && pair.lab.logs().contains("a part of the slot table cannot be read"));
    pair.lab.server.reset_counters();
    assert_reads_right(&mounts.0, &pair.hurt);
    assert_reads_right(&mounts.1, &pair.sound);
    assert_eq!(pair.gets(), (0, 0), "the index has the lost slots");
    assert_eq!((mounts.0.pid(), mounts.0.metric("fs_errors_total")), (pid, 0));
    pair.unmount(mounts);
    rustix::fs::syncfs(File::open(pair.lab.cache_dir("m")).unwrap()).unwrap();
    assert_eq!(disk.unreadable(), 0, "the sectors were written anew");
    let errors = disk.errors();
    let mounts = pair.mount(&pair.lab.url());
    assert_reads_right(&mounts.0, &pair.hurt);
    assert_eq!((pair.gets(), disk.errors()), ((0, 0), errors));
    pair.unmount(mounts);
}

// SEMANTICS: I3
#[test]
fn bad_sectors_under_a_manifest_fail_the_files_whose_rows_are_there_until_they_can_be_read() {
    let pair = Pair::new(3000, 300);
    let disk = FailingDisk::new(&pair.lab.folder().join("disk"), 64 * MIB).unwrap();
    let manifest = pair.lab.folder().join("disk/hurt.manifest");
    let source = manifest.to_str().unwrap();
    pair.lab.larder_ok(&["import", &pair.lab.url(), "--to", source]);
    let len = std::fs::metadata(&manifest).unwrap().len();
    // In the middle, through which each search by name goes.
    disk.break_reads(&manifest, len / 2..len / 2 + 8192).unwrap();
    let mounts = pair.mount(source);
    let pid = mounts.0.pid();
    let mut failed = 0;
    for (key, bytes) in &pair.hurt {
        match mounts.0.read_fresh(key) {
            Ok(read) => assert!(read == *bytes, "wrong bytes in {key}"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{key}");
                failed += 1;
            }
        }
    }
    assert!(failed > 0 && failed < 3000 && disk.errors().reads > 0, "{failed} files failed");
    assert_reads_right(&mounts.1, &pair.sound);
    disk.mend();
    for (key, _) in &pair.hurt {
        mounts.0.wait_until("the manifest can be read", |mount| mount.read_fresh(key).is_ok());
    }
    assert_reads_right(&mounts.0, &pair.hurt);
    assert_eq!(mounts.0.pid(), pid, "the same process");
    pair.unmount(mounts);
}

// SEMANTICS: C4
#[test]
fn bad_sectors_under_a_segment_cost_its_blocks_and_an_unwritable_disk_costs_hits_until_it_works_again() {
    const FILES: u64 = 60;
    let pair = Pair::new(FILES, 50_000);
    let disk = FailingDisk::new(&pair.lab.cache_dir("m"), 256 * MIB).unwrap();
    let mounts = pair.mount(&pair.lab.url());
    let pid = mounts.0.pid();
    // Backwards, so that there is no read-ahead.
    let half: Vec<_> = pair.hurt[30..].iter().rev().cloned().collect();
    assert_reads_right(&mounts.0, &half);
    assert_reads_right(&mounts.1, &pair.sound);
    let segment = pair.file_of(&mounts.0, ".seg");

    // Reads: the blocks are fetched.
    disk.break_reads(&segment, 0..10 * 4096).unwrap();
    pair.lab.server.reset_counters();
    assert_reads_right(&mounts.0, &half);
    assert_reads_right(&mounts.1, &pair.sound);
    let (hurt, sound) = pair.gets();
    assert!((1..=4).contains(&hurt) && sound == 0, "{hurt} GETs, {sound} of the other dataset");
    assert!(mounts.0.metric("store_read_errors_total") > 0 && disk.errors().reads > 0);

    // Writes of blocks: nothing more is kept.
    disk.break_writes(&segment, 0..u64::MAX - 4096).unwrap();
    for _ in 0..2 {
        assert_reads_right(&mounts.0, &pair.hurt);
    }
    assert_eq!(mounts.0.stats()["cache"]["degraded"], "disk error", "{:#}", mounts.0.stats());
    assert!(mounts.0.metric("store_write_errors_total") > 0 && disk.errors().writes > 0);
    pair.lab.server.reset_counters();
    assert_reads_right(&mounts.1, &pair.sound);
    assert_eq!(pair.gets().1, 0);

    // The disk works again: after a pause all is kept.
    disk.mend();
    let started = std::time::Instant::now();
    while mounts.0.metric("store_blocks") < FILES {
        assert!(started.elapsed() < std::time::Duration::from_secs(120), "{:#}", mounts.0.stats());
        assert_reads_right(&mounts.0, &pair.hurt);
    }
    assert!(mounts.0.stats()["cache"]["degraded"].is_null());

    // No write at all: the journal fails, and slots, renames and new files with it.
    disk.break_all_writes();
    rustix::fs::syncfs(File::open(pair.lab.cache_dir("m")).unwrap()).ok();
    pair.lab.server.reset_counters();
    assert_reads_right(&mounts.0, &pair.hurt);
    assert_reads_right(&mounts.1, &pair.sound);
    assert_eq!(pair.gets(), (0, 0), "what is cached can be read");
    for mount in [&mounts.0, &mounts.1] {
        assert_eq!((mount.pid(), mount.metric("fs_errors_total")), (pid, 0));
    }
    pair.unmount(mounts);
    disk.mend();
    disk.remount().unwrap();
    let mounts = pair.mount(&pair.lab.url());
    for (mount, files) in [(&mounts.0, &pair.hurt), (&mounts.1, &pair.sound)] {
        for _ in 0..2 {
            assert_reads_right(mount, files);
        }
        mount.wait_until("all is cached again", |mount| mount.metric("store_blocks") == FILES);
        assert_eq!(mount.metric("fs_errors_total"), 0);
    }
    pair.unmount(mounts);
}
