//! What a pod wants, and how much of it each node has: from a request and a snapshot to plain numbers, from which `score`
//! and `filter` decide.
//!
//! A [`Question`] is about the pod. A [`Sight`] of the snapshot gives a [`Look`] at each node, without allocating. Questions
//! and looks can be kept: the same answer follows from them again.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodSpec;
pub use larder_api::decision::{Least, Look, Question};
use larder_dataset::SnapshotId;
use larder_dataset::score::{Devices, Standing};
use larder_kube::pod::requests::requests;

use crate::config::Settings;
use crate::index::counts::count_of;
use crate::index::facts::{Name, Read};
use crate::index::state::{GroupState, NodeState, Snapshot, Spread};
use crate::read;
use crate::wire::{Pod, Refused};

/// A dataset of the question.
#[derive(Debug)]
struct Wanted<'s> {
    key: Name,
    snapshot: Option<SnapshotId>,
    bytes: u64,
    copies: Option<u8>,
    spread: Option<&'s Arc<Spread>>,
}

/// The part of a snapshot that a question is about.
#[derive(Debug)]
pub struct Sight<'s> {
    snapshot: &'s Snapshot,
    /// By their places in the question; `None`: there is nothing to hold.
    wanted: Vec<Option<Wanted<'s>>>,
    /// The node must hold a part of it.
    requires: bool,
    group: Option<&'s Arc<GroupState>>,
    /// The kind of devices that the pod asks for, and how many.
    device: usize,
    devices: Devices,
}

/// What the pod asks; `None` if it reads no dataset.
pub fn ask<'s>(
    pod: &Pod<'_>,
    settings: &Settings,
    snapshot: &'s Snapshot,
) -> Result<Option<(Question, Sight<'s>)>, Refused> {
    let (metadata, spec) = (&pod.metadata, pod.spec()?);
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
                        // A claim and an annotation may name the same one.
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
        // Labels of nodes count in tens of percent, and only a change of a label wakes a pod.
        let asked = asked.filter(|asked: &u8| (1..=100).contains(asked)).map(|asked| asked.div_ceil(10) * 10);
        question.required = Some(asked.unwrap_or(percent));
    }
    let group = read::group(settings, namespace, |key| metadata.label(key)).and_then(|name| snapshot.groups.get(&name));
    let (device, devices) = devices(&spec, settings, snapshot);
    let requires = question.required.is_some();
    Ok(Some((question, Sight { snapshot, wanted, requires, group, device, devices })))
}

/// A dataset that a pod reads, and what there is to hold of it. `None`: the claim is not one of Larder's. Errors: there is none, or
/// the pod may not read it; in words that do not tell which.
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
    // A bound claim was granted the dataset.
    let is_readable = |uid: Option<&Name>| match (known, uid) {
        (Some(dataset), Some(uid)) => dataset.uid == *uid,
        (Some(dataset), None) => dataset.is_granted(own, namespace),
        (None, _) => false,
    };
    let Some((name, dataset)) = name.zip(known).filter(|_| is_readable(uid)) else {
        return Err(format!("there is no Dataset {key} that pods of {namespace} may read"));
    };
    // A folder is read as it is.
    let wanted = (!dataset.is_folder).then(|| Wanted {
        key: Arc::clone(name),
        snapshot: dataset.snapshot,
        bytes: dataset.bytes,
        copies: dataset.copies,
        spread: dataset.copies.and(dataset.snapshot.as_ref()).and_then(|id| snapshot.spreads.get(id)),
    });
    Ok(Some((key.to_string(), wanted)))
}

/// The devices that a pod asks for, if training jobs wait for any: their kind, and how many.
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
    /// What the node of this name has for the pod. A node that is not known has nothing.
    pub fn look(&self, name: &str) -> Look<'s> {
        let node = self.node(name);
        let mut look = self.bytes(node);
        self.place(node, &mut look.standing);
        self.bar(node, &mut look);
        look
    }

    /// What the pod can be refused there for, and no more: where no data is required, the bytes are left out.
    pub fn glance(&self, name: &str) -> Look<'s> {
        let node = self.node(name);
        let mut look = if self.requires { self.bytes(node) } else { Look::default() };
        self.bar(node, &mut look);
        look
    }

    fn node(&self, name: &str) -> Option<&'s NodeState> {
        self.snapshot.nodes.get(name).map(|node| &**node)
    }

    /// The bytes that are there, and that come.
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

    /// The pod's group nearby, and the devices.
    fn place(&self, node: Option<&NodeState>, standing: &mut Standing) {
        if let Some(group) = self.group {
            standing.group = group.pods;
            standing.group_in_zone = count_of(&group.zones, node.map_or("", NodeState::zone));
            standing.group_in_rack = count_of(&group.racks, node.map_or("", NodeState::rack));
        }
        standing.devices = self.devices;
        let Some(node) = node.filter(|_| self.devices.asked > 0) else { return };
        let all = node.facts.as_ref().and_then(|facts| facts.devices.get(self.device)).copied().unwrap_or(0);
        let used = node.used.get(self.device).copied().unwrap_or(0);
        standing.devices = Devices { all, free: all.saturating_sub(used), ..self.devices };
    }

    /// Why the node takes no pods that read.
    fn bar(&self, node: Option<&'s NodeState>, look: &mut Look<'s>) {
        let Some(node) = node else { return };
        // Where larderd does not run as a pod, its state is unknown.
        look.is_away = self.snapshot.larderds > 0 && node.larderds == 0;
        look.cordon = node.cordon.as_deref().map(Cow::Borrowed);
    }
}

impl Wanted<'_> {
    /// Adds what a node has of it, and what is to come. Returns the percentage of its own part that the node holds.
    fn on(&self, node: Option<&NodeState>, standing: &mut Standing) -> u8 {
        let here = node.zip(self.snapshot.as_ref()).and_then(|(node, snapshot)| node.holds(snapshot));
        let bytes = here.map_or(0, |here| here.bytes);
        let comes = here.is_some_and(|here| here.comes) || node.is_some_and(|node| node.is_read(&self.key));
        let Some(copies) = self.copies else {
            standing.reads(bytes, self.bytes);
            if comes {
                standing.coming_bytes = standing.coming_bytes.saturating_add(self.bytes.saturating_sub(bytes));
            }
            return percent(bytes, self.bytes);
        };
        // A node that has a share reads the shares of the others, too: what all have together counts for each.
        let (all, near) = self
            .spread
            .map_or((0, 0), |spread| (spread.bytes, count_of(&spread.zones, node.map_or("", NodeState::zone))));
        let together = (all / u64::from(copies.max(1))).min(self.bytes);
        standing.reads(if here.is_some() { together } else { 0 }, self.bytes);
        if comes {
            let rest = if here.is_some() { self.bytes - together } else { self.bytes };
            standing.coming_bytes = standing.coming_bytes.saturating_add(rest);
        }
        standing.shared_bytes = standing.shared_bytes.saturating_add(all);
        standing.shared_near_bytes = standing.shared_near_bytes.saturating_add(near);
        let share = here.map_or(0, |here| here.wanted);
        percent(bytes, if share > 0 { share } else { self.bytes })
    }
}

/// The percentage, rounded down. Of nothing, nothing is there.
fn percent(part: u64, whole: u64) -> u8 {
    (u128::from(part) * 100).checked_div(u128::from(whole)).unwrap_or(0).min(100) as u8
}
