//! The devices of resources with `mode: dra`, in the form that ResourceSlices have. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{CapacityRequestPolicy, Device, DeviceAttribute, DeviceCapacity, DeviceTaint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::names;
use crate::config::{Kind, Mode, ResourceConfig};
use crate::health::{Fault, Reason};
use crate::machine::{Gpu, Hca, LinkLayer, Machine, MigSlice, Place, Port};
use crate::resource::{DeviceKey, Unit};
use crate::view::View;

/// The taint key of a device that is out of service. The taint's value is the reason.
pub const FAULT_TAINT: &str = "larder.dev/fault";

/// The API's limit for a string attribute, in bytes.
const TEXT_BYTES: usize = 64;

/// A device that a resource offers through DRA.
#[derive(Clone, Debug)]
pub struct Offered<'v> {
    pub key: &'v DeviceKey,
    pub resource: &'v ResourceConfig,
    /// The unit of the resource that the device belongs to.
    unit: &'v Unit,
}

/// The devices that are offered through DRA, keyed by their DRA names. A rail's GPU and HCA are two devices.
pub fn offered(view: &View) -> BTreeMap<String, Offered<'_>> {
    let resources = view.resources.iter().filter(|resource| resource.config.mode == Mode::Dra);
    let units = resources.flat_map(|resource| resource.units.iter().map(move |unit| (&resource.config, unit)));
    let devices =
        units.flat_map(|(resource, unit)| unit.devices.iter().map(move |key| Offered { key, resource, unit }));
    devices.map(|device| (names::device(device.key), device)).collect()
}

/// The devices to publish: the offered devices without `held_back`.
pub fn devices(view: &View, held_back: &BTreeSet<DeviceKey>) -> Vec<Device> {
    let offered = offered(view).into_iter().filter(|(_, offered)| !held_back.contains(offered.key));
    offered.filter_map(|(name, offered)| device(view, name, &offered)).collect()
}

fn device(view: &View, name: String, offered: &Offered<'_>) -> Option<Device> {
    let mut published = Published::default();
    published.text("resource", offered.resource.name.as_str());
    match find(&view.machine, offered.key)? {
        Found::Gpu(gpu, slice) => published.gpu(gpu, slice, view.machine.gpu_driver.as_deref()),
        Found::Hca(hca) => published.hca(hca),
    }
    if offered.resource.kind == Kind::Rail {
        published.text("rail", &offered.unit.id);
    }
    let is_shared = offered.resource.share > 1;
    if is_shared {
        published.shares(offered.resource.share);
    }
    // `HeldElsewhere` is not published as a taint: such a device is either held back, or about to be offered.
    let fault = view.faults.get(offered.key).filter(|fault| fault.reason != Reason::HeldElsewhere);
    Some(Device {
        name,
        attributes: Some(published.attributes),
        capacity: (!published.capacity.is_empty()).then_some(published.capacity),
        taints: fault.map(|fault| vec![taint(fault)]),
        allow_multiple_allocations: is_shared.then_some(true),
        ..Device::default()
    })
}

enum Found<'m> {
    Gpu(&'m Gpu, Option<&'m MigSlice>),
    Hca(&'m Hca),
}

fn find<'m>(machine: &'m Machine, key: &DeviceKey) -> Option<Found<'m>> {
    match key {
        DeviceKey::Gpu(uuid) => machine.gpus.iter().find(|gpu| gpu.uuid == *uuid).map(|gpu| Found::Gpu(gpu, None)),
        DeviceKey::Slice(uuid) => machine.gpus.iter().find_map(|gpu| {
            let slice = gpu.slices().iter().find(|slice| slice.uuid == *uuid)?;
            Some(Found::Gpu(gpu, Some(slice)))
        }),
        DeviceKey::Hca(pci) => machine.hcas.iter().find(|hca| hca.place.pci == *pci).map(Found::Hca),
    }
}

/// The taint of a device that is out of service. The effect is `NoSchedule`, so running pods keep the device, as with
/// the device plugin. The node's condition says whether they can continue. `NoExecute` would not reach pods whose claim
/// was created for an extended resource.
fn taint(fault: &Fault) -> DeviceTaint {
    // In whole seconds, as the API server stores times. If the time were absent, the API server would set it on each
    // write.
    let since = fault.since.duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let since = i64::try_from(since).ok().and_then(|since| Timestamp::from_second(since).ok()).unwrap_or_default();
    DeviceTaint {
        key: FAULT_TAINT.to_owned(),
        value: Some(fault.reason.name().to_owned()),
        effect: "NoSchedule".to_owned(),
        time_added: Some(Time(since)),
    }
}

#[derive(Default)]
struct Published {
    attributes: BTreeMap<String, DeviceAttribute>,
    capacity: BTreeMap<String, DeviceCapacity>,
}

impl Published {
    fn gpu(&mut self, gpu: &Gpu, slice: Option<&MigSlice>, driver: Option<&str>) {
        self.place(&gpu.place);
        self.text("model", &gpu.model);
        self.text("driverVersion", driver.unwrap_or_default());
        match slice {
            None => {
                self.text("kind", "gpu");
                self.text("uuid", &gpu.uuid);
                self.memory(gpu.memory_bytes);
            }
            Some(slice) => {
                self.text("kind", "mig");
                self.text("uuid", &slice.uuid);
                self.text("gpu", &gpu.uuid);
                self.text("profile", &slice.profile);
                self.memory(slice.memory_bytes);
            }
        }
    }

    fn hca(&mut self, hca: &Hca) {
        self.place(&hca.place);
        self.text("kind", "hca");
        self.text("name", &hca.name);
        self.text("kernelDriver", &hca.driver);
        let link_layer = hca.ports.first().map(|port| port.link_layer).unwrap_or_default();
        let link_layer = match link_layer {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
            LinkLayer::Unknown => "",
        };
        self.text("linkLayer", link_layer);
        let rate = hca.ports.iter().map(Port::whole_gbps).max().unwrap_or_default();
        if rate > 0 {
            self.number("rateGbps", rate.into());
        }
    }

    fn place(&mut self, place: &Place) {
        self.text("resource.kubernetes.io/pcieRoot", &place.root);
        self.text("resource.kubernetes.io/pciBusID", &place.pci.to_string());
        if let Some(numa) = place.numa {
            self.number("resource.kubernetes.io/numaNode", numa.into());
        }
    }

    /// Adds a string attribute. An unknown value is left out, so that a `matchAttribute` constraint does not match two
    /// unknown values.
    fn text(&mut self, name: &str, text: &str) {
        let cut = (0..=TEXT_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        if cut > 0 {
            let attribute = DeviceAttribute { string: Some(text[..cut].to_owned()), ..DeviceAttribute::default() };
            self.attributes.insert(name.to_owned(), attribute);
        }
    }

    fn number(&mut self, name: &str, number: i64) {
        let attribute = DeviceAttribute { int: Some(number), ..DeviceAttribute::default() };
        self.attributes.insert(name.to_owned(), attribute);
    }

    fn memory(&mut self, bytes: u64) {
        if bytes >= 1024 {
            let capacity = DeviceCapacity { value: binary(bytes), request_policy: None };
            self.capacity.insert("memory".to_owned(), capacity);
        }
    }

    /// Lets up to `share` claims have the device at the same time, one share each.
    fn shares(&mut self, share: u16) {
        let one = || Quantity("1".to_owned());
        let policy = CapacityRequestPolicy { default: Some(one()), valid_values: Some(vec![one()]), valid_range: None };
        let capacity = DeviceCapacity { value: Quantity(share.to_string()), request_policy: Some(policy) };
        self.capacity.insert("shares".to_owned(), capacity);
    }
}

/// A size in whole KiB, in the API server's canonical form: the published device must equal the device that the API
/// server returns.
fn binary(bytes: u64) -> Quantity {
    let mut units = ["Ki", "Mi", "Gi", "Ti", "Pi"].into_iter();
    let (mut number, mut unit) = (bytes / 1024, units.next());
    while number.is_multiple_of(1024)
        && number > 0
        && let Some(next) = units.next()
    {
        (number, unit) = (number / 1024, Some(next));
    }
    Quantity(format!("{number}{}", unit.unwrap_or_default()))
}

#[cfg(test)]
mod tests;
