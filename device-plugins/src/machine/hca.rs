//! RDMA devices (HCAs).

use std::fmt;

use serde::{Serialize, Serializer};

use super::place::{PciAddress, Place};

/// An RDMA device: an HCA of InfiniBand, or a network card with RoCE.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hca {
    /// The kernel's name, such as `mlx5_2`. It may be another one after a reboot; the PCI address stays.
    pub name: String,
    /// The node GUID, as sysfs writes it.
    pub node_guid: String,
    /// PCI vendor, four hexadecimal digits, such as `15b3`.
    pub vendor: String,
    /// PCI device, four hexadecimal digits, such as `1021`.
    pub device: String,
    /// The kernel driver, such as `mlx5_core`. Empty if it is not told.
    pub driver: String,
    /// Where it is.
    pub place: Place,
    /// The physical function, if this is a virtual one.
    pub physical_function: Option<PciAddress>,
    /// How many virtual functions it has.
    pub virtual_functions: u32,
    /// Its network interfaces in the host's network namespace.
    pub netdevs: Vec<String>,
    /// By number.
    pub ports: Vec<Port>,
    /// `uverbsN`.
    pub uverbs: Option<CharDevice>,
}

/// A character device below `/dev/infiniband`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CharDevice {
    /// Such as `uverbs2`.
    pub name: String,
    /// Major and minor number.
    pub numbers: (u32, u32),
}

/// A port of an HCA.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// From 1 on.
    pub number: u32,
    /// What it is connected to.
    pub link_layer: LinkLayer,
    /// The logical state.
    pub state: PortState,
    /// The physical state.
    pub phys_state: PhysState,
    /// In Gbit/s; 0 if it is not told.
    pub rate_gbps: f64,
    /// The LID of InfiniBand; 0 on RoCE.
    pub lid: u32,
    /// Those that are set, by index.
    pub gids: Vec<Gid>,
    /// `umadN`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub umad: Option<CharDevice>,
    /// `issmN`, which only ports of InfiniBand have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issm: Option<CharDevice>,
}

/// What a port is connected to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum LinkLayer {
    /// An InfiniBand fabric.
    InfiniBand,
    /// RoCE.
    Ethernet,
    /// It is not told.
    #[default]
    Unknown,
}

/// The logical state of a port (`state` in sysfs), shown in the kernel's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortState {
    /// It is not told.
    #[default]
    Nop,
    /// No link.
    Down,
    /// A link without a subnet manager.
    Init,
    /// About to be active.
    Armed,
    /// In service.
    Active,
    /// A link that recovers.
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

impl Serialize for PortState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl PortState {
    /// True if traffic can flow through a port of this state and that physical one.
    pub fn is_up(self, phys_state: PhysState) -> bool {
        self == Self::Active && phys_state == PhysState::LinkUp
    }
}

/// The physical state of a port (`phys_state` in sysfs), shown in the kernel's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PhysState {
    /// Sleeping.
    Sleep,
    /// Looking for a link.
    Polling,
    /// Switched off.
    Disabled,
    /// Training.
    PortConfigurationTraining,
    /// The link is up.
    LinkUp,
    /// It recovers from errors.
    LinkErrorRecovery,
    /// A test mode.
    PhyTest,
    /// It is not told.
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

impl Serialize for PhysState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Port {
    /// True if traffic can flow.
    pub fn is_up(&self) -> bool {
        self.state.is_up(self.phys_state)
    }

    /// The rate in whole Gbit/s, rounded: the kernel rounds FDR's 13.64 Gbit/s a lane in its own way.
    pub fn whole_gbps(&self) -> u32 {
        self.rate_gbps.round() as u32
    }
}

/// An address of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Gid {
    /// Its index, as `NCCL_IB_GID_INDEX` wants it.
    pub index: u32,
    /// Sixteen bytes, shown as sysfs writes them.
    #[serde(serialize_with = "as_in_sysfs")]
    pub gid: [u8; 16],
    /// The protocol.
    pub gid_type: GidType,
    /// The network interface that it belongs to, on RoCE. Empty if it is not told.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub netdev: String,
}

/// Eight groups of four hexadecimal digits.
fn as_in_sysfs<S: Serializer>(gid: &[u8; 16], serializer: S) -> Result<S::Ok, S::Error> {
    let groups = gid.chunks_exact(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]));
    serializer.serialize_str(&groups.collect::<Vec<_>>().join(":"))
}

/// The protocol of a GID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum GidType {
    /// InfiniBand, or RoCE v1.
    #[default]
    #[serde(rename = "IB/RoCE v1")]
    V1,
    /// RoCE v2.
    #[serde(rename = "RoCE v2")]
    V2,
}

/// How HCAs belong to network namespaces (`rdma system show`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RdmaMode {
    /// This kernel has no RDMA.
    #[default]
    None,
    /// Every network namespace may use every HCA.
    Shared,
    /// An HCA is in one network namespace, and a CNI plugin must move it into that of a pod.
    Exclusive,
}
