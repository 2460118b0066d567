//! Fills nodes with pods. Equal pods are placed together, in runs of one node; nothing is allocated for a pod or a node.

use std::rc::Rc;

use larder_dataset::score::{self, Devices, Standing};

use super::cluster::{Cluster, Domains, fitting};

/// Equal pods, in the cluster's numbers.
pub(super) struct Shape {
    /// The requests of each.
    pub(super) requests: Vec<i64>,
    /// The part of the cluster that one takes.
    pub(super) size: u128,
    /// The column of the devices among the requests.
    pub(super) device: Option<usize>,
    /// By node: they may run there.
    pub(super) allowed: Rc<[bool]>,
}

/// Pods of one role on one node.
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
    /// How many do.
    pub(super) found: u64,
    /// On how many nodes.
    pub(super) with_room: usize,
}

/// A node with room, in the order in which nodes are filled.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u8,
    domain: u32,
    /// The tenths that are missing for its devices to stay together.
    broken: u8,
    fits: u32,
    node: u32,
}

/// A state of the nodes, and the runs that led to it.
pub(super) struct Packer {
    shapes: Vec<Shape>,
    domains: Rc<Domains>,
    columns: usize,
    allocatable: Vec<i64>,
    free: Vec<i64>,
    runs: Vec<Run>,
    /// By node, the lowest first.
    node_ranks: Vec<u8>,
    /// By domain, the lowest first.
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

    /// Domains are used in this order.
    pub(super) fn rank_domains(&mut self, order: &[usize]) {
        for (rank, domain) in (0..).zip(order) {
            self.domain_ranks[*domain] = rank;
        }
    }

    /// The roles in the order of a key; equal ones stay as they are.
    pub(super) fn roles_by<K: Ord>(&self, key: impl Fn(&Shape) -> K) -> Vec<usize> {
        let mut roles: Vec<usize> = (0..self.shapes.len()).collect();
        roles.sort_by_key(|role| key(&self.shapes[*role]));
        roles
    }

    /// How many pods of a role each domain has room for.
    pub(super) fn room_by_domain(&self, role: usize) -> Vec<u64> {
        let mut room = vec![0_u64; self.domains.count()];
        let Some(shape) = self.shapes.get(role) else { return room };
        for (row, _) in shape.allowed.iter().enumerate().filter(|(_, allowed)| **allowed) {
            room[self.domains.of(row)] += u64::from(fitting(self.free_on(row), &shape.requests));
        }
        room
    }

    /// Places `wanted` pods of each role on `nodes`, the roles in the given order. If one of them fails, what was placed stays
    /// until it is undone.
    pub(super) fn pack(&mut self, nodes: &[u32], wanted: &[u32], roles: &[usize]) -> Result<(), Short> {
        for &role in roles {
            let placed = self.fill(nodes, role, wanted[role]);
            if placed < wanted[role] {
                return Err(Short { role, found: u64::from(placed), with_room: self.candidates.len() });
            }
        }
        Ok(())
    }

    /// The same for as many as there is room for.
    pub(super) fn pack_some(&mut self, nodes: &[u32], wanted: &[u32], roles: &[usize]) {
        for &role in roles {
            self.fill(nodes, role, wanted[role]);
        }
    }

    /// Takes back all runs.
    pub(super) fn undo(&mut self) {
        for run in std::mem::take(&mut self.runs) {
            self.change(&run, 1);
        }
    }

    /// Takes back all runs and returns them.
    pub(super) fn take_runs(&mut self) -> Vec<Run> {
        let runs = self.runs.clone();
        self.undo();
        runs
    }

    /// Places runs that were taken back.
    pub(super) fn restore(&mut self, runs: Vec<Run>) {
        for run in &runs {
            self.change(run, -1);
        }
        self.runs = runs;
    }

    /// Places up to `wanted` pods of a role. Returns how many. The nodes that had room are left in `candidates`.
    fn fill(&mut self, nodes: &[u32], role: usize, wanted: u32) -> u32 {
        self.candidates.clear();
        if wanted == 0 {
            return 0;
        }
        let shape = &self.shapes[role];
        for &node in nodes {
            let row = node as usize;
            if !shape.allowed[row] {
                continue;
            }
            let fits = fitting(self.free_on(row), &shape.requests);
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

    /// Adds the requests of a run to what is free `times` times.
    fn change(&mut self, run: &Run, times: i64) {
        let pods = times * i64::from(run.pods);
        let free = &mut self.free[run.row() * self.columns..][..self.columns];
        for (free, request) in free.iter_mut().zip(&self.shapes[run.role].requests) {
            *free += request * pods;
        }
    }

    /// The tenths that are missing for the node's devices to stay together if it gets such a pod.
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
        score::MOST - score::terms(&Standing { devices, ..Standing::default() }).whole.unwrap_or(score::MOST)
    }

    fn free_on(&self, row: usize) -> &[i64] {
        &self.free[row * self.columns..][..self.columns]
    }
}
