//! Nodes that join when all caches are full, and nodes that leave. The caches go on to add up.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use larder_e2e::Mount;
use larder_e2e::certificates::replace;
use larder_e2e::nodes::{Node, Nodes};

use super::dataset::Files;
use super::flags::{PARTITIONED, as_file, peering, plaintext};
use super::readers::wait_until;

const FILES: usize = 1_600;
const SIZE: u64 = 4_000;

/// Files that a node keeps: half of what each of eight nodes owns, so that no node owns less.
const EACH: usize = FILES / 16;

/// Nodes that run from the start and become members as the list says.
struct Cluster {
    // In the order in which they are dropped.
    mounts: Vec<Mount>,
    running: Vec<Node>,
    files: Files,
    list: PathBuf,
    flags: Vec<String>,
    nodes: Nodes,
}

impl Cluster {
    /// Each node keeps [`EACH`] files.
    fn new(members: RangeInclusive<usize>, count: usize) -> Self {
        Self::with_size(members, count, Some(EACH as u64 * SIZE))
    }

    /// Each node keeps this many bytes; `None`: what it reserves.
    fn with_size(members: RangeInclusive<usize>, count: usize, size: Option<u64>) -> Self {
        let nodes = Nodes::new(count);
        let files = Files::new([SIZE; FILES]);
        files.put(&nodes.lab);
        let list = nodes.lab.folder().join("peers");
        replace(&list, &as_file(members));
        let watched = format!("@{}", list.display());
        let running = (1..=count).map(|n| nodes.start(n, &peering(n, &watched, &plaintext()))).collect();
        let size = size.map(|size| format!("--cache-size={size}"));
        let flags = PARTITIONED.iter().map(|&flag| flag.to_owned()).chain(size).collect();
        let mut cluster = Self { mounts: Vec::new(), running, files, list, flags, nodes };
        cluster.mounts = (0..count).map(|at| cluster.mount(at)).collect();
        cluster
    }

    fn mount(&self, at: usize) -> Mount {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        self.running[at].mount(&self.nodes.lab.url(), &flags)
    }

    /// Makes these nodes the members, and waits until all know.
    fn become_members(&self, members: RangeInclusive<usize>) {
        let changes = |node: &Node| node.log().matches("the list of nodes changed").count();
        let before: Vec<usize> = self.running.iter().map(changes).collect();
        replace(&self.list, &as_file(members));
        wait_until("all nodes know the new list", || {
            self.running.iter().zip(&before).all(|(node, &before)| changes(node) > before)
        });
    }

    /// An epoch in which each file is read once, on one of the first `count` nodes: how many needed no GET.
    fn hits(&self, count: usize, epoch: usize) -> usize {
        let mounts: Vec<&Mount> = self.mounts[..count].iter().collect();
        self.nodes.lab.server.reset_counters();
        self.files.read_part(&mounts, epoch as u64, |at, n| (n + epoch) % count == at);
        self.files.count() - self.nodes.lab.server.counters().gets as usize
    }

    fn sum(&self, metric: &str) -> u64 {
        self.mounts.iter().map(|mount| mount.metric(metric)).sum()
    }

    /// Every one of the first `count` nodes is full.
    fn assert_full(&self, count: usize) {
        for mount in &self.mounts[..count] {
            assert_eq!(mount.metric("store_blocks"), EACH as u64, "{:#}", mount.stats());
        }
    }
}

// SEMANTICS: S3
#[test]
fn four_full_nodes_that_grow_to_eight_hit_the_sum_again_and_shrinking_costs_no_more_than_who_left() {
    let cluster = Cluster::new(1..=4, 8);
    cluster.hits(4, 0);
    cluster.assert_full(4);
    assert_eq!(cluster.hits(4, 1), 4 * EACH);

    cluster.become_members(1..=8);
    assert_eq!(cluster.sum("store_disowned_total"), 0, "without need nothing leaves");
    cluster.hits(8, 2);
    cluster.assert_full(8);
    assert_eq!(cluster.hits(8, 3), 8 * EACH, "the second epoch hits the sum of eight caches");
    let left = cluster.sum("store_disowned_total");
    let disowned = 4 * EACH as u64 / 2;
    assert!(left.abs_diff(disowned) < disowned / 4, "{left} blocks left, about {disowned} had another owner");
    assert_eq!(cluster.hits(8, 4), 8 * EACH);
    assert_eq!(cluster.sum("store_disowned_total"), left, "what is full of its own stays as it is");

    // Members that leave take what they had; what stays was owned before and still is.
    cluster.become_members(1..=4);
    assert_eq!(cluster.hits(4, 5), 4 * EACH, "the first epoch hits the sum of the four that stay");
    assert_eq!(cluster.sum("store_disowned_total"), left, "nothing had to leave");
    assert_eq!(cluster.sum("store_evicted_total"), 0);
}

/// A node's knowledge of disowned blocks ends with its process, and is found out again.
// SEMANTICS: S3
#[test]
fn full_nodes_that_are_killed_after_they_grew_hit_the_sum_again() {
    let mut cluster = Cluster::new(1..=2, 4);
    cluster.hits(2, 0);
    cluster.assert_full(2);
    cluster.become_members(1..=4);
    for at in 0..2 {
        cluster.running[at].kill();
        cluster.running[at].restart();
        cluster.mounts[at] = cluster.mount(at);
    }
    let mut epoch = 0;
    // The others use the killed ones again after their next probes.
    wait_until("the caches add up", || {
        epoch += 1;
        cluster.hits(4, epoch) == 4 * EACH
    });
    cluster.assert_full(4);
    assert!(cluster.sum("store_disowned_total") > 0);
}

/// A list that comes and goes moves nothing: the caches stay as they are, and readers go on.
// SEMANTICS: S3
#[test]
fn members_that_flap_take_nothing_from_full_nodes() {
    let cluster = Cluster::new(1..=2, 4);
    cluster.hits(2, 0);
    for _ in 0..3 {
        cluster.become_members(1..=4);
        cluster.become_members(1..=2);
    }
    assert_eq!(cluster.hits(2, 1), 2 * EACH);
    assert_eq!(cluster.sum("store_disowned_total"), 0);
}

// SEMANTICS: C7
#[test]
fn warming_takes_the_room_of_disowned_blocks() {
    let cluster = Cluster::new(1..=2, 4);
    cluster.hits(2, 0);
    cluster.assert_full(2);
    cluster.become_members(1..=4);
    for (node, mount) in cluster.running.iter().zip(&cluster.mounts) {
        let dir: &Path = mount.dir();
        let output = node.larder(&["warm", dir.to_str().unwrap(), "--wait"], None);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(cluster.hits(4, 1), 4 * EACH);
    assert!(cluster.sum("store_disowned_total") > 0);
}

// SEMANTICS: S2
#[test]
fn a_node_reserves_what_it_owns_and_follows_the_list() {
    let cluster = Cluster::with_size(1..=4, 4, None);
    let all = cluster.files.total_bytes();
    let reserved = |count: usize| -> u64 {
        cluster.mounts[..count].iter().map(|mount| mount.metric("store_capacity_bytes")).sum()
    };
    assert_eq!(reserved(4), all, "each file is in one node's reservation");
    cluster.hits(4, 0);
    assert_eq!(cluster.hits(4, 1), FILES, "what a node owns has room");

    cluster.become_members(1..=2);
    wait_until("the nodes that stay reserve what the others owned", || reserved(2) == all);
    cluster.hits(2, 2);
    assert_eq!(cluster.hits(2, 3), FILES);

    // Cached blocks stay reserved, on nodes that left and on those that stayed.
    cluster.become_members(1..=4);
    assert_eq!(cluster.hits(4, 4), FILES);
    assert_eq!(cluster.sum("store_evicted_total") + cluster.sum("store_disowned_total"), 0);
}
