//! Quota and nodes together: a job needs room in both.

use std::collections::BTreeSet;

use super::facts::{HeldPod, Job, Role};
use super::quota::{Lack, Ledger};
use crate::jobs::plan::{self, Cluster, Gang, NodeIndex, Placement, Shortage, Want};
use larder_kube::pod::amounts::Amounts;

/// Why a job has no room.
#[derive(Clone, Debug)]
pub(super) enum Refusal {
    /// Its queue has too little quota.
    Quota(Lack),
    /// The nodes have no room for its pods.
    Nodes(Shortage),
}

/// The room that a job gets.
pub(super) struct Fit {
    /// The number of pods per role.
    pub(super) granted: Vec<u32>,
    pub(super) placement: Placement,
}

/// Free quota and free nodes.
#[derive(Clone, Debug)]
pub(super) struct Room<'a> {
    pub(super) ledger: Ledger<'a>,
    pub(super) cluster: Cluster<'a>,
}

impl Room<'_> {
    /// Finds room for a waiting job: for its minimum, and for as many of the requested pods as fit.
    pub(super) fn find(&mut self, job: &Job) -> Result<Fit, Refusal> {
        let floor = job.floor();
        if let Some(lack) = self.ledger.lack(&job.queue, &floor) {
            return Err(Refusal::Quota(lack));
        }
        self.ledger.add(&job.queue, &floor);
        let more = self.more(job, |_, role| role.wanted.saturating_sub(role.min));
        self.ledger.remove(&job.queue, &floor);
        let gang = gang(&self.cluster, job, |_, role| role.min, |at, _| more[at], Vec::new());
        let placement = plan::place(&mut self.cluster, &gang).map_err(Refusal::Nodes)?;
        let granted = placement.roles.iter().map(|nodes| nodes.len() as u32).collect();
        Ok(Fit { granted, placement })
    }

    /// Finds room for a job's minimum only.
    pub(super) fn find_floor(&mut self, job: &Job) -> Result<Fit, Refusal> {
        if let Some(lack) = self.ledger.lack(&job.queue, &job.floor()) {
            return Err(Refusal::Quota(lack));
        }
        let gang = gang(&self.cluster, job, |_, role| role.min, |_, _| 0, Vec::new());
        let placement = plan::place(&mut self.cluster, &gang).map_err(Refusal::Nodes)?;
        Ok(Fit { granted: job.roles.iter().map(|role| role.min).collect(), placement })
    }

    /// Finds nodes for as many pods of the job's minimum as fit.
    pub(super) fn find_part(&mut self, job: &Job) -> Placement {
        let gang = gang(&self.cluster, job, |_, _| 0, |_, role| role.min, Vec::new());
        plan::place(&mut self.cluster, &gang).unwrap_or_default()
    }

    /// Finds room for a running job to grow beyond `granted`.
    pub(super) fn find_more(&mut self, job: &Job, granted: &[u32]) -> Placement {
        let more = self.more(job, |at, role| match granted[at] {
            0 => 0,
            _ if role.is_fixed => 0,
            granted => role.max.saturating_sub(granted),
        });
        if more.iter().all(|pods| *pods == 0) {
            return Placement::default();
        }
        let near: Vec<NodeIndex> = job.pods.iter().filter_map(|pod| self.cluster.find(&pod.node)).collect();
        let gang = gang(&self.cluster, job, |_, _| 0, |at, _| more[at], near);
        plan::place(&mut self.cluster, &gang).unwrap_or_default()
    }

    /// Per role, the number of additional pods that fit into the quota, up to the number asked for.
    fn more(&mut self, job: &Job, asked: impl Fn(usize, &Role) -> u32) -> Vec<u32> {
        let mut more = Vec::with_capacity(job.roles.len());
        let mut taken = Amounts::default();
        for (at, role) in job.roles.iter().enumerate() {
            let pods = asked(at, role).min(self.ledger.pods_left(&job.queue, &role.charges()));
            let amounts = role.charges().times(u64::from(pods));
            self.ledger.add(&job.queue, &amounts);
            taken.add(&amounts, 1);
            more.push(pods);
        }
        self.ledger.remove(&job.queue, &taken);
        more
    }

    /// Finds new nodes for pods of a running job, which already has the quota for them.
    pub(super) fn find_again(&mut self, job: &Job, pods: &[Vec<u32>]) -> Result<Placement, Shortage> {
        let near = job.pods.iter().filter(|pod| !pod.leaving).filter_map(|pod| self.cluster.find(&pod.node)).collect();
        let required = |at: usize, _: &Role| pods.get(at).map_or(0, |pods| pods.len() as u32);
        let gang = gang(&self.cluster, job, required, |_, _| 0, near);
        plan::place(&mut self.cluster, &gang)
    }

    /// The names of the nodes of a placement.
    pub(super) fn names(&self, placement: &Placement) -> Vec<String> {
        let nodes: BTreeSet<NodeIndex> = placement.roles.iter().flatten().copied().collect();
        nodes.into_iter().map(|node| self.cluster.name(node).to_owned()).collect()
    }

    /// Takes the nodes and the quota of a placement.
    pub(super) fn take(&mut self, job: &Job, placement: &Placement) {
        self.take_nodes(job, placement);
        self.ledger.add(&job.queue, &charges_of(job, placement));
    }

    /// Takes the nodes of a placement, but no quota.
    pub(super) fn take_nodes(&mut self, job: &Job, placement: &Placement) {
        for (role, nodes) in job.roles.iter().zip(&placement.roles) {
            for run in nodes.chunk_by(|a, b| a == b) {
                self.cluster.take(run[0], &role.requests, run.len() as u32);
            }
        }
    }

    /// Takes the planned nodes of a job's pods. Returns false if one of them has no room or must not be used any more;
    /// then some of the others are taken.
    pub(super) fn take_planned(&mut self, job: &Job) -> bool {
        let planned = |pod: &&HeldPod| !pod.bound && !pod.leaving && !pod.node.is_empty();
        job.pods.iter().filter(planned).all(|pod| {
            let role = &job.roles[pod.role];
            let node = self.cluster.find(&pod.node);
            node.is_some_and(|node| self.cluster.take_if_free(node, &role.requests, &role.places))
        })
    }

    /// A job keeps fewer pods than before, whose room is free then, or more.
    pub(super) fn keep(&mut self, job: &Job, before: &[u32], now: &[u32]) {
        if before.iter().zip(now).any(|(before, now)| before > now) {
            self.give(job, before, now);
        } else {
            self.take_back(job, now, before);
        }
    }

    /// Takes the room that [`Self::give`] returned.
    fn take_back(&mut self, job: &Job, granted: &[u32], kept: &[u32]) {
        self.ledger.add(&job.queue, &job.charges(|at, _| granted[at] - kept[at]));
        for pod in job.pods.iter().filter(|pod| !pod.leaving) {
            if (kept[pod.role]..granted[pod.role]).contains(&pod.index)
                && let Some(node) = self.cluster.find(&pod.node)
            {
                self.cluster.take(node, &job.roles[pod.role].requests, 1);
            }
        }
    }

    /// Returns the room of the pods that a job has with `granted` but not with `kept`.
    pub(super) fn give(&mut self, job: &Job, granted: &[u32], kept: &[u32]) {
        self.ledger.remove(&job.queue, &job.charges(|at, _| granted[at] - kept[at]));
        for pod in job.pods.iter().filter(|pod| !pod.leaving) {
            if (kept[pod.role]..granted[pod.role]).contains(&pod.index)
                && let Some(node) = self.cluster.find(&pod.node)
            {
                self.cluster.give(node, &job.roles[pod.role].requests, 1);
            }
        }
    }
}

/// The total charges of a placement's pods.
pub(super) fn charges_of(job: &Job, placement: &Placement) -> Amounts {
    job.charges(|at, _| placement.roles.get(at).map_or(0, |nodes| nodes.len() as u32))
}

fn gang(
    cluster: &Cluster<'_>,
    job: &Job,
    required: impl Fn(usize, &Role) -> u32,
    optional: impl Fn(usize, &Role) -> u32,
    near: Vec<NodeIndex>,
) -> Gang {
    let refused_by = |at: usize| job.refused_by.iter().filter(move |refused| refused.role == at);
    let occupied = |at: usize| job.pods.iter().filter(move |pod| pod.role == at && !pod.leaving);
    let want = |(at, role): (usize, &Role)| Want {
        name: role.name.clone(),
        requests: role.requests.clone(),
        places: role.places.clone(),
        refused_by: refused_by(at).filter_map(|refused| cluster.find(&refused.node)).collect(),
        apart: role.apart,
        spread: role.spread,
        occupied: occupied(at).filter(|_| role.apart).filter_map(|pod| cluster.find(&pod.node)).collect(),
        required: required(at, role),
        optional: optional(at, role),
    };
    Gang {
        roles: job.roles.iter().enumerate().map(want).collect(),
        datasets: job.datasets.clone(),
        topology_key: job.topology_key.clone(),
        near,
    }
}
