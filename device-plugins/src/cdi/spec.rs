//! The content of our CDI file: a function of the node's devices, its resources and the file's previous content.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use larder_rdma_limit::{Line, Max};
use serde::{Deserialize, Serialize};

use super::nodes;
use crate::config::ResourceConfig;
use crate::limits;
use crate::machine::{Hca, PciAddress};
use crate::names::{CDI_HCA, CDI_VENDOR, HOOK};
use crate::resource::DeviceKey;
use crate::view::View;

/// A CDI file. Its version is the lowest one that supports host paths and names that begin with a digit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    cdi_version: String,
    kind: String,
    /// Sorted by PCI address.
    pub devices: Vec<Device>,
}

/// A device of a CDI file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// The unqualified name, without vendor and class.
    pub name: String,
    container_edits: Edits,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Edits {
    /// The variable that records the resources: see [`Terms::variable`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    env: Vec<String>,
    device_nodes: Vec<DeviceNode>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    hooks: Vec<Hook>,
}

/// A device node. It has no device numbers: the runtime looks them up when it starts a container, and numbers in the
/// file would be out of date after a reboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeviceNode {
    path: PathBuf,
    host_path: PathBuf,
    permissions: String,
}

/// A program that the runtime runs at every start of a container; the container does not start if it fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hook {
    hook_name: String,
    path: PathBuf,
    args: Vec<String>,
}

/// The name of an HCA in our file. It is the PCI address: a container keeps its CDI name across restarts, and the
/// kernel may by then have given the HCA's kernel name to another HCA.
pub fn name(pci: PciAddress) -> String {
    pci.to_string()
}

/// The name that the kubelet and the runtime use for an HCA, such as `larder.dev/hca=0000:3b:00.0`.
pub fn qualified_name(pci: PciAddress) -> String {
    format!("{CDI_VENDOR}/{CDI_HCA}={}", name(pci))
}

/// The unqualified name, if the qualified name is of a device in our file; `None` for the devices of other files.
pub fn own_name(qualified: &str) -> Option<&str> {
    let (kind, name) = qualified.split_once('=')?;
    (kind.split_once('/')? == (CDI_VENDOR, CDI_HCA)).then_some(name)
}

/// The hook that limits an HCA's objects. `folder` is the hook program's folder on the host.
fn hook(line: &Line, folder: &Path) -> Hook {
    Hook { hook_name: "createRuntime".to_owned(), path: folder.join(HOOK), args: line.to_args() }
}

/// The terms on which containers get an HCA. While only one resource has offered the HCA, they are that resource's
/// terms. An HCA can move to another resource without a change of the configuration, for example when its rail loses
/// its GPU. Containers of the first resource may then still have it, and they restart with what the file says. The HCA
/// therefore gets the lower of both limits until the node restarts.
struct Terms {
    /// True if containers also get the device nodes for management datagrams.
    mad: bool,
    /// `None` if the HCA has no limit.
    max: Option<Max>,
    /// The resources that have offered the HCA. The file records them in an environment variable, since its CDI version
    /// has no annotations.
    of: BTreeSet<String>,
}

impl Terms {
    fn of(resource: &ResourceConfig) -> Self {
        let (max, of) = (resource.limits.as_ref().and_then(limits::max), BTreeSet::from([resource.name.to_string()]));
        Self { mad: resource.mad, max, of }
    }

    /// The terms of a device in the last file; `None` if they cannot be parsed.
    fn of_last(device: &Device) -> Option<Self> {
        let Edits { env, device_nodes, hooks } = &device.container_edits;
        let of = env.iter().filter_map(|variable| variable.split_once('=')).flat_map(|(_, names)| names.split(','));
        let of = of.map(str::to_owned).collect();
        let names = device_nodes.iter().filter_map(|node| node.path.file_name()?.to_str());
        let mad = names.into_iter().any(nodes::is_mad);
        match &hooks[..] {
            [] => Some(Self { mad, max: None, of }),
            [hook] => Some(Self { mad, max: Some(Line::from_args(&hook.args)?.max), of }),
            _ => None,
        }
    }

    /// The lower limits of both.
    fn and(self, other: Self) -> Self {
        let max = self.max.into_iter().chain(other.max).reduce(Max::min);
        Self { mad: self.mad && other.mad, max, of: self.of.into_iter().chain(other.of).collect() }
    }

    /// The environment variable that records the resources. Its name is unique for an HCA, since a container may have
    /// several HCAs.
    fn variable(&self, pci: PciAddress) -> String {
        let names: Vec<&str> = self.of.iter().map(String::as_str).collect();
        format!("LARDER_HCA_{}={}", name(pci).replace([':', '.'], "_"), names.join(","))
    }
}

/// The HCAs that resources offer, each with its resource.
pub fn owners(view: &View) -> BTreeMap<PciAddress, &ResourceConfig> {
    let mut owners = BTreeMap::new();
    for resource in view.resources.iter() {
        for device in resource.units.iter().flat_map(|unit| &unit.devices) {
            if let DeviceKey::Hca(pci) = device {
                owners.insert(*pci, &resource.config);
            }
        }
    }
    owners
}

/// The file for the HCAs of resources, and for HCAs that no resource offers any more. The latter keep the terms of the
/// `last` file, so a container that was given one keeps the HCA and its limit. An HCA with unknown terms is left out,
/// so that no container starts with it.
pub fn spec(view: &View, last: Option<&Spec>, host_dev: &Path, hook_folder: &Path) -> Spec {
    let owners = owners(view);
    let last = |pci| {
        let name = name(pci);
        Terms::of_last(last?.devices.iter().find(|device| device.name == name)?)
    };
    let device = |hca: &Hca| {
        let pci = hca.place.pci;
        let terms = match (owners.get(&pci).map(|owner| Terms::of(owner)), last(pci)) {
            (Some(owner), Some(last)) if owner.of != last.of => owner.and(last),
            (owner, last) => owner.or(last)?,
        };
        let node = |name: String| DeviceNode {
            path: Path::new("/dev").join(nodes::FOLDER).join(&name),
            host_path: host_dev.join(nodes::FOLDER).join(&name),
            permissions: "rw".to_owned(),
        };
        let line = terms.max.map(|max| Line { device: hca.name.clone(), max });
        let edits = Edits {
            env: vec![terms.variable(pci)],
            device_nodes: nodes::names(hca, terms.mad)?.into_iter().map(node).collect(),
            hooks: line.iter().map(|line| hook(line, hook_folder)).collect(),
        };
        Some(Device { name: name(pci), container_edits: edits })
    };
    Spec {
        cdi_version: "0.5.0".to_owned(),
        kind: format!("{CDI_VENDOR}/{CDI_HCA}"),
        devices: view.machine.hcas.iter().filter_map(device).collect(),
    }
}
