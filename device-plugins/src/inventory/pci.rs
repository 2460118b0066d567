//! PCI functions in sysfs, and their attach points in the machine.

use std::path::{Path, PathBuf};

use super::attribute;
use super::folder::{Folder, Unread, Warnings, entries};
use super::roots::Roots;
use crate::machine::{PciAddress, Place};

/// The base class of display controllers, which also covers GPUs without a display.
const DISPLAY: u8 = 3;

/// The PCI vendor ID of the GPUs that NVML manages.
const NVIDIA: &str = "10de";

/// The folder of a PCI function.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) folder: Folder,
    pub(super) place: Place,
}

impl Function {
    /// The function behind a link such as `/sys/class/infiniband/mlx5_0/device`. `None`, with a warning, if the link
    /// does not lead to a PCI function below `/sys/devices`.
    pub(super) fn behind(roots: &Roots, link: &Path, warnings: &mut Warnings) -> Option<Self> {
        match Self::try_behind(roots, link) {
            Ok(mut function) => {
                function.place.numa = function.folder.required("numa_node", attribute::numa_node, warnings).flatten();
                Some(function)
            }
            Err(why) => {
                warnings.add(link, why);
                None
            }
        }
    }

    fn try_behind(roots: &Roots, link: &Path) -> Result<Self, String> {
        let devices =
            roots.sysfs.join("devices").canonicalize().map_err(|error| format!("cannot resolve devices: {error}"))?;
        let path = link.canonicalize().map_err(|error| format!("dangling link: {error}"))?;
        let below = path.strip_prefix(&devices).map_err(|_| "the link leaves the device tree".to_owned())?;
        let place = place_of_path(below).ok_or("not a PCI function of its own")?;
        let folder = Folder::open(path.clone()).map_err(|unread| match unread {
            Unread::Absent => "missing".to_owned(),
            Unread::Odd(why) => why,
        })?;
        Ok(Self { folder, place })
    }
}

/// The attach point that a path below `/sys/devices` encodes, such as
/// `pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0`; `None` if it does not end at a PCI function.
///
/// Only path components below the root complex count, and of them only PCI functions: a hidden domain, such as
/// `pci10000:00`, is not a bridge.
fn place_of_path(path: &Path) -> Option<Place> {
    let mut parts = path.iter().map(|part| part.to_str().unwrap_or_default());
    let root = parts.find_map(attribute::pci_root)?.to_owned();
    let mut last = None;
    let mut bridges = Vec::new();
    for part in parts {
        bridges.extend(last.flatten());
        last = Some(attribute::pci_address(part));
    }
    Some(Place { pci: last??, root, bridges, numa: None })
}

/// The attach point of a PCI function. A function that sysfs does not list has only its address.
pub(super) fn place(roots: &Roots, address: PciAddress, warnings: &mut Warnings) -> Place {
    let link: PathBuf = roots.sysfs.join("bus/pci/devices").join(address.to_string());
    let found = Function::behind(roots, &link, warnings).map(|function| function.place);
    match found {
        Some(place) if place.pci == address => place,
        Some(other) => {
            warnings.add(&link, format!("the link leads to {}", other.pci));
            Place { pci: address, ..Place::default() }
        }
        None => Place { pci: address, ..Place::default() },
    }
}

/// NVIDIA GPUs that NVIDIA's driver has bound, or may bind once it is loaded. Warnings about a GPU are dropped here:
/// they are reported when NVML names the GPU.
pub(super) fn nvidia_gpus(roots: &Roots) -> Vec<Place> {
    let mut untold = Warnings::default();
    let functions = roots.sysfs.join("bus/pci/devices");
    let mut gpus = Vec::new();
    for name in entries(&functions, &mut untold) {
        let (Some(address), Ok(function)) = (attribute::pci_address(&name), Folder::open(functions.join(&name))) else {
            continue;
        };
        let is_gpu = function.optional("class", attribute::pci_base_class, &mut untold) == Some(DISPLAY)
            && function.optional("vendor", attribute::pci_id, &mut untold).as_deref() == Some(NVIDIA);
        if is_gpu && function.link("driver", &mut untold).is_none_or(|driver| driver == "nvidia") {
            gpus.push(place(roots, address, &mut untold));
        }
    }
    gpus.sort_by_key(|gpu| gpu.pci);
    gpus
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str) -> Option<Place> {
        place_of_path(Path::new(path))
    }

    #[test]
    fn the_path_of_a_function_tells_its_root_and_its_bridges() {
        let bridges = ["0000:10:01.0", "0000:11:00.0", "0000:12:00.0"].map(|address| address.parse().unwrap());
        let found = place("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0").unwrap();
        assert_eq!((found.root.as_str(), found.bridges.as_slice()), ("pci0000:10", bridges.as_slice()));
        assert_eq!((found.pci, found.numa), ("0000:13:00.0".parse().unwrap(), None));
        // On some ARM machines the root complex is a platform device. A VMD hides a PCI domain behind a function.
        let platform = place("platform/ACPI0004:00/pci0002:00/0002:00:00.0/0002:01:00.0").unwrap();
        assert_eq!((platform.root.as_str(), platform.bridges.len()), ("pci0002:00", 1));
        let hidden = place("pci0000:3a/0000:3a:05.5/pci10000:00/10000:00:02.0/10000:01:00.0").unwrap();
        assert_eq!((hidden.root.as_str(), hidden.bridges.len()), ("pci0000:3a", 2));
        assert_eq!(hidden.pci, "10000:01:00.0".parse().unwrap());
    }

    #[test]
    fn a_path_that_ends_elsewhere_is_no_function() {
        for path in [
            "",
            "pci0000:10",
            "0000:13:00.0",
            "virtual/infiniband/rxe0",
            "pci0000:10/0000:13:00.0/mlx5_core.sf.4",
            "pci0000:10/0000:13:00.8",
        ] {
            assert_eq!(place(path), None, "{path}");
        }
    }
}
