//! The room that a job uses in queues and on nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_api::Phase;

use super::decide::{Decided, Stepped};
use super::{JobInRound, Mode};
use crate::jobs::cluster_view::{ClusterView, Seen};
use crate::jobs::data_locality;
use crate::jobs::flavors;
use crate::jobs::leftover_pods::Accounting;
use crate::jobs::machine::loss::{is_live, uses_quota};
use crate::jobs::machine::{Pod, PodStage, Stage, is_warm};
use crate::jobs::plan::Cluster;
use crate::jobs::queue::{HeldPod, Job, Reservation, Role, Waiting};
use crate::time::Seconds;
use larder_kube::key::Key;

/// The room that a job counts for in the queues.
pub(in crate::jobs) struct Counted<'j> {
    pub(in crate::jobs) uid: &'j str,
    /// The job as queues see it; `None` if it neither waits for room nor has it, or Kueue decides about it.
    pub(in crate::jobs) job: Option<Arc<Job>>,
    pub(in crate::jobs) accounting: Accounting<'j>,
}

impl Stepped<'_> {
    /// Takes the room of pods that have a planned node and are not bound yet. No pods of an ended job will be.
    pub(in crate::jobs) fn take_room(&self, view: &ClusterView<'_>, free: &mut Cluster<'_>) {
        let profile = self.job.job_state.profile.as_ref().filter(|_| self.job.state().holds_room());
        let Some(profile) = profile else { return };
        for held in self.job.held(view).into_iter().filter(|held| !held.bound) {
            if let Some(node) = free.find(&held.node) {
                free.take(node, &profile.roles[held.role].requests, 1);
            }
        }
    }

    /// The room that the job counts for before the queues decide.
    pub(in crate::jobs) fn counted(&self, view: &ClusterView<'_>) -> Counted<'_> {
        self.job.counted(view)
    }
}

impl Decided<'_> {
    /// The room that the job counts for after all decisions.
    pub(in crate::jobs) fn counted(&self, view: &ClusterView<'_>) -> Counted<'_> {
        self.job.counted(view)
    }
}

impl JobInRound<'_> {
    fn counted(&self, view: &ClusterView<'_>) -> Counted<'_> {
        let job = self.queue_job(view);
        let accounting =
            if job.is_some() { Accounting::Counted } else { Accounting::Uncounted(self.phase(), self.roles()) };
        Counted { uid: &self.job_state.uid, job: job.map(Arc::new), accounting }
    }

    /// The pods that hold room or will hold it.
    pub(super) fn held(&self, view: &ClusterView<'_>) -> Vec<HeldPod> {
        let state = self.state();
        let there: BTreeMap<_, _> = self.pods.iter().map(|seen| (seen.pod.id, seen)).collect();
        let mut held = Vec::new();
        for (id, slot) in state.slots().filter(|(_, slot)| slot.stage == Stage::Placed || slot.stage == Stage::Seen) {
            let planned = slot.node.clone().unwrap_or_default();
            let pod = match there.get(&id) {
                Some(seen) if !uses_quota(&seen.pod, view.now) => continue,
                Some(seen) => {
                    let bound = seen.pod.stage != PodStage::Pending;
                    let node = if bound { seen.object.node.clone() } else { planned };
                    let leaving = seen.pod.leaving.is_some();
                    let flavor = seen.of_job.flavor.clone();
                    HeldPod { role: id.role, index: id.index, node, bound, leaving, flavor }
                }
                None => HeldPod { role: id.role, index: id.index, node: planned, ..HeldPod::default() },
            };
            held.push(pod);
        }
        // A pod without a node may still be bound.
        let is_stray = |seen: &&Seen<'_>| state.slot(seen.pod.id).is_none() && uses_quota(&seen.pod, view.now);
        let strays = self.pods.iter().filter(is_stray);
        held.extend(strays.map(|seen| HeldPod {
            role: seen.pod.id.role,
            index: seen.pod.id.index,
            node: seen.object.node.clone(),
            bound: seen.pod.stage != PodStage::Pending,
            leaving: true,
            flavor: seen.of_job.flavor.clone(),
        }));
        held
    }

    /// Until when no other job is preempted for the job, because its data is not on the nodes where it would run.
    /// `None` once the data is there, or the job has headed its queue for as long as it waits for data.
    pub(super) fn cold_until(&self, view: &ClusterView<'_>) -> Option<Seconds> {
        let job = self.spec().filter(|job| !job.datasets.is_empty() && self.phase() == Phase::Queued)?;
        let nodes = self.job_state.waiting.iter().flat_map(|waiting| waiting.nodes.iter().cloned()).collect();
        // A job without a queue heads none.
        let since = match self.job_state.record.head_since {
            Some(since) => since,
            None if self.job_state.queue.is_empty() => self.state().since,
            None => view.now,
        };
        let data = data_locality::on_nodes(view, self.key(), job, &nodes);
        let cold = data.iter().filter(|data| data.percent < data.enough).map(|data| since + data.timeout);
        cold.max().filter(|until| *until > view.now)
    }

    /// The job as queues see it; `None` if it neither waits for room nor has it, or Kueue decides about it.
    pub(super) fn queue_job(&self, view: &ClusterView<'_>) -> Option<Job> {
        let state = self.state();
        if self.kueue_queue().is_some() {
            return None;
        }
        let waits = state.phase == Phase::Queued && self.eligibility.may_queue() && !self.observed.terms.suspend;
        if !waits && !state.holds_room() {
            return None;
        }
        let (job, profile) = (self.spec()?, self.job_state.profile.as_ref()?);
        let is_stray = |pod: &Pod| state.slot(pod.id).is_none() && is_live(pod, view.now);
        let (choices, unsuited) = match self.choices(view, &profile.roles) {
            Ok(choices) => (choices, None),
            Err(why) => (vec![profile.roles.clone()], Some(why)),
        };
        let mut choices = choices.into_iter();
        Some(Job {
            key: self.key().clone(),
            queue: self.job_state.queue.clone(),
            priority: view.priority(job),
            created: Seconds(self.object.meta.created),
            roles: choices.next().unwrap_or_default(),
            fallbacks: choices.collect(),
            unsuited,
            datasets: self.datasets().into_iter().map(|key| (key.clone(), view.bytes(&key))).collect(),
            topology_key: job.topology_key.clone().unwrap_or_default(),
            granted: state.granted(),
            pods: self.held(view),
            unplaced: if self.is_planned() && self.places().is_some() { self.unplaced(view) } else { Vec::new() },
            refused_by: state.refused_by.clone(),
            replaces_live: self.observed.pods.iter().any(is_stray),
            head_since: self.job_state.record.head_since,
            claims: self.job_state.record.claims,
            claimed: self.job_state.record.flavors.clone(),
            is_cold: self.cold_until(view).is_some(),
            // No quota limits the nodes that an autoscaler would add for a job without a queue, and its pods would
            // compete for room with jobs of queues.
            may_await_nodes: view.wait_for_nodes.is_some() && self.is_planned() && !self.job_state.queue.is_empty(),
            awaits_nodes: state.awaits_nodes,
            is_passed_over: self.job_state.waiting.as_ref().is_some_and(|waiting| waiting.is_passed_over),
            lacks_nodes: self.job_state.waiting.as_ref().is_some_and(Waiting::lacks_nodes),
            preempts_after: self.job_state.record.preempts_after,
            // A job whose namespace has exhausted its ResourceQuota waits for that quota instead.
            not_before: state.not_before.filter(|_| self.eligibility.shortage().is_none()),
            shortage: self.eligibility.shortage().cloned(),
            ends: state.ends(&self.observed.terms),
            reservation: self.reservation(view),
        })
    }

    /// The job's roles on the flavors that it has, or on each that it may have. Fails if none suits it.
    fn choices(&self, view: &ClusterView<'_>, roles: &[Role]) -> Result<Vec<Vec<Role>>, String> {
        if self.state().holds_room() {
            return Ok(vec![flavors::on(view.flavors, roles, &self.job_state.record.flavors)]);
        }
        let name = &self.job_state.queue;
        match view.jobs.queues.get(&Key::cluster(name)).and_then(|object| object.queue.as_ref().ok()) {
            Some(queue) => flavors::choices(name, queue, view.flavors, roles),
            None => Ok(vec![roles.to_vec()]),
        }
    }

    /// Whether the job's planned nodes are reserved for it.
    fn reservation(&self, view: &ClusterView<'_>) -> Reservation {
        let state = self.state();
        if state.phase != Phase::DataWarming || !self.observed.terms.unreserved {
            return Reservation::Held;
        }
        match self.mode {
            Mode::Steps(_) if is_warm(state, &self.observed, view.now) => Reservation::Due,
            // A job with writes in flight does not start in this round.
            Mode::Steps(_) | Mode::InFlight(_) | Mode::Invalid => Reservation::Released,
        }
    }
}
