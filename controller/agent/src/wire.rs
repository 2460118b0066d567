//! One end of a connection: frames over TLS over a non-blocking socket.
//!
//! Bytes from the peer are read only as fast as their frames are consumed, so at most one incomplete frame is buffered.
//! Bytes to the peer are limited by what the peer has granted.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustls::Connection;

use crate::frame::{Frame, FrameError};
use crate::readiness::{self, Interest};

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("the connection was closed")]
    Closed,
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    #[error("it does not have the key of this job")]
    WrongKey,
    #[error("the peer is not a larder-agent: {0}")]
    Tls(rustls::Error),
    #[error("it sent {0}")]
    Frame(#[from] FrameError),
    #[error("protocol error: it sent {0}")]
    Unexpected(&'static str),
    #[error("no sign of life for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("no answer within {} s", .0.as_secs())]
    Late(Duration),
}

impl From<rustls::Error> for WireError {
    fn from(error: rustls::Error) -> Self {
        use rustls::CertificateError::{ApplicationVerificationFailure, BadSignature};
        match error {
            rustls::Error::InvalidCertificate(ApplicationVerificationFailure | BadSignature) => Self::WrongKey,
            error => Self::Tls(error),
        }
    }
}

pub(crate) struct Wire {
    socket: TcpStream,
    tls: Connection,
    /// Received bytes. Those from `taken` on are not consumed yet.
    inbox: Vec<u8>,
    taken: usize,
    outbox: Vec<u8>,
    silence: Duration,
    last_received: Instant,
    said: Instant,
    /// The peer has closed its half. This takes effect after all received frames are consumed.
    closed: bool,
}

impl Wire {
    /// Completes the TLS handshake within `time`. Fails with [`WireError::Closed`] if the peer disconnects first, as
    /// port probes do.
    pub(crate) fn open(
        socket: TcpStream,
        tls: impl Into<Connection>,
        time: Duration,
        silence: Duration,
    ) -> Result<Self, WireError> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let mut tls: Connection = tls.into();
        // rustls would buffer only part of a larger write, and a frame must not be cut. The windows of the streams
        // limit the data in flight.
        tls.set_buffer_limit(None);
        let now = Instant::now();
        let mut wire = Self {
            socket,
            tls,
            inbox: Vec::new(),
            taken: 0,
            outbox: Vec::new(),
            silence,
            last_received: now,
            said: now,
            closed: false,
        };
        while wire.tls.is_handshaking() || wire.tls.wants_write() {
            let left = time.checked_sub(now.elapsed()).ok_or(WireError::Late(time))?;
            readiness::wait(&[Some(wire.interest())], left)?;
            wire.transfer()?;
            if wire.closed {
                return Err(WireError::Closed);
            }
        }
        Ok(wire)
    }

    pub(crate) fn interest(&self) -> Interest<'_> {
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, self.tls.wants_write());
        (self.socket.as_fd(), flags)
    }

    /// How long the caller may wait before it must call [`Self::transfer`] again.
    pub(crate) fn time(&self) -> Duration {
        let silent = (self.last_received + self.silence).saturating_duration_since(Instant::now());
        let due = (self.said + self.silence / 3).saturating_duration_since(Instant::now());
        // At least 1 ms: the poll timeout is rounded down to whole milliseconds, and zero would spin.
        silent.min(due) + Duration::from_millis(1)
    }

    /// Sends a frame. The part that the socket does not accept yet stays buffered.
    pub(crate) fn send(&mut self, frame: &Frame<'_>) -> Result<(), WireError> {
        self.outbox.clear();
        frame.encode(&mut self.outbox);
        self.tls.writer().write_all(&self.outbox)?;
        self.said = Instant::now();
        self.write()
    }

    /// Reads and writes as much as the socket allows, and sends keep-alives.
    pub(crate) fn transfer(&mut self) -> Result<(), WireError> {
        if !self.closed {
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) => self.closed = true,
                Ok(_) => self.last_received = Instant::now(),
                Err(error) if is_later(&error) => {}
                Err(error) => return Err(error.into()),
            }
            let processed = self.tls.process_new_packets();
            if processed.is_err() {
                // The alert tells the peer why.
                let _ = self.write();
            }
            processed?;
            match self.tls.reader().read_to_end(&mut self.inbox) {
                // The peer has sent a TLS close-notify.
                Ok(_) => self.closed = true,
                Err(error) if is_later(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => self.closed = true,
                Err(error) => return Err(error.into()),
            }
        }
        if self.last_received.elapsed() > self.silence {
            return Err(WireError::Silent(self.silence));
        }
        if self.said.elapsed() > self.silence / 3 && !self.tls.is_handshaking() {
            return self.send(&Frame::Alive);
        }
        self.write()
    }

    /// Returns the next complete frame, skipping keep-alives.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_>>, WireError> {
        loop {
            match Frame::decode(&self.inbox[self.taken..])? {
                Some((Frame::Alive, length)) => self.taken += length,
                Some((_, length)) => {
                    let start = self.taken;
                    self.taken += length;
                    // Decoded a second time: returning the first borrow would extend it over the whole loop.
                    return Ok(Frame::decode(&self.inbox[start..])?.map(|(frame, _)| frame));
                }
                None => {
                    self.inbox.drain(..self.taken);
                    self.taken = 0;
                    return if self.closed { Err(WireError::Closed) } else { Ok(None) };
                }
            }
        }
    }

    /// Waits for the next frame, for `time` at most.
    pub(crate) fn wait_for_next(&mut self, time: Duration) -> Result<Frame<'_>, WireError> {
        let start = Instant::now();
        while !self.has_next()? {
            let left = time.checked_sub(start.elapsed()).ok_or(WireError::Late(time))?;
            readiness::wait(&[Some(self.interest())], left.min(self.time()))?;
            self.transfer()?;
        }
        self.next()?.ok_or(WireError::Closed)
    }

    /// Whether a complete frame other than a keep-alive has arrived.
    fn has_next(&mut self) -> Result<bool, WireError> {
        let before = self.taken;
        let is_there = self.next()?.is_some();
        if is_there {
            self.taken = before;
        }
        Ok(is_there)
    }

    /// Sends close-notify, and waits until the peer has received everything and closed its half. Errors of the peer are
    /// ignored here.
    pub(crate) fn finish(mut self) {
        let start = Instant::now();
        self.tls.send_close_notify();
        let mut ended = false;
        while !self.closed && start.elapsed() < self.silence {
            if self.transfer().is_err() {
                return;
            }
            // The peer may still send. If the socket closed with unread data, the kernel would reset the connection and
            // drop data that the peer has not received.
            self.inbox.clear();
            if !ended && !self.tls.wants_write() {
                let _ = self.socket.shutdown(Shutdown::Write);
                ended = true;
            }
            let _ = readiness::wait(&[Some(self.interest())], Duration::from_secs(1));
        }
    }

    fn write(&mut self) -> Result<(), WireError> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if is_later(&error) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
