//! One session with larderd.
//!
//! It begins by making both sides hold the same connections. The keeper takes over the connections that only larderd
//! holds (the plugin was restarted), sends the list of connections that it holds, and offers the ones that larderd
//! lacks (larderd was restarted). After that, the session passes requests on. It never waits for an answer, so a
//! dataset that cannot be opened delays neither the other offers nor a new mount.
//!
//! Invariants: for every connection, larderd has the keeper's credentials, or they are being sent. A new connection is
//! held once larderd has accepted it, if the requester is still waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_daemon_api::handover::{Descriptors, Message, Socket, is_alive, request_memory};
use larder_daemon_api::v1;
use tracing::{debug, info, warn};

use crate::fdkeeper::connection::Connection;
use crate::fdkeeper::connections::{Connections, Reply, Request};
use crate::fdkeeper::error::KeeperError;
use crate::mount_id::MountId;

/// One session with larderd.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    connections: &'a Connections,
    socket: Socket,
    /// The protocol version of larderd.
    version: u32,
    /// The number of the last request.
    last: u64,
    /// The requests that larderd has not answered, keyed by number.
    asked: BTreeMap<u64, Asked>,
}

/// A request that larderd has not answered.
#[derive(Debug)]
enum Asked {
    /// To serve a connection that the keeper holds.
    Again(MountId),
    /// To serve a new connection.
    New(Arc<Connection>, Reply),
    /// To renew or forget a connection, either for a requester or started by the keeper itself.
    Other(MountId, Option<Reply>),
    /// To let the keeper stop.
    Leave(Reply),
}

impl<'a> Session<'a> {
    /// Makes both sides hold the same connections.
    pub(crate) fn begin(connections: &'a Connections, socket: Socket) -> io::Result<Self> {
        let mut this = Self { connections, socket, version: 0, last: 0, asked: BTreeMap::new() };
        let mut held = BTreeSet::new();
        let (mut dead, mut outdated) = (Vec::new(), Vec::new());
        loop {
            // larderd may take long for each of its connections.
            connections.heartbeat.beat();
            let (connection, Descriptors { fuse, memory }) =
                match this.socket.receive()?.ok_or(io::ErrorKind::UnexpectedEof)? {
                    (Message::HeldEnd(v1::HeldEnd { version }), _) => {
                        this.version = version;
                        break;
                    }
                    (Message::Held(connection), Some(descriptors)) => (connection, descriptors),
                    _ => return Err(invalid("larderd does not list the connections that it holds")),
                };
            let mount = MountId::try_from(connection.mount).map_err(invalid)?;
            if !is_alive(&fuse) {
                dead.push(mount);
                continue;
            }
            let dataset = connection.dataset.unwrap_or_default();
            let mut all = connections.held();
            match all.get(&mount).filter(|ours| ours.is_alive()) {
                // An earlier session broke before larderd received new credentials.
                Some(ours) if ours.credentials() != dataset.credentials => outdated.push(Arc::clone(ours)),
                Some(_) => {}
                None => {
                    info!(%mount, "take over a connection from larderd");
                    connections.counters.takeovers.fetch_add(1, Ordering::Relaxed);
                    // An older larderd sends no memory. A newer larderd will use this one after a restart.
                    let memory = memory.map_or_else(request_memory, Ok)?;
                    let ours = Connection::new(mount.clone(), fuse, memory, connection.init, dataset);
                    all.insert(mount.clone(), Arc::new(ours));
                }
            }
            held.insert(mount);
        }
        let ours: Vec<_> = connections.held().values().filter(|ours| ours.is_alive()).cloned().collect();
        // An older larderd may not be able to take the list. It then tries no offer again after a failure.
        for packet in Message::holds(ours.iter().map(|ours| ours.mount.as_str()), this.version) {
            this.socket.send(packet, &[])?;
        }
        for mount in dead {
            debug!(%mount, "larderd holds a connection that has ended");
            this.forget(&mount, None)?;
        }
        for connection in outdated {
            this.renew(&connection, None)?;
        }
        for connection in ours.iter().filter(|ours| !held.contains(&ours.mount)) {
            this.offer(connection, Asked::Again(connection.mount.clone()))?;
        }
        Ok(this)
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// True once larderd has answered each offer from the start of the session.
    pub(crate) fn is_settled(&self) -> bool {
        !self.asked.values().any(|asked| matches!(asked, Asked::Again(_)))
    }

    /// Passes a request on. An error ends the session.
    pub(crate) fn ask(&mut self, request: Request) -> io::Result<()> {
        match request {
            Request::Offer(connection, reply) => self.offer(&connection, Asked::New(Arc::clone(&connection), reply)),
            Request::Renew(connection, reply) => self.renew(&connection, Some(reply)),
            Request::Forget(mount, reply) => self.forget(&mount, Some(reply)),
            Request::Leave(reply) => self.leave(reply),
        }
    }

    fn offer(&mut self, connection: &Connection, asked: Asked) -> io::Result<()> {
        self.connections.counters.offers.fetch_add(1, Ordering::Relaxed);
        let fds = [connection.fd.as_fd(), connection.memory.as_fd()];
        // An older larderd accepts only the first descriptor.
        let fds = if self.version == 0 { &fds[..1] } else { &fds };
        self.send(asked, fds, |number| Message::Offer(connection.to_wire(number)))
    }

    fn renew(&mut self, connection: &Connection, reply: Option<Reply>) -> io::Result<()> {
        if self.version == 0 {
            // An older larderd has no such request: it already applied the credentials when it prepared the dataset.
            let _ = reply.map(|reply| reply.send(Ok(())));
            return Ok(());
        }
        let (mount, credentials) = (connection.mount.to_string(), connection.credentials());
        let asked = Asked::Other(connection.mount.clone(), reply);
        self.send(asked, &[], |request| Message::Renew(v1::Renew { mount, credentials, request }))
    }

    fn forget(&mut self, mount: &MountId, reply: Option<Reply>) -> io::Result<()> {
        self.send(Asked::Other(mount.clone(), reply), &[], |number| Message::forget(number, mount.as_str()))
    }

    fn leave(&mut self, reply: Reply) -> io::Result<()> {
        if self.version < 3 {
            // An older larderd has no such request.
            let _ = reply.send(Ok(()));
            return Ok(());
        }
        self.send(Asked::Leave(reply), &[], |request| Message::Leave(v1::Leave { request }))
    }

    /// Sends the request with the next number. If sending fails, the requester receives the error when the session
    /// ends.
    fn send(&mut self, asked: Asked, fds: &[BorrowedFd<'_>], message: impl FnOnce(u64) -> Message) -> io::Result<()> {
        self.last += 1;
        self.asked.insert(self.last, asked);
        self.socket.send(message(self.last), fds)
    }

    /// Receives the next message, which must be an answer. An error ends the session.
    pub(crate) fn hear(&mut self) -> io::Result<()> {
        let v1::Answer { error, request } = match self.socket.receive()? {
            Some((Message::Answer(answer), _)) => answer,
            Some(_) => return Err(invalid("larderd sent a message that is not an answer")),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        };
        // An older larderd answers in order, without numbers.
        let oldest = self.asked.keys().next().copied().unwrap_or_default();
        let number = if self.version == 0 { oldest } else { request };
        let asked =
            self.asked.remove(&number).ok_or_else(|| invalid("larderd answered a request that was not sent"))?;
        let outcome = if error.is_empty() { Ok(()) } else { Err(error) };
        self.answered(asked, outcome);
        Ok(())
    }

    fn answered(&self, asked: Asked, outcome: Result<(), String>) {
        if matches!(asked, Asked::Again(_) | Asked::New(..)) && outcome.is_err() {
            self.connections.counters.refusals.fetch_add(1, Ordering::Relaxed);
        }
        let accepted = outcome.is_ok();
        let reported = outcome.clone().map_err(|reason| KeeperError::Refused { reason });
        match (asked, outcome) {
            (Asked::New(connection, reply), _) => {
                // If the requester has given up, another connection of the mount may have replaced this one already.
                if accepted && !reply.is_closed() {
                    self.connections.hold(&connection);
                }
                if reply.send(reported).is_err() {
                    self.connections.let_go(&connection);
                }
            }
            (Asked::Other(_, Some(reply)) | Asked::Leave(reply), _) => drop(reply.send(reported)),
            // The keeper keeps the connection: pods wait for it, and larderd retries.
            (Asked::Again(mount), Err(reason)) => warn!(%mount, reason, "larderd cannot serve a mount that pods use"),
            (Asked::Other(mount, None), Err(reason)) => warn!(%mount, reason, "larderd refuses"),
            (Asked::Again(_) | Asked::Other(_, None), Ok(())) => {}
        }
    }

    /// Sends the error to all requesters that wait for an answer.
    pub(crate) fn broke(self, error: &io::Error) {
        for asked in self.asked.into_values() {
            let (Asked::New(_, reply) | Asked::Other(_, Some(reply)) | Asked::Leave(reply)) = asked else { continue };
            let source = io::Error::new(error.kind(), error.to_string());
            let _ = reply.send(Err(KeeperError::Broken { source }));
        }
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use larder_daemon_api::handover::{HoldsList, VERSION};
    use tokio::sync::oneshot;

    use super::*;

    fn connection(mount: &str) -> Arc<Connection> {
        let fd = std::fs::File::open("/dev/null").unwrap().into();
        let mount = MountId::try_from(mount.to_owned()).unwrap();
        Arc::new(Connection::new(mount, fd, request_memory().unwrap(), vec![], v1::Dataset::default()))
    }

    // SEMANTICS: P7
    #[tokio::test(start_paused = true)]
    async fn the_keeper_beats_while_it_waits_and_while_larderd_lists_its_connections() {
        let connections = Connections::new(vec![], 0, Arc::default()).unwrap();
        let stopped = async || {
            tokio::time::advance(Duration::from_secs(3600)).await;
            assert!(connections.heartbeat.check("it").is_err());
        };
        stopped().await;
        connections.wait(None, Duration::ZERO);
        assert_eq!(connections.heartbeat.check("it"), Ok(()));
        stopped().await;
        let (ours, larderd) = Socket::pair().unwrap();
        larderd.send(Message::held_end(), &[]).unwrap();
        Session::begin(&connections, ours).unwrap();
        assert_eq!(connections.heartbeat.check("it"), Ok(()));
    }

    #[test]
    fn a_session_begins_with_more_mounts_than_a_packet_can_name() {
        const MOUNTS: usize = 2000;
        // Two descriptors each.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
        for version in 0..=VERSION {
            let connections = Connections::new(vec![], 0, Arc::default()).unwrap();
            (0..MOUNTS).for_each(|number| connections.hold(&connection(&format!("{number:064x}"))));
            let (ours, larderd) = Socket::pair().unwrap();
            larderd.send(Message::HeldEnd(v1::HeldEnd { version }), &[]).unwrap();
            let (held, offered) = std::thread::scope(|scope| {
                let larderd = scope.spawn(move || {
                    let (mut list, mut held, mut offered) = (HoldsList::default(), None, 0);
                    while offered < MOUNTS {
                        match larderd.receive().unwrap().unwrap() {
                            (Message::Holds(page), _) => held = list.add(page),
                            (Message::Offer(_), _) => offered += 1,
                            (other, _) => panic!("{other:?}"),
                        }
                    }
                    (held.map(|held| held.len()), offered)
                });
                Session::begin(&connections, ours).unwrap();
                larderd.join().unwrap()
            });
            assert_eq!((held, offered), ((version > 1).then_some(MOUNTS), MOUNTS), "version {version}");
        }
    }

    #[test]
    fn a_late_yes_to_a_requester_that_has_gone_takes_no_other_connection_away() {
        let connections = Connections::new(vec![], 0, Arc::default()).unwrap();
        let (ours, larderd) = Socket::pair().unwrap();
        larderd.send(Message::held_end(), &[]).unwrap();
        let session = Session::begin(&connections, ours).unwrap();
        let [given_up, second, other] = ["aaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"].map(connection);
        for connection in [&second, &other] {
            let (reply, _requester) = oneshot::channel();
            session.answered(Asked::New(Arc::clone(connection), reply), Ok(()));
        }
        let (reply, requester) = oneshot::channel();
        drop(requester);
        session.answered(Asked::New(given_up, reply), Ok(()));
        let held = |of: &Arc<Connection>| connections.held().get(&of.mount).is_some_and(|held| Arc::ptr_eq(held, of));
        assert!(held(&second) && held(&other));
    }
}
