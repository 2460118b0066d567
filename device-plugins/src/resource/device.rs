//! Which resources select a device, and what prevents a device from being offered.

use std::collections::BTreeSet;

use super::units::{DeviceKey, Exclusion, UUID_BYTES_MAX};
use crate::config::{Kind, Select};
use crate::machine::{Gpu, Hca, Machine, MigSlice, RdmaMode};

/// A device.
#[derive(Clone, Copy)]
pub(super) enum Device<'m> {
    Gpu(&'m Gpu),
    Slice(&'m Gpu, &'m MigSlice),
    Hca(&'m Hca),
}

impl<'m> Device<'m> {
    /// All devices of a machine.
    pub(super) fn all(machine: &'m Machine) -> Vec<Self> {
        let slices = |gpu: &'m Gpu| gpu.slices().iter().map(move |slice| Self::Slice(gpu, slice));
        let gpus = machine.gpus.iter().flat_map(|gpu| std::iter::once(Self::Gpu(gpu)).chain(slices(gpu)));
        gpus.chain(machine.hcas.iter().map(Self::Hca)).collect()
    }

    pub(super) fn key(self) -> DeviceKey {
        match self {
            Self::Gpu(gpu) => DeviceKey::Gpu(gpu.uuid.clone()),
            Self::Slice(_, slice) => DeviceKey::Slice(slice.uuid.clone()),
            Self::Hca(hca) => DeviceKey::Hca(hca.place.pci),
        }
    }

    pub(super) fn numa(self) -> Option<u32> {
        match self {
            Self::Gpu(gpu) | Self::Slice(gpu, _) => gpu.place.numa,
            Self::Hca(hca) => hca.place.numa,
        }
    }

    /// True if a resource of this kind selects the device.
    pub(super) fn is_selected(self, kind: Kind, select: &Select) -> bool {
        let has =
            |list: &[String], text: &str| list.is_empty() || list.iter().any(|one| one.eq_ignore_ascii_case(text));
        let is_part = |list: &[String], texts: &[&str]| {
            let is_in = |part: &String, text: &&str| text.to_lowercase().contains(&part.to_lowercase());
            list.is_empty() || list.iter().any(|part| texts.iter().any(|text| is_in(part, text)))
        };
        // A rail's `uuids` holds the UUIDs of GPUs and the GUIDs of HCAs.
        let is_one_of = |is_hca: bool, uuids: &[&str]| {
            let mut list = select.uuids.iter().filter(|uuid| kind != Kind::Rail || uuid.starts_with("GPU-") != is_hca);
            let is_any = list.clone().next().is_none();
            is_any || list.any(|one| uuids.iter().any(|uuid| one.eq_ignore_ascii_case(uuid)))
        };
        match (self, kind) {
            (Self::Gpu(gpu), Kind::Gpu | Kind::Rail) => {
                is_part(&select.models, &[&gpu.model]) && is_one_of(false, &[&gpu.uuid])
            }
            (Self::Slice(gpu, slice), Kind::Mig) => {
                is_part(&select.models, &[&gpu.model, &slice.profile]) && is_one_of(false, &[&gpu.uuid, &slice.uuid])
            }
            (Self::Hca(hca), Kind::Rdma | Kind::Rail) => {
                has(&select.vendors, &hca.vendor)
                    && has(&select.device_ids, &hca.device)
                    && has(&select.drivers, &hca.driver)
                    && (select.if_names.is_empty() || hca.netdevs.iter().any(|name| select.if_names.contains(name)))
                    && (select.link_types.is_empty()
                        || hca.ports.iter().any(|port| select.link_types.contains(&port.link_layer)))
                    && is_one_of(true, &[&hca.node_guid])
            }
            _ => false,
        }
    }

    /// Why no resource can offer it, if none can.
    fn obstacle(self, machine: &Machine) -> Option<Exclusion> {
        let uuid = |uuid: &str| {
            let is_valid =
                (1..=UUID_BYTES_MAX).contains(&uuid.len()) && uuid.bytes().all(|byte| byte.is_ascii_graphic());
            (!is_valid).then_some(Exclusion::Uuid)
        };
        match self {
            Self::Gpu(Gpu { mig: Some(_), .. }) => Some(Exclusion::MigMode),
            Self::Gpu(gpu) => uuid(&gpu.uuid),
            Self::Slice(_, slice) => uuid(&slice.uuid),
            Self::Hca(_) if machine.rdma_mode == RdmaMode::Exclusive => Some(Exclusion::ExclusiveNamespaces),
            Self::Hca(hca) if hca.uverbs.is_none() => Some(Exclusion::NoUverbs),
            Self::Hca(_) => None,
        }
    }
}

/// A device, and the resources that select it.
pub(super) struct Candidate<'m> {
    pub(super) device: Device<'m>,
    pub(super) key: DeviceKey,
    /// Their indexes in the configuration.
    pub(super) resources: Vec<usize>,
    /// Why none of them can offer it.
    pub(super) obstacle: Option<Exclusion>,
}

/// The devices that a resource selects.
pub(super) fn candidates<'m>(machine: &'m Machine, resources: &[crate::config::ResourceConfig]) -> Vec<Candidate<'m>> {
    let mut seen = BTreeSet::new();
    let candidate = |device: Device<'m>| {
        let is_selected = |nth: &usize| device.is_selected(resources[*nth].kind, &resources[*nth].select);
        let key = device.key();
        let twice = (!seen.insert(key.clone())).then(|| Exclusion::Duplicate(key.clone()));
        let obstacle = device.obstacle(machine).or(twice);
        Candidate { device, key, resources: (0..resources.len()).filter(is_selected).collect(), obstacle }
    };
    let all: Vec<Candidate<'m>> = Device::all(machine).into_iter().map(candidate).collect();
    all.into_iter().filter(|candidate| !candidate.resources.is_empty()).collect()
}
