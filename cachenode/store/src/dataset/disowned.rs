//! Disowned blocks: blocks that are cached here but owned by other nodes since the list of nodes changed. Only a node
//! that has not seen the change still requests them here. Their space counts as free: an admission that finds no other
//! space takes it.
//!
//! [`Disowned`] holds the blocks that were found and the point where the search continues; [`Shown`] is its summary,
//! readable without the lock. The search (`search`) walks the slot table once for each list of nodes. It works in
//! steps; each step starts when admissions have used up most of what the previous step found.
//!
//! Invariant: a block leaves only for an admission that needs its space, and only while the list of nodes by which the
//! block was found is current. All of this state is derived from the slot table and the list, so a restart merely
//! repeats the search.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use larder_dataset::BlockIndex;

/// The most found blocks that are remembered.
const FOUND_MOST: usize = 1024;

/// The search continues when fewer found blocks than this remain.
const FOUND_FEW: usize = FOUND_MOST / 4;

/// The disowned blocks that were found, and the point where the search continues.
#[derive(Debug, Default)]
pub(super) struct Disowned {
    /// The version of the list of nodes by which they were found. None until a search was requested.
    version: Option<u64>,
    /// The blocks and their lengths in bytes.
    found: Vec<(BlockIndex, u32)>,
    found_bytes: u64,
    /// The next slot to visit; None at the end of the slot table.
    next: Option<u32>,
    is_searching: bool,
}

impl Disowned {
    /// Discards what was found if the list of nodes has changed since.
    pub(super) fn follow(&mut self, version: Option<u64>) {
        if self.version != version {
            *self = Self { version, next: Some(0), is_searching: self.is_searching, ..Self::default() };
        }
    }

    fn wants_search(&self) -> bool {
        self.version.is_some() && self.next.is_some() && self.found.len() < FOUND_FEW && !self.is_searching
    }

    /// Begins a step of the search. Returns the list's version and the first block to visit.
    pub(super) fn begin(&mut self, version: Option<u64>) -> Option<(u64, u32)> {
        self.follow(version);
        let step = self.version.zip(self.next).filter(|_| self.wants_search());
        self.is_searching |= step.is_some();
        step
    }

    /// Adds the blocks found on one part of a step. False if the step must end.
    pub(super) fn add(
        &mut self,
        version: u64,
        found: impl Iterator<Item = (BlockIndex, u32)>,
        next: Option<u32>,
    ) -> bool {
        if self.version != Some(version) {
            return false;
        }
        for (block, len) in found {
            self.found.push((block, len));
            self.found_bytes += u64::from(len);
        }
        self.next = next;
        self.found.len() < FOUND_MOST
    }

    pub(super) fn pop(&mut self) -> Option<(BlockIndex, u32)> {
        let (block, len) = self.found.pop()?;
        self.found_bytes -= u64::from(len);
        Some((block, len))
    }

    /// Ends a step.
    pub(super) fn end(&mut self) {
        self.is_searching = false;
    }
}

/// A summary of the disowned blocks, readable without the lock.
#[derive(Debug, Default)]
pub(super) struct Shown {
    bytes: AtomicU64,
    wants_search: AtomicBool,
}

impl Shown {
    pub(super) fn show(&self, disowned: &Disowned, is_stopped: bool) {
        self.bytes.store(disowned.found_bytes, Ordering::Relaxed);
        self.wants_search.store(disowned.wants_search() && !is_stopped, Ordering::Relaxed);
    }

    /// Total bytes of the blocks that were found.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// True if an admission found too little space and another step of the search may find some.
    pub(super) fn wants_search(&self) -> bool {
        self.wants_search.load(Ordering::Relaxed)
    }
}
