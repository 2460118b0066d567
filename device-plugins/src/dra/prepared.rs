//! A claim that is prepared: what the kubelet is told of it, and the CDI file that says what its containers get. Pure.
//!
//! The file is all that is remembered of a claim: the kubelet's answer is in an annotation of it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::claim::{Allocated, Uid};
use crate::cdi::qualified_name;
use crate::config::ResourceConfig;
use crate::grant::{environment, vendor_name, vendor_names};
use crate::machine::{LinkLayer, Machine};
use crate::names::{CDI_CLAIM, CDI_VENDOR};
use crate::resource::DeviceKey;

/// The annotation of the file.
const PREPARED: &str = "devices.larder.dev/prepared";

/// Stands for all requests of a claim; no request is called so. The kubelet gives what is prepared for it to containers that use
/// the whole claim, and to no container that uses one request of it.
const WHOLE: &str = "*";

/// A claim as it was prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// Its namespace and name, for people.
    pub claim: String,
    /// What was prepared.
    pub devices: Vec<PreparedDevice>,
}

/// A device of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreparedDevice {
    /// The request that it is for.
    pub request: String,
    /// Its name in the pool.
    pub device: String,
    /// Which of several shares of the device it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// True if it is for an administrator, beside whoever has the device.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub admin: bool,
    /// CDI names: first that of the device, by which the kubelet tells of its health, and then that of its request.
    pub cdi: Vec<String>,
}

impl Prepared {
    /// True if this is what the claim was given.
    pub fn is_of(&self, allocated: &[Allocated]) -> bool {
        let devices = self.devices.iter().filter(|device| device.request != WHOLE);
        let of = |device: &PreparedDevice| Allocated {
            request: device.request.clone(),
            device: device.device.clone(),
            share: device.share.clone(),
            admin: device.admin,
        };
        devices.map(of).eq(allocated.iter().cloned())
    }
}

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

/// The CDI file of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimFile {
    cdi_version: String,
    kind: String,
    annotations: BTreeMap<String, String>,
    devices: Vec<Edited>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Edited {
    name: String,
    container_edits: Edits,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Edits {
    env: Vec<String>,
}

impl ClaimFile {
    /// What the file says of the claim; `None` if it is none of ours.
    pub fn prepared(&self) -> Option<Prepared> {
        serde_json::from_str(self.annotations.get(PREPARED)?).ok()
    }
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
        edited.insert(name.clone(), Edits { env });
        format!("{CDI_VENDOR}/{CDI_CLAIM}={name}")
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
    let annotation = serde_json::to_string(&prepared).unwrap_or_default();
    let file = ClaimFile {
        // The lowest that knows annotations.
        cdi_version: "0.6.0".to_owned(),
        kind: format!("{CDI_VENDOR}/{CDI_CLAIM}"),
        annotations: BTreeMap::from([(PREPARED.to_owned(), annotation)]),
        devices: edited.into_iter().map(|(name, container_edits)| Edited { name, container_edits }).collect(),
    };
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
