//! The time that larderd takes for a request, without the kernel's part: this benchmark acts as the kernel.
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot start may panic")]

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use larder_cachenode::counters::Source;
use larder_cachenode::{CacheSpec, Dataset, FetchConfig, open_manifest};
use larder_dataset::manifest::PlainFile;
use larder_dataset::{ManifestBuilder, NameRules, Ownership, PolicyKind, VersionTag};
use larder_fs::Pool;
use larder_fs::connection::{ServeConfig, serve};
use larder_import::write_manifest;
use larder_origin::OriginConfig;
use larder_store::{Store, StoreConfig, StoreCounters};
use larder_testkit::kernel::{GETATTR, Kernel, LOOKUP, READ, READDIRPLUS, ROOT, init, read, request};
use rustix::fs::MemfdFlags;
use tokio::time::Instant;

/// Number of files in the dataset's only directory.
const FILES: u32 = 200;
/// The size of the one file that has bytes.
const CACHED_BYTES: u32 = 64 << 10;
/// The size of a READDIRPLUS reply: room for the whole directory.
const LISTING_BYTES: u32 = 128 << 10;

/// Sends a request and returns the number of bytes in its reply, after the header.
fn ask(kernel: &Kernel, request: &[u8], answer: &mut [u8]) -> usize {
    kernel.send(request);
    let (_, error, len) = kernel.answer_into(answer);
    assert_eq!(error, 0, "an errno");
    len
}

fn requests(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir_all(data.join("all")).unwrap();
    let mut builder = ManifestBuilder::new();
    let cached = data.join("all/cached.bin");
    std::fs::write(&cached, vec![7; CACHED_BYTES as usize]).unwrap();
    let found = std::fs::metadata(&cached).unwrap();
    let (size, mtime_ns) = (found.size(), found.mtime() * 1_000_000_000 + found.mtime_nsec());
    let version = VersionTag::MtimeSize { mtime_ns, size };
    let source = PlainFile { path: b"all/cached.bin", size, mtime_ns, version };
    builder.push(&source, NameRules::OBJECT_STORE).unwrap();
    for file in 0..FILES {
        let path = format!("all/image-{file:07}.jpg");
        let version = VersionTag::ETag("\"0123456789abcdef0123456789abcdef\"".into());
        let source = PlainFile { path: path.as_bytes(), size: 111_000, mtime_ns: 0, version };
        builder.push(&source, NameRules::OBJECT_STORE).unwrap();
    }
    let url = format!("file://{}", data.display());
    let manifest = folder.path().join("bench.manifest");
    write_manifest(&manifest, &builder.finish("bench", &url, 0).unwrap()).unwrap();

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let store = Store::open(StoreConfig::new(folder.path().join("store")), Arc::new(StoreCounters::default())).unwrap();
    let manifest = Arc::new(open_manifest(&manifest).unwrap());
    let spec = CacheSpec::exactly(manifest.snapshot(), 1 << 20, PolicyKind::Nr, 1);
    let dataset = Dataset::open(
        manifest,
        &store,
        spec,
        larder_origin::open(&url.parse().unwrap(), &OriginConfig::default()).unwrap(),
        None,
        runtime.handle(),
        FetchConfig::DEFAULT,
    )
    .unwrap();
    let (kernel, theirs) = Kernel::connect();
    let memory = rustix::fs::memfd_create("requests", MemfdFlags::CLOEXEC).unwrap();
    let config = ServeConfig { threads: 1, max_background: 16, ownership: Ownership::default() };
    let counters = Arc::clone(dataset.counters());
    let serving = serve(&Pool::start(1).unwrap(), dataset, theirs, &init(), memory.as_fd(), config).unwrap();
    assert_eq!(kernel.answer().0, 1, "the answer to INIT");
    let mut answer = vec![0; 1 << 20];

    let mut group = criterion.benchmark_group("request");
    kernel.send(&request(LOOKUP, 7, ROOT, b"all\0"));
    let all = u64::from_ne_bytes(kernel.answer().2[..8].try_into().unwrap());
    let look_up = request(LOOKUP, 7, all, b"image-0000123.jpg\0");
    group.bench_function("LOOKUP", |bencher| bencher.iter(|| ask(&kernel, &look_up, &mut answer)));
    let get_attr = request(GETATTR, 7, all, &[0; 16]);
    group.bench_function("GETATTR", |bencher| bencher.iter(|| ask(&kernel, &get_attr, &mut answer)));

    kernel.send(&request(LOOKUP, 7, all, b"cached.bin\0"));
    let cached = u64::from_ne_bytes(kernel.answer().2[..8].try_into().unwrap());
    let hit = read(READ, 7, cached, 0, CACHED_BYTES);
    let times = &counters.read_times[Source::Store as usize];
    for _ in 0..1_000 {
        assert_eq!(ask(&kernel, &hit, &mut answer), CACHED_BYTES as usize);
        if times.now().count() > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(times.now().count() > 0, "the file is cached");
    group.bench_function("READ of 64 KiB from the cache", |bencher| bencher.iter(|| ask(&kernel, &hit, &mut answer)));
    // The part of it that only metrics need: the time that it took, and its range. Divided by the whole, it is what a
    // hit costs more than without.
    group.bench_function("READ, its metrics alone", |bencher| bencher.iter(|| times.count(Instant::now().elapsed())));

    let list = read(READDIRPLUS, 7, all, 0, LISTING_BYTES);
    assert!(ask(&kernel, &list, &mut answer) > FILES as usize * 150, "an entry has 152 bytes and its name");
    group.throughput(Throughput::Elements(u64::from(FILES)));
    group.bench_function("READDIRPLUS of 200 files", |bencher| bencher.iter(|| ask(&kernel, &list, &mut answer)));
    group.finish();

    drop(kernel);
    serving.wait().unwrap();
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(3));
    targets = requests
}
criterion_main!(benches);
