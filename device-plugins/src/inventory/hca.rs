//! The HCAs of `/sys/class/infiniband`.
//!
//! Invariant: no two HCAs share a PCI function, since its address identifies the HCA.

use std::collections::BTreeMap;

use rustix::fs::{FileType, major, minor, stat};

use super::attribute;
use super::folder::{Folder, Unread, Warnings, entries};
use super::pci::Function;
use super::roots::Roots;
use crate::machine::{CharDevice, Gid, GidType, Hca, LinkLayer, PciAddress, Port};

/// The most entries of a port's GID table that are read.
const GIDS_MOST: usize = 1024;

/// All HCAs, by PCI address.
pub(super) fn read(roots: &Roots, warnings: &mut Warnings) -> Vec<Hca> {
    let mut found: BTreeMap<PciAddress, Hca> = BTreeMap::new();
    let nodes = Nodes::read(roots, warnings);
    for name in names(roots, warnings) {
        let Some(hca) = read_one(roots, &name, &nodes, warnings) else { continue };
        match found.get(&hca.place.pci) {
            Some(other) => {
                let why = format!("left out: it shares the PCI function {} with {}", hca.place.pci, other.name);
                warnings.add(&roots.class("infiniband").join(&name), why);
            }
            None => drop(found.insert(hca.place.pci, hca)),
        }
    }
    found.into_values().collect()
}

/// The names of the HCAs, sorted. A name that [`attribute::hca_name`] rejects adds a warning.
pub(super) fn names(roots: &Roots, warnings: &mut Warnings) -> Vec<String> {
    let class = roots.class("infiniband");
    let mut names = entries(&class, warnings);
    names.retain(|name| {
        let is_sound = attribute::hca_name(name).is_some();
        if !is_sound {
            warnings.add(&class.join(name), "left out: the name has other characters than letters, digits, - _ and .");
        }
        is_sound
    });
    names
}

fn read_one(roots: &Roots, name: &str, nodes: &Nodes, warnings: &mut Warnings) -> Option<Hca> {
    let path = roots.class("infiniband").join(name);
    let folder = match Folder::open(path.clone()) {
        Ok(folder) => folder,
        Err(unread) => {
            warnings.add(&path, if let Unread::Odd(why) = unread { why } else { "dangling link".to_owned() });
            return None;
        }
    };
    let Function { folder: function, place } = Function::behind(roots, &path.join("device"), warnings)?;
    let physical_function = function.link("physfn", warnings).and_then(|target| {
        let address = attribute::pci_address(&target);
        if address.is_none() {
            warnings.add(&function.path().join("physfn"), "the link leads to no PCI function");
        }
        address
    });
    Some(Hca {
        name: name.to_owned(),
        node_guid: folder.required("node_guid", |text| attribute::node_guid(text).map(str::to_owned), warnings)?,
        vendor: function.required("vendor", attribute::pci_id, warnings).unwrap_or_default(),
        device: function.required("device", attribute::pci_id, warnings).unwrap_or_default(),
        driver: driver(&function, warnings),
        place,
        physical_function,
        virtual_functions: function.optional("sriov_numvfs", attribute::decimal, warnings).unwrap_or_default(),
        netdevs: netdevs(&function, warnings),
        ports: ports(&folder, name, nodes, warnings),
        uverbs: nodes.uverbs.get(name).cloned(),
    })
}

fn driver(function: &Folder, warnings: &mut Warnings) -> String {
    let target = function.link("driver", warnings).unwrap_or_default();
    attribute::driver_name(&target).unwrap_or_default().to_owned()
}

fn netdevs(function: &Folder, warnings: &mut Warnings) -> Vec<String> {
    let Some(folder) = function.below("net", warnings) else { return Vec::new() };
    let mut names = folder.entries(warnings);
    names.retain(|name| {
        let is_sound = attribute::netdev_name(name).is_some();
        if !is_sound {
            warnings.add(&folder.path().join(name), "left out: not the name of a network interface");
        }
        is_sound
    });
    names
}

/// The ports, by number.
fn ports(hca: &Folder, name: &str, nodes: &Nodes, warnings: &mut Warnings) -> Vec<Port> {
    let Some(folder) = hca.below("ports", warnings) else {
        warnings.add(&hca.path().join("ports"), "missing");
        return Vec::new();
    };
    let mut ports = Vec::new();
    for entry in folder.entries(warnings) {
        let Some(number) = attribute::port_number(&entry) else {
            warnings.add(&folder.path().join(&entry), "left out: not the number of a port");
            continue;
        };
        let Some(port) = folder.below(&entry, warnings) else { continue };
        let link_layer = port.required("link_layer", attribute::link_layer, warnings).unwrap_or_default();
        let key = (name.to_owned(), number);
        ports.push(Port {
            number,
            link_layer,
            state: port.required("state", attribute::port_state, warnings).unwrap_or_default(),
            phys_state: port.required("phys_state", attribute::phys_state, warnings).unwrap_or_default(),
            rate_gbps: port.optional("rate", attribute::rate_gbps, warnings).unwrap_or_default(),
            lid: port.optional("lid", attribute::lid, warnings).unwrap_or_default(),
            gids: gids(&port, warnings),
            umad: nodes.umad.get(&key).cloned(),
            issm: nodes.issm.get(&key).filter(|_| link_layer != LinkLayer::Ethernet).cloned(),
        });
    }
    ports.sort_unstable_by_key(|port| port.number);
    ports
}

/// The GIDs that are set, by index. A RoCE port's table has an entry for every address that it could get, so most
/// entries are empty.
fn gids(port: &Folder, warnings: &mut Warnings) -> Vec<Gid> {
    let Some(table) = port.below("gids", warnings) else { return Vec::new() };
    let mut gids = Vec::new();
    for (count, entry) in table.entries(warnings).into_iter().enumerate() {
        if count == GIDS_MOST {
            warnings.add(table.path(), format!("more than {GIDS_MOST} GIDs: the rest is left out"));
            break;
        }
        let Some(index) = attribute::decimal(&entry) else {
            warnings.add(&table.path().join(&entry), "left out: not an index");
            continue;
        };
        // An unused entry is all zeros, or empty.
        let decode = |text: &str| if text.is_empty() { Some([0; 16]) } else { attribute::gid(text) };
        let Some(gid) = table.optional(&entry, decode, warnings).filter(|gid| *gid != [0; 16]) else { continue };
        let of_kind = |kind: &str| format!("gid_attrs/{kind}/{index}");
        let gid_type = port.optional(&of_kind("types"), attribute::gid_type, warnings);
        let netdev = port.optional(&of_kind("ndevs"), |text| attribute::netdev_name(text).map(str::to_owned), warnings);
        gids.push(Gid { index, gid, gid_type: gid_type.unwrap_or(GidType::V1), netdev: netdev.unwrap_or_default() });
    }
    gids.sort_unstable_by_key(|gid| gid.index);
    gids
}

/// The character devices of HCAs and ports.
#[derive(Debug, Default)]
struct Nodes {
    /// Keyed by the name of the HCA.
    uverbs: BTreeMap<String, CharDevice>,
    /// Keyed by the name of the HCA and the number of the port.
    umad: BTreeMap<(String, u32), CharDevice>,
    issm: BTreeMap<(String, u32), CharDevice>,
}

impl Nodes {
    fn read(roots: &Roots, warnings: &mut Warnings) -> Self {
        let mut nodes = Self::default();
        for (class, prefix) in [("infiniband_verbs", "uverbs"), ("infiniband_mad", "umad"), ("infiniband_mad", "issm")]
        {
            let path = roots.class(class);
            for entry in entries(&path, warnings) {
                // The class folder also holds attributes, such as `abi_version`.
                if attribute::numbered(&entry, prefix).is_none() {
                    continue;
                }
                let folder = match Folder::open(path.join(&entry)) {
                    Ok(folder) => folder,
                    Err(_) => {
                        warnings.add(&path.join(&entry), "dangling link");
                        continue;
                    }
                };
                let hca = folder.required("ibdev", |text| attribute::hca_name(text).map(str::to_owned), warnings);
                let (Some(hca), Some(device)) = (hca, char_device(roots, &folder, entry, warnings)) else { continue };
                if prefix == "uverbs" {
                    nodes.uverbs.insert(hca, device);
                } else if let Some(port) = folder.required("port", attribute::port_number, warnings) {
                    let of_kind = if prefix == "umad" { &mut nodes.umad } else { &mut nodes.issm };
                    of_kind.insert((hca, port), device);
                }
            }
        }
        nodes
    }
}

/// A character device with its number from sysfs. `None` if `/dev/infiniband` has no matching node, since no container
/// could get the device.
fn char_device(roots: &Roots, folder: &Folder, name: String, warnings: &mut Warnings) -> Option<CharDevice> {
    let numbers = folder.required("dev", attribute::device_numbers, warnings)?;
    let node = roots.rdma_node(&name);
    let why = match stat(&node) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice => {
            "not a character device".to_owned()
        }
        Ok(stat) if (major(stat.st_rdev), minor(stat.st_rdev)) != numbers => {
            format!(
                "its device number is {}:{}, and sysfs reports another one",
                major(stat.st_rdev),
                minor(stat.st_rdev)
            )
        }
        Ok(_) => return Some(CharDevice { name, numbers }),
        Err(errno) => std::io::Error::from(errno).to_string(),
    };
    warnings.add(&node, why);
    None
}
