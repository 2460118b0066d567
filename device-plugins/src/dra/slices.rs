//! The ResourceSlices of a node: their desired content, and the writes that produce it. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{Device, ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::names;
use crate::names::DRIVER;

/// Devices per slice. The API allows 128, but only 64 if one of them is tainted. With 64 always, a fault does not move
/// devices to another slice.
pub const DEVICES: usize = 64;

/// The Node object that owns the slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The node's name, which is also the name of its pool.
    pub name: String,
    /// The Node's uid, for the owner reference: Kubernetes deletes the slices with the Node.
    pub uid: String,
}

/// A request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// A new slice.
    Create(ResourceSlice),
    /// A new version of an existing slice.
    Replace(ResourceSlice),
    /// The name and uid of a slice that is no longer needed.
    Delete(String, Option<String>),
}

/// The writes, in order, after which the pool consists of these devices. Until all are done, the scheduler sees that
/// the newest generation is incomplete, and waits.
pub fn writes(owner: &Owner, devices: &[Device], found: &[ResourceSlice]) -> Vec<Write> {
    let parts: Vec<&[Device]> = devices.chunks(DEVICES).collect();
    let mut there: BTreeMap<&str, &ResourceSlice> =
        found.iter().map(|slice| (slice.metadata.name.as_deref().unwrap_or_default(), slice)).collect();
    let newest = found.iter().map(|slice| slice.spec.pool.generation).max();
    let slice = |number: usize, generation| slice(owner, number, parts[number], generation, parts.len());
    let is_right = |number: usize| {
        let wanted = slice(number, newest.unwrap_or_default());
        let name = wanted.metadata.name.as_deref().unwrap_or_default();
        there.get(name).is_some_and(|found| found.spec == wanted.spec)
    };
    if there.len() == parts.len() && (0..parts.len()).all(is_right) {
        return Vec::new();
    }
    let generation = newest.unwrap_or_default().saturating_add(1);
    let mut writes = Vec::new();
    for number in 0..parts.len() {
        let mut slice = slice(number, generation);
        let known = slice.metadata.name.as_deref().and_then(|name| there.remove(name));
        writes.push(match known {
            Some(known) => {
                slice.metadata.resource_version = known.metadata.resource_version.clone();
                Write::Replace(slice)
            }
            None => Write::Create(slice),
        });
    }
    let rest = there.into_iter().map(|(name, slice)| Write::Delete(name.to_owned(), slice.metadata.uid.clone()));
    writes.extend(rest);
    writes
}

fn slice(owner: &Owner, number: usize, devices: &[Device], generation: i64, count: usize) -> ResourceSlice {
    let node = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let pool = ResourcePool { generation, name: owner.name.clone(), resource_slice_count: count as i64 };
    ResourceSlice {
        metadata: ObjectMeta {
            name: Some(names::slice(&owner.name, number)),
            owner_references: Some(vec![node]),
            ..ObjectMeta::default()
        },
        spec: ResourceSliceSpec {
            driver: DRIVER.to_owned(),
            node_name: Some(owner.name.clone()),
            pool,
            devices: Some(devices.to_vec()),
            ..ResourceSliceSpec::default()
        },
    }
}

#[cfg(test)]
mod tests;
