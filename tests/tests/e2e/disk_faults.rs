//! A cache disk in trouble costs hits and never fails a read. A damaged manifest, which cannot be fetched again, is refused
//! with a message.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use larder_e2e::{Lab, Larderd, Mount};
use larder_testkit::seeded_bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::mount::{MountFlags, UnmountFlags};

const MIB: u64 = 1 << 20;

/// The log message when the disk starts to fail.
const COMPLAINT: &str = "admissions to the cache pause";

/// A file system for a cache folder. Make it before the mount that uses it, so that it is dropped after it.
struct Disk(PathBuf);

impl Disk {
    /// In memory, with this many bytes.
    fn tmpfs(dir: PathBuf, bytes: u64) -> Self {
        std::fs::create_dir_all(&dir).unwrap();
        let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        rustix::mount::mount("larder-test", &dir, "tmpfs", MountFlags::empty(), options.as_c_str()).unwrap();
        Self(dir)
    }

    /// Resizes a disk in memory.
    fn resize(&self, bytes: u64) {
        let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        rustix::mount::mount_remount(&self.0, MountFlags::empty(), options.as_c_str()).unwrap();
    }

    /// An ext4 in a file, which goes read-only at its first error, as on a dying disk.
    fn ext4(dir: PathBuf, image: &Path) -> Self {
        std::fs::create_dir_all(&dir).unwrap();
        File::create(image).unwrap().set_len(256 * MIB).unwrap();
        run(Command::new("mkfs.ext4").arg("-q").arg(image));
        run(Command::new("mount").args(["-o", "loop,errors=remount-ro"]).arg(image).arg(&dir));
        Self(dir)
    }

    /// Makes the kernel find an error on this ext4.
    fn fail(&self) {
        let source = run(Command::new("findmnt").args(["-n", "-o", "SOURCE"]).arg(&self.0));
        let device = source.trim().trim_start_matches("/dev/");
        std::fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "made up by a test").unwrap();
        assert!(File::create(self.0.join("probe")).is_err(), "the disk is read-only now");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn put_files(lab: &Lab, count: u64, size: u64) -> Vec<(String, Vec<u8>)> {
    let files: Vec<_> = (0..count).map(|n| (format!("f{n:03}"), seeded_bytes(n, size))).collect();
    for (key, bytes) in &files {
        lab.put(key, bytes.clone());
    }
    files
}

fn assert_reads_right(mount: &Mount, files: &[(String, Vec<u8>)]) {
    for (key, bytes) in files {
        assert!(mount.read_fresh(key).unwrap() == *bytes, "wrong bytes in {key}");
    }
    mount.settle();
}

/// `larder umount`, and waits for the end of its process.
fn unmount(lab: &Lab, mount: Mount) {
    lab.larder_ok(&["umount", mount.dir().to_str().unwrap()]);
    let started = Instant::now();
    let proc = format!("/proc/{}/stat", mount.pid());
    while std::fs::read_to_string(&proc).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(started.elapsed() < Duration::from_secs(30), "the unmounted process does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The files of a cache whose paths end like this, such as `/slots` or `.seg`.
fn cache_files(lab: &Lab, ending: &str) -> Vec<PathBuf> {
    let mut folders = vec![lab.cache_dir("m").join("datasets")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_str().unwrap().ends_with(ending) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "no {ending} in the cache");
    found
}

fn flip_byte(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[!byte[0]], at).unwrap();
}

fn set_len(path: &Path, len: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

#[test]
fn a_full_disk_costs_hits_and_no_reads() {
    let lab = Lab::new();
    let files = put_files(&lab, 64, MIB);
    let disk = Disk::tmpfs(lab.cache_dir("m"), 32 * MIB);
    let mount = lab.mount("m", &lab.url(), &["--cache-size", "1GiB"]);
    for _ in 0..2 {
        assert_reads_right(&mount, &files);
    }
    let stats = mount.stats();
    assert!(stats["metrics"]["store_write_errors_total"].as_u64().unwrap() > 0, "{stats:#}");
    assert_eq!(stats["cache"]["degraded"], "disk full", "{stats:#}");
    assert_eq!(stats["metrics"]["fs_errors_total"], 0, "{stats:#}");
    let kept = mount.metric("store_blocks");
    assert!((8..32).contains(&kept), "what fits is kept: {kept} blocks");
    assert_eq!(lab.logs().matches(COMPLAINT).count(), 1, "{}", lab.logs());
    lab.server.reset_counters();
    assert_reads_right(&mount, &files);
    assert_eq!(lab.server.counters().gets, 64 - kept, "what is kept is still a hit");

    // There is room again: after a pause the cache continues to fill.
    disk.resize(256 * MIB);
    let started = Instant::now();
    while mount.metric("store_blocks") < 64 {
        assert!(started.elapsed() < Duration::from_secs(120), "the disk is never tried again: {:#}", mount.stats());
        assert_reads_right(&mount, &files);
    }
    assert!(mount.stats()["cache"]["degraded"].is_null());
    assert_eq!(lab.logs().matches(COMPLAINT).count(), 1, "{}", lab.logs());
}

#[test]
fn larderd_leaves_a_part_of_the_disk_free_and_goes_on_when_more_of_it_is() {
    let lab = Lab::new();
    let files = put_files(&lab, 64, MIB);
    let disk = Disk::tmpfs(lab.folder().join("node-tight/cache"), 50 * MIB);
    let larderd = Larderd::start(&lab, "tight", &["--cache-size=1GiB", "--keep-free=40%"]);
    larderd.wait_until_it_answers();
    let dir = lab.folder().join("mnt");
    std::fs::create_dir(&dir).unwrap();
    lab.larder_ok(&["mount", &lab.url(), dir.to_str().unwrap(), "--cache-dir", larderd.run_dir().to_str().unwrap()]);
    let mount = Mount::standing(dir);
    for _ in 0..2 {
        assert_reads_right(&mount, &files);
    }
    let stats = mount.stats();
    assert_eq!(stats["cache"]["degraded"], "too little of the disk is free", "{stats:#}");
    assert_eq!(stats["metrics"]["fs_errors_total"], 0, "{stats:#}");
    let seen = rustix::fs::statvfs(&disk.0).unwrap();
    let free = seen.f_bavail as f64 / seen.f_blocks as f64;
    // Room is taken 4 MiB ahead.
    assert!((0.3..0.5).contains(&free), "{free} of the disk is free");
    assert_eq!(larderd.log().matches(COMPLAINT).count(), 1, "{}", larderd.log());
    assert!(larderd.log().contains("--keep-free"), "{}", larderd.log());

    disk.resize(256 * MIB);
    let started = Instant::now();
    while mount.metric("store_blocks") < 64 {
        assert!(started.elapsed() < Duration::from_secs(120), "nothing more is cached: {:#}", mount.stats());
        assert_reads_right(&mount, &files);
    }
    assert!(mount.stats()["cache"]["degraded"].is_null());
}

#[test]
fn a_disk_gone_read_only_costs_hits_and_no_reads() {
    let lab = Lab::new();
    let files = put_files(&lab, 60, 100_000);
    let disk = Disk::ext4(lab.cache_dir("m"), &lab.folder().join("image"));
    let mount = lab.mount("m", &lab.url(), &[]);
    // Backwards, so that there is no read-ahead.
    let backwards: Vec<_> = files[..30].iter().rev().cloned().collect();
    assert_reads_right(&mount, &backwards);
    disk.fail();
    for _ in 0..2 {
        assert_reads_right(&mount, &files);
    }
    let stats = mount.stats();
    assert!(stats["metrics"]["store_write_errors_total"].as_u64().unwrap() > 0, "{stats:#}");
    let degraded = stats["cache"]["degraded"].as_str();
    // The last failure counts: the write of a block, or the release of the room that was preallocated for it.
    assert!(degraded.is_some_and(|why| ["disk read-only", "disk error"].contains(&why)), "{stats:#}");
    assert_eq!(stats["metrics"]["fs_errors_total"], 0, "{stats:#}");
    assert_eq!(lab.logs().matches(COMPLAINT).count(), 1, "{}", lab.logs());
    for (key, _) in &files[..30] {
        assert_eq!(lab.gets_of(key), 1, "{key} was kept before and is a hit");
    }
    unmount(&lab, mount);
    // A new mount serves what is there, and the rest from the origin.
    lab.server.reset_counters();
    let mount = lab.mount("m", &lab.url(), &[]);
    for _ in 0..2 {
        assert_reads_right(&mount, &files);
    }
    for (key, _) in &files[..30] {
        assert_eq!(lab.gets_of(key), 0, "{key} is still there");
    }
    assert_eq!(mount.stats()["cache"]["degraded"], "disk read-only", "{:#}", mount.stats());
    assert_eq!((mount.metric("store_degraded"), mount.metric("fs_errors_total")), (1, 0));
    assert!(lab.logs().contains("read-only"), "{}", lab.logs());
}

#[test]
fn a_cache_folder_on_a_read_only_disk_costs_the_cache_and_no_mount() {
    let lab = Lab::new();
    let files = put_files(&lab, 20, 100_000);
    let disk = Disk::ext4(lab.cache_dir("m"), &lab.folder().join("image"));
    disk.fail();
    for _ in 0..2 {
        let mount = lab.mount("m", &lab.url(), &[]);
        assert_reads_right(&mount, &files);
        assert_eq!((mount.metric("store_degraded"), mount.metric("store_blocks")), (1, 0));
        assert_eq!(mount.metric("fs_errors_total"), 0);
        unmount(&lab, mount);
    }
    assert!(lab.logs().contains("the cache folder cannot be used"), "{}", lab.logs());
}

/// A mapped file that is cut off fails as one with bad sectors does: with SIGBUS.
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

#[test]
fn torn_and_rotten_segments_are_fetched_again() {
    // Each record takes 25 pages, so one byte every 25 pages is one in each record.
    const FILES: u64 = 40;
    const SIZE: u64 = 100_000;
    const EXTENT: u64 = 25 * 4096;
    let lab = Lab::new();
    let files = put_files(&lab, FILES, SIZE);
    let segment = || {
        let segments = cache_files(&lab, ".seg");
        assert_eq!(segments.len(), 1);
        segments[0].clone()
    };
    let rot = || (0..FILES).for_each(|record| flip_byte(&segment(), record * EXTENT + SIZE / 2));
    let tear = || set_len(&segment(), FILES / 4 * EXTENT);
    let damages: [(&str, &dyn Fn(), u64); 2] = [("rotten", &rot, FILES), ("torn", &tear, FILES / 4 * 3)];
    for (damage, spoil, flaws) in damages {
        for restart in [false, true] {
            std::fs::remove_dir_all(lab.cache_dir("m")).ok();
            let mut mount = lab.mount("m", &lab.url(), &[]);
            assert_reads_right(&mount, &files);
            assert_eq!(mount.metric("store_blocks"), FILES);
            if restart {
                unmount(&lab, mount);
                spoil();
                mount = lab.mount("m", &lab.url(), &[]);
                mount.wait_until("the blocks are counted", |mount| mount.metric("store_blocks") == FILES);
            } else {
                spoil();
            }
            lab.server.reset_counters();
            assert_reads_right(&mount, &files);
            let context = format!("{damage}, restart: {restart}: {:#}", mount.stats());
            assert_eq!(mount.metric("store_corrupt_total"), flaws, "{context}");
            assert_eq!(lab.server.counters().gets, flaws, "{context}");
            // What was fetched again is kept again.
            assert_reads_right(&mount, &files);
            assert_eq!(lab.server.counters().gets, flaws, "{context}");
            assert_eq!(mount.metric("store_blocks"), FILES, "{context}");
            assert_eq!(mount.metric("fs_errors_total"), 0, "{context}");
            unmount(&lab, mount);
        }
    }
    let lines = lab.logs().matches("drop a corrupt block").count();
    assert_eq!(lines, 4, "one for each of the four mounts, not for each block");
}

#[test]
fn a_deleted_cache_folder_costs_hits_and_no_reads() {
    let lab = Lab::new();
    let files = put_files(&lab, 40, 100_000);
    let mount = lab.mount("m", &lab.url(), &[]);
    // Backwards, so that there is no read-ahead.
    let backwards: Vec<_> = files[..20].iter().rev().cloned().collect();
    assert_reads_right(&mount, &backwards);
    std::fs::remove_dir_all(lab.cache_dir("m")).unwrap();
    for _ in 0..2 {
        assert_reads_right(&mount, &files);
    }
    let stats = mount.stats();
    assert_eq!(stats["metrics"]["fs_errors_total"], 0, "{stats:#}");
    assert_eq!(stats["cache"]["degraded"], "cache folder deleted", "{stats:#}");
    for (key, _) in &files[..20] {
        assert_eq!(lab.gets_of(key), 1, "{key} is in a file that is still open, and a hit");
    }
    assert_eq!(lab.logs().matches(COMPLAINT).count(), 1, "{}", lab.logs());
    // The next mount starts with a new cache.
    unmount(&lab, mount);
    let mount = lab.mount("m", &lab.url(), &[]);
    assert_reads_right(&mount, &files);
    assert_eq!(mount.metric("store_blocks"), 40);
}

#[test]
fn a_broken_slot_table_is_made_anew_and_no_byte_is_wrong() {
    let lab = Lab::new();
    let files = put_files(&lab, 40, 20_000);
    let mut mount = lab.mount("m", &lab.url(), &[]);
    assert_reads_right(&mount, &files);
    let noise = |path: &Path, at: u64, len: u64| {
        OpenOptions::new().write(true).open(path).unwrap().write_all_at(&seeded_bytes(at, len), at).unwrap();
    };
    // The index has everything that was in the table, so nothing is fetched again.
    type Breakage<'a> = (&'a str, &'a dyn Fn(&Path));
    let replaced: [Breakage<'_>; 5] = [
        ("empty", &|path| set_len(path, 0)),
        ("cut in its header", &|path| set_len(path, 20)),
        ("cut in its slots", &|path| set_len(path, 4096 + 100)),
        ("with a header of noise", &|path| noise(path, 0, 64)),
        ("missing", &|path| std::fs::remove_file(path).unwrap()),
    ];
    for (how, spoil) in replaced {
        unmount(&lab, mount);
        spoil(&cache_files(&lab, "/slots")[0]);
        mount = lab.mount("m", &lab.url(), &[]);
        mount.wait_until("the table is refilled", |mount| mount.metric("store_blocks") == 40);
        lab.server.reset_counters();
        assert_reads_right(&mount, &files);
        assert_eq!(lab.server.counters().gets, 0, "{how}");
    }
    // A valid header over random slots: they point anywhere, and the checks of the records find it.
    unmount(&lab, mount);
    noise(&cache_files(&lab, "/slots")[0], 4096, 4096);
    let mount = lab.mount("m", &lab.url(), &[]);
    for _ in 0..2 {
        assert_reads_right(&mount, &files);
    }
    assert_eq!(mount.metric("fs_errors_total"), 0);
    // Slots that point to each other's records, while the mount uses them.
    let slots = OpenOptions::new().read(true).write(true).open(&cache_files(&lab, "/slots")[0]).unwrap();
    let mut table = [0; 8 * 40];
    slots.read_exact_at(&mut table, 4096).unwrap();
    table.rotate_left(8);
    slots.write_all_at(&table, 4096).unwrap();
    for _ in 0..2 {
        assert_reads_right(&mount, &files);
    }
    assert!(mount.metric("store_corrupt_total") > 0);
}

#[test]
fn a_damaged_manifest_is_refused_in_words() {
    let lab = Lab::new();
    let files = put_files(&lab, 200, 100);
    let manifest = lab.folder().join("set.manifest");
    lab.larder_ok(&["import", &lab.url(), "--to", manifest.to_str().unwrap()]);
    let sound = std::fs::read(&manifest).unwrap();
    let dir = lab.folder().join("mnt-m");
    let cache = lab.cache_dir("m");
    std::fs::create_dir_all(&dir).unwrap();
    let args = ["mount", manifest.to_str().unwrap(), dir.to_str().unwrap(), "--cache-dir", cache.to_str().unwrap()];
    let refused = |damage: &str| {
        let complaint = lab.larder_fails(1, &args);
        assert!(complaint.contains(manifest.to_str().unwrap()), "{damage}: {complaint}");
        assert!(complaint.contains("manifest"), "{damage}: {complaint}");
        assert!(!complaint.contains("panicked"), "{damage}: {complaint}");
    };
    for len in [0, 1, 20, 100, sound.len() / 2, sound.len() - 1] {
        std::fs::write(&manifest, &sound[..len]).unwrap();
        refused(&format!("cut to {len} bytes"));
    }
    for bit in [0, 8 * 8, 8 * 20, 8 * 60] {
        let mut bytes = sound.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&manifest, bytes).unwrap();
        refused(&format!("bit {bit} of the header flipped"));
    }
    // Rows are checked at their first use, because a mount must not read ten million of them. A damaged row is an error for
    // the reader that needs it, and never a wrong name, size or byte.
    let mut rng = StdRng::seed_from_u64(1);
    let mut refusals = 0;
    for _ in 0..20 {
        let bit = rng.random_range(0..sound.len() * 8);
        let mut bytes = sound.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&manifest, bytes).unwrap();
        if !lab.larder(&args).status.success() {
            refused(&format!("bit {bit} flipped"));
            refusals += 1;
            continue;
        }
        let mut errors = 0;
        for (key, bytes) in &files {
            match std::fs::read(dir.join(key)) {
                Ok(read) => assert!(read == *bytes, "bit {bit} flipped: wrong bytes in {key}"),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "bit {bit}: {key}");
                    errors += 1;
                }
            }
        }
        lab.larder_ok(&["umount", dir.to_str().unwrap()]);
        refusals += u32::from(errors > 0);
        std::fs::remove_dir_all(&cache).ok();
    }
    assert!(refusals >= 15, "few flipped bits were met: {refusals}");
    std::fs::write(&manifest, &sound).unwrap();
    lab.larder_ok(&args);
    lab.larder_ok(&["umount", dir.to_str().unwrap()]);
}
