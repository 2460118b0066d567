//! The two ends of a stream of a command, with a window of their own: the bytes that are on their way and not consumed are at
//! most [`WINDOW_BYTES`]. So a stream that nobody reads keeps neither memory nor the other frames of its connection.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::PollFlags;

use crate::frame::{Frame, Stream, WINDOW_BYTES};
use crate::readiness::Interest;
use crate::wire::{Wire, WireError};

/// The most that is read at once.
const READ_BYTES: usize = 32 * 1024;
/// The most that is written at once. A pipe that is ready takes as much without making the writer wait, although the descriptor
/// is shared with others and may not be made non-blocking.
const WRITE_BYTES: usize = 4096;
/// What was consumed is granted again once it is as much.
const GRANT_BYTES: u32 = WINDOW_BYTES / 8;

/// Where a stream enters the connection: a descriptor that is read.
pub(crate) struct Inlet {
    stream: Stream,
    file: Option<std::fs::File>,
    granted: u32,
}

impl Inlet {
    pub(crate) fn new(stream: Stream, fd: impl Into<OwnedFd>) -> Self {
        Self { stream, file: Some(std::fs::File::from(fd.into())), granted: WINDOW_BYTES }
    }

    /// One that has nothing to read.
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

    /// The receiver has consumed so many bytes.
    pub(crate) fn grant(&mut self, bytes: u32) -> Result<(), WireError> {
        let granted = self.granted.saturating_add(bytes);
        if granted > WINDOW_BYTES {
            return Err(WireError::Unexpected("a grant of more than it received"));
        }
        self.granted = granted;
        Ok(())
    }

    /// Sends what the descriptor, which is ready, has.
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

/// How much was read; `None` if the stream has ended.
fn bytes_read(read: io::Result<usize>) -> Option<usize> {
    match read {
        // The descriptor may be shared, and another reader of it has been faster.
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Some(0),
        // A terminal that is gone fails, instead of ending.
        Ok(0) | Err(_) => None,
        Ok(read) => Some(read),
    }
}

/// Where a stream leaves the connection: a descriptor that is written.
pub(crate) struct Outlet {
    stream: Stream,
    file: Option<std::fs::File>,
    waiting: VecDeque<u8>,
    /// No byte follows those that wait.
    ended: bool,
    /// Bytes that were written and are not granted again yet.
    consumed: u32,
}

impl Outlet {
    pub(crate) fn new(stream: Stream, fd: impl Into<OwnedFd>) -> Self {
        let file = Some(std::fs::File::from(fd.into()));
        Self { stream, file, waiting: VecDeque::new(), ended: false, consumed: 0 }
    }

    /// Whether everything that was received is written.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn interest(&self) -> Option<Interest<'_>> {
        let file = self.file.as_ref().filter(|_| !self.waiting.is_empty())?;
        Some((file.as_fd(), PollFlags::OUT))
    }

    /// Keeps bytes until they can be written.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        if self.ended || self.waiting.len() + bytes.len() > WINDOW_BYTES as usize {
            return Err(WireError::Unexpected("more of a stream than was granted"));
        }
        if self.file.is_some() {
            self.waiting.extend(bytes);
        }
        Ok(())
    }

    /// The stream has ended: the descriptor is closed once everything is written.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        self.close_if_done();
    }

    /// Nothing reads the descriptor any more. What else arrives is dropped, and no more of it is granted.
    pub(crate) fn give_up(&mut self) {
        self.file = None;
        self.waiting.clear();
    }

    /// Writes what the descriptor, which is ready, takes, and grants it again.
    pub(crate) fn transfer(&mut self) -> io::Result<Option<Frame<'static>>> {
        let Some(file) = &mut self.file else { return Ok(None) };
        let (bytes, _) = self.waiting.as_slices();
        let written = match file.write(&bytes[..bytes.len().min(WRITE_BYTES)]) {
            Ok(written) => written,
            // The descriptor may be non-blocking: it is shared.
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
