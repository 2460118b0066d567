use std::path::Path;
use std::time::Duration;

use larder_cachenode::home::Home;
use larder_cachenode::importing::Importer;
use larder_cachenode::node::NodeConfig;
use larder_daemon_api::handover::request_memory;
use larder_dataset::{DatasetSpec, Ownership};
use larder_origin::OriginConfig;

use super::*;

/// A node with its files in a folder.
fn node(folder: &Path) -> Arc<Node> {
    Node::open(NodeConfig {
        cache_dir: folder.join("cache"),
        more_cache_dirs: Vec::new(),
        cache_bytes: None,
        keep_free_percent: 0,
        home: Home::new(folder.join("home")),
        origin: OriginConfig::default(),
        importer: Importer::Here,
        peers: None,
        memory: Arc::default(),
        socket: None,
    })
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ends_before_its_mount_is_shown_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("data")).unwrap();
    std::fs::write(path("data/file"), b"bytes").unwrap();
    let node = node(folder.path());
    let request = DatasetRequest::from(DatasetSpec::new(format!("file://{}", path("data").display())));
    let open = node.open_dataset(node.find(&request).await.unwrap(), &request, User::Mount).await.unwrap();
    let (mounts, mut owner) = Mounts::new(Arc::clone(&node), Pool::start(1).unwrap(), None, false);
    let (reply, served) = oneshot::channel();
    let task = owner.tasks.spawn(std::future::pending()).id();
    owner.running.push(Running { number: 7, request, reply, task, makes_mount: true, ended: None });

    owner.apply(Event::Ended { number: 7, outcome: Ok(()) });
    assert_eq!(mounts.now().jobs, 1, "its job still runs");
    owner.finish(task, Ok(Done { open, connection: None, dir: Some(path("mnt")) }));

    assert_eq!(served.await.unwrap().unwrap().number, 7, "it was made");
    assert!(mounts.now().mounts.is_empty() && mounts.now().had_mounts, "and is over");
    node.drained().await;
    assert!(owner.open.is_empty(), "its dataset is closed");
}

/// Has a job run that does not end by itself.
fn run_job(owner: &mut Owner, number: u64, request: &DatasetRequest, makes_mount: bool) -> task::Id {
    let task = owner.tasks.spawn(std::future::pending()).id();
    let (request, reply) = (request.clone(), oneshot::channel().0);
    owner.running.push(Running { number, request, reply, task, makes_mount, ended: None });
    task
}

// SEMANTICS: K1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_few_jobs_run_at_a_time_and_one_of_those_that_make_mounts() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("data")).unwrap();
    std::fs::write(path("data/file"), b"bytes").unwrap();
    let node = node(folder.path());
    let request = DatasetRequest::from(DatasetSpec::new(format!("file://{}", path("data").display())));
    let (mounts, mut owner) = Mounts::new(Arc::clone(&node), Pool::start(1).unwrap(), None, false);
    assert_eq!(owner.startable(), None, "none waits");
    let found = node.find(&request).await.unwrap();
    let target = Target::Folder(MountConfig::new(path("mnt")));
    owner.apply(Event::Serve(Job { found, request: request.clone(), target, reply: oneshot::channel().0 }));
    for number in 0..JOBS_AT_ONCE as u64 {
        assert_eq!(owner.startable(), Some(0), "{number}");
        run_job(&mut owner, number, &request, false);
    }
    assert_eq!(owner.startable(), None, "as many run as may");
    owner.running.clear();
    let first = run_job(&mut owner, 20, &request, true);
    assert_eq!(owner.startable(), None, "its mount point may hang");
    let found = node.find(&request).await.unwrap();
    let fd = std::fs::File::open("/dev/null").unwrap().into();
    let memory = request_memory().unwrap();
    let connection = Arc::new(Connection { fd, memory, init: Vec::new(), lender: None, own: None });
    let config = ServeConfig { threads: 1, max_background: 16, ownership: Ownership::default() };
    let target = Target::Connection(connection, config);
    owner.apply(Event::Serve(Job { found, request: request.clone(), target, reply: oneshot::channel().0 }));
    assert_eq!(owner.startable(), Some(1), "a connection does not wait for the mount point");
    let second = run_job(&mut owner, 21, &request, false);
    // The later one is finished first.
    for task in [second, first] {
        let open = node.open_dataset(node.find(&request).await.unwrap(), &request, User::Mount).await.unwrap();
        owner.finish(task, Ok(Done { open, connection: None, dir: Some(path("mnt")) }));
    }
    let numbers: Vec<u64> = mounts.now().mounts.iter().map(|mount| mount.number).collect();
    assert_eq!(numbers, [20, 21]);
    assert_eq!(owner.startable(), Some(0));
}

// SEMANTICS: P7
#[tokio::test(start_paused = true)]
async fn the_task_beats_also_while_nothing_happens_and_not_once_it_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let (mounts, owner) = Mounts::new(node(folder.path()), Pool::start(1).unwrap(), None, false);
    let task = tokio::spawn(owner.run());
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(mounts.heartbeat().check("it"), Ok(()));
    task.abort();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(mounts.heartbeat().check("it").is_err());
}
