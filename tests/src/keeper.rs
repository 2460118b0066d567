//! [`Keeper`]: a stand-in for the CSI node plugin, which mounts, hands connections over and keeps duplicates.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use larder_daemon_api::handover::{Descriptors, Message, Socket, VERSION, request_memory};
use larder_daemon_api::mountinfo::source_of;
use larder_daemon_api::socket::HANDOVER_SOCKET;
use larder_daemon_api::v1;

/// Mounts as the plugin does, and keeps the connections. Dropping it unmounts.
pub struct Keeper {
    run_dir: PathBuf,
    socket: Option<Socket>,
    kept: HashMap<String, Kept>,
    /// Mounts that it says it holds, after those that it does hold.
    others: Vec<String>,
    dirs: Vec<PathBuf>,
    /// Speaks the first version of the protocol.
    older: bool,
}

/// A connection, with its descriptors.
struct Kept {
    connection: v1::Connection,
    fuse: OwnedFd,
    memory: OwnedFd,
}

impl Keeper {
    /// Not connected yet.
    pub fn new(run_dir: &Path) -> Self {
        let (kept, others, dirs) = (HashMap::new(), Vec::new(), Vec::new());
        Self { run_dir: run_dir.to_owned(), socket: None, kept, others, dirs, older: false }
    }

    /// One of a version that offers one connection after the other and does not say what it holds.
    pub fn older(run_dir: &Path) -> Self {
        let mut keeper = Self::new(run_dir);
        keeper.older = true;
        keeper
    }

    /// Reports from now on that it holds this number of other mounts, too.
    pub fn say_it_holds_others(&mut self, count: u32) {
        self.others = (0..count).map(|number| format!("{number:064x}")).collect();
    }

    fn send_holds(&self, socket: &Socket) -> std::io::Result<()> {
        let names = self.kept.keys().chain(&self.others).map(String::as_str);
        Message::holds(names, VERSION).into_iter().try_for_each(|packet| socket.send(packet, &[]))
    }

    /// Connects within 30 s, takes the connections that the daemon holds, and offers those that it lacks. Returns the
    /// mounts that the daemon held.
    pub fn connect(&mut self) -> Vec<String> {
        let started = Instant::now();
        loop {
            match self.try_connect() {
                Ok(held) => return held,
                Err(error) => assert!(started.elapsed() < Duration::from_secs(30), "larderd does not answer: {error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Connects as [`connect`](Self::connect) does, unless the daemon dies meanwhile or is away for a second.
    pub fn connect_if_it_lives(&mut self) {
        let started = Instant::now();
        while self.try_connect().is_err() && started.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn try_connect(&mut self) -> std::io::Result<Vec<String>> {
        let socket = Socket::connect(&self.run_dir.join(HANDOVER_SOCKET))?;
        socket.set_receive_timeout(Some(Duration::from_secs(20)))?;
        let mut held = Vec::new();
        loop {
            match socket.receive()? {
                Some((Message::Held(connection), Some(Descriptors { fuse, memory: Some(memory) }))) => {
                    held.push(connection.mount.clone());
                    self.kept.entry(connection.mount.clone()).or_insert(Kept { connection, fuse, memory });
                }
                Some((Message::HeldEnd(_), _)) => break,
                other => return Err(std::io::Error::other(format!("{other:?}"))),
            }
        }
        if !self.older {
            self.send_holds(&socket)?;
        }
        for kept in self.kept.values().filter(|kept| !held.contains(&kept.connection.mount)) {
            self.offer(&socket, kept)?.map_err(std::io::Error::other)?;
        }
        self.socket = Some(socket);
        Ok(held)
    }

    /// Sends an offer and waits for its answer.
    fn offer(&self, socket: &Socket, kept: &Kept) -> std::io::Result<Result<(), String>> {
        let fds = [kept.fuse.as_fd(), kept.memory.as_fd()];
        let (request, fds) = if self.older { (0, &fds[..1]) } else { (1, &fds[..]) };
        socket.send(Message::Offer(v1::Connection { request, ..kept.connection.clone() }), fds)?;
        match socket.receive()? {
            Some((Message::Answer(answer), _)) => {
                assert_eq!(answer.request, request);
                Ok(if answer.error.is_empty() { Ok(()) } else { Err(answer.error) })
            }
            other => Err(std::io::Error::other(format!("{other:?}"))),
        }
    }

    /// Connects and sends everything that a keeper sends at the start of a session, and is killed before it hears an
    /// answer.
    pub fn offer_and_die(&mut self) {
        let started = Instant::now();
        let socket = loop {
            match Socket::connect(&self.run_dir.join(HANDOVER_SOCKET)) {
                Ok(socket) => break socket,
                Err(error) => assert!(started.elapsed() < Duration::from_secs(30), "larderd does not answer: {error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        while !matches!(socket.receive().unwrap(), Some((Message::HeldEnd(_), _))) {}
        self.send_holds(&socket).unwrap();
        for (request, Kept { connection, fuse, memory }) in (1..).zip(self.kept.values()) {
            let offer = Message::Offer(v1::Connection { request, ..connection.clone() });
            socket.send(offer, &[fuse.as_fd(), memory.as_fd()]).unwrap();
        }
        self.lose_everything();
    }

    /// Makes a FUSE mount at `dir` and hands its connection over.
    pub fn mount(&mut self, prepared: &v1::Prepared, dataset: v1::Dataset, dir: &Path) -> Result<(), String> {
        std::fs::create_dir_all(dir).unwrap();
        let fuse = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!(
            "fd={},rootmode=40555,user_id=0,group_id=0,allow_other,default_permissions",
            fuse.as_fd().as_raw_fd()
        );
        let flags = rustix::mount::MountFlags::RDONLY | rustix::mount::MountFlags::NODEV;
        rustix::mount::mount(source_of("kept"), dir, "fuse", flags, Some(&*CString::new(options).unwrap())).unwrap();
        self.dirs.push(dir.to_owned());
        let mut init = vec![0; 64 << 10];
        let len = rustix::io::read(&fuse, &mut init).unwrap();
        init.truncate(len);
        let connection = v1::Connection { mount: prepared.mount.clone(), dataset: Some(dataset), init, request: 0 };
        let kept = Kept { connection, fuse: OwnedFd::from(fuse), memory: request_memory().unwrap() };
        self.kept.insert(prepared.mount.clone(), kept);
        let socket = self.socket.as_ref().expect("connected");
        self.offer(socket, &self.kept[&prepared.mount]).map_err(|error| error.to_string())?
    }

    /// Asks whether it may stop. Returns the daemon's answer.
    pub fn may_leave(&self) -> bool {
        let socket = self.socket.as_ref().expect("connected");
        socket.send(Message::Leave(v1::Leave { request: 1 }), &[]).unwrap();
        matches!(socket.receive().unwrap(), Some((Message::Answer(answer), _)) if answer.error.is_empty())
    }

    /// As if it were killed: it holds nothing any more, and its mounts stay.
    pub fn lose_everything(&mut self) {
        self.socket = None;
        self.kept.clear();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        for dir in &self.dirs {
            // By force: a reader in this process that waits for an answer would keep the connection open forever.
            use rustix::mount::UnmountFlags;
            let _ = rustix::mount::unmount(dir, UnmountFlags::FORCE | UnmountFlags::DETACH);
        }
    }
}
