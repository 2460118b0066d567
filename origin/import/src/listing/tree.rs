//! A walk over the prefixes of an origin, for folders and for stores whose listings cannot start at any key.
//!
//! A unit is a prefix and the depth of its listing. Invariant: every key belongs to exactly one unit. A unit of depth
//! one owns the keys directly below its prefix, and creates a unit for each prefix that it finds. A unit of depth all
//! owns everything below its prefix. The result therefore does not depend on the depth at which a prefix was listed,
//! nor on the run.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use larder_dataset::name;
use larder_origin::{Depth, Scheme};

use super::call::{ListCall, ListError, rules_of};
use crate::journal::PageRecord;

/// With this many known prefixes, enough can be listed in parallel, and each is listed flat.
const ENOUGH_PREFIXES: u64 = 64;
/// Prefixes at this depth are always listed flat: a deep, narrow tree would otherwise cost one request per folder.
const FLAT_LEVEL: u8 = 3;

#[derive(Debug)]
struct Unit {
    level: u8,
    /// Chosen when the first page of the unit is requested.
    depth: Option<Depth>,
    after: Option<Vec<u8>>,
}

/// The units that are not finished.
#[derive(Debug)]
pub(super) struct TreeWalk {
    scheme: Scheme,
    open: HashMap<Vec<u8>, Unit>,
    /// Units without a call in flight. Folders are taken from the back, which keeps the queue short in a deep tree.
    queue: VecDeque<Vec<u8>>,
    known: u64,
    done: u64,
}

impl TreeWalk {
    pub(super) fn new(scheme: Scheme) -> Self {
        let root = Unit { level: 0, depth: None, after: None };
        Self {
            scheme,
            open: HashMap::from([(Vec::new(), root)]),
            queue: VecDeque::from([Vec::new()]),
            known: 1,
            done: 0,
        }
    }

    /// The number of finished prefixes, and the number of all known ones.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.done, self.known)
    }

    /// True if the page is the first of its unit.
    pub(super) fn is_first(&self, page: &PageRecord) -> bool {
        self.open.get(&page.prefix).is_some_and(|unit| unit.after.is_none())
    }

    /// Puts all open units back into the queue, since no call is in flight after a replay.
    pub(super) fn requeue(&mut self) {
        let mut open: Vec<_> = self.open.keys().cloned().collect();
        open.sort_unstable();
        self.queue = open.into();
    }

    /// The next call to make. `None` if every unit has a call in flight.
    pub(super) fn next_call(&mut self) -> Option<ListCall> {
        let folder = self.scheme == Scheme::Folder;
        let prefix = if folder { self.queue.pop_back() } else { self.queue.pop_front() }?;
        let unit = self.open.get_mut(&prefix)?;
        let depth = *unit.depth.get_or_insert_with(|| {
            let hostile =
                !prefix.is_empty() && name::check(&prefix[..prefix.len() - 1], rules_of(self.scheme)).is_err();
            let flat = self.known >= ENOUGH_PREFIXES || unit.level >= FLAT_LEVEL || hostile;
            // A folder returns a whole tree as one page, so it is listed one directory at a time.
            if flat && !folder { Depth::All } else { Depth::One }
        });
        Some(ListCall { depth, after: unit.after.clone(), prefix })
    }

    /// Accepts a page: finishes its unit or records where the unit continues, and opens a unit for each prefix. On an
    /// error the walk is unchanged.
    pub(super) fn accept(&mut self, page: &PageRecord) -> Result<(), ListError> {
        let odd = |what| ListError::Odd { prefix: page.prefix.clone(), what };
        let Some(unit) = self.open.get_mut(&page.prefix) else { return Err(odd("for a prefix that is finished")) };
        let below = |prefix: &Vec<u8>| {
            prefix.len() > page.prefix.len() && prefix.starts_with(&page.prefix) && prefix.ends_with(b"/")
        };
        if !page.prefixes.iter().all(below) {
            return Err(odd("with a prefix that is not below it"));
        }
        // The positions in a folder are in no order.
        let advances = page.next > unit.after || self.scheme == Scheme::Folder && page.next != unit.after;
        if page.next.is_some() && !advances {
            return Err(odd("with a page that does not advance"));
        }
        if page.after != unit.after {
            return Err(odd("with a page from elsewhere"));
        }
        let level = unit.level.saturating_add(1);
        match &page.next {
            Some(next) => {
                unit.depth = Some(if page.recursive { Depth::All } else { Depth::One });
                unit.after = Some(next.clone());
                // Units with many pages go first, since the end of the listing waits for them.
                self.queue.push_front(page.prefix.clone());
            }
            None => {
                self.open.remove(&page.prefix);
                self.done += 1;
            }
        }
        for prefix in &page.prefixes {
            if let Entry::Vacant(vacant) = self.open.entry(prefix.clone()) {
                vacant.insert(Unit { level, depth: None, after: None });
                self.known += 1;
                self.queue.push_back(prefix.clone());
            }
        }
        Ok(())
    }
}
