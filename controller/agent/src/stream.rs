//! The two ends of a command's stream, with flow control: at most [`WINDOW_BYTES`] are sent and not yet consumed. An
//! unread stream therefore neither uses unbounded memory nor blocks the other frames of its connection.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::PollFlags;

use crate::frame::{Frame, Stream, WINDOW_BYTES};
use crate::readiness::Interest;
use crate::wire::{Wire, WireError};

/// The size of one read.
const READ_BYTES: usize = 32 * 1024;
/// The size of one write. A pipe that polls as writable accepts this much without blocking. The descriptor is shared
/// with other processes, so it must not be set non-blocking.
const WRITE_BYTES: usize = 4096;
/// A new grant is sent once this many bytes have been consumed.
const GRANT_BYTES: u32 = WINDOW_BYTES / 8;

/// Where a stream enters the connection: reads a descriptor and sends frames.
pub(crate) struct Inlet {
    stream: Stream,
    file: Option<std::fs::File>,
    granted: u32,
}

impl Inlet {
    pub(crate) fn new(stream: Stream, fd: impl Into<OwnedFd>) -> Self {
        Self { stream, file: Some(std::fs::File::from(fd.into())), granted: WINDOW_BYTES }
    }

    /// An inlet without a descriptor, whose stream has ended.
    pub(crate) fn ended(stream: Stream, wire: &mut Wire) -> Result<Self, WireError> {
        wire.send(&Frame::End(stream))?;
        Ok(Self { stream, file: None, granted: 0 })
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.file.is_none()
    }

    pub(crate) fn interest(&self) -> Option<Interest<'_>> {
        let file = self.file.as_ref().filter(|_| self.granted > 0)?;
        Some((file.as_fd(), PollFlags::IN))
    }

    /// Records that the receiver has consumed this many bytes.
    pub(crate) fn grant(&mut self, bytes: u32) -> Result<(), WireError> {
        let granted = self.granted.saturating_add(bytes);
        if granted > WINDOW_BYTES {
            return Err(WireError::Unexpected("a grant of more than it received"));
        }
        self.granted = granted;
        Ok(())
    }

    /// Reads from the descriptor, which is ready, and sends the bytes.
    pub(crate) fn transfer(&mut self, wire: &mut Wire) -> Result<(), WireError> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let mut buffer = [0; READ_BYTES];
        let room = buffer.len().min(self.granted as usize);
        match bytes_read(file.read(&mut buffer[..room])) {
            Some(0) => Ok(()),
            Some(read) => {
                self.granted -= read as u32;
                wire.send(&Frame::Data(self.stream, &buffer[..read]))
            }
            None => {
                self.file = None;
                wire.send(&Frame::End(self.stream))
            }
        }
    }
}

/// The number of bytes read; `None` if the stream has ended.
fn bytes_read(read: io::Result<usize>) -> Option<usize> {
    match read {
        // The descriptor may be shared, and another process has read the bytes first.
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Some(0),
        // Reading from a terminal that was closed returns an error instead of end-of-file.
        Ok(0) | Err(_) => None,
        Ok(read) => Some(read),
    }
}

/// Where a stream leaves the connection: receives frames and writes a descriptor.
pub(crate) struct Outlet {
    stream: Stream,
    file: Option<std::fs::File>,
    waiting: VecDeque<u8>,
    /// The stream has ended; only the queued bytes remain.
    ended: bool,
    /// Bytes that were written and not granted again yet.
    consumed: u32,
}

impl Outlet {
    pub(crate) fn new(stream: Stream, fd: impl Into<OwnedFd>) -> Self {
        let file = Some(std::fs::File::from(fd.into()));
        Self { stream, file, waiting: VecDeque::new(), ended: false, consumed: 0 }
    }

    /// Whether everything received has been written.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn interest(&self) -> Option<Interest<'_>> {
        let file = self.file.as_ref().filter(|_| !self.waiting.is_empty())?;
        Some((file.as_fd(), PollFlags::OUT))
    }

    /// Queues bytes until they can be written.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        if self.ended || self.waiting.len() + bytes.len() > WINDOW_BYTES as usize {
            return Err(WireError::Unexpected("more of a stream than was granted"));
        }
        if self.file.is_some() {
            self.waiting.extend(bytes);
        }
        Ok(())
    }

    /// Marks the end of the stream: the descriptor is closed once all queued bytes are written.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        self.close_if_done();
    }

    /// Stops writing because nothing reads the descriptor any more. Further bytes are dropped and not granted again.
    pub(crate) fn give_up(&mut self) {
        self.file = None;
        self.waiting.clear();
    }

    /// Writes queued bytes to the descriptor, which is ready. Returns a grant for them when one is due.
    pub(crate) fn transfer(&mut self) -> io::Result<Option<Frame<'static>>> {
        let Some(file) = &mut self.file else { return Ok(None) };
        let (bytes, _) = self.waiting.as_slices();
        let written = match file.write(&bytes[..bytes.len().min(WRITE_BYTES)]) {
            Ok(written) => written,
            // The descriptor is shared, so another process may have made it non-blocking.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            Err(error) => return Err(error),
        };
        self.waiting.drain(..written);
        self.consumed += written as u32;
        self.close_if_done();
        if self.ended || self.consumed < GRANT_BYTES {
            return Ok(None);
        }
        Ok(Some(Frame::Granted(self.stream, std::mem::take(&mut self.consumed))))
    }

    fn close_if_done(&mut self) {
        if self.ended && self.waiting.is_empty() {
            self.file = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_without_bytes_now_has_not_ended() {
        let failed = |error: io::ErrorKind| bytes_read(Err(error.into()));
        assert_eq!((failed(io::ErrorKind::WouldBlock), failed(io::ErrorKind::Interrupted)), (Some(0), Some(0)));
        assert_eq!((bytes_read(Ok(0)), failed(io::ErrorKind::Other), bytes_read(Ok(7))), (None, None, Some(7)));
    }
}
