//! Device lists: health, NUMA nodes, and clients that do not read.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use larder_devices::config::{Kind, Mode};
use larder_devices::health::Faults;
use larder_devices::plugin::devices;
use larder_devices::resource::DeviceKey;
use larder_kubelet::deviceplugin::Empty;

use crate::kubelet::Kubelet;
use crate::node::{Node, all, faults, gpu_id, hca_key, machine, resource_of, view};

const HCA: &str = "larder.dev/hca";
const RAIL: &str = "larder.dev/rail";

// SEMANTICS: D12
#[tokio::test]
async fn health_and_places_reach_the_kubelet() {
    let node = Node::new(view(machine(), [resource_of(RAIL, Kind::Rail, 0..8)]));
    let kubelet = Kubelet::start(&node.plugins());
    let _process = node.start().await;
    let known = kubelet.until_healthy(RAIL, 8).await;
    let places: Vec<Option<i64>> =
        known.devices[RAIL].iter().map(|device| Some(device.topology.as_ref()?.nodes[0].id)).collect();
    assert_eq!(places, [0, 0, 0, 0, 1, 1, 1, 1].map(Some));
    // A rail needs both its GPU and its HCA.
    node.change(|view| view.faults = faults([hca_key(1), DeviceKey::Gpu(gpu_id(6))]));
    let known = kubelet.until_healthy(RAIL, 6).await;
    assert_eq!(known.devices[RAIL].len(), 8, "capacity stays");
    assert!(!known.healthy(RAIL).contains(&gpu_id(1)) && !known.healthy(RAIL).contains(&gpu_id(6)));
    node.change(|view| view.faults = Arc::new(Faults::new()));
    kubelet.until_healthy(RAIL, 8).await;
}

// SEMANTICS: D5
#[test]
fn ids_are_those_of_the_resource_and_short() {
    let mut shared = resource_of(HCA, Kind::Rdma, 0..2);
    shared.config.share = 256;
    let name = shared.config.name.clone();
    let listed = devices(&view(machine(), [shared]), &name);
    let ids: BTreeSet<&str> = listed.iter().map(|device| device.id.as_str()).collect();
    assert_eq!((listed.len(), ids.len()), (512, 512));
    assert!(ids.contains("0000:40:00.0::0") && ids.contains("0000:41:00.0::255"));
    assert!(ids.iter().all(|id| id.len() <= 63));
}

// SEMANTICS: D2
#[test]
fn a_resource_that_gives_all_is_healthy_while_one_device_is() {
    let mut shared = resource_of(HCA, Kind::Rdma, 0..3);
    shared.config.share = 3;
    let name = shared.config.name.clone();
    let mut view = view(machine(), [all(shared)]);
    let healthy = |view: &_| devices(view, &name).iter().filter(|device| device.health == "Healthy").count();
    view.faults = faults([hca_key(0), hca_key(1)]);
    assert_eq!(healthy(&view), 3);
    view.faults = faults([hca_key(0), hca_key(1), hca_key(2)]);
    assert_eq!(healthy(&view), 0);
}

#[tokio::test]
async fn a_resource_of_mode_dra_is_not_registered() {
    let mut claimed = resource_of(RAIL, Kind::Rail, 4..8);
    claimed.config.mode = Mode::Dra;
    let node = Node::new(view(machine(), [claimed, resource_of(HCA, Kind::Rdma, 0..4)]));
    let kubelet = Kubelet::start(&node.plugins());
    let _process = node.start().await;
    let known = kubelet.until_healthy(HCA, 4).await;
    assert!(known.registrations.iter().all(|request| request.resource_name == HCA));
}

// SEMANTICS: D12
#[tokio::test]
async fn a_slow_reader_delays_no_other_and_then_gets_the_newest_list() {
    let mut shared = resource_of(HCA, Kind::Rdma, 0..8);
    shared.config.share = 256;
    let node = Node::new(view(machine(), [shared]));
    let kubelet = Kubelet::start(&node.plugins());
    let _process = node.start().await;
    kubelet.until_healthy(HCA, 2048).await;
    let mut plugin = kubelet.plugin(HCA).await;
    let mut stuck = plugin.list_and_watch(Empty {}).await.unwrap().into_inner();
    // Each list has about 100 kB, so the connection buffers only the first few.
    for round in 0..200 {
        node.change(|view| view.faults = faults([hca_key(round % 8)]));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    node.change(|view| view.faults = faults((0..7).map(hca_key)));
    kubelet.until_healthy(HCA, 256).await;
    let mut taken = 0;
    loop {
        let list = stuck.message().await.unwrap().unwrap();
        taken += 1;
        if list.devices.iter().filter(|device| device.health == "Healthy").count() == 256 {
            break;
        }
    }
    assert!(taken < 100, "{taken} lists were kept for it");
}
