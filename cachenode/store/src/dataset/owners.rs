//! The users of one cache, and the blocks that each of them owns. A snapshot may be open several times, from several
//! servers and with several placements.
//!
//! Invariant: a block is disowned only if no user owns it. No block is disowned while a user owns all blocks or knows
//! no list of nodes. None is disowned while a connection is awaited either: it may turn out to be a user that owns all
//! blocks.

use std::collections::BTreeSet;
use std::sync::Arc;

use larder_dataset::BlockIndex;

use crate::ownership::Ownership;

/// The users of a cache.
#[derive(Debug, Default)]
pub(super) struct Owners {
    each: Vec<Owner>,
    /// The connections that showed the dataset when the last process ended, except those that have come back in this
    /// process and those known to have closed.
    awaited: BTreeSet<String>,
    last_number: u64,
    version: u64,
}

#[derive(Debug)]
struct Owner {
    number: u64,
    /// None if the user owns all blocks.
    ownership: Option<Arc<dyn Ownership>>,
    /// The last version that the user's list of nodes had.
    version: Option<u64>,
}

impl Owners {
    /// Adds a user and returns its number.
    pub(super) fn add(&mut self, ownership: Option<Arc<dyn Ownership>>) -> u64 {
        self.last_number += 1;
        self.version += 1;
        self.each.push(Owner { number: self.last_number, ownership, version: None });
        self.last_number
    }

    pub(super) fn remove(&mut self, number: u64) {
        self.version += 1;
        self.each.retain(|owner| owner.number != number);
    }

    /// Awaits the connections that showed the dataset when the last process ended.
    pub(super) fn wait_for(&mut self, connections: BTreeSet<String>) {
        self.awaited = connections;
    }

    pub(super) fn is_awaiting(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// Notes that a connection shows the dataset in this process: it is no longer awaited.
    pub(super) fn arrived(&mut self, connection: &str) {
        self.awaited.remove(connection);
    }

    /// Stops awaiting the connections for which `is_left` is false. Returns those connections.
    pub(super) fn give_up(&mut self, is_left: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let (left, gone) = std::mem::take(&mut self.awaited).into_iter().partition(|connection| is_left(connection));
        self.awaited = left;
        gone
    }

    /// A number that changes whenever the set of disowned blocks may change. None while no block can be disowned.
    pub(super) fn version(&mut self) -> Option<u64> {
        if self.is_awaiting() {
            return None;
        }
        for owner in &mut self.each {
            let version = owner.ownership.as_ref()?.version()?;
            if owner.version.replace(version) != Some(version) {
                self.version += 1;
            }
        }
        (!self.each.is_empty()).then_some(self.version)
    }

    /// The blocks that the users own, by the lists that [`version`](Self::version) saw last.
    pub(super) fn owned(&self) -> Owned {
        let owned = |owner: &Owner| Some((Arc::clone(owner.ownership.as_ref()?), owner.version?));
        Owned(self.each.iter().filter_map(owned).collect())
    }
}

/// The blocks that the users of a cache own.
#[derive(Debug)]
pub(super) struct Owned(Vec<(Arc<dyn Ownership>, u64)>);

impl Owned {
    /// Removes the blocks that a user owns from `blocks`, which must be in ascending order. Returns false if a list of
    /// nodes has changed; the contents of `blocks` are then meaningless.
    pub(super) fn retain_disowned(&self, blocks: &mut Vec<BlockIndex>) -> bool {
        self.0.iter().all(|(ownership, version)| ownership.retain_disowned(*version, blocks))
    }
}
