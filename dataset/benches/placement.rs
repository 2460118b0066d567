//! Finds the owners of a block, as each miss does.

use std::hint::black_box;
use std::num::NonZeroU8;

use criterion::{Criterion, criterion_group, criterion_main};
use larder_dataset::{Member, Members, PlaceKey, Placement};

/// Nodes in the cluster.
const NODES: u32 = 1000;

/// Nodes with the weights 1 up to `weights`, in `zones` zones.
fn members(weights: u32, zones: u32) -> Members {
    Members::new((0..NODES).map(|node| Member {
        name: format!("node-{node:04}"),
        weight: 1 + node % weights,
        zone: format!("zone-{}", node % zones),
    }))
}

fn owners(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("placement");
    let mut bench = |name: &str, members: Members, placement: Placement| {
        let mut block = 0;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                block += 1;
                black_box(members.owners(placement, PlaceKey::of_origin("s3://bench/train").number(block)));
            });
        });
    };
    let replicated = |copies| Placement::Replicated(NonZeroU8::new(copies).unwrap_or(NonZeroU8::MIN));
    bench("owner among 1,000 nodes", members(1, 1), Placement::Partitioned);
    bench("owner among 1,000 nodes of ten weights", members(10, 1), Placement::Partitioned);
    bench("three owners among 1,000 nodes in three zones", members(10, 3), replicated(3));
    bench("eight owners among 1,000 nodes in 50 racks", members(10, 50), replicated(8));
    group.bench_function("key of a file", |bencher| {
        bencher.iter(|| {
            let origin = PlaceKey::of_origin(black_box("s3://bucket/imagenet/train"));
            let file = origin.name(black_box(b"n01440764_10026.JPEG")).name(black_box(b"n01440764"));
            black_box(file.number(0))
        });
    });
    group.finish();
}

criterion_group!(benches, owners);
criterion_main!(benches);
