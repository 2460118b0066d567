//! The main job: a dataset in S3 is imported, mounted and read.

use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;

use larder_e2e::Lab;
use larder_testkit::seeded_bytes;

// SEMANTICS: C2
#[test]
fn a_bucket_that_nobody_imported_is_mounted_and_read_and_the_second_epoch_asks_for_nothing() {
    let lab = Lab::new();
    let files: Vec<(String, Vec<u8>)> =
        (0..50).map(|n| (format!("class-{}/{n}.jpg", n % 5), seeded_bytes(n, 1000 + n * 3777))).collect();
    for (key, bytes) in &files {
        lab.put(key, bytes.clone());
    }
    let mount = lab.mount("m", &lab.url(), &[]);
    for _ in 0..2 {
        for (key, bytes) in &files {
            assert_eq!(mount.read_fresh(key).unwrap(), *bytes, "{key}");
        }
        mount.settle();
    }
    for (key, _) in &files {
        assert_eq!(lab.gets_of(key), 1, "{key}");
    }
    assert_eq!(mount.metric("fs_origin_gets_total"), 50);
    assert_eq!(mount.metric("store_evicted_total"), 0);
    assert_eq!(mount.stats()["cache"]["blocks"], 50);
}

// SEMANTICS: B2
#[test]
fn files_of_no_byte_of_one_block_and_of_many_read_right_at_every_edge() {
    const BLOCK: u64 = 4 << 20;
    let lab = Lab::new();
    let sizes = [0, 1, 4095, 4096, 4097, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 12_345];
    for size in sizes {
        lab.put(&format!("{size}"), seeded_bytes(size, size));
    }
    let mount = lab.mount("m", &lab.url(), &[]);
    for size in sizes {
        let path = mount.path(format!("{size}"));
        let expected = seeded_bytes(size, size);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), size);
        assert_eq!(mount.read_fresh(format!("{size}")).unwrap(), expected, "{size} bytes, cold");
        assert_eq!(mount.read_fresh(format!("{size}")).unwrap(), expected, "{size} bytes, warm");
        let mut file = std::fs::File::open(&path).unwrap();
        for at in [0, 1, 4095, BLOCK - 1, BLOCK, size.saturating_sub(1), size, size + 1] {
            let mut piece = vec![0; 10_000];
            file.seek(SeekFrom::Start(at)).unwrap();
            let read = file.read(&mut piece).unwrap();
            let from = (at as usize).min(expected.len());
            assert_eq!(piece[..read], expected[from..from + read], "{size} bytes at {at}");
            assert_eq!(read == 0, at >= size, "{size} bytes at {at}");
        }
    }
    // One GET a block, however its pieces were read.
    mount.settle();
    let blocks: u64 = sizes.iter().map(|size| size.div_ceil(BLOCK)).sum();
    assert_eq!(lab.server.counters().gets, blocks);
}

// SEMANTICS: B2
#[test]
fn a_file_of_5_gb_is_read_at_its_start_middle_and_end_through_a_small_cache() {
    let lab = Lab::new();
    let folder = lab.folder().join("origin");
    std::fs::create_dir(&folder).unwrap();
    let size = 5_000_000_000_u64;
    let file = std::fs::File::create(folder.join("big.bin")).unwrap();
    file.set_len(size).unwrap();
    let marks = [0, 1 << 22, (1 << 32) - 10, 1 << 32, size - 10];
    for mark in marks {
        std::os::unix::fs::FileExt::write_all_at(&file, &seeded_bytes(mark, 10), mark).unwrap();
    }
    let mount = lab.mount("m", &format!("file://{}", folder.display()), &["--cache-size", "8MiB"]);
    let mounted = std::fs::File::open(mount.path("big.bin")).unwrap();
    assert_eq!(mounted.metadata().unwrap().size(), size);
    for mark in marks {
        let mut piece = [0; 10];
        std::os::unix::fs::FileExt::read_exact_at(&mounted, &mut piece, mark).unwrap();
        assert_eq!(piece, seeded_bytes(mark, 10)[..], "at {mark}");
    }
    let used = mount.stats()["cache"]["used_bytes"].as_u64().unwrap();
    assert!(used <= 8 << 20, "{used}");
}

// SEMANTICS: B4
#[test]
fn packed_files_are_read_with_their_checksums_and_few_objects() {
    let lab = Lab::new();
    for n in 0..40 {
        lab.put(&format!("d{}/{n}", n % 3), seeded_bytes(n, 5_000 * n));
    }
    let packed = "s3://bucket/packed";
    let said = lab.larder_ok(&["pack", &lab.url(), packed, "--pack-size", "1MiB", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["files"], 40);
    assert!((3..10).contains(&said["packs"].as_u64().unwrap()), "{said}");
    let mount = lab.mount("m", packed, &[]);
    for n in 0..40 {
        let path = format!("d{}/{n}", n % 3);
        let expected = seeded_bytes(n, 5_000 * n);
        assert_eq!(mount.read_fresh(&path).unwrap(), expected, "{path}");
        let mut value = [0; 8];
        let len = rustix::fs::getxattr(mount.path(&path), "user.larder.crc32c", &mut value).unwrap();
        assert_eq!(&value[..len], format!("{:08x}", larder_dataset::crc32c(&expected)).as_bytes());
    }
    lab.larder_ok(&["verify", mount.dir().to_str().unwrap()]);
    lab.larder_ok(&["verify", packed, "--deep"]);
}

// SEMANTICS: N5
#[test]
fn a_folder_of_a_million_files_is_listed_and_looked_up() {
    const FILES: u64 = 1_000_000;
    let lab = Lab::new();
    let manifest = lab.folder().join("many.manifest");
    {
        use larder_dataset::manifest::PlainFile;
        let mut builder = larder_dataset::ManifestBuilder::new();
        for n in 0..FILES {
            let path = format!("all/file-{n:07}.jpg");
            let version = larder_dataset::VersionTag::ETag("\"0123456789abcdef0123456789abcdef\"".into());
            let file = PlainFile { path: path.as_bytes(), size: n % 1000, mtime_ns: 0, version };
            builder.push(&file, larder_dataset::NameRules::OBJECT_STORE).unwrap();
        }
        let built = builder.finish("many", &lab.url(), 0).unwrap();
        assert!(built.len_bytes() <= FILES * 100, "{} bytes", built.len_bytes());
        std::fs::write(&manifest, built.to_bytes()).unwrap();
    }
    let mount = lab.mount("m", manifest.to_str().unwrap(), &["--cache-size", "1MiB"]);
    let mut seen = 0_u64;
    for entry in std::fs::read_dir(mount.path("all")).unwrap() {
        entry.unwrap();
        seen += 1;
    }
    assert_eq!(seen, FILES);
    assert_eq!(std::fs::metadata(mount.path("all/file-0999999.jpg")).unwrap().len(), 999);
    assert_eq!(std::fs::metadata(mount.path("all/file-1000000.jpg")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

// SEMANTICS: B4
#[test]
fn a_pack_with_a_flipped_byte_is_an_error_and_never_bytes() {
    let lab = Lab::new();
    let folder = lab.folder().join("packed");
    std::fs::create_dir(&folder).unwrap();
    for n in 0..5 {
        lab.put(&format!("{n}"), seeded_bytes(n, 20_000));
    }
    let packed = format!("file://{}", folder.display());
    lab.larder_ok(&["pack", &lab.url(), &packed]);
    let pack = std::fs::read_dir(folder.join("packs")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&pack).unwrap();
    bytes[45_000] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let mount = lab.mount("m", &packed, &[]);
    for n in 0..5 {
        match mount.read_fresh(format!("{n}")) {
            Ok(bytes) => assert!(n != 2 && bytes == seeded_bytes(n, 20_000), "{n}"),
            Err(error) => assert_eq!((n, error.raw_os_error()), (2, Some(5)), "{error}"),
        }
    }
    assert_eq!(lab.larder(&["verify", mount.dir().to_str().unwrap()]).status.code(), Some(1));
    assert_eq!(lab.larder(&["verify", &packed, "--deep"]).status.code(), Some(1));
}
