//! Serves a FUSE connection whose mount another process made and keeps. Its descriptor came over the handover socket.
//!
//! The connection may have been served before by a process that was killed. The kernel sends INIT only once, so the
//! keeper remembers it. The INIT is replayed to the session over a socket pair; then the real descriptor takes that
//! socket's place. Requests that the killed process had taken from the kernel and not answered are in the connection's
//! memory (`Requests`), which the keeper holds too. They are answered first (`replay`).
//!
//! Invariant: serving a connection is idempotent; neither side needs to know how far the killed process got.
#![expect(unsafe_code, reason = "the session owns its descriptor, which can be replaced only by its number")]

use std::io::{self, IoSlice};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use fuser::{BackgroundSession, Session, SessionACL};
use larder_cachenode::dataset::Dataset;
use larder_daemon_api::handover::is_alive;
use larder_dataset::Ownership;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use tracing::info;

use crate::filesystem::Filesystem;
use crate::fuse::{Front, KernelLimits, Shown};
use crate::reading::Reader;
use crate::requests::{BUFFERS, Requests};
use crate::{buffers, replay, wire};

/// Larger than the answer to INIT, which has about 80 bytes.
const INIT_ANSWER_BYTES: usize = 4096;

/// How a connection is served.
#[derive(Clone, Copy, Debug)]
pub struct ServeConfig {
    /// The number of threads that take requests from the kernel.
    pub threads: usize,
    /// The most background requests that the kernel keeps in flight.
    pub max_background: u16,
    /// The owner and the modes of its files, which belong to root by default.
    pub ownership: Ownership,
}

/// A connection being served. It ends with its mount. Dropping this value affects neither.
#[derive(Debug)]
pub struct Serving {
    session: BackgroundSession,
    requests: Arc<Requests>,
}

impl Serving {
    /// Waits until the mount has ended and all threads have returned.
    pub fn wait(self) -> io::Result<()> {
        self.session.join()
    }

    /// The requests that this process has taken and not answered.
    pub(crate) fn requests(&self) -> &Arc<Requests> {
        &self.requests
    }
}

/// Serves `dataset` over the connection `fuse`, for which the kernel sent `init`, and keeps its unanswered requests in
/// `memory`. The mount answers requests once this returns. The program's allocator must be
/// [`RequestBuffers`](crate::RequestBuffers). Errors: the INIT is invalid, the descriptor is not a live connection, or
/// another session uses the memory. A failed call can be repeated.
pub fn serve(
    dataset: Arc<Dataset>,
    fuse: OwnedFd,
    init: &[u8],
    memory: BorrowedFd<'_>,
    config: ServeConfig,
) -> io::Result<Serving> {
    let threads = config.threads.clamp(1, BUFFERS);
    let mut options = fuser::Config::default();
    options.acl = SessionACL::All;
    options.n_threads = Some(threads);
    let limits = KernelLimits { max_background: config.max_background.max(16), idmapped: true };
    let (requests, mut unanswered) = Requests::open(memory)?;
    let runtime = dataset.runtime().clone();
    let reader = Reader::new(Arc::new(Filesystem::new(dataset)), Some(Arc::clone(&requests)));
    // The keeper mounts as root, and the files of a mount belong to the user that mounted it.
    let front = Front::new(reader.clone(), limits, Shown::new(config.ownership, (0, 0)));

    // SEQPACKET preserves message boundaries, as /dev/fuse does.
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::send(&ours, init, SendFlags::NOSIGNAL)?;
    let session = buffers::open(|| Session::from_fd(front.clone(), theirs, SessionACL::All, options))?;
    // The session has already answered INIT, so this receive does not block.
    let mut answer = vec![0; INIT_ANSWER_BYTES];
    let (len, _) = rustix::net::recv(&ours, &mut answer, RecvFlags::DONTWAIT)?;
    // An earlier process may have answered INIT already; a second answer has no effect.
    wire::send(fuse.as_fd(), &[IoSlice::new(&answer[..len])])?;
    // The send succeeds even if the connection has ended, so check.
    if !is_alive(&fuse) {
        return Err(io::ErrorKind::NotConnected.into());
    }
    put_in_place(&fuse, session.as_fd())?;

    unanswered.retain_unanswered(&requests, |unique| wire::waits(fuse.as_fd(), unique));
    if unanswered.reads() + unanswered.others.len() > 0 {
        info!(
            reads = unanswered.reads(),
            others = unanswered.others.len(),
            "answering requests that an earlier larderd had taken"
        );
    }
    replay::others(&front, &unanswered.others, init, fuse.as_fd());
    // Every request that was in a buffer is now answered or in the table.
    requests.clear_buffers()?;
    let session = buffers::spawn(session, threads, Some(Arc::clone(&requests)))?;
    let (kept, fuse) = (Arc::clone(&requests), Arc::new(fuse));
    runtime.spawn_blocking(move || replay::reads(&reader, unanswered, &kept, &fuse));
    info!("FUSE connection served");
    Ok(Serving { session, requests })
}

/// Makes the descriptor number of `session` refer to the FUSE connection.
fn put_in_place(fuse: &OwnedFd, session: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the session owns its descriptor and keeps it open. Nothing else uses the descriptor before the session
    // runs. `ManuallyDrop` leaves the ownership with the session.
    let mut theirs = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(session.as_raw_fd()) });
    rustix::io::dup3(fuse, &mut theirs, rustix::io::DupFlags::CLOEXEC)?;
    Ok(())
}
