//! Takes FUSE connections from the keeper, and returns the connections that this daemon holds to a restarted keeper.
//! There is one keeper at a time: a newer one replaces an older one, which is dead or about to exit. The older one's
//! messages are processed first.
//!
//! Each request is answered when it is done. A request that waits for an origin delays no other request.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use larder_daemon_api::handover::{HoldsList, Listener, Message, Socket};
use larder_daemon_api::v1;
use larder_dataset::Chain;
use rustix::io::Errno;
use tracing::{info, warn};

use super::convert;
use super::core::Daemon;
use super::error::DaemonError;

/// The pause before a keeper that could not be taken for want of descriptors, memory or threads is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The limit for sending a packet.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// The keeper that connected last, at any of the sockets.
#[derive(Clone, Debug, Default)]
pub(super) struct CurrentKeeper(Arc<Mutex<Option<Talking>>>);

/// A keeper's socket, and the thread that talks to it.
type Talking = (Arc<Socket>, JoinHandle<()>);

/// Listens at `path`. Returns only on failure.
pub(super) async fn serve(daemon: Arc<Daemon>, keeper: CurrentKeeper, path: PathBuf) -> anyhow::Result<()> {
    let listener = Listener::bind(&path).with_context(|| format!("listen at {} (--run-dir)", path.display()))?;
    let (failed, ended) = tokio::sync::oneshot::channel();
    // These run in threads, because they are nearly always blocked in a system call.
    std::thread::Builder::new().name("handover".to_owned()).spawn(move || {
        let _ = failed.send(accept(&daemon, &keeper, &listener));
    })?;
    ended.await.context("the handover thread panicked")?.context("accept a keeper")
}

fn accept(daemon: &Arc<Daemon>, keeper: &CurrentKeeper, listener: &Listener) -> std::io::Result<()> {
    loop {
        let socket = patiently("accept a keeper", RETRY, || listener.accept())?;
        let uid = socket.peer_uid();
        if !uid.as_ref().is_ok_and(|&uid| uid == 0 || uid == rustix::process::geteuid().as_raw()) {
            warn!(?uid, "rejected a process of another user at the handover socket");
            continue;
        }
        let mut last = keeper.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((socket, thread)) = last.take() {
            socket.shut_down();
            // The older keeper's thread finishes the messages that its keeper had sent, which no other process may
            // have, and waits for nothing else.
            let _ = thread.join();
        }
        let socket = Arc::new(socket);
        let start = || {
            let (daemon, talking) = (Arc::clone(daemon), Arc::clone(&socket));
            let talk = move || match talk(&daemon, &talking) {
                Ok(()) => info!("keeper disconnected; its mounts are still served"),
                Err(error) => warn!(%error, "keeper disconnected; its mounts are still served"),
            };
            std::thread::Builder::new().name("keeper".to_owned()).spawn(talk)
        };
        let thread = patiently("start a thread for a keeper", RETRY, start)?;
        *last = Some((socket, thread));
    }
}

/// Repeats `attempt` until it succeeds or fails for good: a shortage passes, and the mounts are served meanwhile.
fn patiently<T>(
    step: &'static str,
    pause: Duration,
    mut attempt: impl FnMut() -> std::io::Result<T>,
) -> std::io::Result<T> {
    let mut is_logged = false;
    loop {
        match attempt() {
            Err(error) if passes(&error) => {
                if !std::mem::replace(&mut is_logged, true) {
                    warn!(step, %error, "cannot take the keeper's connections yet: trying again until it works");
                }
                std::thread::sleep(pause);
            }
            done => return done,
        }
    }
}

/// True if an error of accept(2) or of starting a thread says nothing about the socket.
fn passes(error: &std::io::Error) -> bool {
    let passing =
        [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::AGAIN, Errno::INTR, Errno::CONNABORTED];
    Errno::from_io_error(error).is_some_and(|errno| passing.contains(&errno))
}

fn talk(daemon: &Arc<Daemon>, socket: &Arc<Socket>) -> std::io::Result<()> {
    socket.set_send_timeout(Some(SEND_TIMEOUT))?;
    return_held(daemon, socket)?;
    socket.send(Message::held_end(), &[])?;
    // A daemon that waits for a keeper stops from now on: the kernel holds the connections that were sent.
    let mut keeper = daemon.keepers.enter();
    let mut list = HoldsList::default();
    while let Some((message, descriptors)) = socket.receive()? {
        match (message, descriptors) {
            (Message::Holds(page), _) => {
                if let Some(mounts) = list.add(page) {
                    daemon.keeper_holds(mounts.into_iter().collect());
                }
            }
            (Message::Offer(connection), Some(descriptors)) => {
                let request = connection.request;
                let taken = daemon.take(connection, descriptors);
                let (daemon, socket) = (Arc::clone(daemon), Arc::clone(socket));
                daemon.node.runtime().clone().spawn(async move {
                    let outcome = match taken {
                        Ok(offer) => daemon.serve_offer(offer).await,
                        Err(error) => Err(error),
                    };
                    // If the keeper has disconnected, it needs no answer.
                    let _ = tokio::task::spawn_blocking(move || answer(&socket, request, outcome)).await;
                });
            }
            (Message::Renew(v1::Renew { mount, credentials, request }), _) => {
                let credentials = credentials.as_ref().map(convert::credentials);
                // Renewals run in order, so that the last one takes effect. They query no origin.
                let outcome = daemon.node.runtime().block_on(daemon.renew(&mount, credentials));
                answer(socket, request, outcome)?;
            }
            (Message::Forget(v1::Forget { mount, request }), _) => {
                daemon.forget(&mount);
                answer(socket, request, Ok(()))?;
            }
            (Message::Leave(v1::Leave { request }), _) => {
                answer(socket, request, if keeper.leave() { Ok(()) } else { Err(DaemonError::Stopping) })?;
            }
            (
                Message::Held(_)
                | Message::HeldEnd(_)
                | Message::Answer(_)
                | Message::Offer(_)
                | Message::Lend(_)
                | Message::Lent(_),
                _,
            ) => {
                let what = "the keeper sent an unexpected message";
                return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what));
            }
        }
    }
    Ok(())
}

fn answer(socket: &Socket, request: u64, outcome: Result<(), DaemonError>) -> std::io::Result<()> {
    socket.send(Message::answer(request, outcome.map_err(|error| Chain(&error).to_string())), &[])
}

/// Sends the connections that this process has, without keeping additional references to them: a mount lives while any
/// descriptor of its connection is open.
fn return_held(daemon: &Daemon, socket: &Socket) -> std::io::Result<()> {
    // Offers are read before mounts, since an offer becomes a mount. Mounts are sent newest first: a mount that was
    // unmounted while its files were in use may still be served beside its successor, and the keeper uses the first
    // mount of each name.
    let (offers, mounts) = (daemon.offers.now(), daemon.mounts.now().mounts);
    let of_keeper = offers.iter().rev().filter(|offer| offer.connection.own.is_none());
    let offered = of_keeper.map(|offer| (&offer.mount, offer.request(), &offer.connection));
    let served =
        mounts.iter().rev().filter_map(|mount| Some((&mount.id, mount.request.clone(), mount.connection.as_ref()?)));
    let mut count = 0;
    for (mount, request, connection) in offered.chain(served) {
        let (mount, dataset) = (mount.clone(), Some(convert::dataset(&request)));
        let held = v1::Connection { mount, dataset, init: connection.init.clone(), request: 0 };
        socket.send(Message::Held(held), &[connection.fd.as_fd(), connection.memory.as_fd()])?;
        count += 1;
    }
    info!(held = count, "keeper connected");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: K1
    #[test]
    fn a_shortage_of_descriptors_or_threads_is_waited_for_and_a_broken_socket_is_not() {
        let after = |failures: &[Errno]| {
            let mut failures = failures.iter();
            let mut attempts = 0;
            let outcome = patiently("take a keeper", Duration::ZERO, || {
                attempts += 1;
                failures.next().map_or(Ok(()), |&errno| Err(errno.into()))
            });
            (outcome.map_err(|error| Errno::from_io_error(&error)), attempts)
        };
        assert_eq!(after(&[]), (Ok(()), 1));
        assert_eq!(after(&[Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::MFILE]), (Ok(()), 6));
        assert_eq!(after(&[Errno::AGAIN, Errno::INTR, Errno::CONNABORTED]), (Ok(()), 4));
        assert_eq!(after(&[Errno::MFILE, Errno::BADF]), (Err(Some(Errno::BADF)), 2));
    }
}
