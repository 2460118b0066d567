//! A connection's unanswered requests outlive the process. These tests simulate the kernel, over a socket that
//! preserves message boundaries as `/dev/fuse` does. They also simulate the killed process, by writing the data that it
//! would have left into the memory.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use larder_cachenode::home::Home;
use larder_cachenode::importing::Importer;
use larder_cachenode::node::{Node, NodeConfig, OpenDataset, User};
use larder_cachenode::request::DatasetRequest;
use larder_daemon_api::handover::request_memory;
use larder_dataset::{DatasetSpec, Ownership};
use larder_fs::Pool;
use larder_fs::connection::{ServeConfig, Serving, serve};
use larder_origin::OriginConfig;
use larder_testkit::kernel::{self, FORGET, GETATTR, Kernel, LOOKUP, OPEN, ROOT, init, request, words};

const THREADS: usize = 3;
/// The offset of the threads' buffers in the memory.
const BUFFERS_AT: u64 = 4 << 10;
const BUFFER_BYTES: u64 = 32 << 10;
const TABLE_AT: u64 = BUFFERS_AT + 256 * BUFFER_BYTES;

fn read(unique: u64, node: u64, offset: u64, size: u32) -> Vec<u8> {
    kernel::read(kernel::READ, unique, node, offset, size)
}

struct Rig {
    runtime: tokio::runtime::Runtime,
    open: OpenDataset,
    pool: Arc<Pool>,
    _node: Arc<Node>,
    _folder: tempfile::TempDir,
}

impl Rig {
    /// Creates a dataset with the files `f0` to `f9`.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir(path("data")).unwrap();
        for i in 0..10 {
            std::fs::write(path("data").join(format!("f{i}")), bytes(i)).unwrap();
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let _in_runtime = runtime.enter();
        let node = Node::open(NodeConfig {
            cache_dir: path("cache"),
            more_cache_dirs: Vec::new(),
            cache_bytes: None,
            keep_free_percent: 0,
            home: Home::new(path("home")),
            origin: OriginConfig::default(),
            importer: Importer::Here,
            peers: None,
            memory: Arc::default(),
            socket: None,
        })
        .unwrap();
        let request = DatasetRequest::from(DatasetSpec::new(format!("file://{}", path("data").display())));
        let open = runtime
            .block_on(async { node.open_dataset(node.find(&request).await.unwrap(), &request, User::Mount).await });
        let open = open.unwrap();
        drop(_in_runtime);
        let pool = Pool::start(2 * THREADS).unwrap();
        Self { runtime, open, pool, _node: node, _folder: folder }
    }

    /// Serves the dataset on a new connection with this memory. The answer to INIT has arrived when this returns.
    fn serve(&self, memory: &OwnedFd) -> (Kernel, Serving) {
        let _in_runtime = self.runtime.enter();
        let (kernel, theirs) = Kernel::connect();
        let config = ServeConfig { threads: THREADS, max_background: 16, ownership: Ownership::default() };
        let serving =
            serve(&self.pool, Arc::clone(self.open.dataset()), theirs, &init(), memory.as_fd(), config).unwrap();
        assert_eq!(kernel.answer().0, 1);
        (kernel, serving)
    }

    /// The inode number of a file.
    fn node_of(&self, kernel: &Kernel, name: &str) -> u64 {
        kernel.send(&request(LOOKUP, 2, ROOT, format!("{name}\0").as_bytes()));
        let (unique, error, entry) = kernel.answer();
        assert_eq!((unique, error), (2, 0));
        u64::from_ne_bytes(entry[..8].try_into().unwrap())
    }
}

fn bytes(i: u64) -> Vec<u8> {
    (0..20_000 + i * 1000).map(|n| (n.wrapping_mul(i + 1) >> 3) as u8).collect()
}

/// Ends the connection from the kernel's side.
fn end(kernel: Kernel, serving: Serving) {
    // The real kernel does it differently: here the session finds that the socket is closed.
    drop(kernel);
    let _ = serving.wait();
}

fn memory() -> (OwnedFd, File) {
    let memory = request_memory().unwrap();
    let file = File::from(memory.try_clone().unwrap());
    (memory, file)
}

fn buffer(file: &File, thread: u64) -> Vec<u8> {
    let mut buffer = vec![0; 4096];
    file.read_exact_at(&mut buffer, BUFFERS_AT + thread * BUFFER_BYTES).unwrap();
    buffer
}

/// The kernel's end of a connection whose mount has ended.
fn unmounted() -> OwnedFd {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    let folder = tempfile::tempdir().unwrap();
    let fuse = File::options().read(true).write(true).open("/dev/fuse").expect("these tests mount: run them as root");
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", fuse.as_raw_fd());
    let options = CString::new(options).unwrap();
    mount("larder:ended", folder.path(), "fuse", MountFlags::RDONLY, options.as_c_str()).unwrap();
    unmount(folder.path(), UnmountFlags::DETACH).unwrap();
    fuse.into()
}

#[test]
fn a_connection_that_has_ended_is_refused_and_one_that_lives_is_served() {
    let rig = Rig::new();
    let _in_runtime = rig.runtime.enter();
    let config = ServeConfig { threads: THREADS, max_background: 16, ownership: Ownership::default() };
    let (memory, _) = memory();
    let refused =
        serve(&rig.pool, Arc::clone(rig.open.dataset()), unmounted(), &init(), memory.as_fd(), config).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotConnected, "{refused}");
    let (kernel, serving) = rig.serve(&memory);
    end(kernel, serving);
}

#[test]
fn a_request_lies_in_the_memory_of_its_connection_and_no_others() {
    let rig = Rig::new();
    let memories = [memory(), memory()];
    let connections = [rig.serve(&memories[0].0), rig.serve(&memories[1].0)];
    for (unique, (kernel, _)) in (10..).zip(&connections) {
        let asked = request(GETATTR, unique, ROOT, &[0; 16]);
        kernel.send(&asked);
        assert_eq!(kernel.answer().0, unique);
        let holders: Vec<u64> = (10..)
            .zip(&memories)
            .filter(|(_, (_, file))| (0..THREADS as u64).any(|thread| buffer(file, thread).starts_with(&asked)))
            .map(|(unique, _)| unique)
            .collect();
        assert_eq!(holders, [unique]);
    }
    for (kernel, serving) in connections {
        end(kernel, serving);
    }
}

#[test]
fn one_buffer_is_in_memory_before_the_first_request_and_one_mapping_has_all_of_them() {
    let rig = Rig::new();
    let (memory, _) = memory();
    let (kernel, serving) = rig.serve(&memory);
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut resident = Vec::new();
    let mut ours = false;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Rss:") if ours => resident.push(words.next().unwrap().parse::<u64>().unwrap()),
            Some(word) if !word.ends_with(':') => ours = line.contains("larder-requests"),
            _ => {}
        }
    }
    assert_eq!(resident, [BUFFER_BYTES / 1024]);
    end(kernel, serving);
}

// SEMANTICS: K1
#[test]
fn what_a_killed_process_left_is_answered_once_each_and_torn_requests_are_skipped() {
    let rig = Rig::new();
    let (memory, file) = memory();
    let (kernel, serving) = rig.serve(&memory);
    let nodes: Vec<u64> = (0..10).map(|i| rig.node_of(&kernel, &format!("f{i}"))).collect();
    end(kernel, serving);

    let (mut torn, mut short) = (read(114, nodes[7], 0, 10), read(116, nodes[7], 0, 10));
    torn[..4].copy_from_slice(&70_000u32.to_ne_bytes());
    short[..4].copy_from_slice(&60u32.to_ne_bytes());
    let left = [
        request(LOOKUP, 100, ROOT, b"f3\0"),
        read(102, nodes[3], 5, 4096),
        read(102, nodes[3], 5, 4096),
        read(104, nodes[4], 0, 1 << 20),
        read(106, nodes[5] + 1000, 0, 10),
        request(GETATTR, 108, nodes[6], &[0; 16]),
        request(77, 110, ROOT, &[0; 8]),
        request(FORGET, 112, nodes[6], &[0; 8]),
        torn,
        short,
    ];
    for (thread, request) in (0..).zip(&left) {
        file.write_all_at(request, BUFFERS_AT + thread * BUFFER_BYTES).unwrap();
    }
    // A LOOKUP without a name, which the session rejects, and a torn entry in the table.
    file.write_all_at(&request(LOOKUP, 118, ROOT, b""), BUFFERS_AT + 200 * BUFFER_BYTES).unwrap();
    file.write_all_at(&[0xff; 64], TABLE_AT).unwrap();

    let (kernel, serving) = rig.serve(&memory);
    kernel.send(&request(GETATTR, 200, ROOT, &[0; 16]));
    let mut answers = BTreeMap::new();
    for _ in 0..8 {
        let (unique, error, bytes) = kernel.answer();
        assert!(answers.insert(unique, (error, bytes)).is_none(), "{unique} is answered twice");
    }
    assert_eq!(answers.keys().copied().collect::<Vec<_>>(), [100, 102, 104, 106, 108, 110, 118, 200]);
    assert_eq!(answers[&100].1[..8], nodes[3].to_ne_bytes());
    assert_eq!(answers[&102], (0, bytes(3)[5..4101].to_vec()));
    assert_eq!(answers[&104], (0, bytes(4)));
    assert_eq!(answers[&106].0, -libc::ESTALE);
    assert_eq!(answers[&108].0, 0);
    assert_eq!((answers[&110].0, answers[&118].0), (-libc::ENOSYS, -libc::ENOSYS));
    end(kernel, serving);

    // Everything was answered. The next process finds only the last request, which is still in its thread's buffer. The
    // real kernel would report that it is answered.
    let (kernel, serving) = rig.serve(&memory);
    kernel.send(&request(GETATTR, 300, ROOT, &[0; 16]));
    assert_eq!([kernel.answer().0, kernel.answer().0], [200, 300]);
    end(kernel, serving);
}

#[test]
fn a_read_that_waits_is_answered_by_each_next_process_until_its_answer_is_sent() {
    let rig = Rig::new();
    let (memory, file) = memory();
    let (kernel, serving) = rig.serve(&memory);
    let node = rig.node_of(&kernel, "f1");
    end(kernel, serving);
    // A process was killed after it had added a read to its table and before it took the next request.
    file.write_all_at(&read(50, node, 0, 100), BUFFERS_AT).unwrap();
    for _ in 0..3 {
        let (kernel, serving) = rig.serve(&memory);
        // The look-up may lie in the buffer of another thread, and is answered again.
        let mut answers = std::iter::repeat_with(|| kernel.answer());
        assert_eq!(answers.find(|answer| answer.0 == 50), Some((50, 0, bytes(1)[..100].to_vec())));
        end(kernel, serving);
        // The process was killed before it removed the read.
        file.write_all_at(&read(50, node, 0, 100), BUFFERS_AT).unwrap();
    }
}

// SEMANTICS: A2, C22
#[test]
fn a_file_that_the_kernel_may_read_by_itself_is_opened_for_reading_alone() {
    let rig = Rig::new();
    let (memory, file) = memory();
    let (kernel, serving) = rig.serve(&memory);
    let node = rig.node_of(&kernel, "f1");
    end(kernel, serving);
    // The process before answered OPENs, so this one does, too.
    file.write_all_at(b"OPENS\0\0\x01", 8).unwrap();
    let (kernel, serving) = rig.serve(&memory);
    for (unique, flags, expected) in [
        (500, libc::O_RDONLY | libc::O_DIRECT, 0),
        (502, libc::O_WRONLY, -libc::EROFS),
        (504, libc::O_RDWR, -libc::EROFS),
    ] {
        kernel.send(&request(OPEN, unique, node, &words(&[flags.cast_unsigned(), 0])));
        // The look-up may lie in the buffer of another thread, and is answered again.
        let answered = std::iter::repeat_with(|| kernel.answer()).find(|answer| answer.0 == unique).unwrap();
        assert_eq!(answered.1, expected, "flags {flags:#o}");
    }
    end(kernel, serving);
}

#[test]
fn a_connection_is_served_once_at_a_time() {
    let rig = Rig::new();
    let (memory, _) = memory();
    let (kernel, serving) = rig.serve(&memory);
    let _in_runtime = rig.runtime.enter();
    let (_kernel, theirs) = Kernel::connect();
    let config = ServeConfig { threads: 1, max_background: 16, ownership: Ownership::default() };
    let again = serve(&rig.pool, Arc::clone(rig.open.dataset()), theirs, &init(), memory.as_fd(), config);
    assert!(again.unwrap_err().to_string().contains("another session"));
    end(kernel, serving);
}

#[test]
fn the_next_process_may_have_more_threads_or_fewer() {
    let rig = Rig::new();
    let (memory, file) = memory();
    end_of_many(&rig, &memory);
    // Some of its 256 threads had a request.
    let uniques: Vec<u64> = (0..256).step_by(5).map(|thread| 1000 + 2 * thread).collect();
    for (thread, unique) in (0..256).step_by(5).zip(&uniques) {
        let asked = request(GETATTR, *unique, ROOT, &[0; 16]);
        file.write_all_at(&asked, BUFFERS_AT + thread * BUFFER_BYTES).unwrap();
    }
    let (kernel, serving) = rig.serve(&memory);
    let answered: Vec<u64> = uniques.iter().map(|_| kernel.answer().0).collect();
    assert_eq!(answered, uniques);
    end(kernel, serving);
}

/// A process with the most possible threads has used the memory.
fn end_of_many(rig: &Rig, memory: &OwnedFd) {
    let _in_runtime = rig.runtime.enter();
    let (kernel, theirs) = Kernel::connect();
    let config = ServeConfig { threads: 1000, max_background: 16, ownership: Ownership::default() };
    let serving = serve(&rig.pool, Arc::clone(rig.open.dataset()), theirs, &init(), memory.as_fd(), config).unwrap();
    assert_eq!(kernel.answer().0, 1);
    end(kernel, serving);
}
