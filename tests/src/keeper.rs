//! [`Keeper`]: a stand-in for the CSI node plugin, which mounts, hands connections over and keeps duplicates.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use larder_daemon_api::handover::{Message, Socket};
use larder_daemon_api::mountinfo::source_of;
use larder_daemon_api::socket::HANDOVER_SOCKET;
use larder_daemon_api::v1;

/// Mounts as the plugin does, and keeps the connections. Dropping it unmounts.
pub struct Keeper {
    run_dir: PathBuf,
    socket: Option<Socket>,
    kept: HashMap<String, (v1::Connection, OwnedFd)>,
    dirs: Vec<PathBuf>,
    /// Speaks the first version of the protocol.
    older: bool,
}

impl Keeper {
    /// Not connected yet.
    pub fn new(run_dir: &Path) -> Self {
        Self { run_dir: run_dir.to_owned(), socket: None, kept: HashMap::new(), dirs: Vec::new(), older: false }
    }

    /// One of a version that offers one connection after the other and does not say what it holds.
    pub fn older(run_dir: &Path) -> Self {
        let mut keeper = Self::new(run_dir);
        keeper.older = true;
        keeper
    }

    /// Connects within 30 s, takes the connections that the daemon holds, and offers those that it lacks. Returns the mounts
    /// that the daemon held.
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

    fn try_connect(&mut self) -> std::io::Result<Vec<String>> {
        let socket = Socket::connect(&self.run_dir.join(HANDOVER_SOCKET))?;
        socket.set_receive_timeout(Some(Duration::from_secs(20)))?;
        let mut held = Vec::new();
        loop {
            match socket.receive()? {
                Some((Message::Held(connection), Some(fd))) => {
                    held.push(connection.mount.clone());
                    self.kept.entry(connection.mount.clone()).or_insert((connection, fd));
                }
                Some((Message::HeldEnd(_), _)) => break,
                other => return Err(std::io::Error::other(format!("{other:?}"))),
            }
        }
        if !self.older {
            socket.send(Message::holds(self.kept.keys().map(String::as_str)), None)?;
        }
        for (mount, (connection, fd)) in &self.kept {
            if !held.contains(mount) {
                self.offer(&socket, connection, fd)?.map_err(std::io::Error::other)?;
            }
        }
        self.socket = Some(socket);
        Ok(held)
    }

    /// Sends an offer and waits for its answer.
    fn offer(&self, socket: &Socket, connection: &v1::Connection, fd: &OwnedFd) -> std::io::Result<Result<(), String>> {
        let request = if self.older { 0 } else { 1 };
        socket.send(Message::Offer(v1::Connection { request, ..connection.clone() }), Some(fd.as_fd()))?;
        match socket.receive()? {
            Some((Message::Answer(answer), _)) => {
                assert_eq!(answer.request, request);
                Ok(if answer.error.is_empty() { Ok(()) } else { Err(answer.error) })
            }
            other => Err(std::io::Error::other(format!("{other:?}"))),
        }
    }

    /// Connects and sends everything that a keeper sends at the start of a session, and is killed before it hears an answer.
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
        socket.send(Message::holds(self.kept.keys().map(String::as_str)), None).unwrap();
        for (request, (connection, fd)) in (1..).zip(self.kept.values()) {
            socket.send(Message::Offer(v1::Connection { request, ..connection.clone() }), Some(fd.as_fd())).unwrap();
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
        self.kept.insert(prepared.mount.clone(), (connection, OwnedFd::from(fuse)));
        let (connection, fuse) = &self.kept[&prepared.mount];
        let socket = self.socket.as_ref().expect("connected");
        self.offer(socket, connection, fuse).map_err(|error| error.to_string())?
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
