//! Scores a node for a pod. Schedulers and the plans of training jobs use this one function.
//!
//! Its parts: [`NodeFacts`] are what a node offers to a pod, in plain numbers; [`terms`] converts it to tenths, one of
//! the [`Terms`] for each reason to prefer a node; [`Weights::total`] combines the terms to one number from 0 to 10.
//!
//! The reasons, in order of importance:
//! 1. `data`: the fraction of the pod's datasets that is cached on the node, by the bytes that the pod will read. If
//!    nodes share their caches, it is the fraction that all of them have together, and is the same for each of them.
//! 2. `warming`: like `data`, including bytes that are being fetched there for another pod.
//! 3. `shared`: the fraction of the bytes in shared caches that is in the node's zone.
//! 4. `zone` and `rack`: the fraction of the pod's group that runs in the same zone or rack.
//! 5. `whole`: the devices that the pod would take leave together those that training jobs wait for.
//!
//! If no node can differ in a reason for this pod, that reason has no term and does not affect the total. This depends
//! only on the pod, so the same reasons count for all nodes.
//!
//! Invariants: the total depends only on the numbers. It is at most [`MOST`], and never falls when a node has more
//! bytes. All numbers are compared in tenths, so that a few bytes do not outweigh another reason.

use serde::{Deserialize, Serialize};

/// The best score.
pub const MOST: u8 = 10;

/// What a node offers to a pod, in plain numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeFacts {
    /// The bytes that the pod will read: the sum over its datasets.
    pub wanted_bytes: u64,
    /// The part of `wanted_bytes` that is cached where the pod would read it.
    pub held_bytes: u64,
    /// The part of `wanted_bytes` that is being fetched there for another pod.
    pub coming_bytes: u64,
    /// The bytes of the pod's datasets in shared caches of all nodes.
    pub shared_bytes: u64,
    /// The part of `shared_bytes` on nodes of the same zone.
    pub shared_near_bytes: u64,
    /// The number of running pods of the pod's group.
    pub group: u32,
    /// The part of `group` that runs in the node's zone.
    pub group_in_zone: u32,
    /// The part of `group` that runs in the node's rack.
    pub group_in_rack: u32,
    /// The devices that the pod requests.
    pub devices: Devices,
}

impl NodeFacts {
    /// Adds a dataset of `wanted` bytes, of which `held` are cached. `held` counts up to `wanted`.
    pub fn reads(&mut self, held: u64, wanted: u64) {
        self.wanted_bytes = self.wanted_bytes.saturating_add(wanted);
        self.held_bytes = self.held_bytes.saturating_add(held.min(wanted));
    }
}

/// Devices of a node that a pod requests, for example GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Devices {
    /// The number of devices that the pod requests.
    pub asked: u32,
    /// The number of devices that the node has.
    pub all: u32,
    /// The number of free devices.
    pub free: u32,
    /// The number of devices that share a NUMA node and its rail. 0 means all devices of the node.
    pub together: u32,
    /// True if training jobs wait for devices.
    pub awaited: bool,
}

/// The reasons to prefer a node, each in tenths. `None` if no node can differ in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// Bytes that are cached on the node.
    pub data: Option<u8>,
    /// Bytes that are cached on the node, or being fetched there for another pod.
    pub warming: Option<u8>,
    /// Bytes in shared caches of the node's zone.
    pub shared: Option<u8>,
    /// Pods of the group in the same zone.
    pub zone: Option<u8>,
    /// Pods of the group in the same rack.
    pub rack: Option<u8>,
    /// Devices that other jobs wait for stay together.
    pub whole: Option<u8>,
}

/// The weights of the reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Weights {
    /// The weight of [`Terms::data`].
    pub data: u32,
    /// The weight of [`Terms::warming`].
    pub warming: u32,
    /// The weight of [`Terms::shared`].
    pub shared: u32,
    /// The weight of [`Terms::zone`].
    pub zone: u32,
    /// The weight of [`Terms::rack`].
    pub rack: u32,
    /// The weight of [`Terms::whole`].
    pub whole: u32,
}

impl Default for Weights {
    fn default() -> Self {
        Self { data: 40, warming: 20, shared: 20, zone: 10, rack: 6, whole: 4 }
    }
}

impl Weights {
    /// The weighted mean of the terms, rounded down. 0 if no term counts.
    pub fn total(&self, terms: &Terms) -> u8 {
        let weighted = [
            (self.data, terms.data),
            (self.warming, terms.warming),
            (self.shared, terms.shared),
            (self.zone, terms.zone),
            (self.rack, terms.rack),
            (self.whole, terms.whole),
        ];
        let (mut sum, mut weights) = (0u64, 0u64);
        for (weight, term) in weighted {
            let Some(tenths) = term else { continue };
            sum += u64::from(weight) * u64::from(tenths.min(MOST));
            weights += u64::from(weight);
        }
        sum.checked_div(weights).unwrap_or(0) as u8
    }
}

/// Computes the terms of a node for a pod.
///
/// ```
/// use larder_dataset::score::{NodeFacts, Weights, terms};
///
/// let mut node = NodeFacts::default();
/// node.reads(95, 100);
/// let terms = terms(&node);
/// assert_eq!((terms.data, terms.zone), (Some(9), None));
/// assert_eq!(Weights::default().total(&terms), 9);
/// ```
pub fn terms(node: &NodeFacts) -> Terms {
    let held = node.held_bytes;
    let or_none = |part, whole| (whole > 0).then(|| tenths(part, whole));
    Terms {
        data: or_none(held, node.wanted_bytes),
        warming: or_none(held.saturating_add(node.coming_bytes), node.wanted_bytes),
        shared: or_none(node.shared_near_bytes, node.shared_bytes),
        zone: or_none(node.group_in_zone.into(), node.group.into()),
        rack: or_none(node.group_in_rack.into(), node.group.into()),
        whole: whole(&node.devices),
    }
}

/// `part` in tenths of `whole`, rounded down, at most ten.
pub fn tenths(part: u64, whole: u64) -> u8 {
    (u128::from(part) * 10).checked_div(u128::from(whole)).unwrap_or(0).min(u128::from(MOST)) as u8
}

/// Rates how a pod breaks up the node's devices. 10 if the pod leaves as many whole groups as it finds, not counting
/// those that it fills; 5 if it breaks one group; 0 if it breaks a node whose devices were all free.
fn whole(devices: &Devices) -> Option<u8> {
    let Devices { asked, all, free, together, awaited } = *devices;
    if asked == 0 || !awaited {
        return None;
    }
    let together = if together == 0 { all.max(1) } else { together };
    let breaks = asked < free && asked > free % together && !asked.is_multiple_of(together);
    Some(match (breaks, free == all) {
        (false, _) => MOST,
        (true, false) => MOST / 2,
        (true, true) => 0,
    })
}

#[cfg(test)]
mod tests;
