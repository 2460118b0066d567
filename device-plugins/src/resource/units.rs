//! Resources, and the IDs of their devices.

use std::collections::BTreeSet;
use std::fmt;

use crate::config::{ResourceConfig, ResourceName};
use crate::machine::PciAddress;

/// A device, by the name that survives reboots.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceKey {
    /// The GPU's UUID.
    Gpu(String),
    /// The UUID of a MIG slice.
    Slice(String),
    /// The HCA's PCI address: its name may change.
    Hca(PciAddress),
}

impl fmt::Display for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu(uuid) | Self::Slice(uuid) => f.write_str(uuid),
            Self::Hca(pci) => write!(f, "{pci}"),
        }
    }
}

/// A device that a resource selects but does not offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excluded {
    pub device: DeviceKey,
    pub resource: ResourceName,
    pub why: Exclusion,
}

impl fmt::Display for Excluded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} does not offer it: {}", self.resource, self.why)
    }
}

/// Why a resource does not offer a device that it selects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exclusion {
    #[error("its UUID is not 1 to {UUID_BYTES_MAX} printable characters")]
    Uuid,
    #[error("another device is also called {0}")]
    Duplicate(DeviceKey),
    #[error("it is in MIG mode: offer its slices with `kind: mig`")]
    MigMode,
    #[error(
        "RDMA devices belong to network namespaces on this node (`rdma system show` prints exclusive), so a CNI plugin would have \
         to move it: run `rdma system set netns shared` before any pod starts"
    )]
    ExclusiveNamespaces,
    #[error("it has no uverbs device: load the module ib_uverbs")]
    NoUverbs,
    #[error("{resource} (line {line}) also selects it and comes first")]
    SelectedBefore { resource: ResourceName, line: usize },
    #[error("{0} selects virtual functions of it; choose one or the other by `deviceIDs`")]
    VirtualFunctions(ResourceName),
    #[error("no selected HCA is left on the GPU's PCIe switch or root complex")]
    NoHcaForRail,
    #[error("a rail may need it for the GPU at {0}, which NVML does not list yet")]
    AwaitedGpu(PciAddress),
}

/// The longest UUID: a shared ID appends its number, at most `::4095`, and an ID has at most 63 bytes.
pub(super) const UUID_BYTES_MAX: usize = 63 - "::4095".len();

/// A resource and its devices on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Resource {
    pub config: ResourceConfig,
    /// Sorted by ID.
    pub units: Vec<Unit>,
}

/// The devices behind one ID of a resource, or with `share` behind several equal IDs.
///
/// The ID is the UUID of a GPU, of a rail's GPU or of a slice, the PCI address of an HCA, or [`Unit::ALL`] for all devices of the
/// resource. A shared ID appends `::` and a number from 0 on. An ID has at most 63 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The ID, without the suffix of a shared one.
    pub id: String,
    /// One device; for a rail, the GPU and then the HCA; for [`Unit::ALL`], all of the resource.
    pub devices: Vec<DeviceKey>,
    /// The NUMA nodes of the devices.
    pub numa: BTreeSet<u32>,
}

impl Resource {
    /// All devices; each is in one unit.
    pub fn devices(&self) -> impl Iterator<Item = &DeviceKey> {
        self.units.iter().flat_map(|unit| &unit.devices)
    }

    /// All IDs, grouped by unit.
    pub fn ids(&self) -> impl Iterator<Item = String> {
        let share = self.config.share;
        self.units.iter().flat_map(move |unit| (0..share).map(move |nth| unit.shared_id(share, nth)))
    }

    /// The unit of an ID; `None` if the resource has no such ID.
    pub fn unit_of(&self, id: &str) -> Option<&Unit> {
        self.nth_unit_of(id).map(|(unit, _)| &self.units[unit])
    }

    /// The index of an ID's unit, and the number of the ID within it.
    pub(crate) fn nth_unit_of(&self, id: &str) -> Option<(usize, u16)> {
        let share = self.config.share;
        let (name, nth) = if share == 1 {
            (id, 0)
        } else {
            let (name, nth) = id.rsplit_once("::")?;
            (name, nth.parse().ok().filter(|nth| *nth < share)?)
        };
        let unit = self.units.iter().position(|unit| unit.id == name)?;
        // The parser accepts `::+7` and `::07`, which are not IDs of ours.
        (self.units[unit].shared_id(share, nth) == id).then_some((unit, nth))
    }
}

impl Unit {
    /// The ID of all devices of a resource (`give: all`), independent of which devices there are.
    pub const ALL: &'static str = "all";

    /// The `nth` of `share` equal IDs.
    pub fn shared_id(&self, share: u16, nth: u16) -> String {
        if share == 1 { self.id.clone() } else { format!("{}::{nth}", self.id) }
    }
}
