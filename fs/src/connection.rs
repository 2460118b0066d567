//! Serves a FUSE connection that outlives this process: one whose mount the keeper made, which came over the handover
//! socket, or one of our own in the descriptor store of the service.
//!
//! The connection may have been served before by a process that was killed. The kernel sends INIT only once, so the
//! keeper or the store remembers it. Requests that the killed process had taken from the kernel and not answered are in
//! the connection's memory (`Requests`), which the keeper holds too. They are answered first (`replay`).
//!
//! Invariants: serving a connection is idempotent; neither side needs to know how far the killed process got. All that
//! serving needs of the system is there before the first request is taken, and a connection that cannot have it stays
//! as it was.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use larder_cachenode::dataset::Dataset;
use larder_daemon_api::handover::is_alive;
use larder_dataset::Ownership;
use tracing::info;

use crate::filesystem::Filesystem;
use crate::fuse::{Front, Shown};
use crate::handshake::{self, KernelLimits};
use crate::limits;
use crate::passthrough::{Lender, Passthrough};
use crate::pool::{Pool, Session};
use crate::reading::Reader;
use crate::requests::Requests;
use crate::slots::Slots;
use crate::{replay, wire};

/// How a connection is served.
#[derive(Clone, Copy, Debug)]
pub struct ServeConfig {
    /// The most threads of the pool that serve it at the same time.
    pub threads: usize,
    /// The most background requests that the kernel keeps in flight.
    pub max_background: u16,
    /// The owner and the modes of its files, which belong to root by default.
    pub ownership: Ownership,
}

/// A connection being served. It ends with its mount. Dropping this value affects neither.
#[derive(Debug)]
pub struct Serving {
    session: Session,
    requests: Arc<Requests>,
}

impl Serving {
    /// Waits until the mount has ended and no thread serves it. Blocks; do not call it on the runtime's threads.
    pub fn wait(self) -> io::Result<()> {
        self.session.wait()
    }

    /// Like [`wait`](Self::wait), without blocking.
    pub(crate) async fn ended(self) -> io::Result<()> {
        self.session.ended().await
    }

    /// The requests that this process has taken and not answered.
    pub(crate) fn requests(&self) -> &Arc<Requests> {
        &self.requests
    }
}

/// Serves `dataset` with the threads of `pool` over the connection `fuse`, for which the kernel sent `init`, and keeps
/// its unanswered requests in `memory`. The mount answers requests once this returns. Errors: the INIT is invalid, the
/// descriptor is not a live connection, another session uses the memory, or a limit of the system, which the error
/// names. A failed call can be repeated.
pub fn serve(
    pool: &Arc<Pool>,
    dataset: Arc<Dataset>,
    fuse: OwnedFd,
    init: &[u8],
    memory: BorrowedFd<'_>,
    config: ServeConfig,
) -> io::Result<Serving> {
    serve_lending(pool, dataset, fuse, init, memory, config, None)
}

/// The same, where `lender` may let the kernel read cached files by itself.
pub(crate) fn serve_lending(
    pool: &Arc<Pool>,
    dataset: Arc<Dataset>,
    fuse: OwnedFd,
    init: &[u8],
    memory: BorrowedFd<'_>,
    config: ServeConfig,
    lender: Option<Lender>,
) -> io::Result<Serving> {
    try_serve(pool, dataset, fuse, init, memory, config, lender).map_err(limits::named)
}

fn try_serve(
    pool: &Arc<Pool>,
    dataset: Arc<Dataset>,
    fuse: OwnedFd,
    init: &[u8],
    memory: BorrowedFd<'_>,
    config: ServeConfig,
    lender: Option<Lender>,
) -> io::Result<Serving> {
    let (requests, mut unanswered) = Requests::open(memory)?;
    let lender = lender.filter(|_| dataset.is_of_large_files());
    let fuse = Arc::new(fuse);
    let passthrough = passthrough(&requests, &fuse, init, lender)?;
    if passthrough.is_some() {
        dataset.scrub();
    }
    let kernel = KernelLimits {
        max_background: config.max_background.max(16),
        idmapped: true,
        passthrough: passthrough.is_some(),
    };
    let slots = Slots::open(Some(&requests), pool.most_of_one(config.threads))?;
    let runtime = dataset.runtime().clone();
    let reader = Reader::new(Arc::new(Filesystem::new(dataset)), Some(Arc::clone(&requests)));
    // The keeper mounts as root, and the files of a mount belong to the user that mounted it.
    let front = Front::new(reader.clone(), Shown::new(config.ownership, (0, 0)), passthrough, &fuse);

    // An earlier process may have answered INIT already; a second answer has no effect. That process has answered
    // reads, too, and the kernel has their bytes.
    if !wire::Request::parse(init).is_some_and(|init| wire::waits(fuse.as_fd(), init.unique)) {
        reader.filesystem().dataset().assume_read();
    }
    wire::send(fuse.as_fd(), &[IoSlice::new(&handshake::answer(init, kernel)?)])?;
    // The send succeeds even if the connection has ended, so check.
    if !is_alive(&fuse) {
        return Err(io::ErrorKind::NotConnected.into());
    }

    unanswered.retain_unanswered(&requests, |unique| wire::waits(fuse.as_fd(), unique));
    if unanswered.reads() + unanswered.others.len() > 0 {
        info!(
            reads = unanswered.reads(),
            others = unanswered.others.len(),
            "answering requests that an earlier larderd had taken"
        );
    }
    replay::others(&front, &unanswered.others, &fuse);
    // Every request that was in a buffer is now answered or in the table.
    requests.clear_buffers()?;
    let session = pool.serve(Arc::clone(&fuse), slots, Box::new(front))?;
    let kept = Arc::clone(&requests);
    runtime.spawn_blocking(move || replay::reads(&reader, unanswered, &kept, &fuse));
    info!("FUSE connection served");
    Ok(Serving { session, requests })
}

/// How OPENs are answered. None if they are not: it cannot change once INIT is answered.
fn passthrough(
    requests: &Arc<Requests>,
    fuse: &Arc<OwnedFd>,
    init: &[u8],
    lender: Option<Lender>,
) -> io::Result<Option<Passthrough>> {
    let is_first = || wire::offers_passthrough(init).is_some_and(|unique| wire::waits(fuse.as_fd(), unique));
    match (requests.lent()?, lender) {
        // An attempt that ended before INIT was answered has lent nothing.
        (_, Some(lender)) if is_first() => {
            requests.answers_opens()?;
            Ok(Some(Passthrough::lending(lender, fuse, requests)))
        }
        (Some(lent), _) => Ok(Some(Passthrough::resumed(lent))),
        (None, _) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use larder_daemon_api::handover::request_memory;
    use larder_testkit::kernel::{self, Kernel};

    use super::*;
    use crate::wire::operation;

    // SEMANTICS: C22
    #[test]
    fn files_are_lent_also_after_an_attempt_that_ended_before_init_was_answered() {
        let (_kernel, fuse) = Kernel::connect();
        let (fuse, memory) = (Arc::new(fuse), request_memory().unwrap());
        let init = kernel::request(operation::INIT, 2, 0, &kernel::words(&[7, 40, 1 << 17, 1 << 30, 1 << 5]));
        for _ in 0..2 {
            let (requests, _) = Requests::open(memory.as_fd()).unwrap();
            let passthrough = passthrough(&requests, &fuse, &init, Some(Lender::Own)).unwrap();
            assert!(passthrough.unwrap().lends());
        }
    }
}
