//! What a container gets for the IDs of a resource. Pure: it reads a view and changes nothing.

mod hints;

use std::collections::{BTreeMap, BTreeSet};

use crate::cdi::{nodes, qualified_name};
use crate::health::fault_of;
use crate::machine::{Hca, LinkLayer, Machine};
use crate::resource::{DeviceKey, Resource};
use crate::view::View;

pub use hints::hints;

/// What a container gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// CDI names.
    pub cdi: Vec<String>,
    /// Names of device nodes in `/dev/infiniband`, where the runtime has no CDI.
    pub nodes: BTreeSet<String>,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
}

/// How the container runtime gives devices to containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// It has no CDI: by device nodes, and GPUs by the variable that NVIDIA's runtime reads.
    Nodes,
    /// By CDI. GPUs that no CDI file names come by that variable.
    Cdi,
    /// By CDI alone. GPUs that no CDI file names are not given.
    CdiOnly,
}

/// Why a container gets nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No CDI file names these GPUs, and they may come by no other means.
    #[error(
        "NVIDIA's CDI files do not name {}, and --gpus-by-cdi-only excludes NVIDIA_VISIBLE_DEVICES: let `nvidia-ctk cdi \
         generate` write the files on the node, then create the pod again", .gpus.join(" and ")
    )]
    NotNamed {
        /// The UUIDs.
        gpus: Vec<String>,
    },
    /// The resource has no such ID.
    #[error(
        "{resource} has no device {id} on this node now; a new list is on its way to the kubelet: create the pod again"
    )]
    Unknown {
        /// The resource's name.
        resource: String,
        /// The ID.
        id: String,
    },
    /// A device is out of service.
    #[error("device {id} of {resource} is out of service: {message}; it returns to service once {recovery}")]
    OutOfService {
        /// The resource's name.
        resource: String,
        /// The ID.
        id: String,
        /// What was seen.
        message: String,
        /// The condition of recovery.
        recovery: String,
    },
}

/// The devices that a container gets for these IDs. `vendor` holds the CDI names of others.
pub fn grant(
    view: &View,
    resource: &Resource,
    ids: &[String],
    vendor: &BTreeSet<String>,
    means: Means,
) -> Result<Grant, Refusal> {
    let name = || resource.config.name.to_string();
    let mut given = BTreeSet::new();
    for id in ids {
        let unit = resource.unit_of(id).ok_or_else(|| Refusal::Unknown { resource: name(), id: id.clone() })?;
        if let Some((_, fault)) = fault_of(resource.config.give, unit, &view.faults) {
            let (message, recovery) = (fault.message.clone(), fault.recovery.clone());
            return Err(Refusal::OutOfService { resource: name(), id: id.clone(), message, recovery });
        }
        given.extend(unit.devices.iter().filter(|device| !view.faults.contains_key(device)));
    }
    let mut grant = Grant::default();
    if means == Means::CdiOnly {
        check_named(&view.machine, &given, vendor)?;
    }
    let names = vendor_names(&view.machine, &given, vendor).filter(|_| means != Means::Nodes);
    grant.env = environment(&view.machine, &given, names.is_some(), &resource.config.select.link_types);
    grant.cdi.extend(names.into_iter().flatten());
    let hcas: Vec<&Hca> =
        view.machine.hcas.iter().filter(|hca| given.contains(&DeviceKey::Hca(hca.place.pci))).collect();
    if !hcas.is_empty() {
        match means {
            Means::Cdi | Means::CdiOnly => grant.cdi.extend(hcas.iter().map(|hca| qualified_name(hca.place.pci))),
            Means::Nodes => {
                grant.nodes.extend(hcas.iter().filter_map(|hca| nodes::names(hca, resource.config.mad)).flatten());
            }
        }
    }
    Ok(grant)
}

/// The UUIDs of the GPUs and slices among these devices, in the order of the machine.
fn gpus<'a>(machine: &'a Machine, given: &BTreeSet<&DeviceKey>) -> Vec<&'a str> {
    let all = machine.gpus.iter().flat_map(|gpu| {
        let slices = gpu.slices().iter().map(|slice| (DeviceKey::Slice(slice.uuid.clone()), slice.uuid.as_str()));
        std::iter::once((DeviceKey::Gpu(gpu.uuid.clone()), gpu.uuid.as_str())).chain(slices)
    });
    all.filter(|(device, _)| given.contains(device)).map(|(_, uuid)| uuid).collect()
}

/// NVIDIA's CDI names of the GPUs and slices among these devices, if its files name all of them.
pub fn vendor_names(machine: &Machine, given: &BTreeSet<&DeviceKey>, vendor: &BTreeSet<String>) -> Option<Vec<String>> {
    let names: Vec<String> = gpus(machine, given).into_iter().map(vendor_name).collect();
    names.iter().all(|name| vendor.contains(name)).then_some(names)
}

/// Refuses GPUs and slices among these devices that no CDI file names.
pub fn check_named(machine: &Machine, given: &BTreeSet<&DeviceKey>, vendor: &BTreeSet<String>) -> Result<(), Refusal> {
    let is_unnamed = |uuid: &&str| !vendor.contains(&vendor_name(uuid));
    let gpus: Vec<String> = gpus(machine, given).into_iter().filter(is_unnamed).map(str::to_owned).collect();
    if gpus.is_empty() { Ok(()) } else { Err(Refusal::NotNamed { gpus }) }
}

/// NVIDIA's CDI name of a GPU or a slice.
pub fn vendor_name(uuid: &str) -> String {
    format!("nvidia.com/gpu={uuid}")
}

/// The environment of a container with these devices. GPUs that it has no CDI names for (`are_named`) come by the variable that
/// NVIDIA's runtime reads.
pub fn environment(
    machine: &Machine,
    given: &BTreeSet<&DeviceKey>,
    are_named: bool,
    link_types: &[LinkLayer],
) -> BTreeMap<String, String> {
    let hcas: Vec<&Hca> = machine.hcas.iter().filter(|hca| given.contains(&DeviceKey::Hca(hca.place.pci))).collect();
    let mut environment = hints(&hcas, link_types);
    let uuids = gpus(machine, given);
    if !uuids.is_empty() {
        // NVIDIA's runtime would obey what the image says, which is often `all`.
        let visible = if are_named { "void".to_owned() } else { uuids.join(",") };
        environment.insert("NVIDIA_VISIBLE_DEVICES".to_owned(), visible);
    }
    environment
}
