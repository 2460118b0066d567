//! Answers what an earlier process had taken from the kernel and not answered.
//!
//! Reads are answered as any other read, at the same time and in any order, since one may wait for the origin. Requests
//! of other kinds are answered at once, from the manifest: they are played one by one to a session of their own over a
//! socket, and each answer is passed on to the kernel as it is. The kernel ignores an answer to a request that was
//! answered before.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use fuser::{Filesystem, Session, SessionACL};
use tracing::{debug, warn};

use crate::buffers;
use crate::errno::Errno;
use crate::reading::{ReadReply, Reader};
use crate::requests::{Requests, Unanswered};
use crate::wire::{self, Taken};

#[cfg(test)]
mod tests;

/// How long an answer from the manifest may take. The disk may be slow.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest answer: a read of 1 MiB and more, as the kernel allows.
const ANSWER_BYTES: usize = 32 << 20;

/// The answer to a read, as it goes to the kernel.
struct Answer {
    fuse: Arc<OwnedFd>,
    unique: u64,
    sent: bool,
}

impl Answer {
    fn send(&mut self, outcome: Result<&[u8], Errno>) {
        self.sent = true;
        report(wire::answer(self.fuse.as_fd(), self.unique, outcome));
    }
}

impl ReadReply for Answer {
    fn data(mut self, bytes: &[u8]) {
        self.send(Ok(bytes));
    }

    fn error(mut self, errno: Errno) {
        self.send(Err(errno));
    }
}

impl Drop for Answer {
    /// A panic must not leave a reader without an answer.
    fn drop(&mut self) {
        if !self.sent {
            self.send(Err(Errno(libc::EIO)));
        }
    }
}

/// Answers the reads. Blocks for as long as the disk takes; what must be fetched is answered later.
pub(crate) fn reads(reader: &Reader, unanswered: Unanswered, requests: &Arc<Requests>, fuse: &Arc<OwnedFd>) {
    for (read, kept) in unanswered.into_reads(requests) {
        let answer = Answer { fuse: Arc::clone(fuse), unique: read.unique, sent: false };
        reader.guard(|| reader.read(read, Some(kept), answer));
    }
}

/// Answers the requests of other kinds. Each has an answer when this returns: EIO if it got no other. A request that
/// spoils its session fails alone: those behind it get a new session.
pub(crate) fn others<F: Filesystem + Clone>(
    filesystem: &F,
    mut requests: &[Vec<u8>],
    init: &[u8],
    fuse: BorrowedFd<'_>,
) {
    while !requests.is_empty() {
        let mut answered = 0;
        let Err(error) = play(filesystem.clone(), requests, init, fuse, &mut answered) else { return };
        let Some((failed, rest)) = requests[answered..].split_first() else {
            return debug!(%error, "a replay session failed after it had answered all requests");
        };
        warn!(%error, "cannot answer a request that an earlier larderd had taken: it fails with EIO");
        if let Some(failed) = Taken::parse(failed) {
            report(wire::answer(fuse, failed.unique(), Err(Errno(libc::EIO))));
        }
        requests = rest;
    }
}

/// Plays requests to a session of their own, and counts those that were answered.
fn play<F: Filesystem>(
    filesystem: F,
    requests: &[Vec<u8>],
    init: &[u8],
    fuse: BorrowedFd<'_>,
    answered: &mut usize,
) -> io::Result<()> {
    let (mut ours, theirs) = UnixStream::pair()?;
    ours.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    ours.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    ours.write_all(init)?;
    let open = || Session::from_fd(filesystem, theirs.into(), SessionACL::All, fuser::Config::default());
    let session = buffers::open(open)?;
    receive(&mut ours)?;
    // Nothing else of the session is kept, so that its end of the socket closes as soon as its thread ends.
    let thread = buffers::spawn(session, 1, None)?.guard;
    for request in requests {
        // A request is small enough to arrive in one piece, and nothing follows it before its answer.
        ours.write_all(request)?;
        report(wire::send(fuse, &[IoSlice::new(&receive(&mut ours)?)]));
        *answered += 1;
    }
    ours.write_all(&wire::destroy())?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

fn report(sent: io::Result<()>) {
    if let Err(error) = sent {
        warn!(%error, "cannot send the answer to a request that an earlier larderd had taken");
    }
}

/// One answer, which begins with its length.
fn receive(from: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let bytes = u32::from_ne_bytes(len) as usize;
    if !(16..=ANSWER_BYTES).contains(&bytes) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer has an impossible length"));
    }
    let mut answer = vec![0; bytes];
    answer[..4].copy_from_slice(&len);
    from.read_exact(&mut answer[4..])?;
    Ok(answer)
}
