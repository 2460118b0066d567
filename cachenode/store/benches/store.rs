//! The cost of a read of the store, part by part, and of a policy for each block.
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot start may panic")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use larder_dataset::{BlockIndex, PolicyKind, SnapshotId};
use larder_store::record::{Header, Part};
use larder_store::{CacheConfig, Record, Reservation, Store, StoreConfig, StoreCounters, build_policy};

/// Bytes of a block: the mean of the talk's images.
const LEN: u32 = 111_000;
const BLOCKS: u32 = 1_000_000;
const SNAPSHOT: SnapshotId = SnapshotId([7; 32]);

/// Uniformly distributed numbers below `below`, without the cost of a generator.
fn scattered(below: u32) -> impl FnMut() -> u32 {
    let mut state = 0_u32;
    move || {
        state = state.wrapping_add(2_654_435_761);
        ((u64::from(state) * u64::from(below)) >> 32) as u32
    }
}

fn policies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("policy");
    for kind in PolicyKind::ALL {
        // The cache holds a third of the blocks.
        let capacity = u64::from(BLOCKS / 3) * u64::from(LEN);
        let mut policy = build_policy(kind, capacity, BLOCKS, 1);
        let (mut cached, mut evicted) = (vec![false; BLOCKS as usize], Vec::new());
        let mut next = scattered(BLOCKS);
        group.bench_function(format!("{kind}: read a block, a third is cached"), |bencher| {
            bencher.iter(|| {
                let block = BlockIndex(next());
                if cached[block.0 as usize] {
                    policy.touch(block);
                } else if policy.admit(block, LEN, &mut evicted) {
                    cached[block.0 as usize] = true;
                    for victim in evicted.drain(..) {
                        cached[victim.0 as usize] = false;
                    }
                }
            });
        });
    }
    group.finish();
}

fn records(criterion: &mut Criterion) {
    let data: Vec<u8> = (0..LEN).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let key = Header::new(&SNAPSHOT.into(), BlockIndex(3), LEN).key;
    let made = Record::new(key, BlockIndex(3), &data);
    let mut group = criterion.benchmark_group("record of 111 KB");
    group.throughput(Throughput::Bytes(u64::from(LEN)));
    group.bench_function("CRC32C alone", |bencher| bencher.iter(|| larder_dataset::crc32c(black_box(&data))));
    group.bench_function("check a whole block", |bencher| {
        let part = Part::new(LEN, 0, LEN).unwrap();
        bencher.iter(|| part.check(&key, BlockIndex(3), black_box(made.as_bytes())).unwrap().len());
    });
    group.bench_function("make", |bencher| bencher.iter(|| Record::new(key, BlockIndex(3), black_box(&data))));
    group.finish();
}

fn reads(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(StoreConfig::new(folder.path()), Arc::new(StoreCounters::default())).unwrap();
    let cache = store
        .dataset(CacheConfig {
            key: SNAPSHOT.into(),
            is_known_as_ours: false,
            name: "bench".to_owned(),
            blocks: BLOCKS,
            reservation_bytes: 1 << 30,
            promised: Reservation::exactly(1 << 30),
            policy: PolicyKind::Nr,
            seed: 0,
            block_lens: Arc::new(|_: BlockIndex| LEN),
        })
        .unwrap();
    assert!(cache.wait_rebuilt(Duration::from_secs(60)), "a new store has nothing to count");
    const CACHED: u32 = 500;
    let data = vec![1; LEN as usize];
    for block in 0..CACHED {
        let permit = cache.admit(BlockIndex(block), LEN).unwrap();
        cache.write(permit, &cache.record(BlockIndex(block), &data)).unwrap();
    }
    let mut group = criterion.benchmark_group("store");
    let mut next = scattered(BLOCKS);
    group.bench_function("look a slot up", |bencher| bencher.iter(|| cache.contains(BlockIndex(next()))));
    group.bench_function("a miss", |bencher| {
        bencher.iter(|| cache.read(BlockIndex(CACHED + 1), LEN, 0, LEN, <[u8]>::len).hit());
    });
    group.throughput(Throughput::Bytes(u64::from(LEN)));
    let mut next = scattered(CACHED);
    group.bench_function("a hit of 111 KB, from the disk", |bencher| {
        bencher.iter(|| cache.read(BlockIndex(next()), LEN, 0, LEN, <[u8]>::len).hit().unwrap());
    });
    group.finish();
}

criterion_group!(benches, policies, records, reads);
criterion_main!(benches);
