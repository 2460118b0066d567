//! What larderd takes for a request, without the kernel's part: this benchmark plays the kernel, over a socket that keeps
//! messages apart as `/dev/fuse` does.
#![expect(missing_docs, reason = "criterion's macros make functions without them")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot start may panic")]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use larder_cachenode::{CacheSpec, Dataset, FetchConfig, open_manifest};
use larder_dataset::manifest::PlainFile;
use larder_dataset::{ManifestBuilder, NameRules, PolicyKind, VersionTag};
use larder_fs::RequestBuffers;
use larder_fs::connection::{ServeConfig, serve};
use larder_import::write_manifest;
use larder_origin::OriginConfig;
use larder_store::{Store, StoreConfig, StoreCounters};
use rustix::fs::MemfdFlags;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

#[global_allocator]
static ALLOCATOR: RequestBuffers = RequestBuffers;

/// Files in the one folder.
const FILES: u32 = 200;
/// `enum fuse_opcode`.
const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const INIT: u32 = 26;
const READDIRPLUS: u32 = 44;
/// The root's inode number.
const ROOT: u64 = 1;
/// Bytes that a READDIRPLUS may answer: room for all of the folder.
const LISTING_BYTES: u32 = 128 << 10;

fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

fn longs(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// `struct fuse_in_header`, and what follows it.
fn request(opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
    let header = [words(&[40 + body.len() as u32, opcode]), longs(&[7, node]), words(&[0; 4])];
    [header.concat().as_slice(), body].concat()
}

/// `struct fuse_init_in` of protocol 7.40 with FUSE_DO_READDIRPLUS.
fn init() -> Vec<u8> {
    request(INIT, 0, &words(&[&[7, 40, 1 << 20, 1 << 13][..], &[0; 12]].concat()))
}

struct Kernel {
    socket: OwnedFd,
    answer: Vec<u8>,
}

impl Kernel {
    /// Sends a request and gives the answer behind its header.
    fn ask(&mut self, request: &[u8]) -> &[u8] {
        rustix::net::send(&self.socket, request, SendFlags::NOSIGNAL).unwrap();
        let (len, _) = rustix::net::recv(&self.socket, &mut self.answer, RecvFlags::empty()).unwrap();
        let error = i32::from_ne_bytes(self.answer[4..8].try_into().unwrap());
        assert_eq!(error, 0, "an errno");
        &self.answer[16..len]
    }
}

fn requests(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let mut builder = ManifestBuilder::new();
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
    let dataset = Dataset::open(
        Arc::new(open_manifest(&manifest).unwrap()),
        &store,
        CacheSpec::exactly(1 << 20, PolicyKind::Nr, 1),
        larder_origin::open(&url.parse().unwrap(), &OriginConfig::default()).unwrap(),
        None,
        runtime.handle(),
        FetchConfig::DEFAULT,
    )
    .unwrap();
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let memory = rustix::fs::memfd_create("requests", MemfdFlags::CLOEXEC).unwrap();
    let config = ServeConfig { threads: 1, max_background: 16 };
    let serving = serve(dataset, theirs, &init(), memory.as_fd(), config).unwrap();
    let mut kernel = Kernel { socket: ours, answer: vec![0; 1 << 20] };
    // The answer to INIT.
    rustix::net::recv(&kernel.socket, &mut kernel.answer, RecvFlags::empty()).unwrap();

    let mut group = criterion.benchmark_group("request");
    let entry = kernel.ask(&request(LOOKUP, ROOT, b"all\0"));
    let all = u64::from_ne_bytes(entry[..8].try_into().unwrap());
    let look_up = request(LOOKUP, all, b"image-0000123.jpg\0");
    group.bench_function("LOOKUP", |bencher| bencher.iter(|| kernel.ask(&look_up).len()));
    let get_attr = request(GETATTR, all, &[0; 16]);
    group.bench_function("GETATTR", |bencher| bencher.iter(|| kernel.ask(&get_attr).len()));

    // `struct fuse_read_in`: handle, offset, size, and what a folder's reader leaves empty.
    let list = request(READDIRPLUS, all, &[longs(&[0, 0]), words(&[LISTING_BYTES, 0, 0, 0, 0, 0])].concat());
    assert!(kernel.ask(&list).len() > FILES as usize * 150, "an entry has 152 bytes and its name");
    group.throughput(Throughput::Elements(u64::from(FILES)));
    group.bench_function("READDIRPLUS of 200 files", |bencher| bencher.iter(|| kernel.ask(&list).len()));
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
