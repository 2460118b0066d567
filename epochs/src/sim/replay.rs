//! One cell of the simulation: a policy, a cache size and a number of nodes, read for epochs.
//!
//! The cast: [`Cell`] has the settings; [`replay`] simulates it; `PolicyNode` is a node's cache under one of the
//! store's policies, which it calls as the store does.
//!
//! Invariant: nothing here reads a clock or a disk, or allocates per file.

use anyhow::ensure;
use larder_dataset::BlockIndex;
use larder_dataset::PolicyKind;
use larder_store::{Policy, Sizes, Wish, build_policy};
use serde::Serialize;

use super::belady::{Belady, Plan};
use super::bits::Bits;
use super::config::{SimPlacement, SimPolicy};
use super::files::Files;
use crate::order::{epoch_seed, shuffle_into};

/// Number of files between two reports of progress.
const PROGRESS_EVERY: u32 = 1 << 16;

/// One policy with one cache size and number of nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) policy: SimPolicy,
    pub(super) nodes: u32,
    pub(super) placement: SimPlacement,
    /// Bytes of each node's cache.
    pub(super) capacity_bytes: u64,
    pub(super) epochs: u32,
    pub(super) seed: u64,
}

/// The result of one epoch, over all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct EpochHits {
    /// Share of the files read that were entirely in the cache.
    pub hit_ratio_files: f64,
    /// Share of the bytes read whose blocks were in the cache.
    pub hit_ratio_bytes: f64,
    /// Number of blocks that missed.
    pub missed_blocks: u64,
    /// Bytes of the blocks that missed.
    pub missed_bytes: u64,
    /// Number of files with a block that missed.
    pub missed_files: u64,
}

/// The misses of one file.
#[derive(Default)]
struct Missed {
    blocks: u64,
    bytes: u64,
}

impl Cell {
    /// Bytes of memory that the simulation uses.
    pub(super) fn memory_bytes(&self, files: &Files) -> u64 {
        let (file, block, nodes) = (u64::from(files.count), u64::from(files.blocks), u64::from(self.nodes));
        match self.policy {
            SimPolicy::Store(kind) => {
                let each = if kind.evicts() { 12 } else { 0 };
                // The smallest blocks are found with another bit for each.
                let bits = if kind == PolicyKind::Smallest { 2 } else { 1 };
                4 * file + nodes * block * each + nodes * block * bits / 8
            }
            SimPolicy::Belady => 12 * file + nodes * file * 25 / 64,
        }
    }

    /// The owner of a file or block.
    fn owner(&self, number: u32) -> usize {
        // SplitMix64's mixing function, which scatters neighbouring numbers over the nodes.
        let mut z = self.seed.wrapping_add(u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % u64::from(self.nodes)) as usize
    }

    /// The sizes of the blocks that a node may cache.
    fn sizes_on(&self, files: &Files, node: usize) -> Sizes {
        let mut sizes = Sizes::default();
        for (block, len) in (0..files.count).flat_map(|file| files.blocks_of(file)) {
            if self.placement == SimPlacement::Local || self.owner(block.0) == node {
                sizes.add(len);
            }
        }
        sizes
    }

    /// The node that reads the file at a position of the shuffle: each epoch deals the positions out like cards.
    fn reader(&self, place: u32) -> usize {
        (place % self.nodes) as usize
    }
}

/// Reads the cell's epochs. Calls `progress` with the number of files read since the last call.
pub(super) fn replay(cell: &Cell, files: &Files, progress: &dyn Fn(u64)) -> anyhow::Result<Vec<EpochHits>> {
    ensure!(cell.nodes > 0, "at least one node reads");
    Ok(match cell.policy {
        SimPolicy::Store(kind) => replay_policy(cell, kind, files, progress),
        SimPolicy::Belady => replay_belady(cell, files, progress),
    })
}

fn replay_policy(cell: &Cell, kind: PolicyKind, files: &Files, progress: &dyn Fn(u64)) -> Vec<EpochHits> {
    let mut nodes: Vec<PolicyNode> = (0..cell.nodes).map(|node| PolicyNode::new(kind, cell, files, node)).collect();
    let mut order = Vec::new();
    let epochs = 0..cell.epochs;
    epochs
        .map(|epoch| {
            shuffle_into(&mut order, files.count, epoch_seed(cell.seed, epoch));
            count_epoch(files, progress, |place| {
                let mut missed = Missed::default();
                let file = order[place as usize];
                for (block, len) in files.blocks_of(file) {
                    let node = match cell.placement {
                        SimPlacement::Local => cell.reader(place),
                        SimPlacement::Partitioned => cell.owner(block.0),
                    };
                    if !nodes[node].read(block, len) {
                        missed.blocks += 1;
                        missed.bytes += u64::from(len);
                    }
                }
                missed
            })
        })
        .collect()
}

fn replay_belady(cell: &Cell, files: &Files, progress: &dyn Fn(u64)) -> Vec<EpochHits> {
    let mut nodes: Vec<Belady> = (0..cell.nodes).map(|_| Belady::new(cell.capacity_bytes, files.count)).collect();
    let mut plan = Plan::default();
    let order = |epoch| move |next: &mut Vec<u32>| shuffle_into(next, files.count, epoch_seed(cell.seed, epoch));
    plan.advance(order(0));
    let epochs = 0..cell.epochs;
    epochs
        .map(|epoch| {
            plan.advance(order(epoch + 1));
            // The node that serves the file at this position of the next epoch: its owner, or its reader if files have
            // no owners.
            let node_of_next = |place: u32| match cell.placement {
                SimPlacement::Local => cell.reader(place),
                SimPlacement::Partitioned => cell.owner(plan.next[place as usize]),
            };
            for (number, node) in nodes.iter_mut().enumerate() {
                node.start_epoch(&plan, |place| node_of_next(place) == number);
            }
            count_epoch(files, progress, |place| {
                let file = plan.now[place as usize];
                let number = match cell.placement {
                    SimPlacement::Local => cell.reader(place),
                    SimPlacement::Partitioned => cell.owner(file),
                };
                let hit = nodes[number].read(place, &plan, files, |place| node_of_next(place) == number);
                if hit {
                    Missed::default()
                } else {
                    Missed { blocks: files.blocks_of(file).count() as u64, bytes: files.size(file) }
                }
            })
        })
        .collect()
}

/// Reads the file at each place and sums the misses.
fn count_epoch(files: &Files, progress: &dyn Fn(u64), mut read: impl FnMut(u32) -> Missed) -> EpochHits {
    let mut sum = EpochHits::default();
    for place in 0..files.count {
        let missed = read(place);
        sum.missed_blocks += missed.blocks;
        sum.missed_bytes += missed.bytes;
        sum.missed_files += u64::from(missed.blocks > 0);
        if (place + 1).is_multiple_of(PROGRESS_EVERY) {
            progress(u64::from(PROGRESS_EVERY));
        }
    }
    progress(u64::from(files.count % PROGRESS_EVERY));
    sum.hit_ratio_files = 1.0 - sum.missed_files as f64 / f64::from(files.count);
    sum.hit_ratio_bytes = 1.0 - sum.missed_bytes as f64 / files.bytes as f64;
    sum
}

/// A node's cache under a policy of the store.
#[derive(Debug)]
struct PolicyNode {
    policy: Box<dyn Policy>,
    wants_touch: bool,
    /// The cached blocks, in place of the store's slot table.
    cached: Bits,
    evicted: Vec<BlockIndex>,
}

impl PolicyNode {
    fn new(kind: PolicyKind, cell: &Cell, files: &Files, node: u32) -> Self {
        let seed = cell.seed.wrapping_add(node.into());
        let mut policy = build_policy(kind, cell.capacity_bytes, files.blocks, seed);
        if kind == PolicyKind::Smallest {
            policy.set_sizes(&cell.sizes_on(files, node as usize));
        }
        let wants_touch = policy.wants_touch();
        Self { policy, wants_touch, cached: Bits::new(files.blocks), evicted: Vec::new() }
    }

    /// Reads a block. Returns whether it was cached.
    fn read(&mut self, block: BlockIndex, len: u32) -> bool {
        if self.cached.contains(block.0) {
            if self.wants_touch {
                self.policy.touch(block);
            }
            return true;
        }
        if self.policy.wants(block, len, Wish::Missed) && self.policy.admit(block, len, &mut self.evicted) {
            self.cached.insert(block.0);
            for victim in self.evicted.drain(..) {
                self.cached.remove(victim.0);
            }
        }
        false
    }
}
