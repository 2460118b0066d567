//! Devices, as events and conditions write them.

use crate::machine::Machine;
use crate::resource::DeviceKey;

/// A device's name for people: the one that tools show, and where it is.
pub fn device(machine: &Machine, key: &DeviceKey) -> String {
    known(machine, key).unwrap_or_else(|| match key {
        DeviceKey::Gpu(_) => format!("GPU {key}"),
        DeviceKey::Slice(_) => format!("slice {key}"),
        DeviceKey::Hca(_) => format!("HCA {key}"),
    })
}

/// The same of a device that the machine has; `None` of one that it has not.
pub fn known(machine: &Machine, key: &DeviceKey) -> Option<String> {
    match key {
        DeviceKey::Gpu(uuid) => machine.gpus.iter().find(|gpu| gpu.uuid == *uuid).map(|gpu| {
            let pci = gpu.place.pci;
            format!("GPU {} ({uuid}, {pci})", gpu.minor)
        }),
        DeviceKey::Slice(uuid) => machine.gpus.iter().find_map(|gpu| {
            let slice = gpu.slices().iter().find(|slice| slice.uuid == *uuid)?;
            Some(format!("slice {} of GPU {} ({uuid})", slice.profile, gpu.minor))
        }),
        DeviceKey::Hca(pci) => {
            machine.hcas.iter().find(|hca| hca.place.pci == *pci).map(|hca| format!("{} ({pci})", hca.name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Gpu, Hca, MigSlice, Place};

    #[test]
    fn a_device_has_the_name_that_tools_show_also_when_it_is_gone() {
        let place = |pci: &str| Place { pci: pci.parse().unwrap(), ..Place::default() };
        let slices = vec![MigSlice { uuid: "MIG-1".into(), profile: "1g.10gb".into(), ..MigSlice::default() }];
        let gpu =
            Gpu { uuid: "GPU-1".into(), minor: 3, place: place("0000:13:00.0"), mig: Some(slices), ..Gpu::default() };
        let hca = Hca { name: "mlx5_2".into(), place: place("0000:14:00.0"), ..Hca::default() };
        let machine = Machine { gpus: vec![gpu], hcas: vec![hca], ..Machine::default() };
        let hca = DeviceKey::Hca("0000:14:00.0".parse().unwrap());
        for (key, shown, gone) in [
            (DeviceKey::Gpu("GPU-1".into()), "GPU 3 (GPU-1, 0000:13:00.0)", "GPU GPU-1"),
            (DeviceKey::Slice("MIG-1".into()), "slice 1g.10gb of GPU 3 (MIG-1)", "slice MIG-1"),
            (hca, "mlx5_2 (0000:14:00.0)", "HCA 0000:14:00.0"),
        ] {
            assert_eq!(device(&machine, &key), shown);
            assert_eq!(device(&Machine::default(), &key), gone);
        }
    }
}
