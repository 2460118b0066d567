use larder_cachenode::home::Home;
use larder_cachenode::importing::Importer;
use larder_cachenode::node::NodeConfig;
use larder_dataset::DatasetSpec;
use larder_origin::OriginConfig;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ends_before_its_mount_is_shown_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("data")).unwrap();
    std::fs::write(path("data/file"), b"bytes").unwrap();
    let node = Node::open(NodeConfig {
        cache_dir: path("cache"),
        cache_bytes: None,
        keep_free_percent: 0,
        home: Home::new(path("home")),
        origin: OriginConfig::default(),
        importer: Importer::Here,
        peers: None,
        socket: None,
    })
    .unwrap();
    let request = DatasetRequest::from(DatasetSpec::new(format!("file://{}", path("data").display())));
    let open = node.open_dataset(node.find(&request).await.unwrap(), &request, User::Mount).await.unwrap();
    let (mounts, mut owner) = Mounts::new(Arc::clone(&node), false);
    let (reply, served) = oneshot::channel();
    let task = tokio::spawn(std::future::pending());
    owner.running = Some(Running { number: 7, request, reply, task, ended: None });

    owner.apply(Event::Ended { number: 7, outcome: Ok(()) });
    assert_eq!(mounts.now().jobs, 1, "its job still runs");
    owner.finish(Ok(Done { open, connection: None, dir: Some(path("mnt")) }));

    assert_eq!(served.await.unwrap().unwrap().number, 7, "it was made");
    assert!(mounts.now().mounts.is_empty() && mounts.now().had_mounts, "and is over");
    node.drained().await;
    assert!(owner.open.is_empty(), "its dataset is closed");
}
