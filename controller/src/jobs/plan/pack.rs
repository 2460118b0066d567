//! Fills nodes with pods. Identical pods are placed in runs, one run per node, without allocating per pod or per node.

use std::collections::BTreeSet;
use std::rc::Rc;

use larder_dataset::score::{self, Devices, NodeFacts};

use super::cluster::{Cluster, Domains, fitting};

/// Identical pods, in the cluster's columns.
pub(super) struct Shape {
    /// The requests of one pod, a value per column.
    pub(super) requests: Vec<i64>,
    /// The largest share of a cluster-wide resource that one pod takes, from [`Cluster::share`].
    pub(super) size: u128,
    /// The column of the requested devices, if any.
    pub(super) device: Option<usize>,
    /// Per node, whether the pods may run there.
    pub(super) allowed: Rc<[bool]>,
    /// No two of the pods can be on one node.
    pub(super) apart: bool,
}

impl Shape {
    /// The most pods that a node can have.
    pub(super) fn most(&self) -> u32 {
        if self.apart { 1 } else { u32::MAX }
    }
}

/// A number of pods of one role on one node.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) role: usize,
    node: u32,
    pub(super) pods: u32,
}

impl Run {
    pub(super) fn row(&self) -> usize {
        self.node as usize
    }
}

/// A role whose required pods do not all fit.
pub(super) struct Short {
    pub(super) role: usize,
    /// The number of its pods that fit.
    pub(super) found: u64,
    /// The number of nodes that had room for at least one of them.
    pub(super) with_room: usize,
}

/// A node with room. The derived order is the order in which nodes are filled.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u8,
    domain: u32,
    /// How far the node's devices are from staying together, in tenths.
    broken: u8,
    fits: u32,
    node: u32,
}

/// The state of the nodes, and the runs that led to it.
pub(super) struct Packer {
    shapes: Vec<Shape>,
    domains: Rc<Domains>,
    columns: usize,
    allocatable: Vec<i64>,
    free: Vec<i64>,
    runs: Vec<Run>,
    /// Per node; the lowest rank is filled first.
    node_ranks: Vec<u8>,
    /// Per domain; the lowest rank is filled first.
    domain_ranks: Vec<u32>,
    candidates: Vec<Candidate>,
}

impl Packer {
    pub(super) fn new(cluster: &Cluster<'_>, shapes: Vec<Shape>, domains: Rc<Domains>) -> Self {
        let nodes = domains.nodes();
        Self {
            shapes,
            columns: cluster.columns(),
            allocatable: cluster.allocatable(),
            free: cluster.free(),
            runs: Vec::new(),
            node_ranks: vec![0; nodes],
            domain_ranks: vec![0; domains.count()],
            candidates: Vec::with_capacity(nodes),
            domains,
        }
    }

    pub(super) fn shapes(&self) -> &[Shape] {
        &self.shapes
    }

    pub(super) fn runs(&self) -> &[Run] {
        &self.runs
    }

    pub(super) fn rank_nodes(&mut self, rank: impl Fn(usize) -> u8) {
        for (row, rank_of) in self.node_ranks.iter_mut().enumerate() {
            *rank_of = rank(row);
        }
    }

    /// Ranks the domains in the given order.
    pub(super) fn rank_domains(&mut self, order: &[usize]) {
        for (rank, domain) in (0..).zip(order) {
            self.domain_ranks[*domain] = rank;
        }
    }

    /// The roles sorted by a key; the sort is stable.
    pub(super) fn roles_by<K: Ord>(&self, key: impl Fn(&Shape) -> K) -> Vec<usize> {
        let mut roles: Vec<usize> = (0..self.shapes.len()).collect();
        roles.sort_by_key(|role| key(&self.shapes[*role]));
        roles
    }

    /// Per domain, the number of pods of a role that fit.
    pub(super) fn room_by_domain(&self, role: usize) -> Vec<u64> {
        let mut room = vec![0_u64; self.domains.count()];
        let Some(shape) = self.shapes.get(role) else { return room };
        for (row, _) in shape.allowed.iter().enumerate().filter(|(_, allowed)| **allowed) {
            room[self.domains.of(row)] += u64::from(fitting(self.free_on(row), &shape.requests).min(shape.most()));
        }
        room
    }

    /// Places `wanted` pods of each role on `nodes`, in the given order of roles. If a role fails, the pods placed so
    /// far remain until [`Self::undo`].
    pub(super) fn pack(&mut self, nodes: &[u32], wanted: &[u32], roles: &[usize]) -> Result<(), Short> {
        for &role in roles {
            let placed = self.fill(nodes, role, wanted[role]);
            if placed < wanted[role] {
                return Err(Short { role, found: u64::from(placed), with_room: self.candidates.len() });
            }
        }
        Ok(())
    }

    /// Like [`Self::pack`], but places as many pods as fit.
    pub(super) fn pack_some(&mut self, nodes: &[u32], wanted: &[u32], roles: &[usize]) {
        for &role in roles {
            self.fill(nodes, role, wanted[role]);
        }
    }

    /// Removes all runs.
    pub(super) fn undo(&mut self) {
        for run in std::mem::take(&mut self.runs) {
            self.change(&run, 1);
        }
    }

    /// Removes all runs and returns them.
    pub(super) fn take_runs(&mut self) -> Vec<Run> {
        let runs = self.runs.clone();
        self.undo();
        runs
    }

    /// Places runs again that [`Self::take_runs`] removed.
    pub(super) fn restore(&mut self, runs: Vec<Run>) {
        for run in &runs {
            self.change(run, -1);
        }
        self.runs = runs;
    }

    /// Places up to `wanted` pods of a role and returns how many were placed. Leaves the nodes that had room in
    /// `candidates`.
    fn fill(&mut self, nodes: &[u32], role: usize, wanted: u32) -> u32 {
        self.candidates.clear();
        if wanted == 0 {
            return 0;
        }
        let shape = &self.shapes[role];
        let filled: BTreeSet<u32> = match shape.apart {
            true => self.runs.iter().filter(|run| run.role == role).map(|run| run.node).collect(),
            false => BTreeSet::new(),
        };
        for &node in nodes {
            let row = node as usize;
            if !shape.allowed[row] || filled.contains(&node) {
                continue;
            }
            let fits = fitting(self.free_on(row), &shape.requests).min(shape.most());
            if fits > 0 {
                let domain = self.domain_ranks[self.domains.of(row)];
                let broken = self.broken(shape, row);
                self.candidates.push(Candidate { rank: self.node_ranks[row], domain, broken, fits, node });
            }
        }
        self.candidates.sort_unstable();
        let mut missing = wanted;
        for at in 0..self.candidates.len() {
            if missing == 0 {
                break;
            }
            let Candidate { fits, node, .. } = self.candidates[at];
            let run = Run { role, node, pods: fits.min(missing) };
            missing -= run.pods;
            self.change(&run, -1);
            self.runs.push(run);
        }
        wanted - missing
    }

    /// Adds `times` times the requests of a run to the free resources.
    fn change(&mut self, run: &Run, times: i64) {
        let pods = times * i64::from(run.pods);
        let free = &mut self.free[run.row() * self.columns..][..self.columns];
        for (free, request) in free.iter_mut().zip(&self.shapes[run.role].requests) {
            *free += request * pods;
        }
    }

    /// How far the node's devices would be from staying together after placing such a pod, in tenths.
    fn broken(&self, shape: &Shape, row: usize) -> u8 {
        let Some(column) = shape.device else { return 0 };
        let number = |amounts: &[i64]| u32::try_from(amounts[column].max(0)).unwrap_or(u32::MAX);
        let devices = Devices {
            asked: number(&shape.requests),
            all: number(&self.allocatable[row * self.columns..][..self.columns]),
            free: number(self.free_on(row)),
            together: 0,
            awaited: true,
        };
        score::MOST - score::terms(&NodeFacts { devices, ..NodeFacts::default() }).whole.unwrap_or(score::MOST)
    }

    fn free_on(&self, row: usize) -> &[i64] {
        &self.free[row * self.columns..][..self.columns]
    }
}
