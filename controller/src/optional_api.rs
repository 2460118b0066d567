//! Whether a cluster serves an optional part of the API, and whether the part's objects are known.

use std::collections::BTreeSet;

use larder_kube::kinds::Kind;

/// The state of an optional part of the API.
#[derive(Debug, Default)]
pub struct Presence {
    listed: BTreeSet<Kind>,
    /// All of its objects are known.
    has_all: bool,
    /// It is known whether the cluster has the part; if it does, its objects are known as well.
    is_settled: bool,
    /// The cluster has the part, but its objects could not be listed yet.
    is_unknown: bool,
}

impl Presence {
    /// True once decisions may depend on the part. Before that, a missing object may merely be unknown.
    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// True while decisions are made although the objects of the part are unknown.
    pub fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// True if the cluster has the part, and all of its objects are known.
    pub fn is_there(&self) -> bool {
        self.has_all
    }

    /// Records that all objects of `kind` are known. The part consists of `kinds` kinds.
    pub fn listed(&mut self, kind: Kind, kinds: usize) {
        self.listed.insert(kind);
        if self.listed.len() == kinds {
            (self.has_all, self.is_settled, self.is_unknown) = (true, true, false);
        }
    }

    /// Records that the objects of the part cannot be listed: decisions no longer wait for them.
    pub fn is_silent(&mut self) {
        self.is_unknown |= !self.is_settled;
        self.is_settled = true;
    }

    /// Records that the cluster does not have the part.
    pub fn becomes_absent(&mut self) {
        self.listed.clear();
        (self.has_all, self.is_settled, self.is_unknown) = (false, true, false);
    }
}
