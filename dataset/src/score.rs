//! Scores a node for a pod: one function for schedulers and for the plans of training jobs.
//!
//! The cast: a [`Standing`] is what a node has for a pod, in plain numbers; [`terms`] makes tenths of it, one [`Terms`]
//! for each reason to prefer a node; [`Weights::total`] makes one number from 0 to 10 of these.
//!
//! In their order of importance:
//! 1. `data`: the part of the pod's datasets that is cached there, counted by what the pod will read. Where nodes share
//!    their caches, that is the part that all of them have together, the same for each of them.
//! 2. `warming`: the same, with what is being fetched there for another pod.
//! 3. `shared`: the part of what nodes share that is in the node's zone.
//! 4. `zone` and `rack`: the part of the pod's group that runs in the same one.
//! 5. `whole`: the devices that the pod takes leave those together that training jobs wait for.
//!
//! A reason that no node can differ in for this pod is no term, and has no part in the total. Whether it is one depends
//! on the pod alone: the same reasons count for all nodes.
//!
//! Invariants: the total follows from the numbers alone, it is never more than [`MOST`], and it never falls when a node
//! holds more. Everything is compared in tenths: a few bytes must not outweigh anything else.

use serde::{Deserialize, Serialize};

/// The best score.
pub const MOST: u8 = 10;

/// What a node has for a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Standing {
    /// The bytes that the pod will read: of each of its datasets, all.
    pub wanted_bytes: u64,
    /// Those of them that are cached where the pod would read them.
    pub held_bytes: u64,
    /// Those that are being fetched there for another pod.
    pub coming_bytes: u64,
    /// The bytes of the pod's datasets that nodes have in shared caches.
    pub shared_bytes: u64,
    /// Those of them that nodes of the same zone have.
    pub shared_near_bytes: u64,
    /// The pods of its group that run.
    pub group: u32,
    /// Those of them that run in the node's zone.
    pub group_in_zone: u32,
    /// Those of them that run in the node's rack.
    pub group_in_rack: u32,
    /// The devices that the pod asks for.
    pub devices: Devices,
}

impl Standing {
    /// Adds a dataset of `wanted` bytes, of which `held` are cached. No more count than are wanted.
    pub fn reads(&mut self, held: u64, wanted: u64) {
        self.wanted_bytes = self.wanted_bytes.saturating_add(wanted);
        self.held_bytes = self.held_bytes.saturating_add(held.min(wanted));
    }
}

/// Devices of a node that a pod asks for, such as GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Devices {
    /// How many the pod asks for.
    pub asked: u32,
    /// How many the node has.
    pub all: u32,
    /// How many of them are free.
    pub free: u32,
    /// How many share a NUMA node and its rail; 0: all of the node.
    pub together: u32,
    /// Training jobs wait for devices.
    pub awaited: bool,
}

/// The reasons to prefer a node, each in tenths; `None` where no node can differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// Cached there.
    pub data: Option<u8>,
    /// Cached there, or being fetched for another pod.
    pub warming: Option<u8>,
    /// In shared caches of the same zone.
    pub shared: Option<u8>,
    /// Of its group, in the same zone.
    pub zone: Option<u8>,
    /// Of its group, in the same rack.
    pub rack: Option<u8>,
    /// Devices that others wait for stay together.
    pub whole: Option<u8>,
}

/// How much each reason counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Weights {
    /// Of [`Terms::data`].
    pub data: u32,
    /// Of [`Terms::warming`].
    pub warming: u32,
    /// Of [`Terms::shared`].
    pub shared: u32,
    /// Of [`Terms::zone`].
    pub zone: u32,
    /// Of [`Terms::rack`].
    pub rack: u32,
    /// Of [`Terms::whole`].
    pub whole: u32,
}

impl Default for Weights {
    fn default() -> Self {
        Self { data: 40, warming: 20, shared: 20, zone: 10, rack: 6, whole: 4 }
    }
}

impl Weights {
    /// The mean of the terms by their weights, rounded down; 0 if nothing counts.
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

/// The terms of a node for a pod.
///
/// ```
/// use larder_dataset::score::{Standing, Weights, terms};
///
/// let mut node = Standing::default();
/// node.reads(95, 100);
/// let terms = terms(&node);
/// assert_eq!((terms.data, terms.zone), (Some(9), None));
/// assert_eq!(Weights::default().total(&terms), 9);
/// ```
pub fn terms(standing: &Standing) -> Terms {
    let held = standing.held_bytes;
    let or_none = |part, whole| (whole > 0).then(|| tenths(part, whole));
    Terms {
        data: or_none(held, standing.wanted_bytes),
        warming: or_none(held.saturating_add(standing.coming_bytes), standing.wanted_bytes),
        shared: or_none(standing.shared_near_bytes, standing.shared_bytes),
        zone: or_none(standing.group_in_zone.into(), standing.group.into()),
        rack: or_none(standing.group_in_rack.into(), standing.group.into()),
        whole: whole(&standing.devices),
    }
}

/// The tenths of `whole` that `part` is, at most ten.
pub fn tenths(part: u64, whole: u64) -> u8 {
    (u128::from(part) * 10).checked_div(u128::from(whole)).unwrap_or(0).min(u128::from(MOST)) as u8
}

/// 10 if the pod leaves as many whole parts of the node as it finds, less those that it fills; 5 if it breaks one, 0 if
/// it breaks a node of which nothing was taken.
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
