//! The agent of a pod: accepts connections, and starts a process for each.
//!
//! This process parses no data from the network. As PID 1 of a container, or as a subreaper elsewhere, it inherits the
//! orphans of the processes that it started, and reaps them.

use std::io::{self, PipeReader, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, wait};

use crate::processes::{self, GRACE};
use crate::readiness;
use crate::session::HANDSHAKE;
use crate::settings::Settings;
use crate::signals::{ROOM, Signals};

/// Why the agent cannot serve.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error("listen on {address}: {source} (LARDER_AGENT_PORT, LARDER_AGENT_ADDRESS)")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("{0}")]
    System(#[from] io::Error),
}

/// The limit of concurrent commands. Further launchers wait until a command has ended.
const SESSIONS_MOST: usize = 512;
/// The limit of concurrent handshakes. When it is reached, the oldest handshake is dropped. Launchers need only
/// milliseconds for a handshake, so silent connections of other peers cannot lock them out.
const HANDSHAKES_MOST: usize = 32;
/// The timeout of the shutdown: the processes have [`GRACE`], and their launchers a moment to receive the status.
const END: Duration = Duration::from_secs(GRACE.as_secs() + 5);
/// The exit status after SIGTERM.
const TERMINATED: u8 = 128 + 15;

/// Serves until it receives a termination signal. Then it terminates its processes and exits after them.
pub(crate) fn serve(settings: &Settings) -> Result<u8, ServeError> {
    let signals = Signals::catch(&[Signal::CHILD, Signal::TERM, Signal::INT, Signal::HUP])?;
    set_child_subreaper(Some(getpid())).map_err(io::Error::from)?;
    let listener = listen(settings)?;
    eprintln!("larder-agent: listening on {}", listener.local_addr()?);
    Agent { listener, signals, sessions: Vec::new() }.run()
}

/// The wildcard address falls back to IPv4 if the node has no IPv6.
fn listen(settings: &Settings) -> Result<TcpListener, ServeError> {
    let bind = |address: IpAddr| {
        let address = SocketAddr::from((address, settings.port));
        TcpListener::bind(address).map_err(|source| ServeError::Listen { address, source })
    };
    let everywhere = IpAddr::from(Ipv6Addr::UNSPECIFIED);
    let listener = match bind(settings.address) {
        Err(_) if settings.address == everywhere => bind(Ipv4Addr::UNSPECIFIED.into())?,
        other => other?,
    };
    // A peer may disconnect before it is accepted, and `accept` would then block.
    listener.set_nonblocking(true)?;
    Ok(listener)
}

struct Agent {
    listener: TcpListener,
    signals: Signals,
    /// In the order in which they started.
    sessions: Vec<Session>,
}

struct Session {
    pid: Pid,
    /// Delivers one byte when the peer has proved that it has the key, and end-of-file when the session exits. `None`
    /// after either.
    handshake: Option<PipeReader>,
    has_key: bool,
}

impl Session {
    /// Reads the result of the handshake. Blocks until there is a result or the session has exited.
    fn read_handshake(&mut self) {
        if let Some(mut handshake) = self.handshake.take() {
            self.has_key = handshake.read(&mut [0]).is_ok_and(|read| read == 1);
        }
    }
}

impl Agent {
    fn run(mut self) -> Result<u8, ServeError> {
        loop {
            let is_full = self.sessions.len() >= SESSIONS_MOST;
            let mut interests =
                vec![Some(self.signals.interest()), (!is_full).then_some((self.listener.as_fd(), PollFlags::IN))];
            interests.extend(self.sessions.iter().map(|session| {
                let handshake = session.handshake.as_ref()?;
                Some((handshake.as_fd(), PollFlags::IN))
            }));
            let ready = readiness::wait(&interests, HANDSHAKE)?;
            for (session, ready) in self.sessions.iter_mut().zip(&ready[2..]) {
                if *ready {
                    session.read_handshake();
                }
            }
            if self.signals.take().iter().any(|signal| *signal != Signal::CHILD) {
                return self.end();
            }
            self.reap();
            if ready[1] {
                self.accept();
            }
        }
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok((socket, address)) => {
                self.make_room();
                match start(socket) {
                    Ok(session) => self.sessions.push(session),
                    Err(error) => eprintln!("larder-agent: {address}: start a session: {error}"),
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => {}
            Err(error) => {
                eprintln!("larder-agent: accept a connection: {error}");
                // The process may be out of descriptors or memory, so an immediate retry would fail again.
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }

    fn make_room(&mut self) {
        let mut shaking = self.sessions.iter().filter(|session| session.handshake.is_some());
        let first = shaking.next();
        if let Some(first) = first.filter(|_| shaking.count() + 1 >= HANDSHAKES_MOST) {
            eprintln!("larder-agent: {HANDSHAKES_MOST} peers have not shown the key yet: dropping the oldest of them");
            // The session may have exited already; it is reaped soon.
            let _ = kill_process(first.pid, ROOM);
        }
    }

    /// Reaps the children that have exited: sessions and their orphans. Returns whether any children remain.
    fn reap(&mut self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => self.forget(pid, status),
                Ok(None) => return true,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    fn forget(&mut self, pid: Pid, status: WaitStatus) {
        let Some(at) = self.sessions.iter().position(|session| session.pid == pid) else { return };
        let mut session = self.sessions.remove(at);
        session.read_handshake();
        // A session terminates its command before it exits. A session that was killed could not.
        if status.signaled() && session.has_key {
            eprintln!("larder-agent: a session was killed: its command is killed, too");
            processes::signal_session(pid, Signal::KILL);
        }
    }

    fn end(mut self) -> Result<u8, ServeError> {
        processes::signal_children(getpid(), Signal::TERM);
        let signaled_at = Instant::now();
        while self.reap() && signaled_at.elapsed() < END {
            readiness::wait(&[Some(self.signals.interest())], END.saturating_sub(signaled_at.elapsed()))?;
            self.signals.take();
        }
        Ok(TERMINATED)
    }
}

/// Starts the process of a session. The connection is its standard input. It writes to its standard output when the
/// peer has proved that it has the key.
fn start(socket: TcpStream) -> io::Result<Session> {
    let (handshake, shown) = io::pipe()?;
    let child = Command::new("/proc/self/exe")
        .arg0("larder-agent")
        .arg("session")
        .stdin(Stdio::from(OwnedFd::from(socket)))
        .stdout(shown)
        .spawn()?;
    // Not waited for here: [`Agent::reap`] reaps all children.
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Session { pid, handshake: Some(handshake), has_key: false })
}
