//! Lists an origin, many calls at once.
//!
//! - [`Walk`] knows what is still to be listed; it is pure, so that replaying a journal and listing for real are the
//!   same. Where a listing can begin at any key, `ranges` splits the keys themselves; elsewhere `tree` follows the
//!   prefixes.
//! - [`drive`] sends the LIST calls and passes each page to one owner.
//!
//! Invariant: every key that is there all the time is on exactly one accepted page, whatever was split where, and
//! whether or not the run continues an earlier one. An answer that contradicts another is an error.

mod between;
mod call;
mod ranges;
mod tree;

use std::sync::Arc;

pub use call::ListError;
pub(crate) use call::{ListCall, rules_of};
use larder_origin::{Depth, Origin, Page, Scheme};
use ranges::Ranges;
use tokio::task::JoinSet;
use tree::TreeWalk;

use crate::journal::{PageFile, PageRecord};
use crate::version::into_tag;

/// The work that is left of a listing.
#[derive(Debug)]
pub(crate) struct Walk(Kind);

#[derive(Debug)]
enum Kind {
    Tree(TreeWalk),
    Ranges(Ranges),
}

impl Walk {
    pub(crate) fn new(scheme: Scheme) -> Self {
        match scheme {
            Scheme::S3 => Self(Kind::Ranges(Ranges::new())),
            // The client of the other stores continues a listing by tokens, and lists markers under names that are not
            // theirs.
            Scheme::Gcs | Scheme::Azure | Scheme::Folder => Self(Kind::Tree(TreeWalk::new(scheme))),
        }
    }

    /// The number of finished prefixes or ranges, and of all known ones.
    pub(crate) fn counts(&self) -> (u64, u64) {
        match &self.0 {
            Kind::Tree(walk) => walk.counts(),
            Kind::Ranges(walk) => walk.counts(),
        }
    }

    /// True if the page is the first of its prefix, and prefixes are listed one by one.
    pub(crate) fn is_first(&self, page: &PageRecord) -> bool {
        match &self.0 {
            Kind::Tree(walk) => walk.is_first(page),
            Kind::Ranges(_) => false,
        }
    }

    /// Ends a replay: nothing is in flight.
    pub(crate) fn requeue(&mut self) {
        match &mut self.0 {
            Kind::Tree(walk) => walk.requeue(),
            Kind::Ranges(walk) => walk.requeue(),
        }
    }

    /// The next call to make, if there is anything to list beside the calls in flight.
    pub(crate) fn next_call(&mut self) -> Option<ListCall> {
        match &mut self.0 {
            Kind::Tree(walk) => walk.next_call(),
            Kind::Ranges(walk) => walk.next_call(),
        }
    }

    /// Accepts a page, from which keys are taken that belong to another. An error leaves the walk unchanged.
    pub(crate) fn accept(&mut self, page: &mut PageRecord) -> Result<(), ListError> {
        match &mut self.0 {
            Kind::Tree(walk) => walk.accept(page),
            Kind::Ranges(walk) => walk.accept(page),
        }
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
            Ok(PageRecord {
                prefix: call.prefix,
                recursive,
                after: call.after,
                files: files.collect(),
                prefixes,
                skipped,
                next,
            })
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

/// Lists until no unit is left, with at most `concurrency` calls in flight. After a failed call it still accepts the
/// pages that have arrived, drops the calls in flight, and returns the first error. When cancelled it leaves no call
/// behind.
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

#[cfg(test)]
mod tests;
