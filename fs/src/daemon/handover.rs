//! Takes FUSE connections from the keeper, and hands a restarted keeper those that this daemon holds. There is one keeper at
//! a time: a newer one replaces an older one, which is dead or about to be.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use larder_cachenode::node::Node;
use larder_daemon_api::handover::{Listener, Message, Socket};
use larder_daemon_api::v1;
use larder_daemon_api::v1::Forget;
use larder_dataset::Chain;
use tokio::sync::watch;
use tracing::{info, warn};

use super::convert;
use super::core::Daemon;
use super::error::DaemonError;

/// The longest that a keeper takes between two offers of the connections that it holds.
const OFFERS_PAUSE: Duration = Duration::from_millis(500);

/// How long no keeper may be connected before its datasets count as closed. A plugin that is replaced is back in seconds.
const KEEPER_TIMEOUT: Duration = Duration::from_secs(60);

/// How long sending a packet may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Listens at `path`. Does not return unless it cannot.
pub(super) async fn serve(daemon: Arc<Daemon>, path: PathBuf) -> anyhow::Result<()> {
    let listener = Listener::bind(&path).with_context(|| format!("listen at {} (--run-dir)", path.display()))?;
    let (failed, ended) = tokio::sync::oneshot::channel();
    // Threads, because they spend their lives blocked in a system call.
    std::thread::Builder::new().name("handover".to_owned()).spawn(move || {
        let _ = failed.send(accept(&daemon, &listener));
    })?;
    ended.await.context("the handover thread panicked")?.context("accept a keeper")
}

fn accept(daemon: &Arc<Daemon>, listener: &Listener) -> std::io::Result<()> {
    let mut last: Option<Socket> = None;
    loop {
        let socket = listener.accept()?;
        let uid = socket.peer_uid();
        if !uid.as_ref().is_ok_and(|&uid| uid == 0 || uid == rustix::process::geteuid().as_raw()) {
            warn!(?uid, "rejected a process of another user at the handover socket");
            continue;
        }
        if let Some(last) = last.take() {
            last.shut_down();
        }
        last = Some(socket.try_clone()?);
        let daemon = Arc::clone(daemon);
        let talk = move || {
            daemon.keepers.send_modify(|count| *count += 1);
            match talk(&daemon, &socket) {
                Ok(()) => info!("keeper disconnected; its mounts go on"),
                Err(error) => warn!(%error, "keeper disconnected; its mounts go on"),
            }
            daemon.keepers.send_modify(|count| *count -= 1);
        };
        std::thread::Builder::new().name("keeper".to_owned()).spawn(talk)?;
    }
}

/// Lets go of the datasets that are kept for a keeper when none has been connected for a while: a connection that this daemon does
/// not serve ends with its keeper. Returns with the daemon.
pub(super) async fn without_keeper(node: Arc<Node>, mut keepers: watch::Receiver<usize>) -> anyhow::Result<()> {
    while keepers.wait_for(|&count| count == 0).await.is_ok() {
        let back = async { keepers.wait_for(|&count| count > 0).await.is_ok() };
        if tokio::time::timeout(KEEPER_TIMEOUT, back).await.is_err() {
            info!("no larder-csi is connected: the datasets of its mounts count as closed");
            let node = Arc::clone(&node);
            tokio::task::spawn_blocking(move || node.keep_only(&HashSet::new())).await?;
            let _ = keepers.wait_for(|&count| count > 0).await;
        }
    }
    Ok(())
}

fn talk(daemon: &Arc<Daemon>, socket: &Socket) -> std::io::Result<()> {
    socket.set_timeout(Some(SEND_TIMEOUT))?;
    return_held(daemon, socket)?;
    socket.send(Message::held_end(), None)?;
    // The keeper offers what this daemon lacks without pausing in between; its first silence means that it has finished.
    socket.set_timeout(Some(OFFERS_PAUSE))?;
    let mut refused = HashSet::new();
    loop {
        let (message, fd) = match socket.receive() {
            Ok(Some(received)) => received,
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                daemon.keeper_has_offered(&refused);
                socket.set_timeout(None)?;
                continue;
            }
            Err(error) => return Err(error),
        };
        let outcome = match (message, fd) {
            (Message::Offer(connection), Some(fd)) => {
                let mount = connection.mount.clone();
                let outcome = daemon.node.runtime().block_on(daemon.offer(connection, fd));
                if outcome.is_err() {
                    refused.insert(mount);
                }
                outcome
            }
            // A session that runs ends when the kernel releases the mount; until then there may be readers.
            (Message::Forget(Forget { mount }), _) => {
                daemon.node.let_go(&mount);
                Ok(())
            }
            _ => Err(DaemonError::Invalid {
                field: "message",
                what: "the keeper sends offer and forget only".to_owned(),
            }),
        };
        socket.send(Message::answer(outcome.map_err(|error| Chain(&error).to_string())), None)?;
    }
}

/// Sends the connections that are held here. It keeps no hold on them, since a mount lives for as long as a descriptor of its
/// connection is open.
fn return_held(daemon: &Daemon, socket: &Socket) -> std::io::Result<()> {
    let mounts = daemon.mounts.now().mounts;
    let held = mounts.iter().filter_map(|mount| Some((mount, mount.connection.as_ref()?)));
    info!(held = held.clone().count(), "keeper connected");
    // The newest first: a mount that was unmounted while files were in use may still be served beside its successor, and
    // the keeper takes the first of a name.
    for (mount, connection) in held.rev() {
        let dataset = Some(convert::dataset(&mount.request));
        let held = v1::Connection { mount: mount.id.clone(), dataset, init: connection.init.clone() };
        socket.send(Message::Held(held), Some(connection.fd.as_fd()))?;
    }
    Ok(())
}
