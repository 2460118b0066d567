//! The walk over an origin's prefixes, many at once.
//!
//! The cast: [`Walk`] knows which units (a prefix and how deep it is listed) are still to be listed and where each goes on;
//! it is pure, so that replaying a journal and listing for real are the same. [`drive`] asks the origin, several units at a
//! time, and hands each page to one owner.
//!
//! Invariant: every key belongs to exactly one unit: a unit of depth one owns the keys directly below its prefix and makes
//! a unit of each prefix it finds, a unit of depth all owns everything below. So it does not matter to the outcome which
//! depth a prefix was listed with, nor in which run.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use larder_dataset::name::{self, NameRules};
use larder_origin::{Depth, Key, Origin, OriginError, Page, Scheme};
use tokio::task::JoinSet;

use crate::journal::PageRecord;

/// With this many prefixes known there is enough to list at once, and each is listed flat.
const ENOUGH_PREFIXES: u64 = 64;
/// Prefixes this far down are listed flat in any case: a deep, narrow tree would cost a request for every folder.
const FLAT_LEVEL: u8 = 3;

/// Why a listing cannot be gone on with.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The origin does not list.
    #[error("list {}", shown(prefix))]
    Origin {
        /// The prefix that was listed.
        prefix: Vec<u8>,
        /// Why.
        source: OriginError,
    },
    /// The origin's answer would make the listing run in circles.
    #[error("list {}: the origin answered {what}", shown(prefix))]
    Odd {
        /// The prefix that was listed.
        prefix: Vec<u8>,
        /// What is wrong with the answer.
        what: &'static str,
    },
}

fn shown(prefix: &[u8]) -> String {
    if prefix.is_empty() { "the root of the dataset".into() } else { Key::from(prefix).to_string() }
}

/// The rules for names in an origin of this kind.
pub(crate) fn rules_of(scheme: Scheme) -> NameRules {
    match scheme {
        Scheme::S3 | Scheme::Gcs | Scheme::Azure => NameRules::OBJECT_STORE,
        Scheme::Folder => NameRules::FOLDER,
    }
}

/// A call to make.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) prefix: Vec<u8>,
    pub(crate) depth: Depth,
    pub(crate) after: Option<Vec<u8>>,
}

#[derive(Debug)]
struct Unit {
    level: u8,
    /// Decided when its first page is asked for.
    depth: Option<Depth>,
    after: Option<Vec<u8>>,
}

/// The units that are not finished.
#[derive(Debug)]
pub(crate) struct Walk {
    scheme: Scheme,
    open: HashMap<Vec<u8>, Unit>,
    /// Units of which no call is in flight. Folders are taken from the back, to keep the list short in a deep tree.
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

    /// Prefixes that are done, and known.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.done, self.known)
    }

    /// True if the page is the first of a unit.
    pub(crate) fn is_first(&self, page: &PageRecord) -> bool {
        self.open.get(&page.prefix).is_some_and(|unit| unit.after.is_none())
    }

    /// Puts all open units back into the queue: after a replay nothing is in flight.
    pub(crate) fn requeue(&mut self) {
        let mut open: Vec<_> = self.open.keys().cloned().collect();
        open.sort_unstable();
        self.queue = open.into();
    }

    /// The next call to make, if any unit has none in flight.
    pub(crate) fn next_task(&mut self) -> Option<Task> {
        let folder = self.scheme == Scheme::Folder;
        let prefix = if folder { self.queue.pop_back() } else { self.queue.pop_front() }?;
        let unit = self.open.get_mut(&prefix)?;
        let depth = *unit.depth.get_or_insert_with(|| {
            let hostile =
                !prefix.is_empty() && name::check(&prefix[..prefix.len() - 1], rules_of(self.scheme)).is_err();
            let flat = self.known >= ENOUGH_PREFIXES || unit.level >= FLAT_LEVEL || hostile;
            // A folder gives a whole tree as one page, so it is taken one directory at a time.
            if flat && !folder { Depth::All } else { Depth::One }
        });
        Some(Task { depth, after: unit.after.clone(), prefix })
    }

    /// Takes a page in: finishes its unit or says where it goes on, and opens a unit for each prefix. Errors leave the
    /// walk as it was.
    pub(crate) fn accept(&mut self, page: &PageRecord) -> Result<(), ListError> {
        let odd = |what| ListError::Odd { prefix: page.prefix.clone(), what };
        let Some(unit) = self.open.get_mut(&page.prefix) else { return Err(odd("for a prefix that is done")) };
        let below = |prefix: &Vec<u8>| {
            prefix.len() > page.prefix.len() && prefix.starts_with(&page.prefix) && prefix.ends_with(b"/")
        };
        if !page.prefixes.iter().all(below) {
            return Err(odd("with a prefix that is not below"));
        }
        if page.next.is_some() && page.next <= unit.after {
            return Err(odd("with a page that does not go on"));
        }
        let level = unit.level.saturating_add(1);
        match &page.next {
            Some(next) => {
                unit.depth = Some(page.depth);
                unit.after = Some(next.clone());
                // Long units first: they are what one waits for at the end.
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

/// Asks for one page.
pub(crate) async fn list(origin: Arc<dyn Origin>, task: Task) -> Result<PageRecord, ListError> {
    match origin.list(&task.prefix, task.after.as_deref(), task.depth).await {
        Ok(Page { files, prefixes, skipped, next }) => {
            let skipped = skipped.into_iter().map(|skipped| (skipped.key, skipped.reason.into())).collect();
            Ok(PageRecord { prefix: task.prefix, depth: task.depth, files, prefixes, skipped, next })
        }
        Err(source) => Err(ListError::Origin { prefix: task.prefix, source }),
    }
}

/// What the pages of a walk are handed to, one at a time.
pub(crate) trait PageOwner {
    /// Why it stops the walk.
    type Error: From<ListError>;
    /// The walk it keeps.
    fn walk(&mut self) -> &mut Walk;
    /// Takes a page in, the walk included.
    async fn take(&mut self, page: PageRecord) -> Result<(), Self::Error>;
}

/// Lists until nothing is left, at most `concurrency` calls at once. After a failed call the pages that have arrived are
/// still taken in, the calls in flight are dropped, and the first error is returned. Cancelled, it leaves no call behind.
pub(crate) async fn drive<O: PageOwner>(
    origin: &Arc<dyn Origin>,
    owner: &mut O,
    concurrency: usize,
    requests: &mut u64,
) -> Result<(), O::Error> {
    let mut calls = JoinSet::new();
    loop {
        while calls.len() < concurrency.max(1) {
            let Some(task) = owner.walk().next_task() else { break };
            *requests += 1;
            calls.spawn(list(Arc::clone(origin), task));
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

/// A panic in a call goes on in the caller; nobody cancels the calls while they are waited for.
fn flatten(joined: Result<Result<PageRecord, ListError>, tokio::task::JoinError>) -> Result<PageRecord, ListError> {
    match joined {
        Ok(page) => page,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
