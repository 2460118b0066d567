//! RDMA devices (HCAs).

use std::fmt;

use super::place::{PciAddress, Place};

/// An RDMA device: an HCA of InfiniBand, or a network card with RoCE.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hca {
    /// The kernel's name, such as `mlx5_2`. It may change at a reboot; the PCI address does not.
    pub name: String,
    /// The node GUID, as sysfs writes it.
    pub node_guid: String,
    /// PCI vendor, four hexadecimal digits, such as `15b3`.
    pub vendor: String,
    /// PCI device, four hexadecimal digits, such as `1021`.
    pub device: String,
    /// The kernel driver, such as `mlx5_core`. Empty if sysfs does not report it.
    pub driver: String,
    /// Its location.
    pub place: Place,
    /// The physical function, if this is a virtual one.
    pub physical_function: Option<PciAddress>,
    pub virtual_functions: u32,
    /// Its network interfaces in the host's network namespace.
    pub netdevs: Vec<String>,
    /// By number.
    pub ports: Vec<Port>,
    /// `uverbsN`.
    pub uverbs: Option<CharDevice>,
}

/// A character device below `/dev/infiniband`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CharDevice {
    /// Such as `uverbs2`.
    pub name: String,
    /// Major and minor number.
    pub numbers: (u32, u32),
}

/// A port of an HCA.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Port {
    /// From 1 on.
    pub number: u32,
    /// The link layer.
    pub link_layer: LinkLayer,
    /// The logical state.
    pub state: PortState,
    /// The physical state.
    pub phys_state: PhysState,
    /// 0 if sysfs does not report it.
    pub rate_gbps: f64,
    /// The LID on InfiniBand; 0 on RoCE.
    pub lid: u32,
    /// The GIDs that are set, by index.
    pub gids: Vec<Gid>,
    /// `umadN`.
    pub umad: Option<CharDevice>,
    /// `issmN`, which only ports of InfiniBand have.
    pub issm: Option<CharDevice>,
}

/// The link layer of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkLayer {
    /// An InfiniBand fabric.
    InfiniBand,
    /// RoCE.
    Ethernet,
    /// Sysfs does not report it.
    #[default]
    Unknown,
}

impl LinkLayer {
    /// The kernel's name of the link layer.
    pub fn name(self) -> &'static str {
        match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
            Self::Unknown => "Unknown",
        }
    }
}

/// The logical state of a port (`state` in sysfs), displayed in the kernel's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortState {
    /// Sysfs does not report it.
    #[default]
    Nop,
    /// No link.
    Down,
    /// A link without a subnet manager.
    Init,
    /// Ready to become active.
    Armed,
    /// In service.
    Active,
    /// A link in recovery.
    ActiveDefer,
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nop => "NOP",
            Self::Down => "DOWN",
            Self::Init => "INIT",
            Self::Armed => "ARMED",
            Self::Active => "ACTIVE",
            Self::ActiveDefer => "ACTIVE_DEFER",
        })
    }
}

impl PortState {
    /// True if traffic can flow through a port of this state and that physical one.
    pub fn is_up(self, phys_state: PhysState) -> bool {
        self == Self::Active && phys_state == PhysState::LinkUp
    }
}

/// The physical state of a port (`phys_state` in sysfs), displayed in the kernel's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PhysState {
    Sleep,
    Polling,
    Disabled,
    PortConfigurationTraining,
    LinkUp,
    LinkErrorRecovery,
    PhyTest,
    /// Sysfs does not report it.
    #[default]
    Unknown,
}

impl fmt::Display for PhysState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sleep => "Sleep",
            Self::Polling => "Polling",
            Self::Disabled => "Disabled",
            Self::PortConfigurationTraining => "PortConfigurationTraining",
            Self::LinkUp => "LinkUp",
            Self::LinkErrorRecovery => "LinkErrorRecovery",
            Self::PhyTest => "Phy Test",
            Self::Unknown => "<unknown>",
        })
    }
}

impl Port {
    /// True if traffic can flow.
    pub fn is_up(&self) -> bool {
        self.state.is_up(self.phys_state)
    }

    /// The rate in whole Gbit/s. Rounded, because the kernel rounds FDR's 13.64 Gbit/s per lane in its own way.
    pub fn whole_gbps(&self) -> u32 {
        self.rate_gbps.round() as u32
    }
}

/// An address of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gid {
    /// Its index, as `NCCL_IB_GID_INDEX` takes it.
    pub index: u32,
    pub gid: [u8; 16],
    /// The protocol.
    pub gid_type: GidType,
    /// Its network interface, on RoCE. Empty if sysfs does not report it.
    pub netdev: String,
}

/// The protocol of a GID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GidType {
    /// InfiniBand, or RoCE v1.
    #[default]
    V1,
    /// RoCE v2.
    V2,
}

impl GidType {
    /// The protocol as sysfs writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1 => "IB/RoCE v1",
            Self::V2 => "RoCE v2",
        }
    }
}

/// How HCAs relate to network namespaces (`rdma system show`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RdmaMode {
    /// The kernel has no RDMA.
    #[default]
    None,
    /// Every network namespace may use every HCA.
    Shared,
    /// Each HCA is in one network namespace; a CNI plugin must move it into a pod's.
    Exclusive,
}

impl RdmaMode {
    /// The mode as `rdma system show` prints it; `none` without RDMA.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Shared => "shared",
            Self::Exclusive => "exclusive",
        }
    }
}
