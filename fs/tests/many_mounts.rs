//! Many mounts of one process, within limits that a few threads for each mount would exceed.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use larder_cachenode::Dataset;
use larder_cachenode::home::Home;
use larder_cachenode::importing::Importer;
use larder_cachenode::node::{Node, NodeConfig, User};
use larder_cachenode::process::raise_file_limit;
use larder_cachenode::request::DatasetRequest;
use larder_daemon_api::handover::request_memory;
use larder_daemon_api::mountinfo::larder_mounts;
use larder_dataset::{Chain, DatasetSpec, Ownership};
use larder_fs::connection::{ServeConfig, serve};
use larder_fs::mount::mount;
use larder_fs::{MountConfig, Mounted, Pool, pids_max_file};
use larder_origin::OriginConfig;
use larder_testkit::kernel::{Kernel, init};
use larder_testkit::scaled;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The most threads of this process. 200 mounts with two threads each would exceed it.
const THREADS_MOST: u64 = 300;

const FILES: usize = 10;

/// A cgroup that limits the threads of this process. Dropping it removes the cgroup.
struct Limited {
    dir: PathBuf,
    before: PathBuf,
}

impl Limited {
    /// Moves this process into a new cgroup. `None` if there is no pids controller, or it may not be used.
    fn enter() -> Option<Self> {
        let own = pids_max_file(&std::fs::read_to_string("/proc/self/cgroup").unwrap())?.parent()?.to_owned();
        // A cgroup of version 2 that has processes has no limited children, but the root may have some.
        [own.clone(), PathBuf::from("/sys/fs/cgroup")].into_iter().find_map(|parent| {
            let dir = parent.join(format!("larder-many-mounts-{}", std::process::id()));
            std::fs::create_dir(&dir).ok()?;
            // From here on, dropping it removes the folder.
            let limited = Self { dir, before: own.clone() };
            // Elsewhere it is an ordinary folder.
            limited.dir.join("cgroup.procs").exists().then_some(())?;
            std::fs::write(limited.dir.join("pids.max"), THREADS_MOST.to_string()).ok()?;
            std::fs::write(limited.dir.join("cgroup.procs"), std::process::id().to_string()).ok()?;
            Some(limited)
        })
    }

    /// The number of threads of this process.
    fn threads(&self) -> u64 {
        std::fs::read_to_string(self.dir.join("pids.current")).unwrap().trim().parse().unwrap()
    }

    fn allow(&self, threads: u64) {
        std::fs::write(self.dir.join("pids.max"), threads.to_string()).unwrap();
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = std::fs::write(self.before.join("cgroup.procs"), std::process::id().to_string());
        let _ = std::fs::remove_dir(&self.dir);
    }
}

fn bytes(i: usize) -> Vec<u8> {
    (0..20_000 + i * 1000).map(|n| (n.wrapping_mul(i + 1) >> 3) as u8).collect()
}

fn check(mount: &Path, i: usize) {
    assert!(std::fs::read(mount.join(format!("f{i}"))).unwrap() == bytes(i), "file {i} of {}", mount.display());
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

fn mount_at(pool: &Arc<Pool>, dataset: &Arc<Dataset>, dir: PathBuf) -> Mounted {
    std::fs::create_dir(&dir).unwrap();
    mount(pool, Arc::clone(dataset), &MountConfig::new(dir)).unwrap()
}

// SEMANTICS: P8
#[test]
fn many_mounts_share_the_threads_of_a_small_cgroup() {
    let Some(limited) = Limited::enter() else {
        eprintln!("SKIPPED: this machine has no pids controller that this user may use");
        return;
    };
    raise_file_limit();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("data")).unwrap();
    (0..FILES).for_each(|i| std::fs::write(path(&format!("data/f{i}")), bytes(i)).unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
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
        .block_on(async { node.open_dataset(node.find(&request).await.unwrap(), &request, User::Mount).await })
        .unwrap();
    let dataset = open.dataset();

    // All mounts live, and each answers.
    let pool = Pool::for_many_mounts(16).unwrap();
    let before = mappings();
    let count = scaled(200).min(1000) as usize;
    let mounts: Vec<Mounted> = (0..count).map(|i| mount_at(&pool, dataset, path(&format!("mnt{i}")))).collect();
    let after = mappings();
    assert!(after <= before + count + 50, "{before} mappings have become {after}");
    let dirs: Vec<PathBuf> = mounts.iter().map(|mount| mount.path().to_owned()).collect();
    for (i, dir) in dirs.iter().enumerate() {
        check(dir, i % FILES);
    }

    // Many are busy at the same time, and one of them more than the others.
    std::thread::scope(|scope| {
        for reader in 0..32 {
            let dirs = &dirs;
            scope.spawn(move || {
                for i in 0..100 {
                    let dir = if reader < 16 { &dirs[0] } else { &dirs[(reader + 16 * i) % dirs.len()] };
                    check(dir, (reader + i) % FILES);
                }
            });
        }
    });
    assert!(limited.threads() < THREADS_MOST);

    // A connection that a limit keeps from being served is refused with the limit's name, and can be served later.
    let (kernel, theirs) = Kernel::connect();
    let (memory, again) = (request_memory().unwrap(), theirs.try_clone().unwrap());
    let config = ServeConfig { threads: 16, max_background: 16, ownership: Ownership::default() };
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..files }).unwrap();
    let refused = serve(&pool, Arc::clone(dataset), theirs, &init(), memory.as_fd(), config);
    setrlimit(Resource::Nofile, files).unwrap();
    let refused = Chain(&refused.unwrap_err()).to_string();
    assert!(refused.contains("no more open files") && refused.contains("ulimit -n"), "{refused}");
    let serving = serve(&pool, Arc::clone(dataset), again, &init(), memory.as_fd(), config).unwrap();
    assert_eq!(kernel.answer().0, 1);
    check(&dirs[count - 1], 0);
    drop(kernel);
    let _ = serving.wait();

    // A pool starts with the threads that it can have, and is refused without one.
    limited.allow(limited.threads() + 2);
    let small = Pool::start(64).unwrap();
    limited.allow(1);
    let refused = Chain(&Pool::start(4).unwrap_err()).to_string();
    assert!(refused.contains("podPidsLimit"), "{refused}");
    limited.allow(THREADS_MOST);
    let served_by_few = mount_at(&small, dataset, path("few"));
    check(served_by_few.path(), 1);
    // A file of it that is open, as by a command that looks at all mounts, does not keep it in the tree.
    let open = File::open(served_by_few.path().join("f0")).unwrap();
    let few = served_by_few.path().to_owned();
    let unmounting = std::thread::spawn(move || served_by_few.unmount());
    while larder_mounts().iter().any(|mount| mount.path == few) {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(open);
    unmounting.join().unwrap().unwrap();

    for mount in mounts {
        mount.unmount().unwrap();
    }
}
