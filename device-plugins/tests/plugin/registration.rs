//! Registration, while the kubelet, rolling updates and administrators remove and replace sockets.

use std::time::{Duration, Instant};

use larder_devices::config::Kind;

use crate::kubelet::Kubelet;
use crate::node::{Node, machine, resource, resource_of, view};

const HCA: &str = "larder.dev/hca";
const RAIL: &str = "larder.dev/rail";

fn node() -> Node {
    let resources = [resource_of(HCA, Kind::Rdma, 0..4), resource_of(RAIL, Kind::Rail, 4..8)];
    Node::new(view(machine(), resources))
}

// SEMANTICS: D12
#[tokio::test]
async fn every_resource_is_registered_even_without_devices() {
    let node = node();
    node.change(|view| {
        view.resources = view.resources.iter().cloned().chain([resource("larder.dev/gpu", Kind::Gpu)]).collect();
    });
    let kubelet = Kubelet::start(&node.plugins());
    let process = node.start().await;
    kubelet.until_healthy(HCA, 4).await;
    kubelet.until_healthy(RAIL, 4).await;
    let known =
        kubelet.until("a list of no GPU", |known| known.devices.get("larder.dev/gpu").is_some_and(Vec::is_empty)).await;
    let request = &known.registrations[0];
    assert_eq!(request.version, "v1beta1");
    assert!(request.options.unwrap().get_preferred_allocation_available);
    process.stop().await;
    kubelet.until("all streams closed", |known| known.devices.is_empty()).await;
    assert_eq!(node.sockets(), Vec::<String>::new());
}

// SEMANTICS: D12
#[tokio::test]
async fn twenty_restarts_of_the_kubelet() {
    let node = node();
    let mut kubelet = Kubelet::start(&node.plugins());
    let _process = node.start().await;
    let mut worst = Duration::ZERO;
    for _ in 0..20 {
        kubelet.until_healthy(HCA, 4).await;
        kubelet.until_healthy(RAIL, 4).await;
        drop(kubelet);
        kubelet = Kubelet::start(&node.plugins());
        let started = Instant::now();
        kubelet.until_healthy(HCA, 4).await;
        worst = worst.max(started.elapsed());
        assert_eq!(node.sockets().len(), 2, "none is left behind");
    }
    println!("capacity was back after at most {worst:?}");
}

// SEMANTICS: D12
#[tokio::test]
async fn twenty_kills_of_the_plugin_and_of_both() {
    let node = node();
    let mut kubelet = Kubelet::start(&node.plugins());
    for round in 0..20 {
        let process = node.start().await;
        kubelet.until_healthy(HCA, 4).await;
        kubelet.until_healthy(RAIL, 4).await;
        drop(process);
        if round % 2 == 0 {
            drop(kubelet);
            kubelet = Kubelet::start(&node.plugins());
        } else {
            kubelet.until("the streams closed", |known| known.devices.is_empty()).await;
        }
    }
}

// SEMANTICS: D12
#[tokio::test]
async fn a_kubelet_that_is_away_or_refuses_is_tried_again() {
    let node = node();
    let _process = node.start().await;
    // Registers before a kubelet runs, and then with a kubelet that rejects registrations.
    let kubelet = Kubelet::start_refusing(&node.plugins(), 6);
    kubelet.until_healthy(HCA, 4).await;
    let known = kubelet.until_healthy(RAIL, 4).await;
    assert!(known.registrations.len() >= 8, "{known:?}");
}

// SEMANTICS: D12
#[tokio::test]
async fn a_socket_that_vanishes_or_is_replaced_is_made_and_registered_again() {
    let node = node();
    let kubelet = Kubelet::start(&node.plugins());
    let _process = node.start().await;
    let known = kubelet.until_healthy(HCA, 4).await;
    let first = known.endpoints[HCA].clone();
    std::fs::remove_file(node.plugins().join(&first)).unwrap();
    let known = kubelet.until("registered again", |known| known.endpoints[HCA] != first).await;
    let second = node.plugins().join(&known.endpoints[HCA]);
    std::fs::remove_file(&second).unwrap();
    std::fs::write(&second, b"somebody else's").unwrap();
    kubelet.until("registered again", |known| node.plugins().join(&known.endpoints[HCA]) != second).await;
    kubelet.until_healthy(HCA, 4).await;
    assert_eq!(std::fs::read(&second).unwrap(), b"somebody else's");
}

// SEMANTICS: D12
#[tokio::test]
async fn a_stream_that_the_kubelet_closes_leads_to_a_new_registration() {
    let node = node();
    let kubelet = Kubelet::start(&node.plugins());
    let _process = node.start().await;
    for _ in 0..3 {
        let before = kubelet.until_healthy(HCA, 4).await.registrations.len();
        kubelet.close(HCA);
        kubelet.until("registered again", |known| known.registrations.len() > before).await;
        kubelet.until_healthy(HCA, 4).await;
    }
}

// SEMANTICS: D12
#[tokio::test]
async fn the_folder_of_the_kubelet_is_replaced() {
    let node = node();
    let kubelet = Kubelet::start(&node.plugins());
    let _process = node.start().await;
    kubelet.until_healthy(HCA, 4).await;
    drop(kubelet);
    std::fs::rename(node.plugins(), node.path("plugins.old")).unwrap();
    let kubelet = Kubelet::start(&node.plugins());
    kubelet.until_healthy(HCA, 4).await;
    kubelet.until_healthy(RAIL, 4).await;
}

// SEMANTICS: D13
#[tokio::test]
async fn in_a_rolling_update_the_newer_process_stays_registered() {
    let node = node();
    let mut kubelet = Kubelet::start(&node.plugins());
    let older = node.start().await;
    let of_older = kubelet.until_healthy(HCA, 4).await.endpoints[HCA].clone();
    let newer = node.start().await;
    let known = kubelet.until("the newer one", |known| known.endpoints[HCA] != of_older).await;
    let prefix = known.endpoints[HCA].rsplit_once('-').unwrap().0.to_owned();
    let is_of_newer = |endpoint: &String| endpoint.starts_with(&prefix);
    for _ in 0..5 {
        drop(kubelet);
        kubelet = Kubelet::start(&node.plugins());
        kubelet.until_healthy(HCA, 4).await;
        let known = kubelet.until_healthy(RAIL, 4).await;
        assert!(known.registrations.iter().all(|request| is_of_newer(&request.endpoint)), "{known:#?}");
    }
    older.stop().await;
    assert!(node.sockets().iter().all(is_of_newer), "{:?}", node.sockets());
    kubelet.until_healthy(HCA, 4).await;
    kubelet.until_healthy(RAIL, 4).await;
    newer.stop().await;
}

// SEMANTICS: D13
#[tokio::test]
async fn the_end_of_the_older_process_makes_the_newer_one_register_again() {
    let node = node();
    let kubelet = Kubelet::start(&node.plugins());
    let older = node.start().await;
    let of_older = kubelet.until_healthy(HCA, 4).await.endpoints[HCA].clone();
    let _newer = node.start().await;
    let known = kubelet.until("the newer one", |known| known.endpoints[HCA] != of_older).await;
    // The kubelet closes the newer process's stream as well.
    older.stop().await;
    let more = |now: &crate::kubelet::Known| now.registrations.len() > known.registrations.len();
    kubelet.until("registered again", more).await;
    kubelet.until_healthy(HCA, 4).await;
    kubelet.until_healthy(RAIL, 4).await;
}

// SEMANTICS: D13
#[tokio::test]
async fn the_older_process_takes_over_when_the_newer_one_dies() {
    let node = node();
    let kubelet = Kubelet::start(&node.plugins());
    let _older = node.start().await;
    let of_older = kubelet.until_healthy(HCA, 4).await.endpoints[HCA].clone();
    let newer = node.start().await;
    kubelet.until("the newer one", |known| known.endpoints[HCA] != of_older).await;
    kubelet.until_healthy(HCA, 4).await;
    drop(newer);
    kubelet.until("the older one", |known| known.endpoints[HCA] == of_older).await;
    kubelet.until_healthy(HCA, 4).await;
}

// SEMANTICS: D12
#[tokio::test]
async fn resources_come_and_go_with_the_configuration() {
    let node = node();
    let kubelet = Kubelet::start(&node.plugins());
    let _process = node.start().await;
    kubelet.until_healthy(RAIL, 4).await;
    node.change(|view| view.resources = view.resources[..1].into());
    kubelet.until("no rails", |known| !known.devices.contains_key(RAIL)).await;
    node.change(|view| {
        let added = resource_of("rdma/hca_shared_devices_a", Kind::Rdma, 4..6);
        view.resources = [view.resources[0].clone(), added].into();
    });
    let known = kubelet.until_healthy("rdma/hca_shared_devices_a", 2).await;
    assert_eq!(known.healthy(HCA).len(), 4);
    assert_eq!(node.sockets().len(), 2);
}
