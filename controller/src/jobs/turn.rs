//! One job in a round. Each phase is a type that only the previous phase can construct:
//!
//! | phase | what is known by then | made by |
//! |---|---|---|
//! | [`Checked`] | the spec, the type, the pods, whether the job may start | [`check::check`] |
//! | [`decide::Stepped`] | the state after all that has happened to the pods | [`Checked::step`] |
//! | [`decide::Ruled`] | what Larder's queues decide | [`decide::Stepped::rule`] |
//! | [`decide::Placed`] | nodes for pods that have lost theirs | [`decide::Ruled::place`] |
//! | [`decide::Decided`] | what Kueue decides | [`decide::Placed::ask_kueue`] |
//! | [`write::Written`] | all writes | [`decide::Decided::write`] |
//!
//! Every job goes through all phases, unless it rests ([`rest`]). Its check decides once whether they may change it, as
//! its [`Mode`] says.

pub(super) mod check;
pub(super) mod decide;
mod kueue;
pub(super) mod rest;
pub(super) mod room;
mod write;
pub(super) mod writes;

use std::collections::{BTreeMap, BTreeSet};

use larder_api::Phase;
use larder_api::job_type::checked::CheckedType;
use larder_api::training_job::checked::{CheckedJob, Queueing};

use crate::jobs::cluster_view::{ClusterView, Seen, dataset_key};
use crate::jobs::eligibility::Eligibility;
use crate::jobs::job_state::{JobState, Record};
use crate::jobs::kueue::places::confine;
use crate::jobs::machine::loss::uses_quota;
use crate::jobs::machine::{Observed, PodId, Slot, State, unplaced};
use crate::jobs::objects::JobObject;
use crate::jobs::plan::{Cluster, Gang, Want};
use crate::jobs::pod_group::choice::Planner;
use crate::jobs::queue;
use crate::jobs::render::{Place, Rendered};
use larder_kube::key::Key;

/// A job whose check is complete.
pub(super) struct Checked<'a>(JobInRound<'a>);

/// A job with everything that its check has found: the input of all phases. They change only its state, and the data in
/// `observed`, which depends on the nodes of that state.
pub(super) struct JobInRound<'a> {
    object: &'a JobObject,
    job_state: &'a mut JobState,
    eligibility: Eligibility,
    mode: Mode<'a>,
    /// `None`: the job has ended and needs no type, or it has no type that it may use, so it is ineligible.
    typed: Option<Typed<'a>>,
    /// Empty if the spec is invalid, because the job's pods cannot be identified then.
    pods: Vec<Seen<'a>>,
    observed: Observed,
    /// The record at the end of the check, if the job may rest.
    before: Option<Record>,
}

/// Whether the phases may change a job.
#[derive(Clone, Copy)]
enum Mode<'a> {
    /// The state machine makes its steps.
    Steps(&'a CheckedJob),
    /// Its writes are in flight, so its state is unsettled: it counts with everything that it has, and does not change.
    InFlight(&'a CheckedJob),
    /// Its spec is invalid, so its state is meaningless, and it is ineligible.
    Invalid,
}

/// Everything that follows from a job's type.
struct Typed<'a> {
    kind: &'a CheckedType,
    planner: Planner,
    /// Where pods may run, by role; `None`: Kueue has not admitted the job, or the settings lack one of its flavors, so
    /// no pods may be created.
    places: Option<Vec<Place>>,
}

impl<'a> JobInRound<'a> {
    pub(super) fn key(&self) -> &'a Key {
        &self.object.meta.key
    }

    pub(super) fn phase(&self) -> Phase {
        self.state().phase
    }

    fn state(&self) -> &State {
        &self.job_state.record.state
    }

    /// True if the job waits and its dry run has no answer yet.
    fn is_undecided(&self) -> bool {
        self.phase() == Phase::Queued && self.eligibility.is_unanswered()
    }

    /// Its spec, if it is valid.
    fn spec(&self) -> Option<&'a CheckedJob> {
        match self.mode {
            Mode::Steps(job) | Mode::InFlight(job) => Some(job),
            Mode::Invalid => None,
        }
    }

    /// Its LocalQueue; `None` if the job is not in a queue of Kueue.
    pub(super) fn kueue_queue(&self) -> Option<&'a str> {
        kueue_queue(self.spec()?)
    }

    /// True if Larder finds its nodes, not kube-scheduler or Kueue.
    fn is_planned(&self) -> bool {
        self.planner() == Planner::Builtin && !has_gates(self.places())
    }

    fn planner(&self) -> Planner {
        self.typed.as_ref().map(|typed| typed.planner).unwrap_or_default()
    }

    fn places(&self) -> Option<&[Place]> {
        self.typed.as_ref()?.places.as_deref()
    }

    fn rendered(&self) -> Option<Rendered<'a>> {
        Some(rendered(self.object, self.spec()?, self.typed.as_ref()?.kind))
    }

    /// The roles for queues and plans; empty until a check has rendered a pod.
    fn roles(&self) -> &[queue::Role] {
        self.job_state.profile.as_ref().map_or(&[], |profile| &profile.roles)
    }

    /// The nodes where its pods are or will be.
    fn nodes(&self) -> BTreeSet<String> {
        nodes(self.state(), &self.pods)
    }

    /// The datasets that its pods read or will read.
    pub(super) fn datasets(&self) -> Vec<Key> {
        let mounts = self.spec().filter(|_| !self.phase().is_terminal()).map_or(&[][..], |job| &job.datasets[..]);
        mounts.iter().map(|mount| dataset_key(&mount.dataset)).collect()
    }

    /// The pods, by role and index, that need a node now.
    fn unplaced(&self, view: &ClusterView<'_>) -> Vec<Vec<u32>> {
        match (self.mode, &self.typed) {
            (Mode::Steps(_), Some(_)) => unplaced(self.state(), &self.observed, view.now),
            // Without a type, no pods are created.
            (Mode::Steps(_), None) | (Mode::InFlight(_) | Mode::Invalid, _) => Vec::new(),
        }
    }

    /// The gang of these pods, for the planner; `None` while no pods may be created.
    fn gang(&self, view: &ClusterView<'_>, cluster: &Cluster<'_>, pods: &[Vec<u32>]) -> Option<Gang> {
        let (job, profile, places) = (self.spec()?, self.job_state.profile.as_ref()?, self.places()?);
        let want = |((role, place), pods): ((&queue::Role, &Place), &Vec<u32>)| {
            let mut places = role.places.clone();
            confine(&mut places, place);
            let (name, requests) = (role.name.clone(), role.requests.clone());
            let (apart, spread, required) = (role.apart, role.spread, pods.len() as u32);
            Want { name, requests, places, apart, spread, required, ..Want::default() }
        };
        let mut roles: Vec<Want> = profile.roles.iter().zip(places).zip(pods).map(want).collect();
        for refused in &self.state().refused_by {
            if let (Some(want), Some(node)) = (roles.get_mut(refused.role), cluster.find(&refused.node)) {
                want.refused_by.push(node);
            }
        }
        for held in self.held(view).into_iter().filter(|held| !held.leaving) {
            if let (Some(want), Some(node)) = (roles.get_mut(held.role), cluster.find(&held.node)) {
                want.occupied.extend(want.apart.then_some(node));
            }
        }
        Some(Gang {
            roles,
            datasets: self.datasets().into_iter().map(|key| (key.clone(), view.bytes(&key))).collect(),
            topology_key: job.topology_key.clone().unwrap_or_default(),
            near: self.nodes().iter().filter_map(|node| cluster.find(node)).collect(),
        })
    }
}

/// True if Kueue holds the pods back with scheduling gates until it has chosen their nodes.
fn has_gates(places: Option<&[Place]>) -> bool {
    places.into_iter().flatten().any(|place| !place.gates.is_empty())
}

fn rendered<'a>(object: &'a JobObject, job: &'a CheckedJob, kind: &'a CheckedType) -> Rendered<'a> {
    let key = &object.meta.key;
    Rendered { namespace: &key.namespace, name: &key.name, uid: &object.meta.uid, job, kind }
}

/// The LocalQueue of a job; `None` if the job is not in a queue of Kueue.
fn kueue_queue(job: &CheckedJob) -> Option<&str> {
    match &job.queueing {
        Queueing::Kueue(queue) => Some(queue),
        Queueing::None | Queueing::Queue(_) => None,
    }
}

/// The nodes where a job's pods are or will be.
pub(super) fn nodes(state: &State, pods: &[Seen<'_>]) -> BTreeSet<String> {
    // The scheduler may have bound a pod to another node than the planned one.
    let bound = pods.iter().filter(|seen| !seen.object.node.is_empty());
    let bound: BTreeMap<PodId, &String> = bound.map(|seen| (seen.pod.id, &seen.object.node)).collect();
    let node = |(pod, slot): (PodId, &Slot)| bound.get(&pod).copied().or(slot.node.as_ref()).cloned();
    state.slots().filter_map(node).collect()
}

/// True if one of these pods may still be running.
fn runs(view: &ClusterView<'_>, pods: &[Seen<'_>]) -> bool {
    pods.iter().any(|seen| uses_quota(&seen.pod, view.now))
}
