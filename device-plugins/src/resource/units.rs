//! Resources, and the IDs of their devices.

use std::collections::BTreeSet;
use std::fmt;

use crate::config::ResourceConfig;
use crate::machine::PciAddress;

/// A device, by what it is called after every reboot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceKey {
    /// A GPU, by its UUID.
    Gpu(String),
    /// A slice of a GPU, by its UUID.
    Slice(String),
    /// An HCA, by its PCI address: its name may change.
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

/// A device that a resource selects and does not offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withheld {
    /// The device.
    pub device: DeviceKey,
    /// Why, in words, beginning with the resource's name.
    pub why: String,
}

/// A resource and its devices on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Resource {
    /// Its settings.
    pub config: ResourceConfig,
    /// By their IDs.
    pub units: Vec<Unit>,
}

/// What an exclusive ID of a resource stands for; with `share`, as many IDs stand for the same. The ID of a GPU or of a rail is
/// the GPU's UUID, that of a slice the slice's, that of an HCA its PCI address, and that of all devices of a resource
/// [`Unit::ALL`]. A shared one has `::` and a number behind it, from 0 on. An ID has 63 bytes at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The ID, without the number of a shared one.
    pub id: String,
    /// The device, or for a rail the GPU and then the HCA, or all of the resource.
    pub devices: Vec<DeviceKey>,
    /// The NUMA nodes of the devices.
    pub numa: BTreeSet<u32>,
}

impl Resource {
    /// Its devices: each is in one unit.
    pub fn devices(&self) -> impl Iterator<Item = &DeviceKey> {
        self.units.iter().flat_map(|unit| &unit.devices)
    }

    /// All IDs, those of a unit one after the other.
    pub fn ids(&self) -> impl Iterator<Item = String> {
        let share = self.config.share;
        self.units.iter().flat_map(move |unit| (0..share).map(move |nth| unit.shared_id(share, nth)))
    }

    /// What an ID stands for; `None` if it is no ID of the resource.
    pub fn unit_of(&self, id: &str) -> Option<&Unit> {
        self.nth_unit_of(id).map(|(unit, _)| &self.units[unit])
    }

    /// Which unit an ID stands for, and which of its IDs it is.
    pub(crate) fn nth_unit_of(&self, id: &str) -> Option<(usize, u16)> {
        let share = self.config.share;
        let (name, nth) = if share == 1 {
            (id, 0)
        } else {
            let (name, nth) = id.rsplit_once("::")?;
            (name, nth.parse().ok().filter(|nth| *nth < share)?)
        };
        let unit = self.units.iter().position(|unit| unit.id == name)?;
        // `::+7` and `::07` are not ours.
        (self.units[unit].shared_id(share, nth) == id).then_some((unit, nth))
    }
}

impl Unit {
    /// The ID of all devices of a resource (`give: all`): the same, whichever devices there are.
    pub const ALL: &'static str = "all";

    /// The `nth` of `share` IDs.
    pub fn shared_id(&self, share: u16, nth: u16) -> String {
        if share == 1 { self.id.clone() } else { format!("{}::{nth}", self.id) }
    }
}
