//! Files of the cache with other contents than they had, and a damaged manifest, which cannot be fetched again and is
//! refused with a message.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use larder_e2e::Lab;
use larder_testkit::seeded_bytes;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{COMPLAINT, assert_reads_right, cache_files, put_files, set_len, unmount};

fn flip_byte(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[!byte[0]], at).unwrap();
}

// SEMANTICS: C4
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
            // A block that was fetched again is kept again.
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

// SEMANTICS: C4
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

// SEMANTICS: C4
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

// SEMANTICS: I3
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
    // Rows are checked at their first use, because a mount must not read ten million of them. A damaged row is an error
    // for the reader that needs it, and never a wrong name, size or byte.
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
