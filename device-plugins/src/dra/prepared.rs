//! Prepares a claim: what the kubelet is told of it, and the CDI file that says what its containers get. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::claim::{Allocated, Uid};
use super::claim_file::{ClaimFile, Prepared, PreparedDevice, WHOLE, qualified};
use crate::cdi::qualified_name;
use crate::config::ResourceConfig;
use crate::grant::{environment, vendor_name, vendor_names};
use crate::machine::{LinkLayer, Machine};
use crate::resource::DeviceKey;

/// A device that is given, with its resource.
#[derive(Clone, Debug)]
pub struct Given<'v> {
    /// What the claim was given.
    pub allocated: Allocated,
    /// The device.
    pub key: &'v DeviceKey,
    /// Its resource.
    pub resource: &'v ResourceConfig,
}

/// Prepares a claim. `vendor` holds the CDI names of others.
///
/// A container has an environment for the devices that it gets, which is one for the request that it uses, or one for the whole
/// claim; the runtime lets the last value of a variable hold.
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
            // It comes by the variable of its request; the name is for the kubelet.
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

/// The link types to which the resources of these devices are bound; none if one of them takes all.
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
