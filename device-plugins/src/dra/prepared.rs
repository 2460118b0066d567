//! Prepares a claim: computes the answer to the kubelet, and the CDI file with what the claim's containers get. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::claim::{Allocated, Uid};
use super::claim_file::{ClaimFile, Prepared, PreparedDevice, WHOLE, qualified};
use crate::cdi::qualified_name;
use crate::config::ResourceConfig;
use crate::grant::{environment, vendor_name, vendor_names};
use crate::machine::{LinkLayer, Machine};
use crate::resource::DeviceKey;

/// An allocated device with its resource.
#[derive(Clone, Debug)]
pub struct Given<'v> {
    /// The claim's allocation of this device.
    pub allocated: Allocated,
    pub key: &'v DeviceKey,
    pub resource: &'v ResourceConfig,
}

/// Prepares a claim. `vendor` has the CDI names in other programs' files.
///
/// A container gets an environment for its devices: one for the request that it uses, or one for the whole claim. If a
/// variable is set twice, the runtime uses the last value.
pub fn prepare(
    machine: &Machine,
    uid: &Uid,
    claim: String,
    given: &[Given<'_>],
    vendor: &BTreeSet<String>,
) -> (Prepared, ClaimFile) {
    let keys = |of: &dyn Fn(&Given<'_>) -> bool| given.iter().filter(|it| of(it)).map(|it| it.key).collect();
    let are_named = vendor_names(machine, &keys(&|_| true), vendor).is_some();
    let mut edited = BTreeMap::new();
    let mut edit = |what: &str, env: BTreeMap<String, String>| {
        let claim = format!("LARDER_CLAIM={}", uid.as_str());
        let env = env.into_iter().map(|(name, value)| format!("{name}={value}")).chain([claim]).collect();
        let name = format!("{}.{what}", uid.as_str());
        let qualified = qualified(&name);
        edited.insert(name, env);
        qualified
    };
    let requests: BTreeSet<&str> = given.iter().map(|it| it.allocated.request.as_str()).collect();
    let mut names = BTreeMap::new();
    for request in &requests {
        let environment = environment(
            machine,
            &keys(&|it| it.allocated.request == *request),
            are_named,
            &link_types(given.iter().filter(|it| it.allocated.request == *request)),
        );
        names.insert(*request, edit(&format!("request.{request}"), environment));
    }
    let mut devices = Vec::new();
    for it in given {
        let own = match it.key {
            DeviceKey::Hca(pci) => qualified_name(*pci),
            DeviceKey::Gpu(uuid) | DeviceKey::Slice(uuid) if are_named => vendor_name(uuid),
            // The container gets the GPU through the variable of its request. The device's own CDI name exists only for
            // the kubelet's health report.
            DeviceKey::Gpu(_) | DeviceKey::Slice(_) => {
                edit(&format!("device.{}", it.allocated.device), BTreeMap::new())
            }
        };
        let Allocated { request, device, share, admin } = it.allocated.clone();
        let cdi = vec![own, names[request.as_str()].clone()];
        devices.push(PreparedDevice { request, device, share, admin, cdi });
    }
    if requests.len() > 1
        && let Some(last) = devices.last().cloned()
    {
        let whole = environment(machine, &keys(&|_| true), are_named, &link_types(given.iter()));
        let cdi = last.cdi.into_iter().take(1).chain([edit("claim", whole)]).collect();
        devices.push(PreparedDevice { request: WHOLE.to_owned(), cdi, ..last });
    }
    let prepared = Prepared { claim, devices };
    let file = ClaimFile::new(&prepared, edited);
    (prepared, file)
}

/// The link types that the resources of these devices select; empty if one of the resources selects all.
fn link_types<'g>(given: impl Iterator<Item = &'g Given<'g>>) -> Vec<LinkLayer> {
    let mut types = Vec::new();
    for it in given.filter(|it| matches!(it.key, DeviceKey::Hca(_))) {
        if it.resource.select.link_types.is_empty() {
            return Vec::new();
        }
        types.extend(&it.resource.select.link_types);
    }
    types
}

#[cfg(test)]
mod tests;
