//! Fake machines.

use crate::machine::{CharDevice, Gpu, Hca, LinkLayer, Machine, MigSlice, PciAddress, Place, Port, RdmaMode};

/// A device on a switch of a root: `slot` is its place on the switch.
pub(crate) fn place(root: u32, switch: u8, slot: u8) -> Place {
    let pci = |bus, device| PciAddress { domain: root, bus, device, function: 0 };
    Place {
        pci: pci(0x30 + switch, slot),
        root: format!("pci{root:04x}:00"),
        bridges: vec![pci(0, switch), pci(0x10 + switch, 0), pci(0x20 + switch, slot)],
        numa: Some(root),
    }
}

pub(crate) fn gpu(name: &str, place: Place) -> Gpu {
    Gpu { uuid: format!("GPU-{name}"), model: "NVIDIA H100 80GB HBM3".to_owned(), place, ..Gpu::default() }
}

pub(crate) fn slice(name: &str, profile: &str) -> MigSlice {
    MigSlice { uuid: format!("MIG-{name}"), profile: profile.to_owned(), ..MigSlice::default() }
}

pub(crate) fn hca(name: &str, place: Place) -> Hca {
    Hca {
        name: name.to_owned(),
        node_guid: format!("0002:c903:00a1:{:02x}{:02x}", place.pci.bus, place.pci.device),
        vendor: "15b3".to_owned(),
        device: "1021".to_owned(),
        driver: "mlx5_core".to_owned(),
        netdevs: vec![format!("net-{name}")],
        ports: vec![Port { number: 1, link_layer: LinkLayer::InfiniBand, ..Port::default() }],
        uverbs: Some(CharDevice::default()),
        place,
        ..Hca::default()
    }
}

/// A virtual function of an HCA.
pub(crate) fn virtual_function(of: &mut Hca, name: &str) -> Hca {
    of.virtual_functions += 1;
    let mut place = of.place.clone();
    place.pci.function = of.virtual_functions as u8;
    let function = Hca { device: "101e".to_owned(), physical_function: Some(of.place.pci), ..hca(name, place) };
    Hca { virtual_functions: 0, ..function }
}

pub(crate) fn machine(gpus: Vec<Gpu>, hcas: Vec<Hca>) -> Machine {
    let mut machine = Machine { gpus, hcas, rdma_mode: RdmaMode::Shared, ..Machine::default() };
    machine.gpus.sort_by_key(|gpu| gpu.place.pci);
    machine.hcas.sort_by_key(|hca| hca.place.pci);
    machine
}

/// Eight GPUs and eight HCAs on eight switches of two roots, each of a NUMA node.
pub(crate) fn eight() -> Machine {
    let switches = || (0..8_u8).map(|nth| (nth, u32::from(nth / 4), nth % 4));
    machine(
        switches().map(|(nth, root, switch)| gpu(&nth.to_string(), place(root, switch, 0))).collect(),
        switches().map(|(nth, root, switch)| hca(&format!("mlx5_{nth}"), place(root, switch, 1))).collect(),
    )
}
