//! Serves a FUSE connection whose mount another process made and keeps: the descriptor came over the handover socket.
//!
//! A connection may have been served before by a process that was killed. The kernel sends INIT only once, so the keeper
//! remembers it. The INIT is replayed to the session over a socket pair before the real descriptor takes that socket's
//! place. FUSE_NOTIFY_RESEND (Linux 6.9) makes the kernel resend the requests that the killed process had read and not
//! answered; without it their readers wait until they are killed.
//!
//! Invariant: serving is idempotent for a connection; neither side needs to know how far the killed process got.
#![expect(unsafe_code, reason = "the session owns its descriptor, which can be replaced only by its number")]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use fuser::{BackgroundSession, Session, SessionACL};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use tracing::{info, warn};

use crate::filesystem::Filesystem;
use crate::fuse::{Front, KernelLimits};
use larder_cachenode::dataset::Dataset;

/// The answer to INIT is about 80 bytes.
const INIT_ANSWER_BYTES: usize = 4096;

/// `struct fuse_out_header` of the notification FUSE_NOTIFY_RESEND: length, notification code, no request.
const RESEND: [u8; 16] = {
    let mut header = [0; 16];
    header[0] = 16;
    header[4] = 7;
    header
};

/// How a connection is served.
#[derive(Clone, Copy, Debug)]
pub struct ServeConfig {
    /// Threads that take requests from the kernel.
    pub threads: usize,
    /// Background requests that the kernel keeps in flight.
    pub max_background: u16,
}

/// A connection being served. It ends when its mount does; dropping this affects neither.
#[derive(Debug)]
pub struct Serving(BackgroundSession);

impl Serving {
    /// Waits until the mount is gone and all threads have ended.
    pub fn wait(self) -> io::Result<()> {
        self.0.join()
    }
}

/// Serves `dataset` over the connection `fuse`, for which the kernel sent `init`. The mount answers when this returns.
/// Errors: the INIT is invalid, or the descriptor is not a live connection.
pub fn serve(dataset: Arc<Dataset>, fuse: OwnedFd, init: &[u8], config: ServeConfig) -> io::Result<Serving> {
    let mut options = fuser::Config::default();
    options.acl = SessionACL::All;
    options.n_threads = Some(config.threads.max(1));
    let limits = KernelLimits { max_background: config.max_background.max(16) };
    // The keeper mounts as root, and a mount's files belong to the user that mounted it.
    let front = Front::new(Arc::new(Filesystem::new(dataset)), limits, (0, 0));

    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::send(&ours, init, SendFlags::NOSIGNAL)?;
    let session = Session::from_fd(front, theirs, SessionACL::All, options)?;
    let mut answer = vec![0; INIT_ANSWER_BYTES];
    let (len, _) = rustix::net::recv(&ours, &mut answer, RecvFlags::DONTWAIT)?;
    match rustix::io::write(&fuse, &answer[..len]) {
        // An earlier process answered it.
        Ok(_) | Err(rustix::io::Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    put_in_place(&fuse, session.as_fd())?;
    let serving = Serving(session.spawn()?);
    match rustix::io::write(&fuse, &RESEND) {
        Ok(_) => info!("FUSE connection served"),
        Err(error) => warn!(
            %error,
            "the kernel cannot resend the requests that a killed larderd had taken (Linux 6.9 can): such reads hang until their process is killed"
        ),
    }
    Ok(serving)
}

/// Makes the descriptor number of `session` refer to the connection.
fn put_in_place(fuse: &OwnedFd, session: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the session owns its descriptor and keeps it open; nothing else uses the descriptor before the session runs.
    // `ManuallyDrop` leaves ownership with the session.
    let mut theirs = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(session.as_raw_fd()) });
    rustix::io::dup3(fuse, &mut theirs, rustix::io::DupFlags::CLOEXEC)?;
    Ok(())
}
