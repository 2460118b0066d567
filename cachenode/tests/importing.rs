//! Imports in a process of their own, as a node has them made: what comes back, and what becomes of the process.
#![expect(clippy::unwrap_used, reason = "helpers of tests: a panic is how they fail")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use larder_cachenode::importing::Importer;
use larder_cachenode::kept_listing::KeptListing;
use larder_cachenode::node::{ErrorKind, NodeError};
use larder_cachenode::source::{Here, Import, Importing, SourceError};
use larder_cachenode::{Home, HomeLimits, open_manifest};
use larder_dataset::Chain;
use larder_dataset::environment::OWNER;
use larder_import::Progress;
use larder_origin::{OriginConfig, OriginUrl};
use larder_s3_server::{ListingConfig, ListingFault, ListingServer, MadeUpKeys, S3Server, S3ServerConfig};
use larder_testkit::{Fault, FaultProxy, RequestHead};
use rustix::io::ioctl_fionread;
use rustix::process::{Pid, Signal, kill_process};

/// Nothing here takes so long.
const MOST: Duration = Duration::from_secs(60);

/// A home for imports, and their progress.
struct World {
    folder: tempfile::TempDir,
    limits: HomeLimits,
    reported: Reported,
}

#[derive(Default)]
struct Reported {
    files: AtomicU64,
    notes: Mutex<Vec<String>>,
}

impl Progress for Reported {
    fn listed(&self, files: u64, _bytes: u64, _prefixes_done: u64, _prefixes_known: u64) {
        self.files.fetch_max(files, Ordering::SeqCst);
    }

    fn noted(&self, what: &str) {
        self.notes.lock().unwrap().push(what.to_owned());
    }
}

impl World {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), limits: HomeLimits::default(), reported: Reported::default() }
    }

    fn kept(&self) -> KeptListing {
        KeptListing::at(self.folder.path().join("kept.manifest"))
    }

    fn imports(&self) -> PathBuf {
        self.folder.path().join("home/imports")
    }

    async fn import(
        &self,
        importer: &impl Importing,
        url: &str,
        config: &OriginConfig,
    ) -> Result<BTreeMap<String, u64>, SourceError> {
        let url: OriginUrl = url.parse()?;
        let (kept, home) = (self.kept(), Home::limited(self.folder.path().join("home"), self.limits));
        let origin = larder_origin::open(&url, config)?;
        let (kept, home, progress) = (&kept, &home, &self.reported);
        let import = Import { url: &url, origin, kept, config, home, link_objects: false, since_ns: None, progress };
        tokio::time::timeout(MOST, importer.import(import)).await.expect("an import ends")
    }
}

fn process(memory_mib: u64) -> Importer {
    Importer::process(env!("CARGO_BIN_EXE_cachenode"), memory_mib << 20, MOST)
}

/// A script of these lines, in which `$IMPORTER` is the program that imports.
fn script(folder: &Path, lines: &str) -> Importer {
    let path = folder.join("importer.sh");
    std::fs::write(&path, format!("#!/bin/sh\nIMPORTER={}\n{lines}\n", env!("CARGO_BIN_EXE_cachenode"))).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    Importer::process(path, 512 << 20, MOST)
}

/// The processes that import for this one.
fn importing() -> Vec<u32> {
    let is_ours = |id: &u32| {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{id}/{file}")).unwrap_or_default();
        let parent = format!("PPid:\t{}\n", std::process::id());
        read("status").contains(&parent) && read("cmdline").contains("import-for-a-mount")
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_ours).collect()
}

async fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < MOST, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Counts the drafts that an import leaves beside its journal.
fn drafts(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "draft")).count()
}

async fn made_up(count: u64, page_time: Duration) -> (ListingServer, OriginConfig) {
    let keys = MadeUpKeys { count, per_folder: 1300 };
    let config = ListingConfig { keys, page_time, fault: ListingFault::None };
    let server = ListingServer::start(config).await.unwrap();
    let config = OriginConfig { env: server.env().into_iter().collect(), ..OriginConfig::default() };
    (server, config)
}

async fn bucket() -> (S3Server, FaultProxy, OriginConfig) {
    let config = S3ServerConfig { buckets: vec!["bucket".into()], ..S3ServerConfig::default() };
    let server = S3Server::start(config).await.unwrap();
    let proxy = FaultProxy::start(server.address(), |_| Fault::None).await.unwrap();
    let config = OriginConfig {
        endpoint: Some(proxy.endpoint()),
        env: server.env().into_iter().collect(),
        deadline: Duration::from_secs(2),
        ..OriginConfig::default()
    };
    (server, proxy, config)
}

// SEMANTICS: I8
#[tokio::test(flavor = "multi_thread")]
async fn an_import_process_makes_the_same_manifest_and_reports_its_progress() {
    let (server, _proxy, config) = bucket().await;
    for n in 0..500 {
        server.put("bucket", &format!("data/{}/{n}", n % 7), vec![1; n]);
    }
    server.put("bucket", "data/a//b", b"odd".to_vec());
    let (here, there) = (World::new(), World::new());
    let skipped = here.import(&Here, "s3://bucket/data", &config).await.unwrap();
    assert_eq!(there.import(&process(512), "s3://bucket/data", &config).await.unwrap(), skipped);
    assert_eq!(skipped.values().sum::<u64>(), 1);
    let manifests = [&here, &there].map(|world| open_manifest(world.kept().path()).unwrap());
    assert_eq!(manifests[0].totals().files, 500);
    assert_eq!(manifests[0].snapshot(), manifests[1].snapshot());
    assert_eq!(there.reported.files.load(Ordering::SeqCst), 500, "its progress is reported");
    assert_eq!(std::fs::read_dir(there.imports()).unwrap().count(), 0, "neither journal nor draft is left");
    wait_until("the process has ended", || importing().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_process_reports_a_journal_that_cannot_be_continued() {
    let (server, proxy, config) = bucket().await;
    server.put("bucket", "data/a", b"1".to_vec());
    let world = World::new();
    proxy.set_hook(|request| match request.path.contains("list-type=2") {
        true => Fault::Status { status: 403, code: "AccessDenied" },
        false => Fault::None,
    });
    world.import(&process(512), "s3://bucket/data", &config).await.unwrap_err();
    let journal = std::fs::read_dir(world.imports()).unwrap().next().unwrap().unwrap().path();
    std::fs::write(journal, b"not a journal, but long enough to be taken for a header of one, it seems").unwrap();
    proxy.set_hook(|_| Fault::None);
    world.import(&process(512), "s3://bucket/data", &config).await.unwrap();
    let notes = world.reported.notes.lock().unwrap();
    assert!(notes.len() == 1 && notes[0].contains("started over"), "{notes:?}");
}

// SEMANTICS: I8
#[tokio::test(flavor = "multi_thread")]
async fn the_errors_of_the_process_have_the_kind_and_the_words_of_those_of_an_import_here() {
    let (server, proxy, config) = bucket().await;
    server.put("bucket", "data/a", b"1".to_vec());
    let refuse = |status, code| proxy.set_hook(move |_: &RequestHead| Fault::Status { status, code });
    let missing = both("s3://bucket/nothing", &config).await;
    assert!(missing.1.contains("there is nothing below s3://bucket/nothing"), "{missing:?}");
    assert_eq!(missing.0, ErrorKind::NotFound);
    assert_eq!(both("s3://no-such-bucket/data", &config).await.0, ErrorKind::Invalid);
    assert_eq!(both("file:///no/such/folder", &config).await.0, ErrorKind::NotFound);
    refuse(403, "AccessDenied");
    assert_eq!(both("s3://bucket/data", &config).await.0, ErrorKind::Denied);
    refuse(503, "SlowDown");
    assert_eq!(both("s3://bucket/data", &config).await.0, ErrorKind::Unavailable);
}

/// The error of an import here and in a process, which must be the same.
async fn both(url: &str, config: &OriginConfig) -> (ErrorKind, String) {
    let outcome = |result: Result<_, SourceError>| {
        let error = result.map(|_: BTreeMap<String, u64>| ()).expect_err(url);
        let text = Chain(&error).to_string();
        (NodeError::from(error).kind(), text)
    };
    // A journal's path is in no error here.
    let here = outcome(World::new().import(&Here, url, config).await);
    assert_eq!(outcome(World::new().import(&process(512), url, config).await), here);
    here
}

// SEMANTICS: I8
#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_needs_more_memory_than_it_may_have_is_an_error_and_publishes_nothing() {
    let (server, config) = made_up(300_000, Duration::ZERO).await;
    let world = World::new();
    let error = world.import(&process(40), "s3://made-up", &config).await.unwrap_err();
    let text = Chain(&error).to_string();
    assert!(text.contains("40 MiB") && text.contains("--to s3://made-up/.larder/manifest"), "{text}");
    assert_eq!(NodeError::from(error).kind(), ErrorKind::Unavailable);
    assert_eq!((world.kept().stamp(), drafts(&world.imports())), (None, 0));
    // The next attempt continues where it was.
    let calls = server.lists();
    world.import(&process(512), "s3://made-up", &config).await.unwrap();
    assert_eq!(open_manifest(world.kept().path()).unwrap().totals().files, 300_000);
    assert!(server.lists() - calls < 300, "{calls} calls, then {}", server.lists() - calls);
}

/// A memory cgroup, as a container has one. It is removed when dropped; its processes must have ended.
struct Container(PathBuf);

impl Container {
    /// `None`, which it says, without root or a memory controller.
    fn new(bytes: u64) -> Option<Self> {
        let (root, limit) = match Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
            true => (Path::new("/sys/fs/cgroup"), "memory.max"),
            false => (Path::new("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        };
        let folder = root.join(format!("larder-import-{}", std::process::id()));
        let made = std::fs::create_dir(&folder).and_then(|()| std::fs::write(folder.join(limit), bytes.to_string()));
        if let Err(error) = made {
            assert!(std::env::var_os("CI").is_none(), "no memory cgroup: {error}");
            eprintln!("\nskipped: this needs root and memory cgroups: {error}\n");
            return None;
        }
        Some(Self(folder))
    }

    fn processes(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }

    /// The bytes that its processes have.
    fn used(&self) -> u64 {
        let read = |file: &str| std::fs::read_to_string(self.0.join(file)).ok();
        let text = read("memory.current").or_else(|| read("memory.usage_in_bytes")).expect("the use of memory");
        text.trim().parse().expect("a number")
    }

    /// Whether the kernel has ended a process for lack of memory.
    fn has_killed(&self) -> bool {
        let read = |file: &str| std::fs::read_to_string(self.0.join(file)).unwrap_or_default();
        let events = read("memory.events") + &read("memory.oom_control");
        events.lines().any(|line| line.strip_prefix("oom_kill ").is_some_and(|kills| kills != "0"))
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let removed = std::fs::remove_dir(&self.0);
        if !std::thread::panicking() {
            removed.unwrap();
        }
    }
}

// SEMANTICS: I8
#[tokio::test(flavor = "multi_thread")]
async fn a_container_without_memory_left_loses_the_import_and_not_the_node() {
    const MEMORY: u64 = 120 << 20;
    let (server, config) = made_up(300_000, Duration::from_millis(20)).await;
    let (server, world) = (Arc::new(server), World::new());
    let Some(container) = Container::new(MEMORY).map(Arc::new) else { return };
    // It keeps its input until that ends.
    let mut node = Command::new("tail");
    let mut node =
        node.args(["-c", &(200 << 20).to_string()]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    std::fs::write(container.processes(), node.id().to_string()).unwrap();
    let mut input = node.stdin.take().unwrap();
    let enters = format!("echo $$ >{}\nexec \"$IMPORTER\" \"$@\"", container.processes().display());
    let importer = script(world.folder.path(), &enters);
    // While the import has stopped, the node takes nearly all memory. It then has more than the import, so the kernel
    // would end it. The last of the memory is left to the import: a process that needs memory while the kernel ends
    // another may be ended, too, since that one's memory is free a little later than it counts as gone.
    let (lists, filled) = (Arc::clone(&server), Arc::clone(&container));
    let input = tokio::task::spawn_blocking(move || {
        let wait = || std::thread::sleep(Duration::from_millis(5));
        while lists.lists() == 0 {
            wait();
        }
        let import = Pid::from_raw(importing()[0].cast_signed()).unwrap();
        kill_process(import, Signal::STOP).unwrap();
        while filled.used() < MEMORY - (2 << 20) {
            input.write_all(&[1; 64 << 10]).unwrap();
        }
        while ioctl_fionread(&input).unwrap() > 0 {
            wait();
        }
        kill_process(import, Signal::CONT).unwrap();
        input
    });
    let error = world.import(&importer, "s3://made-up", &config).await.unwrap_err();
    assert!(Chain(&error).to_string().contains("ran out of memory"), "{}", Chain(&error));
    assert!(container.has_killed());
    drop(input.await.unwrap());
    assert!(node.wait().unwrap().success(), "the node was ended");
    world.import(&process(512), "s3://made-up", &config).await.unwrap();
    assert_eq!(open_manifest(world.kept().path()).unwrap().totals().files, 300_000);
}

// SEMANTICS: I10
#[tokio::test(flavor = "multi_thread")]
async fn the_process_has_the_limits_of_the_home_and_its_error_names_the_flag() {
    let (_server, config) = made_up(100_000, Duration::ZERO).await;
    let full = HomeLimits { keep_free_percent: 200, ..HomeLimits::default() };
    let small = HomeLimits { listing_bytes: 1 << 20, ..HomeLimits::default() };
    for (limits, flag) in [(full, "--keep-free"), (small, "--listing-size")] {
        let world = World { limits, ..World::new() };
        let error = world.import(&process(512), "s3://made-up", &config).await.unwrap_err();
        let text = Chain(&error).to_string();
        assert!(text.contains(flag), "{text}");
        assert_eq!(NodeError::from(error).kind(), ErrorKind::Precondition);
        assert_eq!((world.kept().stamp(), std::fs::read_dir(world.imports()).unwrap().count()), (None, 0));
    }
}

// SEMANTICS: I8
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_is_an_error_and_the_next_continues() {
    let (_server, config) = made_up(100_000, Duration::from_millis(50)).await;
    let world = World::new();
    let process = process(512);
    let import = world.import(&process, "s3://made-up", &config);
    let kill = async {
        wait_until("something is listed", || world.reported.files.load(Ordering::SeqCst) > 10_000).await;
        std::fs::write(world.imports().join("import-0123.draft"), b"of another that was killed").unwrap();
        for id in importing() {
            kill_process(Pid::from_raw(id.cast_signed()).unwrap(), Signal::KILL).unwrap();
        }
    };
    let (error, ()) = tokio::join!(import, kill);
    let text = Chain(&error.unwrap_err()).to_string();
    assert!(text.contains("SIGKILL") && text.contains("published nothing"), "{text}");
    assert_eq!((world.kept().stamp(), drafts(&world.imports())), (None, 0));
    world.import(&process, "s3://made-up", &config).await.unwrap();
    assert_eq!(open_manifest(world.kept().path()).unwrap().totals().files, 100_000);
}

// SEMANTICS: I8
#[tokio::test(flavor = "multi_thread")]
async fn a_process_ends_when_nobody_waits_for_its_import() {
    let (_server, config) = made_up(1_000_000, Duration::from_secs(2)).await;
    let world = Arc::new(World::new());
    let (waiting, config) = (Arc::clone(&world), config.clone());
    let import = tokio::spawn(async move { waiting.import(&process(512), "s3://made-up", &config).await });
    wait_until("the process lists", || importing().len() == 1 && world.imports().exists()).await;
    import.abort();
    wait_until("the process has ended", || importing().is_empty()).await;
    assert_eq!(world.kept().stamp(), None);
}

// SEMANTICS: I8
#[tokio::test(flavor = "multi_thread")]
async fn the_process_has_no_credentials_in_its_arguments_or_environment_and_no_descriptor_of_the_node() {
    let (_server, mut config) = made_up(1_000_000, Duration::from_secs(2)).await;
    config.env.set("AWS_SECRET_ACCESS_KEY", "hunter2-of-a-tenant");
    let world = Arc::new(World::new());
    // One that is not closed when a program is started.
    let held = std::fs::File::create(world.folder.path().join("held")).unwrap();
    let flags = rustix::io::fcntl_getfd(&held).unwrap();
    rustix::io::fcntl_setfd(&held, flags - rustix::io::FdFlags::CLOEXEC).unwrap();
    let (waiting, config) = (Arc::clone(&world), config.clone());
    let import = tokio::spawn(async move { waiting.import(&process(512), "s3://made-up", &config).await });
    wait_until("the process lists", || importing().len() == 1 && world.imports().exists()).await;
    let id = importing()[0];
    for file in ["cmdline", "environ"] {
        let text = std::fs::read(format!("/proc/{id}/{file}")).unwrap();
        assert!(!text.is_empty() && !String::from_utf8_lossy(&text).contains("hunter2"), "{file}");
    }
    let open = std::fs::read_dir(format!("/proc/{id}/fd")).unwrap().flatten();
    let open: Vec<PathBuf> = open.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
    assert!(!open.iter().any(|path| path.ends_with("held")), "{open:?}");
    assert_eq!(std::fs::read_to_string(format!("/proc/{id}/oom_score_adj")).unwrap().trim(), "1000");
    import.abort();
    wait_until("the process has ended", || importing().is_empty()).await;
}

// SEMANTICS: I8
#[tokio::test(flavor = "multi_thread")]
async fn no_more_than_two_processes_import_at_once_and_the_others_wait() {
    let (_server, config) = made_up(20_000, Duration::from_millis(50)).await;
    let process = process(512);
    let imports: Vec<_> = (0..3)
        .map(|n| {
            let (process, config, world) = (process.clone(), config.clone(), World::new());
            tokio::spawn(async move {
                world.import(&process, &format!("s3://made-up-{n}"), &config).await.unwrap();
                open_manifest(world.kept().path()).unwrap().totals().files
            })
        })
        .collect();
    let mut most = 0;
    wait_until("all have ended", || {
        most = most.max(importing().len());
        imports.iter().all(|import| import.is_finished())
    })
    .await;
    assert_eq!(most, 2);
    for import in imports {
        assert_eq!(import.await.unwrap(), 20_000);
    }
}

/// An import of an owner, which goes on in a task.
fn start_for(
    owner: &str,
    process: &Importer,
    config: &OriginConfig,
) -> tokio::task::JoinHandle<Result<u32, SourceError>> {
    let (process, mut config, world) = (process.clone(), config.clone(), World::new());
    config.env.set(OWNER, owner);
    tokio::spawn(async move {
        world.import(&process, "s3://made-up", &config).await?;
        Ok(open_manifest(world.kept().path()).unwrap().totals().files)
    })
}

// SEMANTICS: I8
#[tokio::test(flavor = "multi_thread")]
async fn no_owner_waits_for_a_listing_of_another_that_does_not_end() {
    let (_endless, endless) = made_up(900_000_000, Duration::from_secs(1)).await;
    let process = Importer::process(env!("CARGO_BIN_EXE_cachenode"), 512 << 20, Duration::from_secs(1));
    let endless = ["a", "a", "b"].map(|owner| start_for(owner, &process, &endless));
    wait_until("two run", || importing().len() == 2).await;
    for owner in ["c", "d", "a", "b"] {
        let (_server, config) = made_up(20_000, Duration::ZERO).await;
        assert_eq!(start_for(owner, &process, &config).await.unwrap().unwrap(), 20_000, "{owner}");
    }
    assert!(endless.iter().all(|import| !import.is_finished()), "those that gave way wait for their turn");
    wait_until("two run again", || importing().len() == 2).await;
    endless.iter().for_each(|import| import.abort());
    wait_until("the processes have ended", || importing().is_empty()).await;
}

// SEMANTICS: I8
#[tokio::test(flavor = "multi_thread")]
async fn imports_that_give_way_again_and_again_list_every_key_once() {
    let (_server, config) = made_up(20_000, Duration::from_millis(200)).await;
    let process = Importer::process(env!("CARGO_BIN_EXE_cachenode"), 512 << 20, Duration::from_millis(400));
    let imports = ["a", "b", "c", "d"].map(|owner| start_for(owner, &process, &config));
    let mut processes = BTreeSet::new();
    wait_until("all have ended", || {
        processes.extend(importing());
        imports.iter().all(|import| import.is_finished())
    })
    .await;
    for import in imports {
        assert_eq!(import.await.unwrap().unwrap(), 20_000);
    }
    assert!(processes.len() > 4, "some were stopped: {processes:?}");
}

// SEMANTICS: I8
#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_waits_for_others_is_cancelled_like_one_that_runs() {
    let (_server, config) = made_up(1_000_000, Duration::from_secs(2)).await;
    let process = process(512);
    let start = || {
        let (process, config, world) = (process.clone(), config.clone(), World::new());
        tokio::spawn(async move { world.import(&process, "s3://made-up", &config).await })
    };
    let running = [start(), start()];
    wait_until("two run", || importing().len() == 2).await;
    let waiting = start();
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    // The places of those that are cancelled are free again.
    running.iter().for_each(|import| import.abort());
    wait_until("the processes have ended", || importing().is_empty()).await;
    let (_server, config) = made_up(2000, Duration::ZERO).await;
    World::new().import(&process, "s3://made-up", &config).await.unwrap();
}

// SEMANTICS: I8
#[tokio::test(flavor = "multi_thread")]
async fn a_process_keeps_a_lower_limit_of_its_container() {
    let (_server, config) = made_up(1_000_000, Duration::from_secs(2)).await;
    let world = Arc::new(World::new());
    let importer = script(world.folder.path(), "ulimit -d 262144\nexec \"$IMPORTER\" \"$@\"");
    let (waiting, config) = (Arc::clone(&world), config.clone());
    let import = tokio::spawn(async move { waiting.import(&importer, "s3://made-up", &config).await });
    wait_until("the process lists", || world.imports().exists() || import.is_finished()).await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", importing()[0])).unwrap();
    let data: Vec<&str> =
        limits.lines().find(|line| line.starts_with("Max data size")).unwrap().split_whitespace().collect();
    assert_eq!(data[3..5], ["268435456", "268435456"], "{limits}");
    import.abort();
    wait_until("the process has ended", || importing().is_empty()).await;
}

// SEMANTICS: I8
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_cannot_begin_says_why() {
    let (_server, config) = made_up(1000, Duration::ZERO).await;
    let world = World::new();
    // Its parent is the shell.
    let importer = script(world.folder.path(), "\"$IMPORTER\" \"$@\"\nexit $?");
    let text = Chain(&world.import(&importer, "s3://made-up", &config).await.unwrap_err()).to_string();
    assert!(text.contains("did not start this process") && !text.contains("memory"), "{text}");
}
