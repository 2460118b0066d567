//! A pod's datasets, and how much of them each node holds: converts a request and a snapshot to plain numbers, from
//! which `score` and `filter` decide.
//!
//! A [`Question`] describes the pod. A [`Sight`] of the snapshot yields a [`Look`] at each node, without allocating.
//! Questions and looks can be stored, and yield the same answer again.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodSpec;
pub use larder_api::decision::{Least, Look, Question};
use larder_dataset::CacheId;
use larder_dataset::score::{Devices, NodeFacts};
use larder_kube::pod::requests::requests;

use crate::config::Settings;
use crate::index::counts::count_of;
use crate::index::facts::{Name, Read};
use crate::index::state::{GroupState, NodeState, Snapshot, Spread};
use crate::read;
use crate::wire::{Pod, Refused, Spec};

/// A dataset that the pod reads.
#[derive(Debug)]
struct Wanted<'s> {
    key: Name,
    cache: Option<CacheId>,
    bytes: u64,
    copies: Option<u8>,
    spread: Option<&'s Arc<Spread>>,
}

/// The part of a snapshot that a question needs.
#[derive(Debug)]
pub struct Sight<'s> {
    snapshot: &'s Snapshot,
    /// In the order of the question's datasets; `None` if there is nothing to hold.
    wanted: Vec<Option<Wanted<'s>>>,
    /// The pod requires a node to hold a part of its data.
    requires: bool,
    group: Option<&'s Arc<GroupState>>,
    /// The requested device kind, and how many devices.
    device: usize,
    devices: Devices,
}

/// Builds the question of a pod; `None` if the pod reads no dataset.
pub fn ask<'s>(
    pod: &Pod<'_>,
    settings: &Settings,
    snapshot: &'s Snapshot,
) -> Result<Option<(Question, Sight<'s>)>, Refused> {
    let (metadata, Spec { spec, .. }) = (&pod.metadata, pod.spec()?);
    let annotations = metadata.annotations();
    let namespace = &*metadata.namespace;
    let reads = read::reads(namespace, &spec, annotations.datasets.as_deref());
    let (weights, percent) = settings.of(spec.scheduler_name.as_deref().unwrap_or_default());
    let mut question = Question { weights, ..Question::default() };
    let mut wanted = Vec::new();
    match reads {
        Ok(reads) => {
            for read in &reads {
                match find(read, namespace, snapshot) {
                    Ok(None) => {}
                    Ok(Some((key, one))) => {
                        // A claim and an annotation may name the same dataset.
                        if !question.datasets.contains(&key) {
                            question.datasets.push(key);
                            wanted.push(one);
                        }
                    }
                    Err(trouble) => question.trouble = question.trouble.or(Some(trouble)),
                }
            }
        }
        Err(trouble) => question.trouble = Some(trouble),
    }
    if question.datasets.is_empty() && question.trouble.is_none() {
        return Ok(None);
    }
    question.pod = pod.key();
    question.uid = metadata.uid.clone().into_owned();
    if annotations.data.as_deref() == Some("required") {
        let asked = annotations.min_warm.as_deref().and_then(|text| text.trim().parse().ok());
        // Node labels are in steps of ten percent, and only a change of a label makes the scheduler retry a pod. So the
        // requirement is rounded up to tens.
        let asked = asked.filter(|asked: &u8| (1..=100).contains(asked)).map(|asked| asked.div_ceil(10) * 10);
        question.required = Some(asked.unwrap_or(percent));
    }
    let group = read::group(settings, namespace, |key| metadata.label(key)).and_then(|name| snapshot.groups.get(&name));
    let (device, devices) = devices(&spec, settings, snapshot);
    let requires = question.required.is_some();
    Ok(Some((question, Sight { snapshot, wanted, requires, group, device, devices })))
}

/// A dataset that a pod reads, and what a node can hold of it. `None`: the claim is not one of Larder's. Fails if the
/// dataset does not exist or the pod may not read it; the message does not reveal which.
fn find<'s>(
    read: &Read,
    namespace: &str,
    snapshot: &'s Snapshot,
) -> Result<Option<(String, Option<Wanted<'s>>)>, String> {
    let (key, uid) = match read {
        Read::Dataset(key) => (key, None),
        Read::Claim(claim) => match snapshot.claims.get(claim) {
            Some((key, uid)) => (key, Some(uid)),
            None => return Ok(None),
        },
    };
    let own = key.split_once('/').map_or("", |(own, _)| own);
    let (name, known) = snapshot.datasets.entry(key).unzip();
    // A bound claim was granted access to the dataset.
    let is_readable = |uid: Option<&Name>| match (known, uid) {
        (Some(dataset), Some(uid)) => dataset.uid == *uid,
        (Some(dataset), None) => dataset.is_granted(own, namespace),
        (None, _) => false,
    };
    let Some((name, dataset)) = name.zip(known).filter(|_| is_readable(uid)) else {
        return Err(format!("there is no Dataset {key} that pods of {namespace} may read"));
    };
    // A directory is read in place, so there is nothing to hold.
    let wanted = (!dataset.is_folder).then(|| Wanted {
        key: Arc::clone(name),
        cache: dataset.cache,
        bytes: dataset.bytes,
        copies: dataset.copies,
        spread: dataset.copies.and(dataset.cache.as_ref()).and_then(|id| snapshot.spreads.get(id)),
    });
    Ok(Some((key.to_string(), wanted)))
}

/// The device kind that a pod requests, and how many, if training jobs wait for any devices.
fn devices(spec: &PodSpec, settings: &Settings, snapshot: &Snapshot) -> (usize, Devices) {
    if snapshot.waiting_jobs == 0 || settings.devices.is_empty() {
        return (0, Devices::default());
    }
    let requests = requests(spec);
    let asked = |at: usize| u32::try_from(requests.get(&settings.devices[at].resource)).unwrap_or(u32::MAX);
    let at = (0..settings.devices.len()).find(|at| asked(*at) > 0).unwrap_or(0);
    let together = settings.devices[at].together;
    (at, Devices { asked: asked(at), together, awaited: true, ..Devices::default() })
}

impl<'s> Sight<'s> {
    /// What the node of this name offers the pod. An unknown node offers nothing.
    pub fn look(&self, name: &str) -> Look<'s> {
        let node = self.node(name);
        let mut look = self.bytes(node);
        self.place(node, &mut look.standing);
        self.bar(node, &mut look);
        look
    }

    /// Like [`Self::look`], but only with the facts that can exclude the node. Bytes are omitted if the pod does not
    /// require data.
    pub fn glance(&self, name: &str) -> Look<'s> {
        let node = self.node(name);
        let mut look = if self.requires { self.bytes(node) } else { Look::default() };
        self.bar(node, &mut look);
        look
    }

    fn node(&self, name: &str) -> Option<&'s NodeState> {
        self.snapshot.nodes.get(name).map(|node| &**node)
    }

    /// The bytes that the node holds, and the bytes that it is fetching.
    fn bytes(&self, node: Option<&NodeState>) -> Look<'s> {
        let mut look = Look::default();
        for (at, wanted) in self.wanted.iter().enumerate() {
            let Some(wanted) = wanted else { continue };
            let percent = wanted.on(node, &mut look.standing);
            if look.least.is_none_or(|least| percent < least.percent) {
                look.least = Some(Least { dataset: at, percent });
            }
        }
        look
    }

    /// The pods of the group nearby, and the devices.
    fn place(&self, node: Option<&NodeState>, facts: &mut NodeFacts) {
        if let Some(group) = self.group {
            facts.group = group.pods;
            facts.group_in_zone = count_of(&group.zones, node.map_or("", NodeState::zone));
            facts.group_in_rack = count_of(&group.racks, node.map_or("", NodeState::rack));
        }
        facts.devices = self.devices;
        let Some(node) = node.filter(|_| self.devices.asked > 0) else { return };
        let all = node.facts.as_ref().and_then(|facts| facts.devices.get(self.device)).copied().unwrap_or(0);
        let used = node.used.get(self.device).copied().unwrap_or(0);
        facts.devices = Devices { all, free: all.saturating_sub(used), ..self.devices };
    }

    /// Whether the node accepts pods that read datasets.
    fn bar(&self, node: Option<&'s NodeState>, look: &mut Look<'s>) {
        let Some(node) = node else { return };
        // If larderd does not run as pods in this cluster, its state is unknown.
        look.is_away = self.snapshot.larderds > 0 && node.larderds == 0;
        look.cordon = node.cordon.as_deref().map(Cow::Borrowed);
    }
}

impl Wanted<'_> {
    /// Adds what a node holds of the dataset, and what it is fetching. Returns the percentage of its share that the
    /// node holds.
    fn on(&self, node: Option<&NodeState>, facts: &mut NodeFacts) -> u8 {
        let here = node.zip(self.cache.as_ref()).and_then(|(node, cache)| node.holds(cache));
        let bytes = here.map_or(0, |here| here.bytes);
        let comes = here.is_some_and(|here| here.comes) || node.is_some_and(|node| node.is_read(&self.key));
        let Some(copies) = self.copies else {
            facts.reads(bytes, self.bytes);
            if comes {
                facts.coming_bytes = facts.coming_bytes.saturating_add(self.bytes.saturating_sub(bytes));
            }
            return percent(bytes, self.bytes);
        };
        // A node with a share also reads the shares of the other nodes, so the bytes of all nodes together count for
        // each.
        let (all, near) = self
            .spread
            .map_or((0, 0), |spread| (spread.bytes, count_of(&spread.zones, node.map_or("", NodeState::zone))));
        let together = (all / u64::from(copies.max(1))).min(self.bytes);
        facts.reads(if here.is_some() { together } else { 0 }, self.bytes);
        if comes {
            let rest = if here.is_some() { self.bytes - together } else { self.bytes };
            facts.coming_bytes = facts.coming_bytes.saturating_add(rest);
        }
        facts.shared_bytes = facts.shared_bytes.saturating_add(all);
        facts.shared_near_bytes = facts.shared_near_bytes.saturating_add(near);
        let share = here.map_or(0, |here| here.wanted);
        percent(bytes, if share > 0 { share } else { self.bytes })
    }
}

/// The percentage, rounded down. The percentage of an empty whole is 0.
fn percent(part: u64, whole: u64) -> u8 {
    (u128::from(part) * 100).checked_div(u128::from(whole)).unwrap_or(0).min(100) as u8
}
