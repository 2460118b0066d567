use std::sync::atomic::Ordering;

use larder_dataset::manifest::PlainFile;
use larder_dataset::{Manifest, ManifestBuilder, NameRules, VersionTag};

use super::*;
use crate::memory::MemoryOrigin;

fn check(path: &Path) -> io::Result<Result<SnapshotId, ManifestError>> {
    let bytes = std::fs::read(path)?;
    Ok(Manifest::open(bytes).and_then(|manifest| manifest.verify().map(|()| manifest.snapshot())))
}

fn built(files: u32) -> Built {
    let mut builder = ManifestBuilder::new();
    for n in 0..files {
        let version = VersionTag::MtimeSize { mtime_ns: 1, size: 2 };
        let path = format!("{:03}/{n:09}-{}", n % 100, "x".repeat(60));
        let file = PlainFile { path: path.as_bytes(), size: 2, mtime_ns: 1, version };
        builder.push(&file, NameRules::FOLDER).unwrap();
    }
    builder.finish("data", "s3://bucket/data", 5).unwrap()
}

#[test]
fn a_written_manifest_replaces_the_old_one_and_leaves_nothing_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.manifest");
    write_manifest(&path, &built(3)).unwrap();
    write_manifest(&path, &built(4)).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), built(4).to_bytes());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o600, 0o600);
    assert_eq!(mode & 0o111, 0);
}

#[test]
fn a_manifest_that_cannot_be_written_says_where() {
    let error = write_manifest(Path::new("/nonexistent/data.manifest"), &built(1)).unwrap_err();
    assert_eq!(error.to_string(), "create a file beside /nonexistent/data.manifest");
}

#[tokio::test]
async fn a_manifest_comes_back_as_it_was_put() {
    // The largest manifest takes several pieces in both directions.
    for files in [0, 10, 200_000] {
        let origin = MemoryOrigin::new("s3://bucket/data", 10);
        let built = built(files);
        let version = put_manifest(&origin, MANIFEST_KEY, &built).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("m");
        let fetched = fetch_manifest(&origin, MANIFEST_KEY, &to, check).await.unwrap();
        assert_eq!(fetched, FetchedManifest { snapshot: built.snapshot, version, size: built.len_bytes() });
        assert_eq!(std::fs::read(&to).unwrap(), built.to_bytes());
        let reads = origin.reads.load(Ordering::SeqCst);
        assert_eq!(reads, built.len_bytes().div_ceil(PIECE_BYTES));
        assert!(files < 200_000 || reads > 1);
    }
}

#[tokio::test]
async fn a_damaged_or_missing_manifest_leaves_the_old_file_alone() {
    let origin = MemoryOrigin::new("s3://bucket/data", 10);
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("m");
    std::fs::write(&to, b"old").unwrap();
    let missing = fetch_manifest(&origin, MANIFEST_KEY, &to, check).await.unwrap_err();
    assert!(matches!(missing, PublishError::Origin { source: OriginError::NotFound { .. }, .. }), "{missing:?}");
    let mut bytes = built(10).to_bytes();
    bytes[300] ^= 1;
    origin.set(MANIFEST_KEY, bytes);
    let damaged = fetch_manifest(&origin, MANIFEST_KEY, &to, check).await.unwrap_err();
    assert!(matches!(damaged, PublishError::Manifest { .. }), "{damaged:?}");
    assert_eq!(std::fs::read(&to).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}
