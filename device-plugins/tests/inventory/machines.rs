//! Intact machines: every number that is read equals the number in the plan.

use std::io;
use std::sync::Arc;

use larder_devices::inventory;
use larder_devices::machine::{
    CharDevice, Gid, GidType, Hca, LinkLayer, Machine, PciAddress, PhysState, Place, Port, PortState, RdmaMode,
};
use larder_devices::node::pods::Known;
use larder_devices::report;
use larder_devices::view::View;
use larder_testkit::machine::{FakeMachine, GidPlan, GpuPlan, HcaPlan, MachinePlan, PcieSlot, PortPlan};
use serde_json::{Value, json};

use crate::{from_nvml, hca, read, roots};

fn place(slot: &PcieSlot) -> Place {
    Place {
        pci: slot.pci.parse().unwrap(),
        root: slot.root.clone(),
        bridges: slot.bridges.iter().map(|bridge| bridge.parse().unwrap()).collect(),
        numa: u32::try_from(slot.numa).ok(),
    }
}

fn gid(plan: &GidPlan) -> Gid {
    let groups = plan.gid.split(':').flat_map(|group| u16::from_str_radix(group, 16).unwrap().to_be_bytes());
    Gid {
        index: plan.index,
        gid: groups.collect::<Vec<u8>>().try_into().unwrap(),
        gid_type: if plan.gid_type == "RoCE v2" { GidType::V2 } else { GidType::V1 },
        netdev: plan.netdev.clone(),
    }
}

fn device(name: String, minor: u32) -> CharDevice {
    CharDevice { name, numbers: (231, minor) }
}

fn port(plan: &PortPlan) -> Port {
    let is_infiniband = plan.link_layer == "InfiniBand";
    Port {
        number: plan.number,
        link_layer: if is_infiniband { LinkLayer::InfiniBand } else { LinkLayer::Ethernet },
        state: PortState::Active,
        phys_state: PhysState::LinkUp,
        rate_gbps: plan.rate.split(' ').next().unwrap().parse().unwrap(),
        lid: plan.lid,
        gids: plan.gids.iter().map(gid).collect(),
        umad: Some(device(format!("umad{}", plan.umad), plan.umad)),
        issm: is_infiniband.then(|| device(format!("issm{}", plan.umad), 64 + plan.umad)),
    }
}

fn expected_hca(plan: &HcaPlan) -> Hca {
    Hca {
        name: plan.name.clone(),
        node_guid: plan.node_guid.clone(),
        vendor: plan.vendor.clone(),
        device: plan.device.clone(),
        driver: plan.driver.clone(),
        place: place(&plan.slot),
        physical_function: plan.physical_function.as_ref().map(|address| address.parse().unwrap()),
        virtual_functions: plan.virtual_functions.len() as u32,
        netdevs: plan.netdevs.clone(),
        ports: plan.ports.iter().map(port).collect(),
        uverbs: Some(device(format!("uverbs{}", plan.uverbs), 192 + plan.uverbs)),
    }
}

/// The machine that a plan describes, if all of its ports are up.
fn expected(plan: &MachinePlan) -> Machine {
    let mut gpus: Vec<_> = plan.gpus.iter().map(|gpu| (from_nvml(gpu), place(&gpu.slot))).collect();
    for (gpu, place) in &mut gpus {
        gpu.place = place.clone();
    }
    let mut hcas: Vec<Hca> = plan.hcas.iter().map(expected_hca).collect();
    hcas.sort_by_key(|hca| hca.place.pci);
    let mut gpu_functions: Vec<Place> = gpus.iter().map(|(_, place)| place.clone()).collect();
    gpu_functions.sort_by_key(|place| place.pci);
    Machine {
        gpu_functions,
        gpus: gpus.into_iter().map(|(gpu, _)| gpu).collect(),
        rdma_mode: if hcas.is_empty() { RdmaMode::None } else { RdmaMode::Shared },
        hcas,
        ..Machine::default()
    }
}

// SEMANTICS: D25
#[test]
fn every_number_of_a_fake_machine_is_read() {
    for (plan, gpus, hcas) in [
        (MachinePlan::eight_pairs(), 8, 8),
        (MachinePlan::roce_beside_infiniband(), 4, 6),
        (MachinePlan::three_hcas_on_a_switch(), 2, 3),
        (MachinePlan::virtual_functions(), 1, 5),
        (MachinePlan::none(), 0, 0),
    ] {
        let machine = FakeMachine::new(plan.clone()).unwrap();
        let read = read(&machine);
        assert_eq!(read, expected(&plan));
        assert_eq!((read.gpus.len(), read.hcas.len()), (gpus, hcas));
    }
}

/// The keys that the report should have for a device of a plan.
fn reported(slot: &PcieSlot, id: &str, name: &str) -> Value {
    let mut place = json!({"pci": slot.pci, "root": slot.root});
    if let [_, .., upstream, _] = &slot.bridges[..] {
        // The device is below a switch, and not directly below a root port.
        place["switch"] = json!(upstream);
    }
    if slot.numa >= 0 {
        place["numa"] = json!(slot.numa);
    }
    json!({"id": id, "name": name, "place": place, "resources": [], "pods": [], "fault": null})
}

fn reported_port(plan: &PortPlan) -> Value {
    let rate: f64 = plan.rate.split(' ').next().unwrap().parse().unwrap();
    let gid = |gid: &GidPlan| {
        let mut value = json!({"index": gid.index, "gid": gid.gid, "gidType": gid.gid_type});
        if !gid.netdev.is_empty() {
            value["netdev"] = json!(gid.netdev);
        }
        value
    };
    let file = |name: String, minor: u32| json!({"name": name, "numbers": [231, minor]});
    let mut port = json!({
        "number": plan.number, "linkLayer": plan.link_layer, "state": "ACTIVE", "physState": "LinkUp", "rateGbps": rate,
        "lid": plan.lid, "gids": plan.gids.iter().map(gid).collect::<Vec<_>>(),
        "umad": file(format!("umad{}", plan.umad), plan.umad),
    });
    if plan.link_layer == "InfiniBand" {
        port["issm"] = file(format!("issm{}", plan.umad), 64 + plan.umad);
    }
    port
}

fn with(mut device: Value, keys: Value) -> Value {
    for (key, value) in keys.as_object().unwrap() {
        device[key] = value.clone();
    }
    device
}

fn reported_gpu(plan: &GpuPlan) -> Value {
    let device = reported(&plan.slot, &plan.uuid, &format!("nvidia{}", plan.minor));
    let (model, memory) = (&plan.model, plan.memory_bytes);
    with(device, json!({"kind": "gpu", "model": model, "family": "other", "memoryBytes": memory, "mig": false}))
}

fn reported_hca(plan: &HcaPlan) -> Value {
    let ports: Vec<Value> = plan.ports.iter().map(reported_port).collect();
    let rates = ports.iter().map(|port| port["rateGbps"].as_f64().unwrap());
    let hca = json!({
        "kind": "hca", "nodeGuid": plan.node_guid, "linkLayer": plan.ports[0].link_layer, "driver": plan.driver,
        "rateGbps": rates.fold(0.0, f64::max), "netdevs": plan.netdevs, "physicalFunction": plan.physical_function,
        "ports": ports,
    });
    with(reported(&plan.slot, &plan.slot.pci, &plan.name), hca)
}

#[test]
fn every_number_of_a_fake_machine_is_reported() {
    for plan in [
        MachinePlan::eight_pairs(),
        MachinePlan::roce_beside_infiniband(),
        MachinePlan::three_hcas_on_a_switch(),
        MachinePlan::virtual_functions(),
        MachinePlan::none(),
    ] {
        let machine = FakeMachine::new(plan.clone()).unwrap();
        let view = View { machine: Arc::new(read(&machine)), ..View::default() };
        let report = serde_json::to_value(report::of("n1", &view, &Known::default())).unwrap();
        let mut hcas: Vec<&HcaPlan> = plan.hcas.iter().collect();
        hcas.sort_by_key(|hca| hca.slot.pci.clone());
        let expected: Vec<Value> =
            plan.gpus.iter().map(reported_gpu).chain(hcas.into_iter().map(reported_hca)).collect();
        let devices = report["devices"].as_array().unwrap();
        assert_eq!(devices.len(), expected.len());
        for (device, expected) in devices.iter().zip(&expected) {
            assert_eq!(device, expected);
        }
    }
}

#[test]
fn each_gpu_of_the_eight_shares_its_switch_with_one_hca() {
    let machine = FakeMachine::new(MachinePlan::eight_pairs()).unwrap();
    let read = read(&machine);
    for (nth, gpu) in (0_u32..).zip(&read.gpus) {
        let near: Vec<_> = read.hcas.iter().filter(|hca| hca.place.switch() == gpu.place.switch()).collect();
        assert_eq!(near.len(), 1);
        assert_eq!((near[0].name.clone(), gpu.place.distance(&near[0].place)), (format!("mlx5_{nth}"), Some(2)));
        assert_eq!((gpu.place.numa, near[0].place.numa), (Some(nth / 4), Some(nth / 4)));
        assert_eq!(gpu.place.root, format!("pci0000:{}0", nth + 1));
    }
    let switch: PciAddress = "0000:11:00.0".parse().unwrap();
    assert_eq!(read.gpus[0].place.switch(), Some(switch));
}

#[test]
fn on_one_root_the_switch_with_the_hcas_is_nearer() {
    let machine = FakeMachine::new(MachinePlan::three_hcas_on_a_switch()).unwrap();
    let read = read(&machine);
    let distances =
        |gpu: usize| -> Vec<_> { read.hcas.iter().map(|hca| read.gpus[gpu].place.distance(&hca.place)).collect() };
    assert_eq!((distances(0), distances(1)), (vec![Some(2); 3], vec![Some(6); 3]));
}

#[test]
fn a_gpu_that_sysfs_does_not_know_keeps_its_address() {
    let machine = FakeMachine::new(MachinePlan::three_hcas_on_a_switch()).unwrap();
    let mut gpu = from_nvml(&machine.plan().gpus[0]);
    gpu.place.pci = "0000:99:00.0".parse().unwrap();
    let read = inventory::read_with(&roots(&machine), &[gpu.clone()], Some("570.1".to_owned()), Ok(RdmaMode::None));
    assert_eq!((read.gpus, read.gpu_driver.as_deref()), (vec![gpu.clone()], Some("570.1")));
    assert_eq!(read.warnings.len(), 1);
    assert!(read.warnings[0].at.ends_with("bus/pci/devices/0000:99:00.0"), "{:?}", read.warnings);
    assert_eq!(inventory::gpus(&roots(&machine), std::slice::from_ref(&gpu)), [gpu]);
}

// SEMANTICS: D4
#[test]
fn the_mode_is_that_of_netlink_else_of_the_module_else_shared() {
    let mode = |plan: MachinePlan, kernel: io::Result<RdmaMode>| {
        let machine = FakeMachine::new(plan).unwrap();
        let read = inventory::read_with(&roots(&machine), &[], None, kernel);
        (read.rdma_mode, read.warnings.len())
    };
    let exclusive = || MachinePlan { exclusive_namespaces: true, ..MachinePlan::three_hcas_on_a_switch() };
    let refused = || Err(io::Error::from(io::ErrorKind::PermissionDenied));
    assert_eq!(mode(exclusive(), Ok(RdmaMode::Shared)), (RdmaMode::Shared, 0));
    assert_eq!(mode(MachinePlan::eight_pairs(), Ok(RdmaMode::Exclusive)), (RdmaMode::Exclusive, 0));
    assert_eq!(mode(exclusive(), Ok(RdmaMode::None)), (RdmaMode::Exclusive, 0));
    assert_eq!(mode(exclusive(), refused()), (RdmaMode::Exclusive, 1));
    assert_eq!(mode(MachinePlan::eight_pairs(), refused()), (RdmaMode::Shared, 1));
    assert_eq!(mode(MachinePlan::none(), Ok(RdmaMode::None)), (RdmaMode::None, 0));
}

#[test]
fn changes_of_a_machine_are_read() {
    let mut machine = FakeMachine::new(MachinePlan::roce_beside_infiniband()).unwrap();
    machine.rename_hca("mlx5_0", "rail0").unwrap();
    machine.set_netdevs("mlx5_4", &["net1"]).unwrap();
    let gone = machine.remove_hca("mlx5_5").unwrap();
    let gid = GidPlan { index: 200, ..machine.plan().hcas[3].ports[0].gids[0].clone() };
    machine.set_gids("mlx5_4", 1, vec![GidPlan { netdev: "net1".to_owned(), ..gid }]).unwrap();
    let plan = machine.plan().clone();
    assert_eq!(read(&machine), expected(&plan));
    assert_eq!(hca(&read(&machine), "rail0").uverbs.as_ref().unwrap().name, "uverbs0");
    assert_eq!(hca(&read(&machine), "mlx5_4").ports[0].gids[0].netdev, "net1");
    machine.add_hca(gone).unwrap();
    assert_eq!(read(&machine).hcas.len(), 6);
    assert_eq!(read(&machine), expected(machine.plan()));
}
