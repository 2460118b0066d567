//! Whether a cluster has a part that it may do without, and whether the objects of that part are known.

use std::collections::BTreeSet;

use larder_kube::kinds::Kind;

/// What is known of a part.
#[derive(Debug, Default)]
pub struct Presence {
    listed: BTreeSet<Kind>,
    /// All of its objects are known.
    has_all: bool,
    /// It was once known whether the cluster has the part, and if so all of its objects.
    is_settled: bool,
    /// The cluster has it, and its objects were never known.
    is_unknown: bool,
}

impl Presence {
    /// True once decisions can be made that depend on the part: before, what is missing may only be unknown.
    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// True while nobody knows which objects there are, and decisions are made nevertheless.
    pub fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// True if the cluster has it, and all of its objects are known.
    pub fn is_there(&self) -> bool {
        self.has_all
    }

    /// All objects of one of its kinds are known; it has `kinds`.
    pub fn listed(&mut self, kind: Kind, kinds: usize) {
        self.listed.insert(kind);
        if self.listed.len() == kinds {
            (self.has_all, self.is_settled, self.is_unknown) = (true, true, false);
        }
    }

    /// Its objects cannot be listed: nothing waits for them any longer.
    pub fn is_silent(&mut self) {
        self.is_unknown |= !self.is_settled;
        self.is_settled = true;
    }

    /// The cluster does not have it.
    pub fn becomes_absent(&mut self) {
        self.listed.clear();
        (self.has_all, self.is_settled, self.is_unknown) = (false, true, false);
    }
}
