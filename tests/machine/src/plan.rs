//! The devices of a fake machine, as plain data.

use larder_fake_nvml::{Gpu, Machine};

/// A port that is in service, as sysfs reports it.
pub const PORT_UP: (&str, &str) = ("4: ACTIVE", "5: LinkUp");

/// A port without a link, as sysfs reports it.
pub const PORT_DOWN: (&str, &str) = ("1: DOWN", "3: Disabled");

/// A machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachinePlan {
    /// The GPUs, in any order.
    pub gpus: Vec<GpuPlan>,
    /// The HCAs, in any order.
    pub hcas: Vec<HcaPlan>,
    /// The mode of RDMA's network namespaces: true for `exclusive`, false for `shared`.
    pub exclusive_namespaces: bool,
}

/// The position of a device in the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PcieSlot {
    /// The PCIe root complex, such as `pci0000:10`.
    pub root: String,
    /// The bridges from the root complex to the device.
    pub bridges: Vec<String>,
    /// The PCI address, as sysfs spells it.
    pub pci: String,
    /// The content of `numa_node`; -1 if the firmware reports no node.
    pub numa: i32,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuPlan {
    /// NVML's UUID.
    pub uuid: String,
    /// NVML's name of the model.
    pub model: String,
    /// Its position.
    pub slot: PcieSlot,
    /// The total memory.
    pub memory_bytes: u64,
    /// The N of `/dev/nvidiaN`.
    pub minor: u32,
}

/// An HCA.
#[derive(Clone, Debug, PartialEq)]
pub struct HcaPlan {
    /// The kernel's name.
    pub name: String,
    /// Its position.
    pub slot: PcieSlot,
    /// The PCI vendor, without `0x`.
    pub vendor: String,
    /// The PCI device, without `0x`.
    pub device: String,
    /// The kernel driver.
    pub driver: String,
    /// The node GUID.
    pub node_guid: String,
    /// The N of `uverbsN`.
    pub uverbs: u32,
    /// Its ports.
    pub ports: Vec<PortPlan>,
    /// Its network interfaces.
    pub netdevs: Vec<String>,
    /// The PCI address of the physical function, if it is a virtual one.
    pub physical_function: Option<String>,
    /// The PCI addresses of its virtual functions.
    pub virtual_functions: Vec<String>,
}

/// A port of an HCA.
#[derive(Clone, Debug, PartialEq)]
pub struct PortPlan {
    /// The port's number, from 1.
    pub number: u32,
    /// The link layer: `InfiniBand` or `Ethernet`.
    pub link_layer: String,
    /// As sysfs prints it.
    pub state: String,
    /// As sysfs prints it.
    pub phys_state: String,
    /// As sysfs prints it.
    pub rate: String,
    /// The LID.
    pub lid: u32,
    /// The size of its GID table.
    pub gid_places: u32,
    /// The entries of the GID table that are not empty.
    pub gids: Vec<GidPlan>,
    /// The N of `umadN`, and of `issmN` on InfiniBand.
    pub umad: u32,
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidPlan {
    /// The index in the GID table.
    pub index: u32,
    /// As sysfs prints it.
    pub gid: String,
    /// The type: `IB/RoCE v1` or `RoCE v2`.
    pub gid_type: String,
    /// The network interface; empty on InfiniBand.
    pub netdev: String,
}

impl MachinePlan {
    /// The same machine as NVML reports it.
    pub fn driver(&self) -> Machine {
        let gpu = |gpu: &GpuPlan| Gpu {
            uuid: gpu.uuid.clone(),
            name: gpu.model.clone(),
            minor: gpu.minor,
            numa: u32::try_from(gpu.slot.numa).ok(),
            pci: gpu.slot.pci.clone(),
            memory_bytes: gpu.memory_bytes,
            ..Gpu::default()
        };
        Machine { gpus: self.gpus.iter().map(gpu).collect(), ..Machine::default() }
    }
}

impl PcieSlot {
    /// A device directly below a root port: at `bus`:00.0, below the root port `root`:`port`.0.
    pub fn on_root_port(root: u8, port: u8, bus: u8, numa: i32) -> Self {
        Self {
            root: format!("pci0000:{root:02x}"),
            bridges: vec![format!("0000:{root:02x}:{port:02x}.0")],
            pci: format!("0000:{bus:02x}:00.0"),
            numa,
        }
    }

    /// The `nth` device below a switch. `switch` is the number of the switch's first bus: the upstream port is on that
    /// bus, the downstream ports are on the next bus, and the devices are on the buses after that.
    pub fn on_switch(root: u8, port: u8, switch: u8, nth: u8, numa: i32) -> Self {
        let upstream = Self::on_root_port(root, port, switch, numa);
        let downstream = format!("0000:{:02x}:{nth:02x}.0", switch + 1);
        let bridges = [upstream.bridges, vec![upstream.pci, downstream]].concat();
        Self { root: upstream.root, bridges, pci: format!("0000:{:02x}:00.0", switch + 2 + nth), numa }
    }

    /// The same device's function `function`.
    pub fn function(&self, function: u8) -> Self {
        let device = self.pci.rsplit_once('.').map_or(self.pci.as_str(), |(device, _)| device);
        Self { pci: format!("{device}.{function}"), ..self.clone() }
    }
}

impl GpuPlan {
    /// An H100 of 80 GiB, the machine's `nth` GPU.
    pub fn h100(nth: u32, slot: PcieSlot) -> Self {
        Self {
            uuid: format!("GPU-00000000-0000-4000-8000-{nth:012}"),
            model: "NVIDIA H100 80GB HBM3".to_owned(),
            slot,
            memory_bytes: 80 << 30,
            minor: nth,
        }
    }
}

impl HcaPlan {
    /// A ConnectX-7 for InfiniBand (NDR, 400 Gbit/s), the machine's `nth` HCA.
    pub fn infiniband(nth: u32, slot: PcieSlot) -> Self {
        let gids = vec![GidPlan {
            index: 0,
            gid: format!("fe80:0000:0000:0000:0c42:a103:0065:{nth:04x}"),
            gid_type: "IB/RoCE v1".to_owned(),
            netdev: String::new(),
        }];
        let port = PortPlan {
            link_layer: "InfiniBand".to_owned(),
            rate: "400 Gb/sec (4X NDR)".to_owned(),
            lid: 0x20 + nth,
            gid_places: 8,
            gids,
            ..PortPlan::up(nth)
        };
        Self { ports: vec![port], netdevs: vec![format!("ibp{nth}s0")], ..Self::connectx7(nth, slot) }
    }

    /// A ConnectX-7 for RoCE (200 Gbit/s), the machine's `nth` HCA, with an IPv4 address on its network interface.
    pub fn roce(nth: u32, slot: PcieSlot, netdev: &str) -> Self {
        let link_local = format!("fe80:0000:0000:0000:0e42:a1ff:fe65:{nth:04x}");
        let mapped = format!("0000:0000:0000:0000:0000:ffff:0a00:{nth:04x}");
        // In the kernel's order: each address first as RoCE version 1, then as version 2.
        let gids = [&link_local, &link_local, &mapped, &mapped].into_iter().zip(0..).map(|(gid, index)| GidPlan {
            index,
            gid: gid.clone(),
            gid_type: if index % 2 == 0 { "IB/RoCE v1" } else { "RoCE v2" }.to_owned(),
            netdev: netdev.to_owned(),
        });
        let port = PortPlan {
            link_layer: "Ethernet".to_owned(),
            rate: "200 Gb/sec (4X HDR)".to_owned(),
            gid_places: 255,
            gids: gids.collect(),
            ..PortPlan::up(nth)
        };
        Self { ports: vec![port], netdevs: vec![netdev.to_owned()], ..Self::connectx7(nth, slot) }
    }

    fn connectx7(nth: u32, slot: PcieSlot) -> Self {
        Self {
            name: format!("mlx5_{nth}"),
            slot,
            vendor: "15b3".to_owned(),
            device: "1021".to_owned(),
            driver: "mlx5_core".to_owned(),
            node_guid: format!("0c42:a103:0065:{nth:04x}"),
            uverbs: nth,
            ports: Vec::new(),
            netdevs: Vec::new(),
            physical_function: None,
            virtual_functions: Vec::new(),
        }
    }
}

impl PortPlan {
    fn up(umad: u32) -> Self {
        let (state, phys_state) = PORT_UP;
        Self {
            number: 1,
            link_layer: String::new(),
            state: state.to_owned(),
            phys_state: phys_state.to_owned(),
            rate: String::new(),
            lid: 0,
            gid_places: 0,
            gids: Vec::new(),
            umad,
        }
    }
}
