//! One job in a round. Each phase is a type, and only the phase before can make it:
//!
//! | phase | what is known by then | made by |
//! |---|---|---|
//! | [`Checked`] | the spec, the type, the pods, whether the job may start | [`Checked::new`] |
//! | [`decide::Stepped`] | the state after all that has happened to the pods | [`Checked::step`] |
//! | [`decide::Ruled`] | what Larder's queues decide | [`decide::Stepped::rule`] |
//! | [`decide::Placed`] | nodes for pods that have lost theirs | [`decide::Ruled::place`] |
//! | [`decide::Decided`] | what Kueue decides | [`decide::Placed::ask_kueue`] |
//! | [`write::Written`] | all writes | [`decide::Decided::write`] |
//!
//! Every job goes through all phases. A job whose writes are under way, or whose spec is invalid, changes in none of them:
//! its state is not settled, or means nothing.

mod check;
pub(super) mod decide;
mod kueue;
mod room;
mod write;

use std::collections::BTreeSet;

use larder_api::Phase;
use larder_api::job_type::checked::CheckedType;
use larder_api::training_job::checked::{CheckedJob, Queueing};

use crate::jobs::cluster_view::{ClusterView, Seen, dataset_key};
use crate::jobs::eligibility::Eligibility;
use crate::jobs::job_state::JobState;
use crate::jobs::kueue::places::confine;
use crate::jobs::machine::loss::uses_quota;
use crate::jobs::machine::{Observed, unplaced};
use crate::jobs::objects::JobObject;
use crate::jobs::plan::{Cluster, Gang, Want};
use crate::jobs::pod_group::choice::Planner;
use crate::jobs::queue;
use crate::jobs::render::{Place, Rendered};
use larder_kube::key::Key;

/// A job that was checked: all that later phases look at. Its state is the only part that they change, with the data in
/// `observed`, which depends on the nodes of that state.
pub(super) struct Checked<'a> {
    pub(super) key: &'a Key,
    object: &'a JobObject,
    pub(super) job_state: &'a mut JobState,
    pub(super) eligibility: Eligibility,
    /// `None`: it is invalid, which makes the job ineligible.
    spec: Option<&'a CheckedJob>,
    /// `None`: the job needs no type, since it has ended, or has none that it may use, which makes it ineligible.
    typed: Option<Typed<'a>>,
    /// Empty if the spec is invalid: nobody knows which pods are the job's.
    pods: Vec<Seen<'a>>,
    observed: Observed,
}

/// What follows from a job's type.
struct Typed<'a> {
    kind: &'a CheckedType,
    planner: Planner,
    /// Where pods may go, by role; `None`: Kueue has not admitted the job, so none may be made.
    places: Option<Vec<Place>>,
}

impl<'a> Checked<'a> {
    pub(super) fn phase(&self) -> Phase {
        self.job_state.record.state.phase
    }

    /// True if a pod of it may still run.
    fn runs(&self, view: &ClusterView<'_>) -> bool {
        self.observed.pods.iter().any(|pod| uses_quota(pod, view.now))
    }

    /// True if the job has not started or is to start again. Only then does a reason against it stop it: a job that runs goes
    /// on as it was.
    fn is_to_start(&self) -> bool {
        matches!(self.phase(), Phase::Queued | Phase::Suspended)
    }

    /// True if the job waits, and the API server has not said yet whether it may.
    fn is_undecided(&self) -> bool {
        self.phase() == Phase::Queued && self.eligibility.is_unanswered()
    }

    /// True if the state machine can make a step.
    fn can_step(&self) -> bool {
        self.job_state.is_idle() && self.spec.is_some()
    }

    /// Its LocalQueue; `None` if the job is not in a queue of Kueue.
    pub(super) fn kueue_queue(&self) -> Option<&'a str> {
        match &self.spec?.queueing {
            Queueing::Kueue(queue) => Some(queue),
            Queueing::None | Queueing::Queue(_) => None,
        }
    }

    /// True if Larder finds its nodes, and not the scheduler or Kueue.
    fn is_planned(&self) -> bool {
        self.planner() == Planner::Builtin && !has_gates(self.places())
    }

    fn planner(&self) -> Planner {
        self.typed.as_ref().map(|typed| typed.planner).unwrap_or_default()
    }

    fn places(&self) -> Option<&[Place]> {
        self.typed.as_ref()?.places.as_deref()
    }

    /// What renders the objects of the job.
    fn rendered(&self) -> Option<Rendered<'a>> {
        Some(rendered(self.object, self.spec?, self.typed.as_ref()?.kind))
    }

    /// The roles as queues and plans count them; none before the first check that could render a pod.
    pub(super) fn roles(&self) -> &[queue::Role] {
        self.job_state.profile.as_ref().map_or(&[], |profile| &profile.roles)
    }

    /// The nodes where its pods are or will be.
    fn nodes(&self) -> BTreeSet<String> {
        let state = &self.job_state.record.state;
        let planned = state.slots().filter_map(|(_, slot)| slot.node.clone());
        let current = self.pods.iter().filter(|seen| state.slot(seen.pod.id).is_some());
        planned.chain(current.map(|seen| seen.object.node.clone()).filter(|node| !node.is_empty())).collect()
    }

    /// The datasets that its pods read or will read.
    pub(super) fn datasets(&self) -> Vec<Key> {
        let mounts = self.spec.filter(|_| !self.phase().is_terminal()).map_or(&[][..], |job| &job.datasets[..]);
        mounts.iter().map(|mount| dataset_key(&mount.dataset)).collect()
    }

    /// The pods, by role and index, that need a node now.
    fn unplaced(&self, view: &ClusterView<'_>) -> Vec<Vec<u32>> {
        // Without its type no pods are made.
        if !self.can_step() || self.typed.is_none() {
            return Vec::new();
        }
        unplaced(&self.job_state.record.state, &self.observed, view.now)
    }

    /// What these pods need of nodes; `None` as long as none may be made.
    fn gang(&self, view: &ClusterView<'_>, cluster: &Cluster<'_>, pods: &[Vec<u32>]) -> Option<Gang> {
        let (job, profile, places) = (self.spec?, self.job_state.profile.as_ref()?, self.places()?);
        let want = |((role, place), pods): ((&queue::Role, &Place), &Vec<u32>)| {
            let mut places = role.places.clone();
            confine(&mut places, place);
            let (name, requests) = (role.name.clone(), role.requests.clone());
            Want { name, requests, places, required: pods.len() as u32, optional: 0 }
        };
        Some(Gang {
            roles: profile.roles.iter().zip(places).zip(pods).map(want).collect(),
            datasets: self.datasets().into_iter().map(|key| (key.clone(), view.bytes(&key))).collect(),
            topology_key: job.topology_key.clone().unwrap_or_default(),
            near: self.nodes().iter().filter_map(|node| cluster.find(node)).collect(),
        })
    }
}

/// True if Kueue holds the pods back by scheduling gates until it has chosen their nodes.
fn has_gates(places: Option<&[Place]>) -> bool {
    places.into_iter().flatten().any(|place| !place.gates.is_empty())
}

/// What renders the objects of a job.
fn rendered<'a>(object: &'a JobObject, job: &'a CheckedJob, kind: &'a CheckedType) -> Rendered<'a> {
    let key = &object.meta.key;
    Rendered { namespace: &key.namespace, name: &key.name, uid: &object.meta.uid, job, kind }
}
