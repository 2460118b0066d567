//! Runs a command on a host, as rsh does: it connects the command's streams to its own, and exits with the command's
//! status.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use crate::arguments::Target;
use crate::connect::{ConnectError, connect};
use crate::frame::{Frame, Stream};
use crate::readiness;
use crate::resolver;
use crate::settings::Settings;
use crate::signals::{FORWARDED, Signals};
use crate::stream::{Inlet, Outlet};
use crate::wire::{Wire, WireError};

/// Why the status of the command is unknown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RshError {
    #[error("{source} (tried for {seconds} s)")]
    Connect { source: ConnectError, seconds: u64 },
    #[error("{0}; its agent ends the command")]
    Lost(#[from] WireError),
    #[error("{0}")]
    Failed(String),
    #[error("{0}")]
    Local(#[from] io::Error),
}

/// The interval between two attempts to reach a host.
const PAUSE: std::time::Duration = std::time::Duration::from_secs(1);
/// The status of a process that was killed by SIGPIPE.
const BROKEN_PIPE: u8 = 128 + 13;

/// Runs the command. Returns its status, or 128 plus the number of the signal that killed it.
pub(crate) fn run(settings: &Settings, target: &Target) -> Result<u8, RshError> {
    resolver::choose_sources();
    let mut wire = reach(settings, &target.host)?;
    // From here on, these signals are forwarded to the command.
    let signals = Signals::catch(&FORWARDED)?;
    wire.send(&Frame::Run(&target.command))?;
    let stdin = if target.reads_stdin {
        Inlet::new(Stream::Stdin, io::stdin().as_fd().try_clone_to_owned()?)
    } else {
        Inlet::ended(Stream::Stdin, &mut wire)?
    };
    let stdout = Outlet::new(Stream::Stdout, io::stdout().as_fd().try_clone_to_owned()?);
    let stderr = Outlet::new(Stream::Stderr, io::stderr().as_fd().try_clone_to_owned()?);
    Conversation { wire, signals, stdin, stdout, stderr }.run()
}

/// Retries for a while: the name of a pod that was replaced does not resolve for some seconds. No command has been sent
/// yet, so retrying is safe.
fn reach(settings: &Settings, host: &str) -> Result<Wire, RshError> {
    let start = Instant::now();
    loop {
        match connect(settings, host) {
            Ok(wire) => return Ok(wire),
            Err(source) if start.elapsed() + PAUSE > settings.connect => {
                return Err(RshError::Connect { source, seconds: start.elapsed().as_secs() });
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

struct Conversation {
    wire: Wire,
    signals: Signals,
    stdin: Inlet,
    stdout: Outlet,
    stderr: Outlet,
}

impl Conversation {
    fn run(mut self) -> Result<u8, RshError> {
        loop {
            let ready = readiness::wait(
                &[
                    Some(self.wire.interest()),
                    Some(self.signals.interest()),
                    self.stdin.interest(),
                    self.stdout.interest(),
                    self.stderr.interest(),
                ],
                self.wire.time(),
            )?;
            for signal in self.signals.take() {
                self.wire.send(&Frame::Signal(signal.as_raw() as u8))?;
            }
            if ready[2] {
                self.stdin.transfer(&mut self.wire)?;
            }
            for (outlet, ready) in [(&mut self.stdout, ready[3]), (&mut self.stderr, ready[4])] {
                if !ready {
                    continue;
                }
                match outlet.transfer() {
                    Ok(None) => {}
                    Ok(Some(granted)) => self.wire.send(&granted)?,
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(BROKEN_PIPE),
                    Err(error) => return Err(error.into()),
                }
            }
            self.wire.transfer()?;
            while let Some(frame) = self.wire.next()? {
                match frame {
                    Frame::Data(Stream::Stdout, bytes) => self.stdout.receive(bytes)?,
                    Frame::Data(Stream::Stderr, bytes) => self.stderr.receive(bytes)?,
                    Frame::End(Stream::Stdout) => self.stdout.end(),
                    Frame::End(Stream::Stderr) => self.stderr.end(),
                    Frame::Granted(Stream::Stdin, bytes) => self.stdin.grant(bytes)?,
                    Frame::Exit(status) => return self.finish(status),
                    Frame::Failed(reason) => {
                        return Err(RshError::Failed(String::from_utf8_lossy(reason).into_owned()));
                    }
                    _ => return Err(WireError::Unexpected("a message of a launcher").into()),
                }
            }
        }
    }

    /// Writes the rest of the command's output. A signal interrupts this.
    fn finish(mut self, status: u8) -> Result<u8, RshError> {
        drop(self.wire);
        while !self.stdout.is_empty() || !self.stderr.is_empty() {
            let interests = [Some(self.signals.interest()), self.stdout.interest(), self.stderr.interest()];
            let ready = readiness::wait(&interests, std::time::Duration::from_secs(60))?;
            if let Some(signal) = self.signals.take().first() {
                return Ok(128 + signal.as_raw() as u8);
            }
            for (outlet, ready) in [(&mut self.stdout, ready[1]), (&mut self.stderr, ready[2])] {
                if ready && outlet.transfer().is_err() {
                    return Ok(BROKEN_PIPE);
                }
            }
        }
        Ok(status)
    }
}
