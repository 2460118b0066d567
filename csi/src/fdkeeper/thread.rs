//! The thread of the keeper: it connects to larderd, keeps a [`Session`] until the socket breaks, and reconnects.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use larder_daemon_api::handover::Socket;
use larder_telemetry::Heartbeat;
use tracing::{info, warn};

use crate::fdkeeper::connections::{Connections, Request, SessionState};
use crate::fdkeeper::session::Session;

/// The pause before the first attempt to reconnect; it doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long larderd may take to list its connections, or to receive a packet.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(30);

impl Connections {
    /// Keeps sessions until stopped.
    pub(crate) fn run(&self, queue: &Receiver<Request>) {
        let mut pause = PAUSE;
        let mut warned = false;
        while !self.stopping() {
            let before = self.session.borrow().count;
            let error = match self.keep_session(queue) {
                Ok(()) => return,
                Err(error) => error,
            };
            let had_session = self.session.borrow().count > before;
            self.session.send_modify(|session| (session.connected, session.settled) = (false, false));
            if had_session || !warned {
                warn!(%error, held = self.held().len(), "no session with larderd; reconnecting");
            }
            warned = true;
            pause = if had_session { PAUSE } else { (pause * 2).min(PAUSE_MAX) };
            self.refuse_for(pause, queue);
        }
    }

    /// Rejects requests for a while: without a session, they would only time out.
    fn refuse_for(&self, pause: Duration, queue: &Receiver<Request>) {
        let mut rest = Some(pause);
        while let Some(left) = rest.filter(|_| !self.stopping()) {
            let started = Instant::now();
            self.wait(None, left);
            for request in queue.try_iter() {
                let _ = request.into_reply().send(Err(self.not_connected()));
            }
            rest = left.checked_sub(started.elapsed()).filter(|left| !left.is_zero());
        }
    }

    /// Keeps one session. Returns `Ok` when stopped.
    fn keep_session(&self, queue: &Receiver<Request>) -> io::Result<()> {
        let socket = connect_to_first(&self.sockets, self.daemon_uid)?;
        let mut session = Session::begin(self, socket)?;
        self.counters.sessions.fetch_add(1, Ordering::Relaxed);
        let settled = session.is_settled();
        self.session
            .send_modify(|session| *session = SessionState { connected: true, settled, count: session.count + 1 });
        info!(held = self.held().len(), "in session with larderd");
        let outcome = self.converse(&mut session, queue);
        if let Err(error) = &outcome {
            session.broke(error);
        }
        outcome
    }

    fn converse(&self, session: &mut Session<'_>, queue: &Receiver<Request>) -> io::Result<()> {
        loop {
            for request in queue.try_iter() {
                session.ask(request)?;
            }
            if self.stopping() {
                return Ok(());
            }
            if self.wait(Some(session.socket()), Heartbeat::EVERY) {
                session.hear()?;
                let settled = session.is_settled();
                self.session.send_if_modified(|session| std::mem::replace(&mut session.settled, settled) != settled);
            }
        }
    }
}

/// Connects to the first socket on which larderd listens. If none works, returns the error of the preferred socket.
fn connect_to_first(sockets: &[PathBuf], daemon_uid: u32) -> io::Result<Socket> {
    let mut tried = sockets.iter().map(|socket| connect(socket, daemon_uid));
    let preferred = tried.next().unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()));
    preferred.or_else(|error| tried.find_map(Result::ok).ok_or(error))
}

fn connect(path: &Path, daemon_uid: u32) -> io::Result<Socket> {
    let socket = Socket::connect(path)?;
    let uid = socket.peer_uid()?;
    if uid != daemon_uid && uid != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "user {uid} listens at {}, but larderd must run as user {daemon_uid} or root (--daemon-uid)",
                path.display()
            ),
        ));
    }
    socket.set_send_timeout(Some(SOCKET_TIMEOUT))?;
    socket.set_receive_timeout(Some(SOCKET_TIMEOUT))?;
    Ok(socket)
}
