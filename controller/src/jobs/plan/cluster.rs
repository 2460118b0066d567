//! The cluster as the plan sees it: a row per node, a column per resource.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use larder_api::quantity::words::show;
use larder_dataset::score::{self, NodeFacts};

use crate::objects::Node;
use larder_kube::key::Key;
use larder_kube::pod::amounts::Amounts;
use larder_kube::pod::node_affinity::Places;

/// The resource that counts pods.
const PODS: &str = "pods";

/// The number of node constraints, and of topology keys, whose results are cached.
const REMEMBERED: usize = 64;

/// A node and its room.
#[derive(Clone, Debug)]
pub struct NodeRoom<'a> {
    /// Labels, taints and health.
    pub node: &'a Node,
    /// The node's allocatable resources.
    pub allocatable: Cow<'a, Amounts>,
    /// The total requests of the node's pods, including the `pods` resource. Pods that have ended do not count.
    pub used: Cow<'a, Amounts>,
    /// Bytes of each dataset that the node has cached.
    pub held: BTreeMap<Key, u64>,
}

/// A node's index in the order of node names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(u32);

impl NodeIndex {
    pub(super) fn of(row: usize) -> Self {
        Self(row as u32)
    }

    pub(super) fn row(self) -> usize {
        self.0 as usize
    }
}

/// A snapshot of the free resources, taken by [`Cluster::mark`].
#[derive(Clone, Debug)]
pub struct Mark(Vec<i64>);

/// The nodes and their free resources.
#[derive(Clone, Debug)]
pub struct Cluster<'a> {
    /// Sorted by name.
    nodes: Vec<&'a NodeRoom<'a>>,
    /// The columns, sorted by name.
    resources: Vec<&'a str>,
    allocatable: Vec<i64>,
    /// Negative where a node's pods request more than it has.
    free: Vec<i64>,
    allowed: Vec<(Places, Rc<[bool]>)>,
    domains: Vec<(String, Rc<Domains>)>,
}

impl<'a> Cluster<'a> {
    /// Builds the cluster view. If two nodes have the same name, the first one counts.
    pub fn new(nodes: &'a [NodeRoom<'a>]) -> Self {
        let mut nodes: Vec<&NodeRoom<'_>> = nodes.iter().collect();
        nodes.sort_by(|a, b| name(a).cmp(name(b)));
        nodes.dedup_by(|later, earlier| name(later) == name(earlier));
        let resources: BTreeSet<&str> =
            nodes.iter().flat_map(|room| room.allocatable.iter()).map(|(resource, _)| resource).collect();
        let resources: Vec<&str> = resources.into_iter().collect();
        let row = |amounts: &Amounts| -> Vec<i64> {
            let mut row = vec![0; resources.len()];
            for (resource, amount) in amounts.iter() {
                if let Ok(column) = resources.binary_search(&resource) {
                    row[column] = i64::try_from(amount).unwrap_or(i64::MAX);
                }
            }
            row
        };
        let allocatable: Vec<i64> = nodes.iter().flat_map(|room| row(&room.allocatable)).collect();
        let used = nodes.iter().flat_map(|room| row(&room.used));
        let free = allocatable.iter().zip(used).map(|(all, used)| all.saturating_sub(used)).collect();
        Self { nodes, resources, allocatable, free, allowed: Vec::new(), domains: Vec::new() }
    }

    pub fn find(&self, node: &str) -> Option<NodeIndex> {
        self.nodes.binary_search_by(|room| name(room).cmp(node)).ok().map(NodeIndex::of)
    }

    pub fn name(&self, node: NodeIndex) -> &'a str {
        name(self.nodes[node.row()])
    }

    /// The free amount of a resource on a node; negative if the node's pods request more than it has.
    pub fn free_on(&self, node: NodeIndex, resource: &str) -> i64 {
        let column = self.resources.binary_search(&resource).ok();
        column.map_or(0, |column| self.free[node.row() * self.columns() + column])
    }

    /// Subtracts the requests of `pods` pods from a node's free resources.
    pub fn take(&mut self, node: NodeIndex, requests: &Amounts, pods: u32) {
        self.change(node, requests, -i64::from(pods));
    }

    /// Takes the requests of a pod, if the node has room and may be used.
    pub fn take_if_free(&mut self, node: NodeIndex, requests: &Amounts, places: &Places) -> bool {
        let Some(row) = self.row(requests) else { return false };
        let start = node.row() * self.columns();
        let has_room = fitting(&self.free[start..start + self.columns()], &row) > 0;
        let is_free = has_room && self.allowed(places)[node.row()];
        if is_free {
            self.take(node, requests, 1);
        }
        is_free
    }

    /// Returns the requests of `pods` pods to a node's free resources.
    pub fn give(&mut self, node: NodeIndex, requests: &Amounts, pods: u32) {
        self.change(node, requests, i64::from(pods));
    }

    /// Takes a snapshot of the free resources.
    pub fn mark(&self) -> Mark {
        Mark(self.free.clone())
    }

    /// Restores a snapshot of the free resources.
    pub fn restore(&mut self, mark: &Mark) {
        self.free.clone_from(&mark.0);
    }

    /// Lowers every free amount to the smaller of its current and its marked value.
    pub fn keep_free(&mut self, mark: &Mark) {
        for (free, then) in self.free.iter_mut().zip(&mark.0) {
            *free = (*free).min(*then);
        }
    }

    fn change(&mut self, node: NodeIndex, requests: &Amounts, pods: i64) {
        let start = node.row() * self.columns();
        for (resource, amount) in requests.iter().filter(|(resource, _)| *resource != PODS).chain([(PODS, 1)]) {
            if let Ok(column) = self.resources.binary_search(&resource) {
                let amount = i64::try_from(amount).unwrap_or(i64::MAX).saturating_mul(pods);
                let free = &mut self.free[start + column];
                *free = free.saturating_add(amount);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn columns(&self) -> usize {
        self.resources.len()
    }

    pub(super) fn free(&self) -> Vec<i64> {
        self.free.clone()
    }

    pub(super) fn allocatable(&self) -> Vec<i64> {
        self.allocatable.clone()
    }

    /// The column of the devices that a row requests, such as GPUs. Their resource names contain a `/`.
    pub(super) fn device(&self, requests: &[i64]) -> Option<usize> {
        (0..self.columns()).find(|column| requests[*column] > 0 && self.resources[*column].contains('/'))
    }

    /// Converts a pod's requests into a row. `None` if no node offers one of the resources.
    pub(super) fn row(&self, requests: &Amounts) -> Option<Vec<i64>> {
        let mut row = self.nothing();
        for (resource, amount) in requests.iter().filter(|(resource, _)| *resource != PODS) {
            row[self.resources.binary_search(&resource).ok()?] = i64::try_from(amount).unwrap_or(i64::MAX);
        }
        if let Ok(column) = self.resources.binary_search(&PODS) {
            row[column] = 1;
        }
        Some(row)
    }

    pub(super) fn nothing(&self) -> Vec<i64> {
        vec![0; self.columns()]
    }

    pub(super) fn none_allowed(&self) -> Rc<[bool]> {
        vec![false; self.len()].into()
    }

    /// The first requested resource that no node offers.
    pub(super) fn unknown(&self, requests: &Amounts) -> Option<String> {
        let known = |resource: &str| resource == PODS || self.resources.binary_search(&resource).is_ok();
        requests.iter().find(|(resource, _)| !known(resource)).map(|(resource, _)| resource.to_owned())
    }

    /// The largest share of any cluster-wide resource that a pod requests, in units of 2^-32.
    pub(super) fn share(&self, requests: &[i64]) -> u128 {
        let share = |(column, request): (usize, &i64)| {
            let all: u128 = self.allocatable.iter().skip(column).step_by(self.columns()).map(|all| *all as u128).sum();
            ((*request as u128) << 32).checked_div(all).unwrap_or(0)
        };
        requests.iter().enumerate().map(share).max().unwrap_or(0)
    }

    /// The request that takes the largest share of the cluster, formatted for a message.
    pub(super) fn main_request(&self, requests: &Amounts) -> String {
        let share = |resource: &str, amount: u64| {
            let row = self.row(&[(resource, amount)].into_iter().collect());
            row.map_or(u128::MAX, |row| self.share(&row))
        };
        let main = requests.iter().max_by_key(|(resource, amount)| share(resource, *amount));
        main.map_or_else(String::new, |(resource, amount)| show(resource, amount))
    }

    /// The number of such pods that would fit if the nodes were empty. `most` limits it for each node.
    pub(super) fn room_when_empty(&self, requests: &[i64], allowed: &[bool], most: u32) -> u64 {
        let rows = self.allocatable.chunks_exact(self.columns().max(1));
        rows.zip(allowed)
            .filter(|(_, allowed)| **allowed)
            .fold(0, |sum: u64, (row, _)| sum.saturating_add(u64::from(fitting(row, requests).min(most))))
    }

    /// Per node, whether new pods may be placed on it: the node is schedulable and healthy, and `places` allows it.
    pub(super) fn allowed(&mut self, places: &Places) -> Rc<[bool]> {
        if let Some((_, allowed)) = self.allowed.iter().find(|(known, _)| known == places) {
            return Rc::clone(allowed);
        }
        let is_open =
            |node: &Node| node.ready && !node.unschedulable && !node.meta.deleting && node.device_fault != Some(true);
        let allowed: Rc<[bool]> = self.nodes.iter().map(|room| is_open(room.node) && places.allow(room.node)).collect();
        if self.allowed.len() < REMEMBERED {
            self.allowed.push((places.clone(), Rc::clone(&allowed)));
        }
        allowed
    }

    /// Groups nodes by the value of a topology key. Nodes without the label form one domain; with an empty key all
    /// nodes do.
    pub(super) fn domains_of(&mut self, key: &str) -> Rc<Domains> {
        if let Some((_, domains)) = self.domains.iter().find(|(known, _)| known == key) {
            return Rc::clone(domains);
        }
        let labels = |room: &&NodeRoom<'a>| room.node.labels.get(key).map_or("", String::as_str);
        let domains = Rc::new(Domains::new(self.nodes.iter().map(labels)));
        if self.domains.len() < REMEMBERED {
            self.domains.push((key.to_owned(), Rc::clone(&domains)));
        }
        domains
    }

    /// Per node, the share of the datasets that it holds, in tenths.
    pub(super) fn tenths_held(&self, datasets: &[(Key, u64)]) -> Vec<u8> {
        let tenths = |room: &&NodeRoom<'_>| {
            let mut node_facts = NodeFacts::default();
            for (key, bytes) in datasets {
                node_facts.reads(room.held.get(key).copied().unwrap_or(0), *bytes);
            }
            score::terms(&node_facts).data.unwrap_or(0)
        };
        self.nodes.iter().map(tenths).collect()
    }
}

fn name<'a>(room: &NodeRoom<'a>) -> &'a str {
    &room.node.meta.key.name
}

/// The number of pods with these requests that fit into the free resources.
pub(super) fn fitting(free: &[i64], requests: &[i64]) -> u32 {
    let mut most = i64::from(u32::MAX);
    for (free, request) in free.iter().zip(requests) {
        if *request > 0 {
            most = most.min(free / request);
        }
    }
    most.max(0) as u32
}

/// The topology domains of the nodes.
#[derive(Debug)]
pub(super) struct Domains {
    /// Per node, its domain.
    of: Vec<u32>,
    /// Per domain, its nodes.
    members: Vec<Vec<u32>>,
}

impl Domains {
    fn new<'l>(labels: impl Iterator<Item = &'l str>) -> Self {
        let labels: Vec<&str> = labels.collect();
        let names: BTreeSet<&str> = labels.iter().copied().collect();
        let numbers: BTreeMap<&str, u32> = names.into_iter().zip(0..).collect();
        let of: Vec<u32> = labels.iter().map(|label| numbers[label]).collect();
        let mut members = vec![Vec::new(); numbers.len()];
        for (row, domain) in (0..).zip(&of) {
            members[*domain as usize].push(row);
        }
        Self { of, members }
    }

    pub(super) fn count(&self) -> usize {
        self.members.len()
    }

    pub(super) fn nodes(&self) -> usize {
        self.of.len()
    }

    pub(super) fn of(&self, row: usize) -> usize {
        self.of[row] as usize
    }

    pub(super) fn members(&self, domain: usize) -> &[u32] {
        &self.members[domain]
    }
}
