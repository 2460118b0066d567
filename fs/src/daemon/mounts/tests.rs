use std::path::Path;
use std::time::Duration;

use larder_cachenode::home::Home;
use larder_cachenode::importing::Importer;
use larder_cachenode::node::NodeConfig;
use larder_dataset::DatasetSpec;
use larder_origin::OriginConfig;

use super::*;

/// A node with its files in a folder.
fn node(folder: &Path) -> Arc<Node> {
    Node::open(NodeConfig {
        cache_dir: folder.join("cache"),
        cache_bytes: None,
        keep_free_percent: 0,
        home: Home::new(folder.join("home")),
        origin: OriginConfig::default(),
        importer: Importer::Here,
        peers: None,
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
    let (mounts, mut owner) = Mounts::new(Arc::clone(&node), false);
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

// SEMANTICS: P7
#[tokio::test(start_paused = true)]
async fn the_task_beats_also_while_nothing_happens_and_not_once_it_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let (mounts, owner) = Mounts::new(node(folder.path()), false);
    let task = tokio::spawn(owner.run());
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(mounts.heartbeat().check("it"), Ok(()));
    task.abort();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(mounts.heartbeat().check("it").is_err());
}
