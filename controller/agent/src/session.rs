//! The agent's side of one connection, in a process of its own, for one peer and one command.
//!
//! This process leads a kernel session in which the command runs. All processes that the command starts belong to that
//! session, unless they deliberately leave it, and they are terminated when the launcher disconnects.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, setsid};

use crate::frame::{Frame, Stream, VERSION};
use crate::processes::{self, GRACE};
use crate::readiness;
use crate::settings::Settings;
use crate::signals::{FORWARDED, ROOM, Signals};
use crate::stream::{Inlet, Outlet};
use crate::wire::{Wire, WireError};

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    #[error("its standard input is not a connection: {0}")]
    Start(io::Error),
    #[error("{peer}: {source}")]
    Peer { peer: SocketAddr, source: WireError },
    #[error("{peer}: {SHELL}: {source}")]
    Shell { peer: SocketAddr, source: io::Error },
}

/// The step that fails if the image has no shell.
const SHELL: &str = "run /bin/sh, which the image must have";

/// How long a peer may take to prove that it has the key.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(10);

/// Serves the connection that is this process's standard input.
pub(crate) fn serve(settings: &Settings) -> Result<(), SessionError> {
    let socket = io::stdin().as_fd().try_clone_to_owned().map(TcpStream::from).map_err(SessionError::Start)?;
    let peer = socket.peer_addr().map_err(SessionError::Start)?;
    let leader = setsid().map_err(|error| SessionError::Start(error.into()))?;
    let failed = |source| SessionError::Peer { peer, source };
    let Some(mut wire) = welcome(settings, socket).map_err(failed)? else { return Ok(()) };
    let command = match wire.wait_for_next(settings.silence) {
        Ok(Frame::Run(command)) => command.to_vec(),
        // The launcher only checked whether this agent answers.
        Err(WireError::Closed) => return Ok(()),
        Ok(_) => return Err(failed(WireError::Unexpected("something other than a command"))),
        Err(error) => return Err(failed(error)),
    };
    // Registered before the command starts, so that its exit is not missed.
    let signals = Signals::catch(&[Signal::CHILD, Signal::TERM]).map_err(SessionError::Start)?;
    let child = match start(&command) {
        Ok(child) => child,
        Err(source) => {
            wire.send(&Frame::Failed(format!("{SHELL}: {source}").as_bytes())).map_err(failed)?;
            wire.finish();
            return Err(SessionError::Shell { peer, source });
        }
    };
    Conversation::with(wire, signals, leader, child).and_then(Conversation::run).map_err(|error| {
        processes::end_session(leader);
        failed(error)
    })
}

fn start(command: &[u8]) -> io::Result<Child> {
    Command::new("/bin/sh")
        .arg("-c")
        .arg(OsStr::from_bytes(command))
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// Completes the handshake. Afterwards [`ROOM`] no longer ends this process. `None` if the peer disconnected without
/// sending anything, as port probes do.
fn welcome(settings: &Settings, socket: TcpStream) -> Result<Option<Wire>, WireError> {
    let mut wire = match Wire::open(socket, settings.key.agent_end()?, HANDSHAKE, settings.silence) {
        Err(WireError::Closed) => return Ok(None),
        opened => opened?,
    };
    // The handler stays installed after this value is dropped.
    Signals::catch(&[ROOM])?;
    // `serve` may have exited already. The session does not need it any more.
    let _ = io::stdout().write_all(b"k").and_then(|()| io::stdout().flush());
    wire.send(&Frame::Welcome(VERSION))?;
    Ok(Some(wire))
}

struct Conversation {
    wire: Wire,
    signals: Signals,
    leader: Pid,
    child: Child,
    stdin: Outlet,
    stdout: Inlet,
    stderr: Inlet,
    status: Option<ExitStatus>,
    /// When the command is killed, if this agent is terminating.
    killed_at: Option<Instant>,
}

impl Conversation {
    fn with(wire: Wire, signals: Signals, leader: Pid, mut child: Child) -> Result<Self, WireError> {
        let missing = || WireError::Broken(io::Error::other("a stream of the command is missing"));
        let stdin = Outlet::new(Stream::Stdin, child.stdin.take().ok_or_else(missing)?);
        let stdout = Inlet::new(Stream::Stdout, child.stdout.take().ok_or_else(missing)?);
        let stderr = Inlet::new(Stream::Stderr, child.stderr.take().ok_or_else(missing)?);
        Ok(Self { wire, signals, leader, child, stdin, stdout, stderr, status: None, killed_at: None })
    }

    /// Runs until the command and its output have ended and the launcher has received the status.
    fn run(mut self) -> Result<(), WireError> {
        loop {
            if let Some(status) = self.status.filter(|_| self.stdout.is_ended() && self.stderr.is_ended()) {
                let status = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(255);
                self.wire.send(&Frame::Exit(status as u8))?;
                self.wire.finish();
                return Ok(());
            }
            let ready = readiness::wait(
                &[
                    Some(self.wire.interest()),
                    Some(self.signals.interest()),
                    self.stdin.interest(),
                    self.stdout.interest(),
                    self.stderr.interest(),
                ],
                self.time(),
            )?;
            self.look_after_command()?;
            if ready[2] {
                match self.stdin.transfer() {
                    Ok(None) => {}
                    Ok(Some(granted)) => self.wire.send(&granted)?,
                    // The command has closed its standard input.
                    Err(_) => self.stdin.give_up(),
                }
            }
            for (inlet, ready) in [(&mut self.stdout, ready[3]), (&mut self.stderr, ready[4])] {
                if ready {
                    inlet.transfer(&mut self.wire)?;
                }
            }
            self.wire.transfer()?;
            self.listen()?;
        }
    }

    fn time(&self) -> Duration {
        let killed_in = self.killed_at.map(|at| at.saturating_duration_since(Instant::now()));
        self.wire.time().min(killed_in.unwrap_or(Duration::MAX))
    }

    fn look_after_command(&mut self) -> Result<(), WireError> {
        if self.signals.take().contains(&Signal::TERM) && self.killed_at.is_none() {
            processes::signal_session(self.leader, Signal::TERM);
            self.killed_at = Some(Instant::now() + GRACE);
        }
        if self.killed_at.is_some_and(|at| at <= Instant::now()) {
            processes::signal_session(self.leader, Signal::KILL);
            // Kill again after a second: the command may have forked in between.
            self.killed_at = Some(Instant::now() + Duration::from_secs(1));
        }
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(())
    }

    fn listen(&mut self) -> Result<(), WireError> {
        while let Some(frame) = self.wire.next()? {
            match frame {
                Frame::Data(Stream::Stdin, bytes) => self.stdin.receive(bytes)?,
                Frame::End(Stream::Stdin) => self.stdin.end(),
                Frame::Granted(Stream::Stdout, bytes) => self.stdout.grant(bytes)?,
                Frame::Granted(Stream::Stderr, bytes) => self.stderr.grant(bytes)?,
                Frame::Signal(number) => {
                    let signal = FORWARDED.into_iter().find(|signal| signal.as_raw() == i32::from(number));
                    let signal = signal.ok_or(WireError::Unexpected("a signal that is not passed on"))?;
                    processes::signal_session(self.leader, signal);
                }
                _ => return Err(WireError::Unexpected("a message of an agent")),
            }
        }
        Ok(())
    }
}
