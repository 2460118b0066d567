//! Lends files of larderd's cache to the kernel: larderd asks for it over a socket of the keeper, `lender.sock` beside
//! the handover socket, because it has no right to register them itself.
//!
//! Each connection to the socket is one request. Requests are answered one after the other, and each takes a few system
//! calls: a process that hangs is waited for as long as [`PATIENCE`] says.
//!
//! Invariant: a file is registered only on the connection of the mount that the request names, and only for larderd's
//! user or root, to whom the file must belong: the kernel opens it once more, with this process's rights.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use larder_daemon_api::handover::{Descriptors, Listener, Message, Socket};
use larder_daemon_api::socket::LENDER_SOCKET;
use larder_daemon_api::v1;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FileType;
use rustix::io::Errno;
use tracing::{debug, info};

use crate::fdkeeper::backing;
use crate::fdkeeper::connections::Connections;
use crate::mount_id::MountId;

/// How long a request may take to arrive, and its answer to leave.
const PATIENCE: Duration = Duration::from_secs(1);

/// The pause before another attempt to make the socket: its folder may not exist yet. Short, because the mounts that
/// larderd serves before that lend no files.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves a socket beside each handover socket, on threads that end with the keeper.
pub(super) fn start(connections: &Arc<Connections>) -> io::Result<()> {
    for socket in &connections.sockets {
        let (path, keeper) = (socket.with_file_name(LENDER_SOCKET), Arc::downgrade(connections));
        std::thread::Builder::new().name("lender".to_owned()).spawn(move || serve(&path, &keeper))?;
    }
    Ok(())
}

/// The keeper, while it runs.
fn running(keeper: &Weak<Connections>) -> Option<Arc<Connections>> {
    keeper.upgrade().filter(|connections| !connections.stopping())
}

fn serve(path: &Path, keeper: &Weak<Connections>) {
    let listener = loop {
        let Some(connections) = running(keeper) else { return };
        match bind(path, connections.daemon_uid) {
            Ok(listener) => break listener,
            Err(error) => debug!(?path, %error, "cannot listen for files to lend yet"),
        }
        drop(connections);
        std::thread::sleep(PAUSE);
    };
    info!(?path, "lending files to the kernel");
    while running(keeper).is_some() {
        let mut polled = [PollFd::new(&listener, PollFlags::IN)];
        let timeout = Timespec::try_from(PATIENCE).ok();
        let is_ready = rustix::event::poll(&mut polled, timeout.as_ref()).is_ok_and(|ready| ready > 0);
        let Some(connections) = running(keeper).filter(|_| is_ready) else { continue };
        if let Err(error) = listener.accept().and_then(|socket| answer(&connections, &socket)) {
            debug!(%error, "a request to lend a file failed");
        }
    }
}

/// Listens where only larderd's user and root can connect.
fn bind(path: &Path, daemon_uid: u32) -> io::Result<Listener> {
    let listener = Listener::bind(path)?;
    give(path, daemon_uid)?;
    Ok(listener)
}

/// Makes a user the owner of a socket, and not of what a link in its place leads to: the folder is larderd's, and this
/// process is root.
fn give(path: &Path, uid: u32) -> io::Result<()> {
    std::os::unix::fs::lchown(path, Some(uid), None)
}

fn answer(connections: &Connections, socket: &Socket) -> io::Result<()> {
    socket.set_send_timeout(Some(PATIENCE))?;
    socket.set_receive_timeout(Some(PATIENCE))?;
    let uid = socket.peer_uid()?;
    if uid != 0 && uid != connections.daemon_uid {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let Some((Message::Lend(v1::Lend { mount }), Some(Descriptors { fuse: file, .. }))) = socket.receive()? else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let connection = MountId::try_from(mount).ok().and_then(|mount| connections.held().get(&mount).cloned());
    let registered = match connection {
        None => Err(Errno::NOENT),
        Some(_) if !is_file_of(uid, file.as_fd()) => Err(Errno::PERM),
        Some(connection) => backing::register(connection.fd.as_fd(), file.as_fd()),
    };
    let lent = match registered {
        Ok(number) => v1::Lent { number, error: String::new() },
        Err(errno) => v1::Lent { number: 0, error: errno.to_string() },
    };
    socket.send(Message::Lent(lent), &[])
}

fn is_file_of(uid: u32, file: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_uid == uid)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn only_a_file_of_the_asking_user_is_lent() {
        let (file, uid) = (tempfile::tempfile().unwrap(), rustix::process::geteuid().as_raw());
        assert!(is_file_of(uid, file.as_fd()));
        assert!(!is_file_of(uid + 1, file.as_fd()));
        assert!(!is_file_of(0, File::open("/dev/null").unwrap().as_fd()), "a device");
    }

    #[test]
    fn a_link_in_place_of_the_socket_gives_larderd_no_other_file() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can give files away");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        std::fs::write(&file, b"root's").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        give(&link, 4321).unwrap();
        let owner = |path: &Path| std::fs::symlink_metadata(path).unwrap().uid();
        assert_eq!((owner(&file), owner(&link)), (0, 4321));
    }

    // SEMANTICS: C22
    #[test]
    fn a_file_for_a_mount_that_is_not_held_is_not_registered_and_the_next_request_is_answered() {
        let folder = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let sockets = vec![folder.path().join("run/handover.sock")];
        let connections = Arc::new(Connections::new(sockets, uid, Arc::default()).unwrap());
        start(&connections).unwrap();
        let path = folder.path().join("run").join(LENDER_SOCKET);
        // It listens once its folder is there.
        std::fs::create_dir(folder.path().join("run")).unwrap();
        while !path.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let file = File::open("/dev/null").unwrap();
        let lend = || {
            let socket = Socket::connect_within(&path, Duration::from_secs(60)).ok()?;
            socket.send(Message::Lend(v1::Lend { mount: "m".to_owned() }), &[file.as_fd()]).unwrap();
            match socket.receive().unwrap().unwrap() {
                (Message::Lent(lent), None) => Some(lent),
                (other, _) => panic!("{other:?}"),
            }
        };
        for _ in 0..2 {
            // Between the socket's file and its owner, it may not take connections yet.
            let lent = std::iter::repeat_with(lend).flatten().next().unwrap();
            assert_eq!(lent.error, Errno::NOENT.to_string());
        }
        // A request that is none takes no thread.
        drop(Socket::connect_within(&path, Duration::from_secs(60)).unwrap());
        assert!(lend().is_some());
        connections.stop();
    }
}
