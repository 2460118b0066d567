//! Answers the requests that an earlier process had taken from the kernel and not answered.
//!
//! Reads are answered like any other read: concurrently and in any order, since each may wait for the origin. Requests
//! of other kinds are answered immediately from the manifest: they are played one by one to a separate session over a
//! socket, and each answer is forwarded to the kernel unchanged. The kernel ignores an answer to a request that was
//! already answered.

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

/// The limit for an answer from the manifest, whose disk may be slow.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest answer: a read of 1 MiB or more, as the kernel allows.
const ANSWER_BYTES: usize = 32 << 20;

/// The answer to a read, sent to the kernel.
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
    /// If the read panicked, sends EIO: a panic must not leave a reader without an answer.
    fn drop(&mut self) {
        if !self.sent {
            self.send(Err(Errno(libc::EIO)));
        }
    }
}

/// Answers the reads. Blocks while the disk is read; reads that need a fetch are answered later.
pub(crate) fn reads(reader: &Reader, unanswered: Unanswered, requests: &Arc<Requests>, fuse: &Arc<OwnedFd>) {
    for (read, kept) in unanswered.into_reads(requests) {
        let answer = Answer { fuse: Arc::clone(fuse), unique: read.unique, sent: false };
        reader.guard(|| reader.read(read, 0, Some(kept), answer));
    }
}

/// Answers the requests of other kinds. When this returns, each has an answer, if only EIO. If a request breaks its
/// session, only that request fails: the requests after it get a new session.
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

/// Plays requests to a session of their own. Returns how many were answered.
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
    // Only the thread's guard is kept, so that the session's end of the socket closes as soon as its thread ends.
    let thread = buffers::spawn(session, 1, None)?.guard;
    for request in requests {
        // A request is small enough to arrive in one piece, and no other is sent before its answer.
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

/// Receives one answer. Its first four bytes are its length.
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
