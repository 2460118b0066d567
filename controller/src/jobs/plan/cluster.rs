//! The cluster as the plan counts it: for each node a row with one number for each resource.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use larder_api::quantity::words::show;
use larder_dataset::score::{self, Standing};

use crate::objects::Node;
use larder_kube::key::Key;
use larder_kube::pod::amounts::Amounts;
use larder_kube::pod::node_affinity::Places;

/// The resource that counts pods.
const PODS: &str = "pods";

/// How many different conditions on nodes, and topology keys, are remembered.
const REMEMBERED: usize = 64;

/// A node and its room.
#[derive(Clone, Debug)]
pub struct NodeRoom<'a> {
    /// Its labels, taints and health.
    pub node: &'a Node,
    /// All that pods may request on it.
    pub allocatable: Amounts,
    /// What its pods request together, `pods` included. Pods that have ended do not count.
    pub used: Amounts,
    /// The bytes that it holds of datasets.
    pub held: BTreeMap<Key, u64>,
}

/// A node by its place in the order of names.
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

/// What was free at some time.
#[derive(Clone, Debug)]
pub struct Mark(Vec<i64>);

/// The nodes, and what is free on them.
#[derive(Clone, Debug)]
pub struct Cluster<'a> {
    /// By name.
    nodes: Vec<&'a NodeRoom<'a>>,
    /// The columns.
    resources: Vec<&'a str>,
    allocatable: Vec<i64>,
    /// Less than nothing if a node's pods request more than it has.
    free: Vec<i64>,
    allowed: Vec<(Places, Rc<[bool]>)>,
    domains: Vec<(String, Rc<Domains>)>,
}

impl<'a> Cluster<'a> {
    /// The cluster of these nodes. Of two of one name, the first counts.
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

    /// The node of this name.
    pub fn find(&self, node: &str) -> Option<NodeIndex> {
        self.nodes.binary_search_by(|room| name(room).cmp(node)).ok().map(NodeIndex::of)
    }

    /// The name of a node.
    pub fn name(&self, node: NodeIndex) -> &'a str {
        name(self.nodes[node.row()])
    }

    /// How much of a resource is free on a node; less than nothing if its pods request more than it has.
    pub fn free_on(&self, node: NodeIndex, resource: &str) -> i64 {
        let column = self.resources.binary_search(&resource).ok();
        column.map_or(0, |column| self.free[node.row() * self.columns() + column])
    }

    /// Pods with these requests take room on a node.
    pub fn take(&mut self, node: NodeIndex, requests: &Amounts, pods: u32) {
        self.change(node, requests, -i64::from(pods));
    }

    /// Pods with these requests leave a node.
    pub fn give(&mut self, node: NodeIndex, requests: &Amounts, pods: u32) {
        self.change(node, requests, i64::from(pods));
    }

    /// Remembers what is free.
    pub fn mark(&self) -> Mark {
        Mark(self.free.clone())
    }

    /// Goes back to what was free.
    pub fn restore(&mut self, mark: &Mark) {
        self.free.clone_from(&mark.0);
    }

    /// What was free and still is, by the smaller of both amounts.
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

    /// The column of the devices that a row asks for, such as GPUs: their names have a domain.
    pub(super) fn device(&self, requests: &[i64]) -> Option<usize> {
        (0..self.columns()).find(|column| requests[*column] > 0 && self.resources[*column].contains('/'))
    }

    /// The requests of a pod as a row; `None` if no node has one of the resources.
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

    /// A requested resource that no node has.
    pub(super) fn unknown(&self, requests: &Amounts) -> Option<String> {
        let known = |resource: &str| resource == PODS || self.resources.binary_search(&resource).is_ok();
        requests.iter().find(|(resource, _)| !known(resource)).map(|(resource, _)| resource.to_owned())
    }

    /// The largest part of any resource of the whole cluster that a pod requests, in parts of 2^32.
    pub(super) fn share(&self, requests: &[i64]) -> u128 {
        let share = |(column, request): (usize, &i64)| {
            let all: u128 = self.allocatable.iter().skip(column).step_by(self.columns()).map(|all| *all as u128).sum();
            ((*request as u128) << 32).checked_div(all).unwrap_or(0)
        };
        requests.iter().enumerate().map(share).max().unwrap_or(0)
    }

    /// The request that takes the largest part of the cluster, as sentences show it.
    pub(super) fn main_request(&self, requests: &Amounts) -> String {
        let share = |resource: &str, amount: u64| {
            let row = self.row(&[(resource, amount)].into_iter().collect());
            row.map_or(u128::MAX, |row| self.share(&row))
        };
        let main = requests.iter().max_by_key(|(resource, amount)| share(resource, *amount));
        main.map_or_else(String::new, |(resource, amount)| show(resource, amount))
    }

    /// How many such pods the nodes would have room for if they were empty.
    pub(super) fn room_when_empty(&self, requests: &[i64], allowed: &[bool]) -> u64 {
        let rows = self.allocatable.chunks_exact(self.columns().max(1));
        rows.zip(allowed)
            .filter(|(_, allowed)| **allowed)
            .fold(0, |sum: u64, (row, _)| sum.saturating_add(u64::from(fitting(row, requests))))
    }

    /// The nodes that new pods may go to.
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

    /// The domains of a topology key. Nodes without the label are one domain; without a key all nodes are.
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

    /// How much of the datasets each node holds, in tenths.
    pub(super) fn tenths_held(&self, datasets: &[(Key, u64)]) -> Vec<u8> {
        let tenths = |room: &&NodeRoom<'_>| {
            let mut standing = Standing::default();
            for (key, bytes) in datasets {
                standing.reads(room.held.get(key).copied().unwrap_or(0), *bytes);
            }
            score::terms(&standing).data.unwrap_or(0)
        };
        self.nodes.iter().map(tenths).collect()
    }
}

fn name<'a>(room: &NodeRoom<'a>) -> &'a str {
    &room.node.meta.key.name
}

/// How many pods with these requests fit into what is free.
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
    /// By node.
    of: Vec<u32>,
    /// The nodes of each.
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

    /// How many nodes there are.
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
