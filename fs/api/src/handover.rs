//! Hands FUSE connections from one process to another, in packets of a `SOCK_SEQPACKET` unix socket. Each packet is one
//! [`Handover`]; three kinds of message carry file descriptors. The daemon listens and the keeper connects. The proto
//! documents the order of the messages.
//!
//! Invariants: a packet is whole or an error. A message that lacks a connection that it should carry is an error. Every
//! received descriptor is close-on-exec and owned, so none leaks if a later step fails. Calls block for at most the
//! time passed to [`Socket::set_send_timeout`] and [`Socket::set_receive_timeout`].

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use prost::Message as _;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use crate::peer_uid::peer_uid;
use crate::socket::SocketDir;
pub use crate::v1::handover::Message;
use crate::v1::{Answer, Forget, Handover, HeldEnd, Holds};

/// The version of the protocol. A daemon announces it at the end of its list.
pub const VERSION: u32 = 3;

/// The largest packet in bytes. An INIT request has about a hundred bytes, credentials at most a few kilobytes.
const PACKET_BYTES: usize = 64 << 10;

/// The names in a packet of a list take at most this much, with their overhead. That leaves room for the rest of it.
const PAGE_BYTES: usize = PACKET_BYTES - 64;

/// The tag and the length of a name, which is shorter than 128 bytes.
const NAME_OVERHEAD_BYTES: usize = 2;

/// The descriptors of a connection that was received, or of a file that is lent.
#[derive(Debug)]
pub struct Descriptors {
    /// The FUSE device descriptor from which the connection's requests are read, or the file.
    pub fuse: OwnedFd,
    /// The memory of the connection's unanswered requests. `None` if the other side runs an earlier version.
    pub memory: Option<OwnedFd>,
}

/// Creates the memory of a new connection: an unnamed file in which the daemon keeps the requests that it has taken and
/// not answered. The process that holds the file on the daemon's behalf never reads it.
pub fn request_memory() -> io::Result<OwnedFd> {
    unnamed_file("larder-requests")
}

/// Creates an unnamed file in memory, which /proc shows under this name.
pub fn unnamed_file(name: &str) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC;
    // A kernel before 6.3 rejects NOEXEC_SEAL; a hardened kernel requires it.
    memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL).or_else(|_| memfd_create(name, flags)).map_err(io::Error::from)
}

/// One end of a handover socket.
#[derive(Debug)]
pub struct Socket(OwnedFd);

/// The daemon's listening socket.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Listens at `path`. Replaces a socket file that a killed process left there.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let dir = SocketDir::open(path)?;
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = unix_socket()?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(dir.short_path())?)?;
        rustix::net::listen(&socket, 8)?;
        Ok(Self(socket))
    }

    /// Waits for a keeper to connect.
    pub fn accept(&self) -> io::Result<Socket> {
        Ok(Socket(rustix::net::accept_with(&self.0, SocketFlags::CLOEXEC)?))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn unix_socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

impl Socket {
    /// Connects to the daemon that listens at `path`.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let dir = SocketDir::open(path)?;
        let socket = unix_socket()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(dir.short_path())?)?;
        Ok(Self(socket))
    }

    /// The same, and waits for at most `timeout`, here and in each call after it.
    pub fn connect_within(path: &Path, timeout: Duration) -> io::Result<Self> {
        let dir = SocketDir::open(path)?;
        let socket = Self(unix_socket()?);
        // Also limits how long the other end may take to accept.
        socket.set_send_timeout(Some(timeout))?;
        socket.set_receive_timeout(Some(timeout))?;
        rustix::net::connect(&socket.0, &SocketAddrUnix::new(dir.short_path())?)?;
        Ok(socket)
    }

    /// Creates a pair of connected sockets, for tests.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(one), Self(other)))
    }

    /// Closes both directions. A blocked [`receive`](Self::receive) then returns `None`.
    pub fn shut_down(&self) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }

    /// Limits how long a send may block; `None` removes the limit.
    pub fn set_send_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Send, timeout)?)
    }

    /// Limits how long a receive may block; `None` removes the limit.
    pub fn set_receive_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, timeout)?)
    }

    /// The user id that the process at the other end had when it connected.
    pub fn peer_uid(&self) -> io::Result<u32> {
        peer_uid(self.0.as_fd())
    }

    /// Sends one message. `held` and `offer` must carry the descriptors of the connection and of its memory.
    pub fn send(&self, message: Message, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = Handover { message: Some(message) }.encode_to_vec();
        if bytes.len() > PACKET_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the handover message is too large for a packet"));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a handover message has two descriptors at most"));
        }
        rustix::net::sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives the next message, with its connection if it carries one. `None` once the other end has closed.
    pub fn receive(&self) -> io::Result<Option<(Message, Option<Descriptors>)>> {
        let mut bytes = vec![0; PACKET_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received =
            rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let fds: Vec<OwnedFd> = ancillary
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        if received.bytes == 0 {
            return Ok(None);
        }
        let broken = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) || fds.len() > 2 {
            return Err(broken("a packet on the handover socket is too large"));
        }
        let handover = Handover::decode(&bytes[..received.bytes])
            .map_err(|_| broken("a packet on the handover socket cannot be decoded"))?;
        let message = handover.message.ok_or_else(|| {
            broken("unknown message on the handover socket: larderd and larder-csi are of different versions")
        })?;
        let mut fds = fds.into_iter();
        let connection = fds.next().map(|fuse| Descriptors { fuse, memory: fds.next() });
        match (&message, &connection) {
            (Message::Held(_) | Message::Offer(_) | Message::Lend(_), None) => {
                Err(broken("a connection came without its descriptor"))
            }
            _ => Ok(Some((message, connection))),
        }
    }
}

/// Puts the packets with the list of the mounts that the keeper holds together.
#[derive(Debug, Default)]
pub struct HoldsList(Vec<String>);

impl HoldsList {
    /// Adds a packet. Returns the list once it is complete.
    pub fn add(&mut self, page: Holds) -> Option<Vec<String>> {
        self.0.extend(page.mounts);
        (!page.more).then(|| std::mem::take(&mut self.0))
    }
}

impl Message {
    /// Builds the answer to a request.
    pub fn answer(request: u64, outcome: Result<(), String>) -> Self {
        Self::Answer(Answer { request, error: outcome.err().unwrap_or_default() })
    }

    /// Builds the request to forget a mount that was unmounted.
    pub fn forget(request: u64, mount: &str) -> Self {
        Self::Forget(Forget { request, mount: mount.to_owned() })
    }

    /// Builds the packets with the list of the mounts that the keeper holds, for a daemon of this version. There is
    /// none if the daemon cannot take the whole list: it would give up the mounts that a part leaves out, while without
    /// a list it gives up none.
    pub fn holds<'a>(mounts: impl IntoIterator<Item = &'a str>, version: u32) -> Vec<Self> {
        let mut pages = vec![Holds::default()];
        let mut size = 0;
        for mount in mounts {
            size += mount.len() + NAME_OVERHEAD_BYTES;
            if size > PAGE_BYTES {
                size = mount.len() + NAME_OVERHEAD_BYTES;
                pages.push(Holds::default());
            }
            let at = pages.len() - 1;
            pages[at].mounts.push(mount.to_owned());
        }
        let last = pages.len() - 1;
        pages[..last].iter_mut().for_each(|page| page.more = true);
        // Before version 2 a list was one packet, and before version 1 there was none.
        let is_understood = version > 1 || version == 1 && pages.len() == 1;
        if is_understood { pages.into_iter().map(Self::Holds).collect() } else { Vec::new() }
    }

    /// Builds the message that ends the daemon's list of connections.
    pub fn held_end() -> Self {
        Self::HeldEnd(HeldEnd { version: VERSION })
    }
}

/// False once the kernel has ended a FUSE connection, because it was unmounted everywhere or aborted.
pub fn is_alive(fuse: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(fuse, PollFlags::IN)];
    match rustix::event::poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(_) => !polled[0].revents().contains(PollFlags::ERR),
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::v1::Connection;

    fn connection(init: &[u8]) -> Connection {
        Connection { mount: "m".to_owned(), dataset: None, init: init.to_vec(), request: 0 }
    }

    #[test]
    fn descriptors_arrive_with_their_message_and_work() {
        let (one, other) = Socket::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let memory = request_memory().unwrap();
        one.send(Message::Held(connection(b"init")), &[writer.as_fd(), memory.as_fd()]).unwrap();
        drop(writer);
        let (message, descriptors) = other.receive().unwrap().unwrap();
        assert_eq!(message, Message::Held(connection(b"init")));
        let Descriptors { fuse, memory: received } = descriptors.unwrap();
        let mut writer = std::fs::File::from(fuse);
        writer.write_all(b"through").unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
        let (memory, received) = (std::fs::File::from(memory), std::fs::File::from(received.unwrap()));
        received.write_all_at(b"kept", 9).unwrap();
        let mut kept = [0; 4];
        memory.read_exact_at(&mut kept, 9).unwrap();
        assert_eq!(&kept, b"kept");
    }

    #[test]
    fn a_connection_without_its_descriptor_is_refused() {
        let (one, other) = Socket::pair().unwrap();
        one.send(Message::Offer(connection(b"")), &[]).unwrap();
        assert!(other.receive().unwrap_err().to_string().contains("without its descriptor"));
    }

    #[test]
    fn an_answer_is_received_and_a_closed_socket_ends_the_session() {
        let (one, other) = Socket::pair().unwrap();
        let answer = Message::answer(7, Err("no room".to_owned()));
        other.send(answer.clone(), &[]).unwrap();
        assert_eq!(one.receive().unwrap().unwrap().0, answer);
        drop(other);
        assert!(one.receive().unwrap().is_none());
    }

    #[test]
    fn a_list_of_any_length_arrives_whole_and_only_what_an_older_daemon_can_take_is_sent_to_it() {
        let (one, other) = Socket::pair().unwrap();
        // The longest names, of which 992 fill a packet.
        for (count, packets) in [(0, 1), (1, 1), (992, 1), (993, 2), (5000, 6)] {
            let names: Vec<String> = (0..count).map(|number| format!("{number:064x}")).collect();
            let holds = |version| Message::holds(names.iter().map(String::as_str), version);
            assert_eq!(holds(VERSION).len(), packets);
            std::thread::scope(|scope| {
                scope.spawn(|| holds(VERSION).into_iter().for_each(|packet| one.send(packet, &[]).unwrap()));
                let mut list = HoldsList::default();
                let received = loop {
                    let Some((Message::Holds(page), None)) = other.receive().unwrap() else {
                        panic!("another message")
                    };
                    if let Some(received) = list.add(page) {
                        break received;
                    }
                };
                assert!(received == names, "{count}");
            });
            // A daemon of version 1 takes each packet for the whole list.
            assert_eq!(holds(0), []);
            let whole = Message::Holds(Holds { mounts: names.clone(), more: false });
            assert_eq!(holds(1), if packets == 1 { vec![whole] } else { vec![] });
        }
    }

    #[test]
    fn a_message_of_another_version_is_an_error() {
        let (one, other) = Socket::pair().unwrap();
        // The packet has only field 15, which belongs to a later version.
        rustix::net::send(&one.0, &[0x7a, 0x00], SendFlags::empty()).unwrap();
        assert!(other.receive().unwrap_err().to_string().contains("different versions"));
    }

    #[test]
    fn a_socket_at_a_long_path_is_bound_and_found() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("a".repeat(200));
        std::fs::create_dir(&long).unwrap();
        let path = long.join("handover.sock");
        let listener = Listener::bind(&path).unwrap();
        let keeper = Socket::connect(&path).unwrap();
        let daemon = listener.accept().unwrap();
        keeper.send(Message::held_end(), &[]).unwrap();
        assert_eq!(daemon.receive().unwrap().unwrap().0, Message::held_end());
        drop(listener);
        // A socket file of a killed process must not prevent the bind.
        Listener::bind(&path).unwrap();
    }
}
