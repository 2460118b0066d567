//! Answers the requests that an earlier process had taken from the kernel and not answered.
//!
//! Reads are answered like any other read: concurrently and in any order, since each may wait for the origin. Requests
//! of other kinds are answered immediately from the manifest. The kernel ignores an answer to a request that was
//! already answered.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::pool::Serve;
use crate::reading::Reader;
use crate::requests::{Requests, Unanswered};
use crate::wire::{Reply, Request};

/// Answers the reads. Blocks while the disk is read; reads that need a fetch are answered later.
pub(crate) fn reads(reader: &Reader, unanswered: Unanswered, requests: &Arc<Requests>, fuse: &Arc<OwnedFd>) {
    for (read, kept) in unanswered.into_reads(requests) {
        let reply = Reply::new(fuse, read.unique);
        reader.guard(|| reader.read(read, 0, Some(kept), reply));
    }
}

/// Answers the requests of other kinds. When this returns, each has an answer, if only EIO.
pub(crate) fn others(front: &impl Serve, requests: &[Vec<u8>], fuse: &Arc<OwnedFd>) {
    for request in requests.iter().filter_map(|request| Request::parse(request)) {
        front.answer(&request, Reply::new(fuse, request.unique));
    }
}
