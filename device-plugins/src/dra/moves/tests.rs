use k8s_openapi::api::core::v1::NodeStatus;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use larder_kubelet::podresources::{ContainerDevices, ContainerResources, ListPodResourcesResponse, PodResources};

use super::super::samples::view;
use super::*;
use crate::node::samples;
use crate::node::uids::Uids;

fn node(capacity: &[(&str, &str)]) -> Node {
    let capacity = capacity.iter().map(|(name, count)| ((*name).to_owned(), Quantity((*count).to_owned())));
    let status = NodeStatus { capacity: Some(capacity.collect()), ..NodeStatus::default() };
    Node { status: Some(status), ..Node::default() }
}

fn held(resources: &[Resource], ids: &[(&str, &str)]) -> Held {
    let given = |(resource, id): &(&str, &str)| ContainerDevices {
        resource_name: (*resource).to_owned(),
        device_ids: vec![(*id).to_owned()],
        topology: None,
    };
    let devices = ids.iter().map(given).collect();
    let containers = vec![ContainerResources { name: "main".into(), devices, ..ContainerResources::default() }];
    let pod = PodResources { name: "p".into(), namespace: "team".into(), containers };
    Held::of(resources, &ListPodResourcesResponse { pod_resources: vec![pod] }, &Uids::default())
}

fn names(held_back: &HeldBack) -> Vec<String> {
    held_back.iter().map(|(device, why)| format!("{device}: {why}")).collect()
}

// SEMANTICS: D26
#[test]
fn a_name_waits_for_the_pods_that_hold_it_and_for_the_kubelet_to_forget_it() {
    let (mut moves, dra) = (Moves::default(), view(Mode::Dra, Mode::Plugin));
    assert!(moves.see(&dra));
    let resources = moves.resources(&dra);
    let holds = held(&resources, &[("larder.dev/gpu", "GPU-1")]);
    let counted = node(&[("larder.dev/gpu", "2"), ("larder.dev/hca", "4")]);
    let kubelet =
        "the kubelet still counts larder.dev/gpu of the device plugin, for up to five minutes or until it restarts";
    let pod = "pod team/p holds it as larder.dev/gpu through the device plugin";
    let both = [format!("GPU-0: {kubelet}"), format!("GPU-1: {pod}")];
    assert_eq!(names(&moves.settle(&dra, &counted, &holds)), both);
    assert!(moves.see(&dra));
    // The kubelet first reports a capacity of 0, and later removes the entry.
    let forgotten = node(&[("larder.dev/gpu", "0"), ("larder.dev/hca", "4")]);
    assert_eq!(names(&moves.settle(&dra, &forgotten, &holds)), [both[1].clone()]);
    assert_eq!(moves.settle(&dra, &forgotten, &Held::default()), HeldBack::new());
    // From now on, neither the kubelet nor the Node object is queried.
    assert!(!moves.see(&dra));
    assert_eq!(moves.settle(&dra, &Node::default(), &Held::default()), HeldBack::new());
    // The resource moves to the device plugin and back.
    assert!(!moves.see(&view(Mode::Plugin, Mode::Plugin)));
    assert!(moves.see(&dra));
    assert_eq!(moves.settle(&dra, &counted, &Held::default()).len(), 2);
}

#[test]
fn a_device_that_a_pod_holds_by_another_name_waits_too() {
    let mut moves = Moves::default();
    moves.see(&view(Mode::Plugin, Mode::Plugin));
    let mut dra = view(Mode::Dra, Mode::Plugin);
    let mut resources = dra.resources.to_vec();
    resources[0].config.name = ResourceName::new("larder.dev/other").unwrap();
    dra.resources = resources.into();
    assert!(moves.see(&dra));
    let holds = held(&moves.resources(&dra), &[("larder.dev/gpu", "GPU-1")]);
    let held_back = moves.settle(&dra, &node(&[("larder.dev/gpu", "2")]), &holds);
    assert_eq!(held_back.into_keys().collect::<Vec<_>>(), [samples::gpu(1)]);
}
