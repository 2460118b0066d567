//! Disowned blocks: blocks that are cached here and owned by other nodes, since the list of nodes changed. Only a node
//! that has not seen the change asks for them. Their room counts as free: an admission that finds no other room takes
//! it.
//!
//! [`Disowned`] is the blocks that were found, and where the search for more continues; [`Shown`] is what is known of
//! it without the lock that guards it. The search (`search`) goes over the slot table once for each list of nodes, in
//! steps, each when admissions have used up most of what the last step found.
//!
//! Invariant: a block leaves only for an admission that needs its room, and only while the list of nodes by which it
//! was found is the present one. All of this is derived from the slot table and the list, so a restart only begins the
//! search anew.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use larder_dataset::BlockIndex;

/// The most blocks that are remembered.
const FOUND_MOST: usize = 1024;

/// The search continues when fewer are left.
const FOUND_FEW: usize = FOUND_MOST / 4;

/// The disowned blocks that were found, and where the search for more continues.
#[derive(Debug, Default)]
pub(super) struct Disowned {
    /// The version of the list of nodes by which they were found; none: no search was asked for yet.
    version: Option<u64>,
    /// With their lengths.
    found: Vec<(BlockIndex, u32)>,
    found_bytes: u64,
    /// None at the end of the slot table.
    next: Option<u32>,
    is_searching: bool,
}

impl Disowned {
    /// Forgets what was found by another list than the present one.
    pub(super) fn follow(&mut self, version: Option<u64>) {
        if self.version != version {
            *self = Self { version, next: Some(0), is_searching: self.is_searching, ..Self::default() };
        }
    }

    fn wants_search(&self) -> bool {
        self.version.is_some() && self.next.is_some() && self.found.len() < FOUND_FEW && !self.is_searching
    }

    /// Begins a step of the search: the list's version, and the first block to visit.
    pub(super) fn begin(&mut self, version: Option<u64>) -> Option<(u64, u32)> {
        self.follow(version);
        let step = self.version.zip(self.next).filter(|_| self.wants_search());
        self.is_searching |= step.is_some();
        step
    }

    /// Adds what a part of a step found. False if the step has to end.
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

/// Figures about the disowned blocks, readable without the lock.
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

    /// Bytes of the blocks that were found.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// True if an admission found too little room, and a step of the search may find some.
    pub(super) fn wants_search(&self) -> bool {
        self.wants_search.load(Ordering::Relaxed)
    }
}
