//! The gang plan: a node for every required pod of a job, or none for any.
//!
//! [`Cluster`] holds one row of resource amounts per node. [`Gang`] is what a job requests, with identical pods grouped
//! into one [`Want`]. `pack` assigns pods to nodes. [`Shortage`] explains in numbers why a gang cannot be placed.
//!
//! Node preference, in this order:
//! - Nodes that hold more of the job's datasets. This is compared in tenths, so that a few bytes do not outweigh
//!   everything else.
//! - Among plans with equal data locality, a plan within one topology domain. If none exists, domains with more of the
//!   job's pods come first, then domains with more room.
//! - Nodes whose devices stay together, then the fullest node, which is the one with room for the fewest more such
//!   pods.
//!
//! The reasons are given in [`larder_dataset::score`], which the scheduler extender also applies to pods that belong to
//! no job.
//!
//! Invariants: a plan uses only free resources, contains every required pod, and depends only on the input values, not
//! on the order of the nodes. For identical pods a plan is found if one exists. Roles that differ are tried in two
//! orders: larger pods first, then the roles with the fewest eligible nodes. A plan that neither order reaches is not
//! found.
//!
//! Of the constraints that kube-scheduler knows, the plan sees only those between identical pods on one node
//! ([`Want::apart`], [`Want::spread`]). It ignores volumes, device claims, other topology spread and affinity between
//! pods, and instead avoids nodes that have refused a role's pods ([`Want::refused_by`]): kube-scheduler makes the
//! final decision.

mod cluster;
mod gang;
mod pack;
mod shortage;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::rc::Rc;

pub use cluster::{Cluster, Mark, NodeIndex, NodeRoom};
pub use gang::{Gang, Placement, Want};
use larder_dataset::score::{self, NodeFacts};
pub use shortage::Shortage;

use cluster::Domains;
use pack::{Packer, Run, Shape, Short};

/// Finds a node for every required pod of `gang`, and for as many optional pods as fit. Reserves nothing in `cluster`.
///
/// Nodes that refused the pods of a role are left out, and pods to be spread are planned apart. If there is no such
/// plan, neither counts: the reason for a refusal may have gone.
pub fn place(cluster: &mut Cluster<'_>, gang: &Gang) -> Result<Placement, Shortage> {
    let found = search(cluster, gang, true);
    if found.is_err() && gang.roles.iter().any(|want| want.spread || !want.refused_by.is_empty()) {
        return search(cluster, gang, false);
    }
    found
}

fn search(cluster: &mut Cluster<'_>, gang: &Gang, avoids: bool) -> Result<Placement, Shortage> {
    let shapes: Vec<Shape> = gang.roles.iter().map(|want| shape(cluster, want, avoids)).collect();
    let domains = cluster.domains_of(&gang.topology_key);
    let mut planner = Planner {
        gain: cluster.tenths_held(&gang.datasets),
        near: near(&domains, &gang.near),
        required: gang.roles.iter().map(|want| want.required).collect(),
        packer: Packer::new(cluster, shapes, Rc::clone(&domains)),
        domains,
    };
    let optional: Vec<u32> = gang.roles.iter().map(|want| want.optional).collect();
    match planner.required() {
        Ok(()) => Ok(planner.with_optional(&optional)),
        Err(short) => Err(shortage(cluster, gang, &planner.packer.shapes()[short.role], &short)),
    }
}

/// Converts a role's pods into the cluster's columns. `avoids`: nodes that refused them are left out, and pods to be
/// spread are planned apart.
fn shape(cluster: &mut Cluster<'_>, want: &Want, avoids: bool) -> Shape {
    let apart = want.apart || avoids && want.spread;
    match cluster.row(&want.requests) {
        Some(requests) => {
            let size = cluster.share(&requests);
            let allowed = allowed(cluster, want, avoids);
            Shape { device: cluster.device(&requests), requests, size, allowed, apart }
        }
        None => {
            let (requests, allowed) = (cluster.nothing(), cluster.none_allowed());
            Shape { requests, size: u128::MAX, device: None, allowed, apart }
        }
    }
}

/// Per node, whether a role's pods may be placed on it.
fn allowed(cluster: &mut Cluster<'_>, want: &Want, avoids: bool) -> Rc<[bool]> {
    let allowed = cluster.allowed(&want.places);
    let refused_by = want.refused_by.iter().filter(|_| avoids);
    let mut left_out = refused_by.chain(&want.occupied).peekable();
    if left_out.peek().is_none() {
        return allowed;
    }
    let mut allowed = allowed.to_vec();
    for node in left_out {
        allowed[node.row()] = false;
    }
    allowed.into()
}

/// Counts the job's existing pods in each domain.
fn near(domains: &Domains, nodes: &[NodeIndex]) -> Vec<u32> {
    let mut near = vec![0; domains.count()];
    for node in nodes {
        near[domains.of(node.row())] += 1;
    }
    near
}

fn shortage(cluster: &Cluster<'_>, gang: &Gang, shape: &Shape, short: &Short) -> Shortage {
    let want = &gang.roles[short.role];
    Shortage {
        role: want.name.clone(),
        wanted: want.required,
        each: cluster.main_request(&want.requests),
        unknown: cluster.unknown(&want.requests),
        found: short.found,
        nodes: cluster.len(),
        allowed: shape.allowed.iter().filter(|allowed| **allowed).count(),
        with_room: short.with_room,
        when_empty: cluster.room_when_empty(&shape.requests, &shape.allowed, shape.most()),
    }
}

/// The search for one gang's plan.
struct Planner {
    packer: Packer,
    domains: Rc<Domains>,
    /// Per node, the share of the gang's datasets that it holds, in tenths.
    gain: Vec<u8>,
    /// Per domain, the number of the job's pods in it.
    near: Vec<u32>,
    required: Vec<u32>,
}

impl Planner {
    /// Places the required pods.
    fn required(&mut self) -> Result<(), Short> {
        let everywhere: Vec<u32> = (0..self.gain.len() as u32).collect();
        self.packer.rank_nodes(|row| 10 - self.gain[row]);
        let by_size = self.packer.roles_by(|shape| Reverse(shape.size));
        let leading = by_size.first().copied().unwrap_or(0);
        let room = self.packer.room_by_domain(leading);
        self.rank_domains(&room);
        if self.packer.pack(&everywhere, &self.required, &by_size).is_ok() {
            if self.domains.count() > 1 && self.near.iter().all(|pods| *pods == 0) {
                self.gather(&by_size, &room);
            }
            return Ok(());
        }
        self.packer.undo();
        // Second order: roles with the fewest eligible nodes first, each on the nodes that the fewest roles can use.
        let shapes = self.packer.shapes();
        let suitors =
            |row: usize| shapes.iter().filter(|shape| shape.allowed[row]).count().min(usize::from(u8::MAX)) as u8;
        let ranks: Vec<u8> = (0..self.gain.len()).map(suitors).collect();
        self.packer.rank_nodes(|row| ranks[row]);
        let by_choice = self.packer.roles_by(|shape| shape.allowed.iter().filter(|allowed| **allowed).count());
        self.packer.pack(&everywhere, &self.required, &by_choice)
    }

    /// Moves all pods into one domain if a single domain has room for them without losing data locality.
    fn gather(&mut self, roles: &[usize], room: &[u64]) {
        let spread = self.packer.take_runs();
        let bytes = self.tenths(&spread);
        let rooms: Vec<Vec<u64>> = (0..self.required.len()).map(|role| self.packer.room_by_domain(role)).collect();
        let has_room = |domain: &usize| {
            self.required.iter().zip(&rooms).all(|(required, room)| room[*domain] >= u64::from(*required))
        };
        let mut tried: Vec<usize> = (0..self.domains.count()).filter(has_room).collect();
        // The fullest domain first.
        tried.sort_by_key(|domain| (room[*domain], *domain));
        for domain in tried {
            let domains = Rc::clone(&self.domains);
            if self.packer.pack(domains.members(domain), &self.required, roles).is_ok()
                && self.tenths(self.packer.runs()) == bytes
            {
                return;
            }
            self.packer.undo();
        }
        self.packer.restore(spread);
    }

    /// Domains with the job's pods come first, then domains with the most room.
    fn rank_domains(&mut self, room: &[u64]) {
        let mut domains: Vec<usize> = (0..self.domains.count()).collect();
        let group = self.near.iter().sum();
        let tenths = |group_in_zone: u32| {
            score::terms(&NodeFacts { group, group_in_zone, ..NodeFacts::default() }).zone.unwrap_or(0)
        };
        domains.sort_by_key(|domain| {
            let near = self.near[*domain];
            (Reverse(tenths(near)), near == 0, Reverse(room[*domain]), *domain)
        });
        self.packer.rank_domains(&domains);
    }

    /// Sums the data locality of all placed pods, in tenths.
    fn tenths(&self, runs: &[Run]) -> u64 {
        runs.iter().map(|run| u64::from(self.gain[run.row()]) * u64::from(run.pods)).sum()
    }

    /// Adds as many of the optional pods as fit, and returns the placement.
    fn with_optional(mut self, optional: &[u32]) -> Placement {
        let everywhere: Vec<u32> = (0..self.gain.len() as u32).collect();
        if optional.iter().any(|pods| *pods > 0) {
            for run in self.packer.runs() {
                self.near[self.domains.of(run.row())] += run.pods;
            }
            let by_size = self.packer.roles_by(|shape| Reverse(shape.size));
            let room = self.packer.room_by_domain(by_size.first().copied().unwrap_or(0));
            self.rank_domains(&room);
            self.packer.rank_nodes(|row| 10 - self.gain[row]);
            self.packer.pack_some(&everywhere, optional, &by_size);
        }
        let mut roles = vec![Vec::new(); optional.len()];
        for run in self.packer.runs() {
            let node = NodeIndex::of(run.row());
            roles[run.role].extend(std::iter::repeat_n(node, run.pods as usize));
        }
        Placement { roles }
    }
}
