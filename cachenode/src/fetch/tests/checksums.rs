//! Bytes from the origin that do not match their checksum.

use larder_dataset::manifest::{PackObject, PackedFile};

use super::*;

pub(super) const FILE_BYTES: u64 = 1_000;
pub(super) const FILES: u64 = 6;

/// Files in a pack whose bytes are those of [`Noted`].
pub(super) fn packed(folder: &std::path::Path) -> Arc<MappedManifest> {
    let mut builder = ManifestBuilder::new();
    for n in 0..FILES {
        let (path, offset) = (format!("{n}"), n * FILE_BYTES);
        let bytes: Vec<u8> = (offset..offset + FILE_BYTES).map(|at| at as u8).collect();
        let block_crcs = &[larder_dataset::crc32c(&bytes)];
        let file = PackedFile { path: path.as_bytes(), size: FILE_BYTES, mtime_ns: 0, pack: 0, offset, block_crcs };
        builder.push_packed(&file).unwrap();
    }
    let etag = "\"0123456789abcdef0123456789abcdef\"".into();
    builder.set_packs(vec![PackObject { key: b"packs/000000.pack".to_vec(), size: FILES * FILE_BYTES, etag }]);
    let path = folder.join("manifest");
    std::fs::write(&path, builder.finish("data", "s3://bucket/data", 0).unwrap().to_bytes()).unwrap();
    Arc::new(open_manifest(&path).unwrap())
}

// SEMANTICS: B4
#[tokio::test(start_paused = true)]
async fn a_block_with_a_wrong_checksum_is_fetched_three_times_in_all_and_then_fails() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = packed(folder.path());
    let world = world_of(folder, manifest, None, FetchConfig::DEFAULT);
    let started = tokio::time::Instant::now();
    for (file, (wrong, gets)) in (0..).zip([(0, 1), (1, 2), (2, 3), (3, 3), (4, 3), (7, 3)]) {
        world.origin.wrong.store(wrong, SeqCst);
        let part = world.part(file, 100, 500);
        let bytes = u64::from(file) * FILE_BYTES..u64::from(file + 1) * FILE_BYTES;
        let outcome = world.fetcher.fetch(FileIndex(file), part, world.fetcher.deadline()).await;
        world.fetcher.wait_idle().await;
        assert_eq!(world.origin.take(), vec![bytes.clone(); gets], "{wrong} wrong answers");
        if wrong >= 3 {
            let error = outcome.unwrap_err();
            assert!(matches!(error, FetchError::Corrupt { .. }), "{error}");
            // That is not remembered.
            world.origin.wrong.store(0, SeqCst);
            world.fetcher.fetch(FileIndex(file), part, world.fetcher.deadline()).await.unwrap();
            world.fetcher.wait_idle().await;
            assert_eq!(world.origin.take(), [bytes]);
        } else {
            assert!(outcome.unwrap().bytes.iter().zip(bytes.start + 100..).all(|(&byte, at)| byte == at as u8));
        }
    }
    assert_eq!(started.elapsed(), Duration::ZERO, "the attempts follow each other at once");
}
