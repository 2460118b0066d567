//! A node for tests: two GPUs, each an ID of `larder.dev/gpu`, and two HCAs, each two IDs of `larder.dev/hca`.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::config::{Give, Kind, Limits, Mode, ResourceConfig, ResourceName, Select};
use crate::health::capabilities::Capabilities;
use crate::machine::{Gpu, Hca, LinkLayer, Machine, PhysState, Place, Port, PortState};
use crate::resource::{DeviceKey, Resource, Unit};
use crate::view::View;

pub(crate) fn gpu(number: usize) -> DeviceKey {
    DeviceKey::Gpu(format!("GPU-{number}"))
}

pub(crate) fn hca(number: usize) -> DeviceKey {
    DeviceKey::Hca(format!("0000:2{number}:00.0").parse().unwrap())
}

pub(crate) fn resource(name: &str, kind: Kind, share: u16, devices: &[DeviceKey]) -> Resource {
    let units = devices.iter().map(|device| Unit {
        id: device.to_string(),
        devices: vec![device.clone()],
        numa: BTreeSet::from([0]),
    });
    let config = ResourceConfig {
        name: ResourceName::new(name).unwrap(),
        kind,
        select: Select::default(),
        share,
        give: Give::One,
        mode: Mode::Plugin,
        mad: false,
        limits: None,
        line: 1,
    };
    Resource { config, units: units.collect() }
}

pub(crate) fn view() -> View {
    let place =
        |pci: String| Place { pci: pci.parse().unwrap(), root: "pci0000:10".into(), numa: Some(0), bridges: vec![] };
    let gpus = (0..2).map(|number| Gpu {
        uuid: format!("GPU-{number}"),
        minor: number,
        model: "NVIDIA H100 80GB HBM3".into(),
        memory_bytes: 81559 << 20,
        place: place(format!("0000:1{number}:00.0")),
        ..Gpu::default()
    });
    let port = Port {
        number: 1,
        link_layer: LinkLayer::InfiniBand,
        state: PortState::Active,
        phys_state: PhysState::LinkUp,
        rate_gbps: 400.0,
        ..Port::default()
    };
    let hcas = (0..2).map(|number| Hca {
        name: format!("mlx5_{number}"),
        place: place(format!("0000:2{number}:00.0")),
        ports: vec![port.clone()],
        ..Hca::default()
    });
    let machine = Machine {
        gpus: gpus.collect(),
        hcas: hcas.collect(),
        gpu_driver: Some("570.86.15".into()),
        ..Machine::default()
    };
    let mut resources = [
        resource("larder.dev/gpu", Kind::Gpu, 1, &[gpu(0), gpu(1)]),
        resource("larder.dev/hca", Kind::Rdma, 2, &[hca(0), hca(1)]),
    ];
    let limits = Limits { hca_handles: Some(2), hca_objects: Some(2000), memlock: Some(u64::MAX), required: true };
    resources[1].config.limits = Some(limits);
    View {
        machine: Arc::new(machine),
        resources: Arc::new(resources),
        capabilities: Capabilities { controller: None, hook: None, nri: None, unified: false },
        ..View::default()
    }
}
