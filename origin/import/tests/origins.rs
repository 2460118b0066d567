//! Import, packing and verification over the real origins: a folder, and S3 over the network.
#![expect(clippy::unwrap_used, reason = "helpers of tests: a panic is how they fail")]

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use larder_dataset::{Entry, FileIndex, Manifest, ManifestError, SnapshotId};
use larder_import::{
    DiskLimit, ImportOptions, Imported, MANIFEST_KEY, PackOptions, Silent, fetch_manifest, import, object_range, pack,
    verify_origin,
};
use larder_origin::{Env, Origin, OriginConfig, OriginUrl};
use larder_s3_server::{S3Server, S3ServerConfig};

fn open(url: &str, config: &OriginConfig) -> Arc<dyn Origin> {
    larder_origin::open(&url.parse().unwrap(), config).unwrap()
}

fn open_folder(path: &Path) -> Arc<dyn Origin> {
    larder_origin::open(&OriginUrl::folder(path).unwrap(), &OriginConfig::default()).unwrap()
}

async fn server() -> (S3Server, OriginConfig) {
    let config = S3ServerConfig { buckets: vec!["data".into(), "other".into()], ..S3ServerConfig::default() };
    let server = S3Server::start(config).await.unwrap();
    let env = server.env().into_iter().collect();
    (server, OriginConfig { env, ..OriginConfig::default() })
}

async fn import_whole(origin: &Arc<dyn Origin>) -> Imported {
    let dir = tempfile::tempdir().unwrap();
    import(Arc::clone(origin), ImportOptions::new("data", dir.path()), &Silent).await.unwrap()
}

fn check(path: &Path) -> std::io::Result<Result<SnapshotId, ManifestError>> {
    let bytes = std::fs::read(path)?;
    Ok(Manifest::open(bytes).and_then(|manifest| manifest.verify().map(|()| manifest.snapshot())))
}

type Files = BTreeMap<Vec<u8>, Vec<u8>>;

/// Reads every file of a snapshot through its origin.
async fn read_all(manifest: &Manifest<Vec<u8>>, origin: &Arc<dyn Origin>) -> Files {
    manifest.verify().unwrap();
    let mut files = Files::new();
    for index in 0..manifest.totals().files {
        let file = manifest.file(FileIndex(index)).unwrap();
        let object = object_range(manifest, &file, 0..file.size).unwrap();
        let bytes = origin.read(&object.key, object.range, object.version.as_ref()).await.unwrap();
        files.insert(manifest.file_path(&file).unwrap(), bytes.to_vec());
    }
    files
}

fn dataset() -> Files {
    let file = |n: usize| (format!("train/n{:02}/{n}.jpg", n % 7).into_bytes(), vec![n as u8; n * 37]);
    let mut files: Files = (0..120).map(file).collect();
    files.insert(b"large".to_vec(), (0..10 << 20).map(|at| (at >> 9) as u8).collect());
    files.insert("ä b+c%20".into(), b"odd name".to_vec());
    files.insert(b"empty".to_vec(), Vec::new());
    files
}

/// Imports, publishes and packs into `dst`, and reads both snapshots back.
async fn there_and_back(src: Arc<dyn Origin>, dst: Arc<dyn Origin>, files: &Files) {
    let imported = import_whole(&src).await;
    assert_eq!(imported.skipped, []);
    imported.manifest.put(src.as_ref(), MANIFEST_KEY).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manifest");
    let fetched = fetch_manifest(src.as_ref(), MANIFEST_KEY, &path, &DiskLimit::default(), check).await.unwrap();
    assert_eq!(fetched.snapshot, imported.manifest.snapshot());
    let plain = Arc::new(Manifest::open(std::fs::read(&path).unwrap()).unwrap());
    assert_eq!(read_all(&plain, &src).await, *files);

    let again = import_whole(&src).await;
    assert_eq!(
        (again.manifest.snapshot(), again.reserved),
        (imported.manifest.snapshot(), 1),
        "its own manifest is not a file"
    );

    let options = PackOptions { pack_bytes: 64 << 10, ..PackOptions::new(dir.path()) };
    pack(Arc::clone(&plain), Arc::clone(&src), Arc::clone(&dst), options, &Silent).await.unwrap();
    fetch_manifest(dst.as_ref(), MANIFEST_KEY, &path, &DiskLimit::default(), check).await.unwrap();
    let packed = Arc::new(Manifest::open(std::fs::read(&path).unwrap()).unwrap());
    assert!(packed.totals().packs > 2);
    assert_eq!(read_all(&packed, &dst).await, *files);

    for (manifest, origin) in [(plain, src), (packed, dst)] {
        for deep in [false, true] {
            let report = verify_origin(Arc::clone(&manifest), Arc::clone(&origin), deep, 8, &Silent).await.unwrap();
            assert!(report.is_clean(), "{report:?}");
            assert_eq!(report.files_ok, files.len() as u64);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_in_s3_is_imported_packed_and_verified() {
    let (server, config) = server().await;
    let files = dataset();
    for (key, bytes) in &files {
        server.put("data", &format!("set/{}", String::from_utf8_lossy(key)), bytes.clone());
    }
    there_and_back(open("s3://data/set", &config), open("s3://other/packed", &config), &files).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_in_a_folder_is_imported_packed_and_verified() {
    let (src, dst) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut files = dataset();
    files.insert(b"odd\n\xff".to_vec(), b"only a folder has such names".to_vec());
    for (path, bytes) in &files {
        let path = src.path().join(std::ffi::OsStr::from_bytes(path));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    there_and_back(open_folder(src.path()), open_folder(dst.path()), &files).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_file_in_a_folder_is_skipped_and_empty_folders_are_kept() {
    let src = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(src.path().join("a/hollow/deep")).unwrap();
    std::fs::write(src.path().join("a/file"), b"x").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", src.path().join("link")).unwrap();
    std::os::unix::fs::symlink("../a/file", src.path().join("a/inner")).unwrap();
    let imported = import_whole(&open_folder(src.path())).await;
    let skipped: Vec<_> = imported.skipped.iter().map(|key| key.key.as_slice()).collect();
    assert_eq!(skipped, [b"link"]);
    let manifest = Manifest::open(imported.manifest.read().unwrap()).unwrap();
    assert!(matches!(manifest.resolve(b"a/hollow/deep").unwrap(), Some(Entry::Dir(_))));
    assert_eq!((manifest.totals().files, manifest.totals().links), (1, 1));
    let Some(Entry::File(file)) = manifest.resolve(b"a/file").unwrap() else { panic!("a/file is missing") };
    assert_eq!(manifest.follow(b"a/inner").unwrap(), Some(Entry::File(file)));
    assert_eq!(import_whole(&open_folder(src.path())).await.manifest.snapshot(), imported.manifest.snapshot());
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_keys_in_s3_are_all_accounted_for() {
    let (server, config) = server().await;
    let long = "x".repeat(300);
    let hostile = ["../up", "a//b", "a/../../b", "/lead", "./a", "a/.", "ctrl\u{1}", &long, "m/", "//", "shadow"];
    for key in hostile {
        server.put("data", &format!("set/{key}"), &b"bytes"[..]);
    }
    for key in ["a/b", "shadow/x", "ok"] {
        server.put("data", &format!("set/{key}"), &b"bytes"[..]);
    }
    server.put("data", "set/.larder/manifest", &b"own"[..]);
    server.put("data", "settle/other", &b"not of this dataset"[..]);
    let imported = import_whole(&open("s3://data/set", &config)).await;
    let mut expected: Vec<_> = hostile.map(|key| key.as_bytes().to_vec()).into();
    expected.sort();
    let skipped: Vec<_> = imported.skipped.iter().map(|key| key.key.clone()).collect();
    assert_eq!(skipped, expected);
    assert_eq!((imported.manifest.totals().files, imported.reserved), (3, 1));
}

const CHILD_JOURNAL: &str = "LARDER_TEST_JOURNAL_DIR";

/// The process that the next test kills.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "another test runs it"]
async fn child_that_imports() {
    let Some(journal) = std::env::var_os(CHILD_JOURNAL) else { return };
    let config = OriginConfig { env: Env::of_process(), ..OriginConfig::default() };
    // One call at a time gives the other test time to see it half finished.
    let options = ImportOptions { concurrency: 1, ..ImportOptions::new("data", journal) };
    let _ = import(open("s3://data/set", &config), options, &Silent).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_whose_process_is_killed_goes_on_where_it_was() {
    let (server, config) = server().await;
    for n in 0..20_000 {
        server.put("data", &format!("set/{:03}/{n:05}", n % 400), &b"x"[..]);
    }
    let origin = open("s3://data/set", &config);
    let whole = import_whole(&origin).await;
    for kill_at in [1, 8, 15] {
        server.reset_counters();
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "child_that_imports"])
            .envs(server.env())
            .env(CHILD_JOURNAL, dir.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        while server.counters().lists < kill_at {
            assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let resumed = import(Arc::clone(&origin), ImportOptions::new("data", dir.path()), &Silent).await.unwrap();
        assert_eq!(resumed.manifest.snapshot(), whole.manifest.snapshot());
        assert!(resumed.resumed_files >= (kill_at - 1).saturating_sub(1) * 1000, "killed at {kill_at}: {resumed:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures: run with --ignored --nocapture"]
async fn listing_speed() {
    let (server, config) = server().await;
    for n in 0..200_000 {
        server.put("data", &format!("set/train/n{:04}/{n:07}.jpg", n % 1000), &b"x"[..]);
        server.put("other", &format!("{n:07}.jpg"), &b"x"[..]);
    }
    for (what, url) in [("1,000 folders", "s3://data/set"), ("flat", "s3://other")] {
        let origin = open(url, &config);
        let start = Instant::now();
        let imported = import_whole(&origin).await;
        let seconds = start.elapsed().as_secs_f64();
        println!("{what}: {:.0} files/s, {} requests", 200_000.0 / seconds, imported.list_requests);
    }
}
