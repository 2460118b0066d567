//! The gang plan: a node for every required pod of a job, or none for any.
//!
//! [`Cluster`] has a row of numbers for each node; [`Gang`] is what a job asks for, equal pods as one [`Want`]; `pack` fills
//! nodes with pods; [`Shortage`] says in numbers why a gang has no place.
//!
//! Of all nodes that a pod may run on, those come first that hold more of the job's datasets, in tenths: a few bytes must not
//! outweigh anything else. Of plans that are equally good there, one within a single topology domain wins; where none exists, the
//! domains with most of the job's pods and then those with most room come first. Of what is still equal, nodes come first whose
//! devices stay together, and then the fullest, which is the one with room for the fewest more such pods. The reasons are those of
//! [`larder_dataset::score`], which the scheduler extender weighs for pods of no job.
//!
//! Invariants: a plan uses no more than what is free, it has all required pods, and it follows from the values alone, in whatever
//! order the nodes come. For equal pods a plan is found if there is one. For roles that differ, larger pods are placed first,
//! and if that fails those with the fewest nodes; a plan that neither order leads to is not found.
//!
//! The plan does not know spreading, affinity between pods, or ports: kube-scheduler has the last word.

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
use larder_dataset::score::{self, Standing};
pub use shortage::Shortage;

use cluster::Domains;
use pack::{Packer, Run, Shape, Short};

/// Finds a node for every required pod of `gang`, and for as many of the others as there is room. It takes no room.
pub fn place(cluster: &mut Cluster<'_>, gang: &Gang) -> Result<Placement, Shortage> {
    let shapes: Vec<Shape> = gang.roles.iter().map(|want| shape(cluster, want)).collect();
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

/// The pods of a role in the cluster's numbers.
fn shape(cluster: &mut Cluster<'_>, want: &Want) -> Shape {
    match cluster.row(&want.requests) {
        Some(requests) => {
            let size = cluster.share(&requests);
            Shape { device: cluster.device(&requests), requests, size, allowed: cluster.allowed(&want.places) }
        }
        None => Shape { requests: cluster.nothing(), size: u128::MAX, device: None, allowed: cluster.none_allowed() },
    }
}

/// How many pods the job has in each domain already.
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
        when_empty: cluster.room_when_empty(&shape.requests, &shape.allowed),
    }
}

/// The search for one gang's plan.
struct Planner {
    packer: Packer,
    domains: Rc<Domains>,
    /// How much of the datasets each node holds, in tenths.
    gain: Vec<u8>,
    /// By domain, the pods that the job has there.
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
        // Pods that fit few nodes first, and each on the nodes that fit the fewest others.
        let shapes = self.packer.shapes();
        let suitors =
            |row: usize| shapes.iter().filter(|shape| shape.allowed[row]).count().min(usize::from(u8::MAX)) as u8;
        let ranks: Vec<u8> = (0..self.gain.len()).map(suitors).collect();
        self.packer.rank_nodes(|row| ranks[row]);
        let by_choice = self.packer.roles_by(|shape| shape.allowed.iter().filter(|allowed| **allowed).count());
        self.packer.pack(&everywhere, &self.required, &by_choice)
    }

    /// Moves the pods to one domain, if one takes all of them without losing bytes.
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

    /// Near ones first, then those with most room.
    fn rank_domains(&mut self, room: &[u64]) {
        let mut domains: Vec<usize> = (0..self.domains.count()).collect();
        let group = self.near.iter().sum();
        let tenths = |group_in_zone: u32| {
            score::terms(&Standing { group, group_in_zone, ..Standing::default() }).zone.unwrap_or(0)
        };
        domains.sort_by_key(|domain| {
            let near = self.near[*domain];
            (Reverse(tenths(near)), near == 0, Reverse(room[*domain]), *domain)
        });
        self.packer.rank_domains(&domains);
    }

    /// What the pods find on their nodes, all together.
    fn tenths(&self, runs: &[Run]) -> u64 {
        runs.iter().map(|run| u64::from(self.gain[run.row()]) * u64::from(run.pods)).sum()
    }

    /// The plan, with as many of the optional pods as there is room for.
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
