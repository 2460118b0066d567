//! The JSON of `GET /devices`, which `larder-devices` serves and `larder devices` shows.
//!
//! The keys and their values are a promise to every program that reads them; docs/DEVICES.md lists them, and
//! `golden/report.json` has all of them. A reader accepts a report of an older or a newer `larder-devices`: a missing field is
//! empty, an unknown field is skipped, and closed sets such as states are strings.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A node's devices at one moment. Lists are in the order of PCI addresses, so equal nodes give equal bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Report {
    /// The node's name.
    pub node: String,
    /// The version of the GPU driver.
    pub gpu_driver: Option<String>,
    /// How HCAs relate to network namespaces: `none`, `shared` or `exclusive`.
    pub rdma_mode: String,
    /// The configured resources, including those that select nothing on this node.
    pub resources: Vec<Resource>,
    /// GPUs, each followed by its MIG slices, and then HCAs.
    pub devices: Vec<Device>,
    /// Devices that a resource selects but does not offer.
    #[serde(rename = "withheld")]
    pub excluded: Vec<Excluded>,
    /// Unexpected contents of sysfs or answers of NVML.
    #[serde(rename = "oddities")]
    pub warnings: Vec<Warning>,
    /// Why each component that container limits depend on is missing; `null` if it is present, or if no limit of this node's
    /// devices needs it.
    pub missing: BTreeMap<String, Option<String>>,
    /// Why the newest configuration is not in force.
    pub refused_config: Option<String>,
    /// Why the pods may be out of date.
    pub pods_trouble: Option<String>,
}

/// A resource that pods can request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resource {
    /// The resource's name, such as `larder.dev/gpu`.
    pub name: String,
    /// `gpu`, `mig`, `rdma` or `rail`.
    pub kind: String,
    /// `plugin` or `dra`.
    pub mode: String,
    /// The number of the resource's devices.
    pub devices: u64,
    /// The number of IDs, which is the capacity that containers share.
    pub ids: u64,
}

/// A GPU, a MIG slice or an HCA.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    /// A name that survives reboots: the UUID of a GPU or a slice, the PCI address of an HCA.
    pub id: String,
    /// The current name: `nvidia0`, `mlx5_0`; the profile of a slice.
    pub name: String,
    /// The location; a slice has the location of its GPU.
    pub place: Location,
    /// What the device is, with `kind`.
    #[serde(flatten)]
    pub kind: DeviceKind,
    /// The resources that offer it.
    pub resources: Vec<Offer>,
    /// The containers that hold it.
    pub pods: Vec<Holder>,
    /// Why it is out of service; `null` if it is in service.
    pub fault: Option<Fault>,
}

/// A location in the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Location {
    /// The PCI address.
    pub pci: String,
    /// The PCIe root complex, as the DRA attribute `pcieRoot` has it; empty if sysfs does not report it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub root: String,
    /// The NUMA node, if the firmware reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// The upstream port of the PCIe switch, if the device is on one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch: Option<String>,
}

/// What a device is; `kind` in the JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum DeviceKind {
    Gpu(Gpu),
    Mig(Slice),
    Hca(Hca),
    /// A kind that a newer `larder-devices` reports.
    #[default]
    #[serde(other)]
    Other,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Gpu {
    pub model: String,
    /// `ampere`, `ada`, `hopper`, `blackwell` or `other`.
    pub family: String,
    pub memory_bytes: u64,
    /// True in MIG mode.
    pub mig: bool,
}

/// A MIG slice of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Slice {
    /// The GPU's UUID.
    pub gpu: String,
    pub memory_bytes: u64,
}

/// An HCA.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hca {
    /// The node GUID, as sysfs writes it.
    pub node_guid: String,
    /// `InfiniBand`, `Ethernet` or `Unknown`, of the first port.
    pub link_layer: String,
    /// The rate of the fastest port.
    pub rate_gbps: f64,
    /// The kernel driver.
    pub driver: String,
    /// The network interfaces.
    pub netdevs: Vec<String>,
    /// The PCI address of the physical function, if this is a virtual one.
    pub physical_function: Option<String>,
    pub ports: Vec<Port>,
}

/// A port of an HCA.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Port {
    /// The port number, starting at 1.
    pub number: u32,
    /// `InfiniBand`, `Ethernet` or `Unknown`.
    pub link_layer: String,
    /// The logical state in the kernel's words, such as `ACTIVE`.
    pub state: String,
    /// The physical state in the kernel's words, such as `LinkUp`.
    pub phys_state: String,
    pub rate_gbps: f64,
    /// The LID on InfiniBand; 0 on RoCE.
    pub lid: u32,
    /// The GIDs that are set, by index.
    pub gids: Vec<Gid>,
    /// The device node `umadN`, for management datagrams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub umad: Option<CharDevice>,
    /// The device node `issmN`, which only InfiniBand ports have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issm: Option<CharDevice>,
}

/// An address of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Gid {
    /// The index in the port's GID table, as `NCCL_IB_GID_INDEX` expects it.
    pub index: u32,
    /// Eight groups of four hexadecimal digits, as sysfs writes them.
    pub gid: String,
    /// `IB/RoCE v1` or `RoCE v2`.
    pub gid_type: String,
    /// The network interface, on RoCE.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub netdev: String,
}

/// A character device below `/dev/infiniband`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CharDevice {
    pub name: String,
    /// Major and minor number.
    pub numbers: (u32, u32),
}

/// A resource that offers a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Offer {
    /// The resource's name.
    pub name: String,
    /// The resource's kind: `gpu`, `mig`, `rdma` or `rail`.
    pub kind: String,
    /// `plugin` or `dra`.
    pub mode: String,
    /// The ID of the device in the resource, without the suffix of a shared one.
    pub id: String,
    /// The number of IDs for the device.
    pub share: u16,
}

/// A container that holds a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    pub namespace: String,
    pub pod: String,
    pub container: String,
    /// The resource's name.
    pub resource: String,
    /// The ID of the resource that the container was allocated.
    pub id: String,
}

/// Why a device is out of service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fault {
    /// One word, such as `PortDown`.
    pub reason: String,
    /// What was observed.
    pub message: String,
    /// When the fault began (RFC 3339).
    pub since: String,
    /// The condition under which the device returns to service.
    #[serde(rename = "ends")]
    pub recovery: String,
}

/// A device that a resource selects but does not offer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Excluded {
    /// The device's ID.
    pub device: String,
    pub why: String,
}

/// An unexpected entry in sysfs or an unexpected answer of NVML.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Warning {
    /// The file or the NVML call.
    pub at: String,
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = include_str!("../golden/report.json");

    #[test]
    fn a_report_survives_a_round_trip_byte_for_byte() {
        let report: Report = serde_json::from_str(GOLDEN).unwrap();
        assert_eq!(serde_json::to_string_pretty(&report).unwrap() + "\n", GOLDEN);
    }

    #[test]
    fn reports_of_older_and_newer_versions_are_read() {
        assert_eq!(serde_json::from_str::<Report>("{}").unwrap(), Report::default());
        let newer = r#"{"newer": 1, "devices": [{"kind": "nic", "id": "x", "speed": 9}, {"kind": "gpu", "cores": 1}]}"#;
        let report: Report = serde_json::from_str(newer).unwrap();
        assert_eq!(report.devices[0].kind, DeviceKind::Other);
        assert_eq!(report.devices[0].id, "x");
        assert_eq!(report.devices[1].kind, DeviceKind::Gpu(Gpu::default()));
    }
}
