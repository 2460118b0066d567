//! Connections that change hands while one dataset cannot be opened: its manifest is gone, and its origin does not
//! answer.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use larder_csi_api::csi::NodeUnpublishVolumeRequest;
use larder_csi_api::csi::node_client::NodeClient;
use larder_daemon_api::v1;
use larder_e2e::{BUCKET, Keeper, Lab, Larderd, Plugin};
use larder_testkit::Fault;

use crate::csi::{publish, wait_until};

/// The datasets of a lab: the first is the one that cannot be opened for a while.
const DATASETS: [&str; 3] = ["broken", "whole", "third"];

fn lab() -> Lab {
    let lab = Lab::new();
    for dataset in DATASETS {
        for i in 0..9 {
            lab.server.put(BUCKET, &format!("{dataset}/f{i}"), format!("{dataset} {i}").into_bytes());
        }
    }
    lab
}

fn source(dataset: &str) -> String {
    format!("s3://{BUCKET}/{dataset}")
}

/// Reads a file within 20 s. A reader that hangs stays behind.
fn read_soon(dir: &Path, dataset: &'static str, file: u8) {
    let (done, outcome) = std::sync::mpsc::channel();
    let path = dir.join(format!("f{file}"));
    std::thread::spawn(move || done.send(std::fs::read(path)));
    let read = outcome.recv_timeout(Duration::from_secs(20)).expect("the read ends").unwrap();
    assert_eq!(String::from_utf8(read).unwrap(), format!("{dataset} {file}"));
}

/// The manifests that a larderd keeps.
fn manifests(larderd: &Larderd) -> BTreeSet<PathBuf> {
    let home = larderd.run_dir().parent().unwrap().join("home");
    let files = |folder: &str| std::fs::read_dir(home.join(folder)).into_iter().flatten().flatten();
    files("mounts").chain(files("manifests")).map(|entry| entry.path()).collect()
}

/// The origin of the first dataset is down.
fn take_down(lab: &Lab, fault: Fault) {
    let hook = move |broken: bool| if broken { fault.clone() } else { Fault::None };
    lab.proxy.set_hook(move |request| hook(request.path.contains(DATASETS[0])));
}

// SEMANTICS: K10
#[test]
fn a_dataset_that_cannot_be_opened_holds_up_no_other_and_is_served_when_it_can_be() {
    let lab = lab();
    let mut larderd = Larderd::start(&lab, "independent", &[]);
    let mut plugin = Plugin::start(&lab, &larderd, &[]);
    let dirs = DATASETS.map(|dataset| plugin.path(&format!("kubelet/pods/{dataset}")));
    let _in_runtime = lab.runtime().enter();
    let mut node = NodeClient::new(plugin.channel());
    let mut publish = |index: usize| {
        let mut request = publish(&lab, &dirs[index]);
        request.volume_context.insert("source".to_owned(), source(DATASETS[index]));
        wait_until("the volume is published", || {
            lab.runtime().block_on(node.node_publish_volume(request.clone())).is_ok()
        });
    };
    publish(0);
    let broken = manifests(&larderd);
    publish(1);
    larderd.kill();
    take_down(&lab, Fault::StallBeforeHead);
    broken.iter().for_each(|manifest| std::fs::remove_file(manifest).unwrap());
    larderd.restart();
    read_soon(&dirs[1], DATASETS[1], 0);
    let started = Instant::now();
    publish(2);
    read_soon(&dirs[2], DATASETS[2], 0);
    assert!(started.elapsed() < Duration::from_secs(25), "a new mount waits for nothing");
    // Each of the two has the connection that is not served, and gives it to the other.
    plugin.kill();
    plugin.restart();
    wait_until("the plugin is in session", || plugin.log().matches("in session with larderd").count() >= 3);
    read_soon(&dirs[1], DATASETS[1], 1);
    larderd.kill();
    larderd.restart();
    read_soon(&dirs[1], DATASETS[1], 2);
    read_soon(&dirs[2], DATASETS[2], 2);
    lab.proxy.set_hook(|_| Fault::None);
    assert_eq!(std::fs::read(dirs[0].join("f3")).unwrap(), b"broken 3");
}

fn dataset(name: &str) -> v1::Dataset {
    v1::Dataset { source: source(name), ..v1::Dataset::default() }
}

fn prepare(lab: &Lab, larderd: &Larderd, name: &str) -> v1::Prepared {
    let _in_runtime = lab.runtime().enter();
    let request = v1::PrepareRequest { dataset: Some(dataset(name)), wait_ms: 30_000, ..Default::default() };
    match lab.runtime().block_on(larderd.client().prepare(request)).unwrap().into_inner().outcome {
        Some(v1::prepare_response::Outcome::Prepared(prepared)) => prepared,
        other => panic!("{other:?}"),
    }
}

/// A keeper with the mounts of two datasets. Returns their folders, and the manifests of the first.
fn two_mounts(lab: &Lab, larderd: &Larderd, keeper: &mut Keeper) -> ([PathBuf; 2], BTreeSet<PathBuf>) {
    keeper.connect();
    larderd.wait_until_it_answers();
    let mut of_first = BTreeSet::new();
    let dirs = [DATASETS[0], DATASETS[1]].map(|name| {
        let prepared = prepare(lab, larderd, name);
        let dir = lab.folder().join(name);
        keeper.mount(&prepared, dataset(name), &dir).unwrap();
        if of_first.is_empty() {
            of_first = manifests(larderd);
        }
        dir
    });
    (dirs, of_first)
}

// SEMANTICS: K10
#[test]
fn a_keeper_killed_while_its_offers_wait_gets_every_connection_back() {
    let lab = lab();
    let mut larderd = Larderd::start(&lab, "waiting", &[]);
    let mut keeper = Keeper::new(larderd.run_dir());
    let (dirs, broken) = two_mounts(&lab, &larderd, &mut keeper);
    for round in 0..3 {
        larderd.kill();
        take_down(&lab, Fault::Reset);
        broken.iter().for_each(|manifest| drop(std::fs::remove_file(manifest)));
        larderd.restart();
        keeper.offer_and_die();
        assert_eq!(keeper.connect().len(), 2, "both, served or not: {}", larderd.log());
        keeper.lose_everything();
        assert_eq!(keeper.connect().len(), 2);
        read_soon(&dirs[1], DATASETS[1], round);
        lab.proxy.set_hook(|_| Fault::None);
        assert_eq!(std::fs::read(dirs[0].join(format!("f{round}"))).unwrap(), format!("broken {round}").into_bytes());
    }
}

// SEMANTICS: K10
#[test]
fn a_mount_that_cannot_be_served_is_kept_for_a_keeper_of_five_thousand_others() {
    let lab = lab();
    let mut larderd = Larderd::start(&lab, "many", &[]);
    let mut keeper = Keeper::new(larderd.run_dir());
    let (dirs, broken) = two_mounts(&lab, &larderd, &mut keeper);
    keeper.say_it_holds_others(5000);
    larderd.kill();
    take_down(&lab, Fault::Reset);
    broken.iter().for_each(|manifest| std::fs::remove_file(manifest).unwrap());
    larderd.restart();
    keeper.offer_and_die();
    read_soon(&dirs[1], DATASETS[1], 0);
    assert_eq!(keeper.connect().len(), 2, "both, served or not: {}", larderd.log());
    lab.proxy.set_hook(|_| Fault::None);
    assert_eq!(std::fs::read(dirs[0].join("f0")).unwrap(), b"broken 0");
}

// SEMANTICS: K10
#[test]
fn a_mount_that_ends_before_it_is_served_leaves_nothing_behind() {
    let lab = lab();
    let mut larderd = Larderd::start(&lab, "gone", &[]);
    let plugin = Plugin::start(&lab, &larderd, &[]);
    let target = plugin.path("kubelet/pods/pod");
    let _in_runtime = lab.runtime().enter();
    let mut node = NodeClient::new(plugin.channel());
    let mut request = publish(&lab, &target);
    request.volume_context.insert("source".to_owned(), source(DATASETS[0]));
    wait_until("the volume is published", || lab.runtime().block_on(node.node_publish_volume(request.clone())).is_ok());
    larderd.kill();
    take_down(&lab, Fault::StallBeforeHead);
    manifests(&larderd).iter().for_each(|manifest| std::fs::remove_file(manifest).unwrap());
    larderd.restart();
    wait_until("larderd has the connection", || larderd.connections() > 0);
    wait_until("the volume is unpublished", || {
        let request = NodeUnpublishVolumeRequest {
            volume_id: request.volume_id.clone(),
            target_path: request.target_path.clone(),
        };
        lab.runtime().block_on(node.node_unpublish_volume(request)).is_ok()
    });
    wait_until("neither holds the connection", || larderd.connections() + plugin.connections() == 0);
}

// SEMANTICS: K2
#[test]
fn a_larderd_that_stops_after_its_keeper_has_left_waits_for_the_next() {
    let lab = lab();
    let mut larderd = Larderd::start(&lab, "alone", &[]);
    let mut keeper = Keeper::new(larderd.run_dir());
    let (dirs, _) = two_mounts(&lab, &larderd, &mut keeper);
    assert!(keeper.may_leave());
    keeper.lose_everything();
    std::thread::scope(|scope| {
        let stop = scope.spawn(|| larderd.terminate());
        std::thread::sleep(Duration::from_millis(500));
        read_soon(&dirs[0], DATASETS[0], 0);
        assert!(!stop.is_finished());
        assert_eq!(keeper.connect().len(), 2);
    });
    larderd.restart();
    assert_eq!(keeper.connect(), [] as [String; 0]);
    for (dir, dataset) in dirs.iter().zip(DATASETS) {
        read_soon(dir, dataset, 1);
    }
}

#[test]
fn a_keeper_of_the_first_version_of_the_protocol_is_served() {
    let lab = lab();
    let mut larderd = Larderd::start(&lab, "older", &[]);
    let mut keeper = Keeper::older(larderd.run_dir());
    let (dirs, _) = two_mounts(&lab, &larderd, &mut keeper);
    for round in 0..3 {
        larderd.kill();
        larderd.restart();
        assert_eq!(keeper.connect(), [] as [String; 0]);
        for (dir, dataset) in dirs.iter().zip(DATASETS) {
            read_soon(dir, dataset, round);
        }
        keeper.lose_everything();
        assert_eq!(keeper.connect().len(), 2);
    }
}
