//! Lists an origin with many concurrent calls.
//!
//! - [`Walk`] tracks what must still be listed. It is pure, so that replaying a journal and listing an origin use the
//!   same code. If a listing can start at any key, `ranges` splits the range of keys; otherwise `tree` follows the
//!   prefixes.
//! - [`drive`] sends the LIST calls and passes each page to one owner.
//!
//! Invariant: every key that exists during the whole listing is on exactly one accepted page, for any division of the
//! work and whether or not the run continues an earlier one. An answer that contradicts another is an error.

mod between;
mod call;
mod link_objects;
mod ranges;
mod tree;

use std::sync::Arc;

pub use call::ListError;
pub(crate) use call::{ListCall, rules_of};
use larder_origin::{Depth, Origin, Page, Scheme};
pub(crate) use link_objects::{LinkObjects, link_key, link_path};
use ranges::Ranges;
use tokio::task::JoinSet;
use tree::TreeWalk;

use crate::journal::{PageFile, PageLink, PageRecord};
use crate::version::into_tag;

/// The remaining work of a listing.
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
            // The client of these stores continues a listing with tokens, and lists markers under changed names.
            Scheme::Gcs | Scheme::Azure | Scheme::Folder => Self(Kind::Tree(TreeWalk::new(scheme))),
        }
    }

    /// The number of finished prefixes or ranges, and the number of all known ones.
    pub(crate) fn counts(&self) -> (u64, u64) {
        match &self.0 {
            Kind::Tree(walk) => walk.counts(),
            Kind::Ranges(walk) => walk.counts(),
        }
    }

    /// True if the page is the first of its prefix. Always false for a walk over ranges.
    pub(crate) fn is_first(&self, page: &PageRecord) -> bool {
        match &self.0 {
            Kind::Tree(walk) => walk.is_first(page),
            Kind::Ranges(_) => false,
        }
    }

    /// Ends a replay: no call is in flight.
    pub(crate) fn requeue(&mut self) {
        match &mut self.0 {
            Kind::Tree(walk) => walk.requeue(),
            Kind::Ranges(walk) => walk.requeue(),
        }
    }

    /// The next call to make. `None` if all remaining work is in flight.
    pub(crate) fn next_call(&mut self) -> Option<ListCall> {
        match &mut self.0 {
            Kind::Tree(walk) => walk.next_call(),
            Kind::Ranges(walk) => walk.next_call(),
        }
    }

    /// Accepts a page. Removes keys from the page that belong to another page. On an error the walk is unchanged.
    pub(crate) fn accept(&mut self, page: &mut PageRecord) -> Result<(), ListError> {
        match &mut self.0 {
            Kind::Tree(walk) => walk.accept(page),
            Kind::Ranges(walk) => walk.accept(page),
        }
    }
}

/// Requests one page, and the links in it that are objects.
pub(crate) async fn list(
    origin: Arc<dyn Origin>,
    call: ListCall,
    link_objects: LinkObjects,
) -> Result<PageRecord, ListError> {
    match origin.list(&call.prefix, call.after.as_deref(), call.depth).await {
        Ok(Page { files, prefixes, skipped, links, next }) => {
            let links =
                links.into_iter().map(|link| PageLink { key: link.key, target: link.target, mtime_ns: link.mtime_ns });
            let skipped = skipped.into_iter().map(|skipped| (skipped.key, skipped.reason.into())).collect();
            let files = files.into_iter().map(|file| PageFile {
                key: file.key,
                size: file.size,
                mtime_ns: file.mtime_ns,
                version: into_tag(file.version),
            });
            let recursive = call.depth == Depth::All;
            let mut page = PageRecord {
                prefix: call.prefix,
                recursive,
                after: call.after,
                files: files.collect(),
                prefixes,
                skipped,
                links: links.collect(),
                next,
            };
            if link_objects == LinkObjects::Read {
                link_objects::read(&origin, &mut page).await?;
            }
            Ok(page)
        }
        Err(source) => Err(ListError::Origin { prefix: call.prefix, source }),
    }
}

/// Receives the pages of a walk, one at a time.
pub(crate) trait PageOwner {
    /// Why the owner stopped the walk.
    type Error: From<ListError>;
    /// The walk, which the owner stores.
    fn walk(&mut self) -> &mut Walk;
    /// Accepts a page, and passes it to the walk.
    async fn take(&mut self, page: PageRecord) -> Result<(), Self::Error>;
}

/// Lists until no unit remains, with at most `concurrency` calls in flight. After a failed call, it still accepts the
/// pages that have arrived, drops the calls in flight, and returns the first error. If it is cancelled, it leaves no
/// call running.
pub(crate) async fn drive<O: PageOwner>(
    origin: &Arc<dyn Origin>,
    owner: &mut O,
    link_objects: LinkObjects,
    concurrency: usize,
    requests: &mut u64,
) -> Result<(), O::Error> {
    let mut calls = JoinSet::new();
    loop {
        while calls.len() < concurrency.max(1) {
            let Some(call) = owner.walk().next_call() else { break };
            *requests += 1;
            calls.spawn(list(Arc::clone(origin), call, link_objects));
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

/// Resumes a panic of a call in the caller. The calls are never cancelled while `drive` waits for them.
fn flatten(joined: Result<Result<PageRecord, ListError>, tokio::task::JoinError>) -> Result<PageRecord, ListError> {
    match joined {
        Ok(page) => page,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[cfg(test)]
mod tests;
