//! All devices that the process has seen. Removed devices stay in the roster, so that the kubelet keeps counting them.
//! Attributes that define resources stay, too: a device that was read only in part, for example while its driver
//! rebinds, keeps its resource.

use std::collections::BTreeSet;

use crate::machine::{Gpu, Hca, Machine, PhysState, Port, PortState};
use crate::resource::DeviceKey;

/// Adds to `seen` the devices of `known` that it lacks, and returns them. A missing slice whose GPU is present, or a
/// missing virtual function whose physical function is present, was removed on purpose and is forgotten. Missing
/// attributes of a present device are filled in from `known`.
pub(super) fn complete(seen: &mut Machine, known: &Machine) -> BTreeSet<DeviceKey> {
    for gpu in &mut seen.gpus {
        if let Some(known) = known.gpus.iter().find(|known| known.uuid == gpu.uuid) {
            complete_gpu(gpu, known);
        }
    }
    for hca in &mut seen.hcas {
        if let Some(known) = known.hcas.iter().find(|known| known.place.pci == hca.place.pci) {
            complete_hca(hca, known);
        }
    }
    let mut gone = BTreeSet::new();
    let gpus: BTreeSet<&String> = seen.gpus.iter().map(|gpu| &gpu.uuid).collect();
    let lost: Vec<_> = known.gpus.iter().filter(|gpu| !gpus.contains(&gpu.uuid)).cloned().collect();
    for gpu in &lost {
        gone.insert(DeviceKey::Gpu(gpu.uuid.clone()));
        gone.extend(gpu.slices().iter().map(|slice| DeviceKey::Slice(slice.uuid.clone())));
    }
    seen.gpus.extend(lost);
    seen.gpus.sort_by(|a, b| (a.place.pci, &a.uuid).cmp(&(b.place.pci, &b.uuid)));

    let hcas: BTreeSet<_> = seen.hcas.iter().map(|hca| hca.place.pci).collect();
    let is_withdrawn = |hca: &Hca| hca.physical_function.is_some_and(|pf| hcas.contains(&pf));
    let lost = known.hcas.iter().filter(|hca| !hcas.contains(&hca.place.pci) && !is_withdrawn(hca)).cloned();
    let lost: Vec<_> = lost.collect();
    gone.extend(lost.iter().map(|hca| DeviceKey::Hca(hca.place.pci)));
    seen.hcas.extend(lost);
    seen.hcas.sort_by_key(|hca| hca.place.pci);
    gone
}

fn complete_gpu(gpu: &mut Gpu, known: &Gpu) {
    if gpu.place.root.is_empty() && gpu.place.pci == known.place.pci {
        gpu.place.clone_from(&known.place);
    }
}

fn complete_hca(hca: &mut Hca, known: &Hca) {
    let texts = [(&mut hca.vendor, &known.vendor), (&mut hca.device, &known.device), (&mut hca.driver, &known.driver)];
    for (text, known) in texts.into_iter().filter(|(text, _)| text.is_empty()) {
        text.clone_from(known);
    }
    if hca.netdevs.is_empty() {
        hca.netdevs.clone_from(&known.netdevs);
    }
    hca.uverbs = hca.uverbs.take().or_else(|| known.uverbs.clone());
    if hca.ports.is_empty() {
        // The ports stay known, but without a state.
        let stateless = |port: &Port| Port { state: PortState::Nop, phys_state: PhysState::Unknown, ..port.clone() };
        hca.ports = known.ports.iter().map(stateless).collect();
    }
}
