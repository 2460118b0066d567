//! Measures a restart with many cached blocks: `LARDER_RESTART_BLOCKS=50000000 cargo nextest run --release --workspace
//! --run-ignored only --no-capture -E 'test(measure_a_restart)'`.
//!
//! The slot table says that nearly every block is cached, in segments that are holes: only the first block has a
//! record.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use larder_dataset::manifest::PlainFile;
use larder_dataset::{ManifestBuilder, NameRules, SnapshotId, VersionTag};
use larder_store::record;

use super::*;
use crate::manifest_file::open_manifest;

const SEGMENT_BYTES: u64 = 1 << 30;

/// Not in the store, and the only file of the origin.
const MISSING: u32 = 999;

/// Bytes of the n-th file: 16 KB to 200 KB, 108 KB in the mean.
fn size_of(n: u32) -> u32 {
    16_000 + ((u64::from(n.wrapping_mul(2_654_435_761)) * 184_000) >> 32) as u32
}

fn name_of(n: u32) -> String {
    format!("d{:05}/f{n:08}", n / 1000)
}

fn write_manifest(path: &Path, origin: &str, blocks: u32) {
    let mut builder = ManifestBuilder::new();
    for n in 0..blocks {
        let (path, size) = (name_of(n), size_of(n).into());
        let version = VersionTag::MtimeSize { mtime_ns: 0, size };
        builder.push(&PlainFile { path: path.as_bytes(), size, mtime_ns: 0, version }, NameRules::FOLDER).unwrap();
    }
    let built = builder.finish("many", origin, 0).unwrap();
    let mut file = BufWriter::new(File::create(path).unwrap());
    built.parts.iter().for_each(|part| file.write_all(part).unwrap());
    file.flush().unwrap();
}

/// A table as `slots` draws it, in which all but every 1,000th block have records, one after the other.
fn write_slots(folder: &Path, snapshot: &SnapshotId, blocks: u32) {
    let mut header = [0; 4096];
    header[..8].copy_from_slice(b"LRDRSLOT");
    header[8] = 1;
    header[16..48].copy_from_slice(&snapshot.0);
    header[48..52].copy_from_slice(&blocks.to_le_bytes());
    let crc = larder_dataset::crc32c(&header[..60]);
    header[60..64].copy_from_slice(&crc.to_le_bytes());
    let file = File::create(folder.join("slots")).unwrap();
    let mut table = BufWriter::with_capacity(1 << 20, &file);
    table.write_all(&header).unwrap();
    let (mut segment, mut at) = (1_u64, 0_u64);
    for n in 0..blocks {
        let extent = record::extent_bytes(size_of(n)) as u64;
        if at + extent > SEGMENT_BYTES {
            (segment, at) = (segment + 1, 0);
        }
        let slot = if n % 1000 == MISSING { 0 } else { (1 << 63) | (segment << 32) | (at / 4096) };
        table.write_all(&slot.to_le_bytes()).unwrap();
        at += extent;
    }
    table.flush().unwrap();
    drop(table);
    file.set_len((4096 + 8 * u64::from(blocks)).next_multiple_of(4096)).unwrap();
    for number in 1..=segment {
        let path = folder.join(format!("segments/{number:08}.seg"));
        OpenOptions::new().create(true).truncate(true).write(true).open(path).unwrap().set_len(SEGMENT_BYTES).unwrap();
    }
}

fn fill(n: u32) -> Vec<u8> {
    vec![n as u8; size_of(n) as usize]
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures; run with --ignored --nocapture"]
async fn measure_a_restart_with_many_blocks() {
    let blocks: u32 = std::env::var("LARDER_RESTART_BLOCKS").map_or(1_000_000, |text| text.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let (data, path, store_dir) =
        (folder.path().join("data"), folder.path().join("manifest"), folder.path().join("store"));
    std::fs::create_dir_all(data.join("d00000")).unwrap();
    std::fs::write(data.join(name_of(MISSING)), fill(MISSING)).unwrap();
    File::open(data.join(name_of(MISSING))).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let url = format!("file://{}", data.display());
    write_manifest(&path, &url, blocks);
    let (snapshot, totals) = {
        let manifest = open_manifest(&path).unwrap();
        (manifest.snapshot(), manifest.totals())
    };
    for policy in [PolicyKind::Nr, PolicyKind::Lru] {
        // An index that is not new.
        Store::open(StoreConfig::new(&store_dir), Arc::default()).unwrap().close().unwrap();
        let dataset_dir = store_dir.join("datasets").join(snapshot.to_string());
        std::fs::create_dir_all(dataset_dir.join("segments")).unwrap();
        write_slots(&dataset_dir, &snapshot, blocks);
        let key = record::Header::new(&snapshot.into(), BlockIndex(0), size_of(0)).key;
        let first = larder_store::Record::new(key, BlockIndex(0), &fill(0));
        let segment = OpenOptions::new().write(true).open(dataset_dir.join("segments/00000001.seg")).unwrap();
        segment.write_all_at(first.as_bytes(), 0).unwrap();
        let begun = Instant::now();
        let store = Store::open(StoreConfig::new(&store_dir), Arc::default()).unwrap();
        let origin = larder_origin::open(&url.parse().unwrap(), &OriginConfig::default()).unwrap();
        let dataset = Dataset::open(
            Arc::new(open_manifest(&path).unwrap()),
            &store,
            CacheSpec::exactly(snapshot, totals.bytes, policy, 1),
            origin,
            None,
            &Handle::current(),
            FetchConfig { read_deadline: PATIENCE * 20, ..FetchConfig::DEFAULT },
        )
        .unwrap();
        let opened = begun.elapsed();
        let row = dataset.manifest().file_blocks(FileIndex(0)).unwrap();
        assert!(dataset.read_now(row, 0, size_of(0), |bytes| assert!(bytes == fill(0))));
        let hit = begun.elapsed();
        let counting = dataset.cache_usage().rebuilding;
        dataset.read_file(MISSING, 0, size_of(MISSING)).await.unwrap();
        let missed = begun.elapsed();
        assert!(dataset.cache.wait_rebuilt(PATIENCE * 20));
        let counted = begun.elapsed();
        println!(
            "{policy}, {blocks} blocks, {} bytes: opened after {opened:.0?}, first hit {hit:.0?}, first miss \
             {missed:.0?} (while counting: {counting}), {} blocks counted {counted:.0?}",
            totals.bytes,
            dataset.cache_usage().blocks_cached,
        );
        dataset.drain().await;
        drop((dataset, store));
        std::fs::remove_dir_all(&dataset_dir).unwrap();
    }
}
