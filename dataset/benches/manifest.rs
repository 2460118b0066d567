//! Look-ups in a manifest of a million files, as LOOKUP, GETATTR and READDIRPLUS make them.
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot start may panic")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use larder_dataset::manifest::PlainFile;
use larder_dataset::{DirIndex, Entry, FileIndex, Manifest, ManifestBuilder, NameRules, VersionTag};

/// Files in the large folder, and in all other folders together.
const FILES: u32 = 500_000;
/// Files in each of the other folders.
const FILES_IN_A_FOLDER: u32 = 1000;

fn manifest() -> Manifest<Vec<u8>> {
    let mut builder = ManifestBuilder::new();
    let mut push = |path: &str| {
        let version = VersionTag::ETag("\"0123456789abcdef0123456789abcdef\"".into());
        let file = PlainFile { path: path.as_bytes(), size: 111_000, mtime_ns: 0, version };
        builder.push(&file, NameRules::OBJECT_STORE).unwrap();
    };
    for file in 0..FILES {
        push(&format!("all/image-{file:07}.jpg"));
        push(&format!("class-{:04}/image-{file:07}.jpg", file / FILES_IN_A_FOLDER));
    }
    Manifest::open(builder.finish("bench", "s3://bench/train", 0).unwrap().to_bytes()).unwrap()
}

/// Uniformly distributed numbers below `below`, without the cost of a generator. The multiplier is odd, so no number
/// repeats early.
fn scattered(below: u32) -> impl FnMut() -> u32 {
    let mut state = 0_u32;
    move || {
        state = state.wrapping_add(2_654_435_761);
        ((u64::from(state) * u64::from(below)) >> 32) as u32
    }
}

fn folder<'a>(manifest: &'a Manifest<Vec<u8>>, name: &str) -> larder_dataset::manifest::Dir<'a> {
    let Some(Entry::Dir(dir)) = manifest.resolve(name.as_bytes()).unwrap() else { panic!("{name} is a folder") };
    manifest.dir(dir).unwrap()
}

fn lookups(criterion: &mut Criterion) {
    let manifest = manifest();
    let mut group = criterion.benchmark_group("manifest");
    let big = folder(&manifest, "all");
    let names: Vec<String> = (0..FILES).map(|file| format!("image-{file:07}.jpg")).collect();

    let mut next = scattered(FILES);
    group.bench_function("look a name up among 500,000", |bencher| {
        bencher.iter(|| manifest.lookup(&big, names[next() as usize].as_bytes()).unwrap());
    });
    let mut next = scattered(FILES);
    group.bench_function("look a name up among 500,000 that is not there", |bencher| {
        bencher.iter(|| {
            let name = &names[next() as usize];
            manifest.lookup(&big, &name.as_bytes()[..name.len() - 1]).unwrap()
        });
    });
    let small = folder(&manifest, "class-0007");
    let mut next = scattered(FILES_IN_A_FOLDER);
    group.bench_function("look a name up among 1,000", |bencher| {
        bencher.iter(|| {
            let name = &names[(7 * FILES_IN_A_FOLDER + next()) as usize];
            manifest.lookup(&small, name.as_bytes()).unwrap()
        });
    });
    let paths: Vec<String> =
        (0..FILES).map(|file| format!("class-{:04}/image-{file:07}.jpg", file / FILES_IN_A_FOLDER)).collect();
    let mut next = scattered(FILES);
    group.bench_function("resolve a path of two parts", |bencher| {
        bencher.iter(|| manifest.resolve(paths[next() as usize].as_bytes()).unwrap());
    });
    let mut next = scattered(2 * FILES);
    group.bench_function("read a file's row by its number", |bencher| {
        bencher.iter(|| {
            let file = manifest.file(FileIndex(next())).unwrap();
            black_box((file.size, file.mtime_ns, file.first_block))
        });
    });
    let mut next = scattered(manifest.totals().dirs);
    group.bench_function("read a folder's row by its number", |bencher| {
        bencher.iter(|| black_box(manifest.dir(DirIndex(next())).unwrap().file_count));
    });
    group.throughput(Throughput::Elements(u64::from(FILES_IN_A_FOLDER)));
    group.bench_function("list a folder of 1,000 with attributes", |bencher| {
        bencher.iter(|| {
            for file in small.first_file..small.first_file + small.file_count {
                let file = manifest.file(FileIndex(file)).unwrap();
                black_box((file.name, file.size, file.mtime_ns));
            }
        });
    });
    group.finish();
}

criterion_group!(benches, lookups);
criterion_main!(benches);
