//! The devices and variables that containers get.

use std::collections::{BTreeMap, BTreeSet};

use larder_devices::config::Kind;
use larder_devices::grant::{Grant, Means, Refusal, grant};
use larder_devices::machine::{Gid, GidType, LinkLayer, Machine, PhysState, PortState};
use larder_devices::resource::Resource;
use larder_devices::view::View;
use larder_kubelet::deviceplugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerPreferredAllocationRequest, PreferredAllocationRequest,
};

use crate::kubelet::Kubelet;
use crate::node::{Node, all, faults, gpu_id, hca, hca_key, machine, resource_of, view};

const HCA: &str = "larder.dev/hca";
const RAIL: &str = "larder.dev/rail";

fn given(view: &View, ids: &[&str]) -> Result<Grant, Refusal> {
    let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
    grant(view, &view.resources[0], &ids, &BTreeSet::new(), Means::Cdi)
}

fn env(view: &View, ids: &[&str]) -> BTreeMap<String, String> {
    given(view, ids).unwrap().env
}

fn pairs(of: &[(&str, &str)]) -> BTreeMap<String, String> {
    of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

// SEMANTICS: D3
#[test]
fn rails_give_both_devices_by_name_and_by_variable() {
    let view = view(machine(), [resource_of(RAIL, Kind::Rail, 0..8)]);
    // In the order of the machine, independent of the kubelet's order.
    let grant = given(&view, &[&gpu_id(5), &gpu_id(4)]).unwrap();
    assert_eq!(grant.cdi, ["larder.dev/hca=0000:44:00.0", "larder.dev/hca=0000:45:00.0"]);
    let gpus = format!("{},{}", gpu_id(4), gpu_id(5));
    let wanted = [
        ("NCCL_IB_HCA", "=mlx5_4:1,mlx5_5:1"),
        ("NVIDIA_VISIBLE_DEVICES", gpus.as_str()),
        ("UCX_NET_DEVICES", "mlx5_4:1,mlx5_5:1"),
    ];
    assert_eq!(grant.env, pairs(&wanted));
    assert!(grant.nodes.is_empty());
}

// SEMANTICS: D8
#[test]
fn gpus_come_by_nvidias_cdi_names_if_all_are_there() {
    let view = view(machine(), [resource_of("nvidia.com/gpu", Kind::Gpu, 0..8)]);
    let ids = [gpu_id(0), gpu_id(1)];
    let name = |id: &String| format!("nvidia.com/gpu={id}");
    let vendor: BTreeSet<String> = ids.iter().map(name).collect();
    let by_cdi = grant(&view, &view.resources[0], &ids, &vendor, Means::Cdi).unwrap();
    assert_eq!(by_cdi.cdi, ids.each_ref().map(name));
    assert_eq!(by_cdi.env, pairs(&[("NVIDIA_VISIBLE_DEVICES", "void")]));
    let visible = ids.join(",");
    let by_env = pairs(&[("NVIDIA_VISIBLE_DEVICES", visible.as_str())]);
    let one: BTreeSet<String> = vendor.iter().take(1).cloned().collect();
    for (vendor, means) in [(&one, Means::Cdi), (&vendor, Means::Nodes)] {
        let grant = grant(&view, &view.resources[0], &ids, vendor, means).unwrap();
        assert_eq!((grant.cdi, grant.env), (Vec::new(), by_env.clone()));
    }
    assert_eq!(grant(&view, &view.resources[0], &ids, &vendor, Means::CdiOnly).unwrap(), by_cdi);
    for (vendor, missing) in [(one, &ids[1..]), (BTreeSet::new(), &ids[..])] {
        let refusal = grant(&view, &view.resources[0], &ids, &vendor, Means::CdiOnly).unwrap_err();
        assert_eq!(refusal, Refusal::NotNamed { gpus: missing.to_vec() });
        assert!(refusal.to_string().contains("--gpus-by-cdi-only excludes NVIDIA_VISIBLE_DEVICES"), "{refusal}");
    }
}

// SEMANTICS: D8
#[test]
fn hcas_need_no_cdi_file_of_nvidias() {
    let view = view(machine(), [resource_of(HCA, Kind::Rdma, 0..8)]);
    let grant =
        grant(&view, &view.resources[0], &["0000:42:00.0".to_owned()], &BTreeSet::new(), Means::CdiOnly).unwrap();
    assert_eq!(grant.cdi, ["larder.dev/hca=0000:42:00.0"]);
}

fn shared(share: u16) -> Resource {
    let mut resource = resource_of(HCA, Kind::Rdma, 0..3);
    resource.config.share = share;
    resource
}

// SEMANTICS: D7
#[test]
fn shared_ids_of_one_device_give_it_once() {
    let view = view(machine(), [shared(8)]);
    let grant = given(&view, &["0000:41:00.0::0", "0000:41:00.0::7"]).unwrap();
    assert_eq!(grant.cdi, ["larder.dev/hca=0000:41:00.0"]);
    for id in ["0000:41:00.0", "0000:41:00.0::8", "0000:41:00.0::07", "0000:41:00.0::+7", "0000:49:00.0::0", ""] {
        let refusal = given(&view, &[id]).unwrap_err();
        assert_eq!(refusal, Refusal::Unknown { resource: HCA.to_owned(), id: id.to_owned() });
    }
}

// SEMANTICS: D2
#[test]
fn all_gives_what_is_in_service() {
    let mut view = view(machine(), [all(shared(8))]);
    view.faults = faults([hca_key(1)]);
    let grant = given(&view, &["all::0"]).unwrap();
    assert_eq!(grant.cdi, ["larder.dev/hca=0000:40:00.0", "larder.dev/hca=0000:42:00.0"]);
    view.faults = faults((0..3).map(hca_key));
    given(&view, &["all::0"]).unwrap_err();
}

// SEMANTICS: D7
#[test]
fn without_cdi_the_nodes_are_listed() {
    let mut resource = resource_of(HCA, Kind::Rdma, 0..8);
    let nodes = |resource: &Resource, machine: Machine| {
        let view = view(machine, [resource.clone()]);
        grant(&view, resource, &["0000:42:00.0".to_owned()], &BTreeSet::new(), Means::Nodes).map(|grant| grant.nodes)
    };
    let names = |names: &[&str]| Ok(names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>());
    assert_eq!(nodes(&resource, machine()), names(&["rdma_cm", "uverbs2"]));
    resource.config.mad = true;
    assert_eq!(nodes(&resource, machine()), names(&["issm2", "rdma_cm", "umad2", "uverbs2"]));
    let hcas = (0..8).map(|number| hca(number, LinkLayer::Ethernet)).collect();
    assert_eq!(
        nodes(&resource, Machine { hcas, ..machine() }),
        names(&["rdma_cm", "umad2", "uverbs2"]),
        "no issm on RoCE"
    );
}

// SEMANTICS: D7
#[test]
fn the_index_of_the_gid_is_one_that_all_ports_share_or_none() {
    let hcas = (0..4).map(|number| hca(number, LinkLayer::Ethernet)).chain([hca(4, LinkLayer::InfiniBand)]).collect();
    let mut machine = Machine { hcas, ..Machine::default() };
    // Every HCA has an IPv4 address at index 3, with these differences: HCA 1 has another at 5, HCA 2 has it at 7
    // instead, and HCA 3 has only IPv6.
    let v6 = |first| Gid {
        gid: [first, 0x80, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1],
        gid_type: GidType::V2,
        ..Gid::default()
    };
    let v4 = machine.hcas[0].ports[0].gids[1].clone();
    machine.hcas[1].ports[0].gids.extend([Gid { index: 1, ..v6(0xfe) }, Gid { index: 5, ..v4.clone() }]);
    machine.hcas[2].ports[0].gids = vec![Gid { index: 7, ..v4 }];
    machine.hcas[3].ports[0].gids = vec![Gid { index: 1, ..v6(0xfe) }, Gid { index: 9, ..v6(0x20) }];
    let view = view(machine, [resource_of(HCA, Kind::Rdma, 0..5)]);
    let id = |number: &u32| format!("0000:4{number}:00.0");
    let index = |numbers: &[u32]| {
        let ids: Vec<String> = numbers.iter().map(id).collect();
        env(&view, &ids.iter().map(String::as_str).collect::<Vec<_>>()).remove("NCCL_IB_GID_INDEX")
    };
    assert_eq!(index(&[0]).as_deref(), Some("3"));
    assert_eq!(index(&[0, 1]).as_deref(), Some("3"));
    assert_eq!(index(&[0, 2]), None);
    assert_eq!(index(&[3]).as_deref(), Some("9"), "not the link-local one");
    assert_eq!(index(&[0, 3]), None);
    assert_eq!(index(&[4]), None, "InfiniBand");
    assert_eq!(index(&[0, 4]).as_deref(), Some("3"));
}

// SEMANTICS: D7
#[test]
fn ports_that_are_up_and_of_the_selected_kind_are_named() {
    let mut machine = machine();
    let mut second = machine.hcas[0].ports[0].clone();
    (second.number, second.state, second.phys_state) = (2, PortState::Down, PhysState::Polling);
    machine.hcas[0].ports.push(second);
    let mut resource = resource_of(HCA, Kind::Rdma, 0..1);
    let named = |machine: &Machine, resource: &Resource| {
        env(&view(machine.clone(), [resource.clone()]), &["0000:40:00.0"]).remove("UCX_NET_DEVICES")
    };
    assert_eq!(named(&machine, &resource).as_deref(), Some("mlx5_0:1"));
    machine.hcas[0].ports[0].state = PortState::Down;
    assert_eq!(named(&machine, &resource).as_deref(), Some("mlx5_0:1,mlx5_0:2"));
    machine.hcas[0].ports[1].link_layer = LinkLayer::Ethernet;
    resource.config.select.link_types = vec![LinkLayer::Ethernet];
    assert_eq!(named(&machine, &resource).as_deref(), Some("mlx5_0:2"));
}

fn request(ids: &[&str]) -> AllocateRequest {
    let devices_ids = ids.iter().map(|id| (*id).to_owned()).collect();
    AllocateRequest { container_requests: vec![ContainerAllocateRequest { devices_ids }] }
}

// SEMANTICS: D6
#[tokio::test]
async fn the_kubelet_allocates_and_prefers() {
    let node = Node::new(view(machine(), [resource_of(RAIL, Kind::Rail, 0..8)]));
    let nvidia = format!(
        "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"all\"\n- name: {}\n  containerEdits: {{}}\n",
        gpu_id(2)
    );
    std::fs::write(node.path("cdi/nvidia.yaml"), nvidia).unwrap();
    let kubelet = Kubelet::start(&node.plugins());
    let _process = node.start().await;
    kubelet.until_healthy(RAIL, 8).await;
    let mut plugin = kubelet.plugin(RAIL).await;
    let started = std::time::Instant::now();
    let answer = plugin.allocate(request(&[&gpu_id(2)])).await.unwrap().into_inner();
    println!("the first Allocate took {:?}", started.elapsed());
    let started = std::time::Instant::now();
    for _ in 0..100 {
        plugin.allocate(request(&[&gpu_id(2)])).await.unwrap();
    }
    println!("an Allocate takes {:?}", started.elapsed() / 100);
    let [answer] = &answer.container_responses[..] else { panic!("{answer:?}") };
    let names: Vec<&str> = answer.cdi_devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, [&format!("nvidia.com/gpu={}", gpu_id(2)), "larder.dev/hca=0000:42:00.0"]);
    assert_eq!(answer.envs["NVIDIA_VISIBLE_DEVICES"], "void");
    assert!(answer.devices.is_empty() && answer.mounts.is_empty());
    // After the CDI file was removed, the GPUs come by the variable.
    std::fs::remove_file(node.path("cdi/nvidia.yaml")).unwrap();
    let answer = plugin.allocate(request(&[&gpu_id(2)])).await.unwrap().into_inner();
    assert_eq!(answer.container_responses[0].envs["NVIDIA_VISIBLE_DEVICES"], gpu_id(2));

    let container = ContainerPreferredAllocationRequest {
        available_device_i_ds: (0..4).map(gpu_id).collect(),
        must_include_device_i_ds: Vec::new(),
        allocation_size: 2,
    };
    let request = PreferredAllocationRequest { container_requests: vec![container] };
    let answer = plugin.get_preferred_allocation(request).await.unwrap().into_inner();
    assert_eq!(answer.container_responses[0].device_i_ds, [gpu_id(3), gpu_id(2)]);
}

// SEMANTICS: D7
#[tokio::test]
async fn without_cdi_the_kubelet_gets_device_nodes() {
    let node = Node::new(view(machine(), [resource_of(HCA, Kind::Rdma, 0..8)]));
    let kubelet = Kubelet::start(&node.plugins());
    let _process = node.start_with(Means::Nodes).await;
    kubelet.until_healthy(HCA, 8).await;
    let answer = kubelet.plugin(HCA).await.allocate(request(&["0000:43:00.0"])).await.unwrap().into_inner();
    let devices = &answer.container_responses[0].devices;
    let paths: Vec<(&str, &str)> =
        devices.iter().map(|device| (device.container_path.as_str(), device.permissions.as_str())).collect();
    assert_eq!(paths, [("/dev/infiniband/rdma_cm", "rw"), ("/dev/infiniband/uverbs3", "rw")]);
    assert!(std::fs::read_dir(node.path("cdi")).unwrap().next().is_none());
}

// SEMANTICS: D9
#[tokio::test]
async fn a_refusal_names_the_device_and_triggers_a_list() {
    let node = Node::new(view(machine(), [resource_of(HCA, Kind::Rdma, 0..8)]));
    let kubelet = Kubelet::start(&node.plugins());
    let _process = node.start().await;
    kubelet.until_healthy(HCA, 8).await;
    node.change(|view| view.faults = faults([hca_key(1)]));
    kubelet.until_healthy(HCA, 7).await;
    // Wait for the list that is repeated after each registration, so that it is not mistaken for the list that a
    // refusal triggers.
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    let mut plugin = kubelet.plugin(HCA).await;
    for (id, message) in [
        (
            "0000:41:00.0",
            "device 0000:41:00.0 of larder.dev/hca is out of service: port 1 is DOWN; it returns to service once",
        ),
        ("0000:77:00.0", "larder.dev/hca has no device 0000:77:00.0 on this node now"),
    ] {
        let lists = kubelet.known.borrow().lists;
        let status = plugin.allocate(request(&["0000:40:00.0", id])).await.unwrap_err();
        assert!(status.message().starts_with(message), "{status}");
        kubelet.until("a new list", |known| known.lists > lists).await;
    }
}
