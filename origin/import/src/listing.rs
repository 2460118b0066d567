//! The walk over an origin's prefixes, many at once.
//!
//! A unit is a prefix and the depth of its listing. [`Walk`] knows the units that are not finished and where each
//! continues; it is pure, so that replaying a journal and listing for real are the same. [`drive`] sends the LIST calls,
//! several units at a time, and passes each page to one owner.
//!
//! Invariant: every key belongs to exactly one unit. A unit of depth one owns the keys directly below its prefix and makes
//! a unit of each prefix it finds; a unit of depth all owns everything below. Therefore the outcome does not depend on the
//! depth with which a prefix was listed, nor on the run.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use larder_dataset::name::{self, NameRules};
use larder_origin::{Depth, Key, Origin, OriginError, Page, Scheme};
use tokio::task::JoinSet;

use crate::journal::{PageFile, PageRecord};
use crate::version::into_tag;

/// Once this many prefixes are known there is enough to list in parallel, and each is listed flat.
const ENOUGH_PREFIXES: u64 = 64;
/// Prefixes at this depth are listed flat in any case: a deep, narrow tree would cost one request per folder.
const FLAT_LEVEL: u8 = 3;

/// Why a listing cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The origin refused or failed a LIST call.
    #[error("list {}", shown(prefix))]
    Origin {
        /// The prefix that was listed.
        prefix: Vec<u8>,
        /// The cause.
        source: OriginError,
    },
    /// The origin's answer would make the listing loop.
    #[error("list {}: the origin answered {what}", shown(prefix))]
    Odd {
        /// The prefix that was listed.
        prefix: Vec<u8>,
        /// The fault in the answer.
        what: &'static str,
    },
}

fn shown(prefix: &[u8]) -> String {
    if prefix.is_empty() { "the root of the dataset".into() } else { Key::from(prefix).to_string() }
}

/// The name rules of an origin of this kind.
pub(crate) fn rules_of(scheme: Scheme) -> NameRules {
    match scheme {
        Scheme::S3 | Scheme::Gcs | Scheme::Azure => NameRules::OBJECT_STORE,
        Scheme::Folder => NameRules::FOLDER,
    }
}

/// A LIST call to make.
#[derive(Clone, Debug)]
pub(crate) struct ListCall {
    pub(crate) prefix: Vec<u8>,
    pub(crate) depth: Depth,
    pub(crate) after: Option<Vec<u8>>,
}

#[derive(Debug)]
struct Unit {
    level: u8,
    /// Chosen when its first page is requested.
    depth: Option<Depth>,
    after: Option<Vec<u8>>,
}

/// The units that are not finished.
#[derive(Debug)]
pub(crate) struct Walk {
    scheme: Scheme,
    open: HashMap<Vec<u8>, Unit>,
    /// Units without a call in flight. Folders are taken from the back, which keeps the queue short in a deep tree.
    queue: VecDeque<Vec<u8>>,
    known: u64,
    done: u64,
}

impl Walk {
    pub(crate) fn new(scheme: Scheme) -> Self {
        let root = Unit { level: 0, depth: None, after: None };
        Self {
            scheme,
            open: HashMap::from([(Vec::new(), root)]),
            queue: VecDeque::from([Vec::new()]),
            known: 1,
            done: 0,
        }
    }

    /// The number of finished prefixes, and of all known ones.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.done, self.known)
    }

    /// True if the page is the first of its unit.
    pub(crate) fn is_first(&self, page: &PageRecord) -> bool {
        self.open.get(&page.prefix).is_some_and(|unit| unit.after.is_none())
    }

    /// Puts all open units back into the queue, since nothing is in flight after a replay.
    pub(crate) fn requeue(&mut self) {
        let mut open: Vec<_> = self.open.keys().cloned().collect();
        open.sort_unstable();
        self.queue = open.into();
    }

    /// The next call to make, if any unit has none in flight.
    pub(crate) fn next_call(&mut self) -> Option<ListCall> {
        let folder = self.scheme == Scheme::Folder;
        let prefix = if folder { self.queue.pop_back() } else { self.queue.pop_front() }?;
        let unit = self.open.get_mut(&prefix)?;
        let depth = *unit.depth.get_or_insert_with(|| {
            let hostile =
                !prefix.is_empty() && name::check(&prefix[..prefix.len() - 1], rules_of(self.scheme)).is_err();
            let flat = self.known >= ENOUGH_PREFIXES || unit.level >= FLAT_LEVEL || hostile;
            // A folder gives a whole tree as one page, so it is listed one directory at a time.
            if flat && !folder { Depth::All } else { Depth::One }
        });
        Some(ListCall { depth, after: unit.after.clone(), prefix })
    }

    /// Accepts a page: finishes its unit or notes where the unit continues, and opens a unit for each prefix. An error
    /// leaves the walk unchanged.
    pub(crate) fn accept(&mut self, page: &PageRecord) -> Result<(), ListError> {
        let odd = |what| ListError::Odd { prefix: page.prefix.clone(), what };
        let Some(unit) = self.open.get_mut(&page.prefix) else { return Err(odd("for a prefix that is finished")) };
        let below = |prefix: &Vec<u8>| {
            prefix.len() > page.prefix.len() && prefix.starts_with(&page.prefix) && prefix.ends_with(b"/")
        };
        if !page.prefixes.iter().all(below) {
            return Err(odd("with a prefix that is not below it"));
        }
        if page.next.is_some() && page.next <= unit.after {
            return Err(odd("with a page that does not advance"));
        }
        let level = unit.level.saturating_add(1);
        match &page.next {
            Some(next) => {
                unit.depth = Some(if page.recursive { Depth::All } else { Depth::One });
                unit.after = Some(next.clone());
                // Long units go first, since the end of the listing waits for them.
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

/// Requests one page.
pub(crate) async fn list(origin: Arc<dyn Origin>, call: ListCall) -> Result<PageRecord, ListError> {
    match origin.list(&call.prefix, call.after.as_deref(), call.depth).await {
        Ok(Page { files, prefixes, skipped, next }) => {
            let skipped = skipped.into_iter().map(|skipped| (skipped.key, skipped.reason.into())).collect();
            let files = files.into_iter().map(|file| PageFile {
                key: file.key,
                size: file.size,
                mtime_ns: file.mtime_ns,
                version: into_tag(file.version),
            });
            let recursive = call.depth == Depth::All;
            Ok(PageRecord { prefix: call.prefix, recursive, files: files.collect(), prefixes, skipped, next })
        }
        Err(source) => Err(ListError::Origin { prefix: call.prefix, source }),
    }
}

/// Receives the pages of a walk, one at a time.
pub(crate) trait PageOwner {
    /// The reason to stop the walk.
    type Error: From<ListError>;
    /// The walk, which the owner holds.
    fn walk(&mut self) -> &mut Walk;
    /// Accepts a page, also into the walk.
    async fn take(&mut self, page: PageRecord) -> Result<(), Self::Error>;
}

/// Lists until no unit is left, with at most `concurrency` calls in flight. After a failed call it still accepts the pages
/// that have arrived, drops the calls in flight, and returns the first error. When cancelled it leaves no call behind.
pub(crate) async fn drive<O: PageOwner>(
    origin: &Arc<dyn Origin>,
    owner: &mut O,
    concurrency: usize,
    requests: &mut u64,
) -> Result<(), O::Error> {
    let mut calls = JoinSet::new();
    loop {
        while calls.len() < concurrency.max(1) {
            let Some(call) = owner.walk().next_call() else { break };
            *requests += 1;
            calls.spawn(list(Arc::clone(origin), call));
        }
        let Some(page) = calls.join_next().await else { return Ok(()) };
        match flatten(page) {
            Ok(page) => owner.take(page).await?,
            Err(error) => {
                while let Some(page) = calls.try_join_next() {
                    if let Ok(page) = flatten(page) {
                        owner.take(page).await?;
                    }
                }
                return Err(error.into());
            }
        }
    }
}

/// A panic in a call continues in the caller; the calls are never cancelled while `drive` waits for them.
fn flatten(joined: Result<Result<PageRecord, ListError>, tokio::task::JoinError>) -> Result<PageRecord, ListError> {
    match joined {
        Ok(page) => page,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
