use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_dataset::manifest::PlainFile;
use larder_dataset::{Manifest, ManifestBuilder, NameRules, VersionTag};

use super::*;
use crate::disk::DiskRoom;
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
        let fetched = fetch_manifest(&origin, MANIFEST_KEY, &to, &DiskLimit::default(), check).await.unwrap();
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
    let missing = fetch_manifest(&origin, MANIFEST_KEY, &to, &DiskLimit::default(), check).await.unwrap_err();
    assert!(matches!(missing, PublishError::Origin { source: OriginError::NotFound { .. }, .. }), "{missing:?}");
    let mut bytes = built(10).to_bytes();
    bytes[300] ^= 1;
    origin.set(MANIFEST_KEY, bytes);
    let damaged = fetch_manifest(&origin, MANIFEST_KEY, &to, &DiskLimit::default(), check).await.unwrap_err();
    assert!(matches!(damaged, PublishError::Manifest { .. }), "{damaged:?}");
    assert_eq!(std::fs::read(&to).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// Asserts that a manifest is refused after `reads` reads of it, and that nothing was written then.
async fn refused(origin: &MemoryOrigin, limit: DiskLimit, reads: u64) -> PublishError {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("m");
    let never = |_: &Path| panic!("a manifest that is refused is not complete");
    let error = fetch_manifest(origin, MANIFEST_KEY, &to, &limit, never).await.unwrap_err();
    assert_eq!(origin.reads.swap(0, Ordering::SeqCst), reads, "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{error}");
    error
}

/// `bytes` with other bytes in its header, whose checksum is right again.
fn with_header(mut bytes: Vec<u8>, at: usize, new: &[u8]) -> Vec<u8> {
    bytes[at..at + new.len()].copy_from_slice(new);
    let crc = larder_dataset::crc32c(&bytes[..252]);
    bytes[252..256].copy_from_slice(&crc.to_le_bytes());
    bytes
}

// SEMANTICS: I10
#[tokio::test]
async fn a_manifest_whose_length_is_not_that_of_its_header_is_refused_before_it_is_written() {
    let origin = MemoryOrigin::new("s3://bucket/data", 10);
    let whole = built(200_000).to_bytes();
    let pieces = whole.len() as u64 / PIECE_BYTES;
    assert!(pieces >= 2, "{pieces}");
    // An object that is longer than its header says, and one that is shorter.
    let longer = [whole.as_slice(), &vec![0; 2 * PIECE_BYTES as usize]].concat();
    let shorter = whole[..whole.len() - 1].to_vec();
    // A header of which the counts need more than its sections have, and no header at all.
    let counts = with_header(whole.clone(), 52, &u32::MAX.to_le_bytes());
    let junk = vec![7; whole.len()];
    for (bytes, says) in [
        (longer, "longer than its sections"),
        (shorter, "cut off"),
        (counts, "section length"),
        (junk, "not a Larder manifest"),
        (whole[..100].to_vec(), "shorter than its header"),
    ] {
        origin.set(MANIFEST_KEY, bytes);
        let error = refused(&origin, DiskLimit::default(), 1).await;
        let PublishError::Manifest { source, .. } = &error else { panic!("{error:?}") };
        assert!(source.to_string().contains(says), "{source}");
    }
    origin.set(MANIFEST_KEY, Vec::new());
    assert!(matches!(refused(&origin, DiskLimit::default(), 0).await, PublishError::Manifest { .. }));
}

// SEMANTICS: I10
#[tokio::test]
async fn a_manifest_of_5_tb_or_above_the_limit_is_refused_before_it_is_read() {
    let origin = MemoryOrigin::new("s3://bucket/data", 10);
    let whole = built(200_000).to_bytes();
    let size = whole.len() as u64;
    origin.set(MANIFEST_KEY, whole);
    let limit = |bytes_most| DiskLimit { bytes_most, ..DiskLimit::default() };
    let error = refused(&origin, limit(size - 1), 0).await;
    assert!(matches!(error, PublishError::TooLarge { limit, .. } if limit == size - 1), "{error:?}");
    assert!(error.to_string().contains("--listing-size"), "{error}");
    origin.pretend_size(MANIFEST_KEY, 5_000_000_000_000);
    let error = refused(&origin, DiskLimit::default(), 0).await;
    assert!(matches!(error, PublishError::TooLarge { size: 5_000_000_000_000, .. }), "{error:?}");
}

/// A disk with this much room.
#[derive(Debug)]
struct Room(AtomicU64);

impl DiskRoom for Room {
    fn take(&self, bytes: u64) -> io::Result<()> {
        let left = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(bytes));
        left.map(drop).map_err(|_| io::Error::new(io::ErrorKind::StorageFull, "no room"))
    }
}

// SEMANTICS: I10
#[tokio::test]
async fn a_manifest_is_written_only_as_far_as_there_is_room_and_leaves_nothing() {
    let origin = MemoryOrigin::new("s3://bucket/data", 10);
    let whole = built(200_000).to_bytes();
    let size = whole.len() as u64;
    origin.set(MANIFEST_KEY, whole);
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("m");
    let room = |bytes| DiskLimit { room: Some(Arc::new(Room(AtomicU64::new(bytes)))), ..DiskLimit::default() };
    let error = fetch_manifest(&origin, MANIFEST_KEY, &to, &room(size - 1), check).await.unwrap_err();
    assert!(
        matches!(&error, PublishError::File { source, .. } if source.kind() == io::ErrorKind::StorageFull),
        "{error:?}"
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let small = DiskLimit { small_bytes: size, ..room(0) };
    for limit in [room(size), small] {
        fetch_manifest(&origin, MANIFEST_KEY, &to, &limit, check).await.unwrap();
    }
    assert_eq!(std::fs::metadata(&to).unwrap().len(), size);
}
