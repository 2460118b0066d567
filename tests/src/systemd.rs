//! [`Systemd`]: a stand-in for the service manager, as one of its services sees it: the socket for notifications, the
//! descriptor store, and `systemctl list-jobs`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::io::FdFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// The unit of the service.
pub(crate) const UNIT: &str = "larderd.service";

/// The most descriptors in its store.
const DESCRIPTORS_MOST: usize = 30;

/// Copies of descriptors that a shell passes on have these numbers or higher ones, so that no target is among them.
const COPIES_FROM: i32 = 100;

/// A service manager with one service.
#[derive(Clone)]
pub struct Systemd {
    folder: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    kept: BTreeMap<String, OwnedFd>,
    /// How often the service was ready.
    ready: usize,
}

impl Systemd {
    /// Starts one, with its files in `folder`.
    pub fn start(folder: &Path) -> Self {
        let folder = folder.join("systemd");
        std::fs::create_dir(&folder).unwrap();
        let systemd = Self { folder, state: Arc::default() };
        systemd.set_job(None);
        let systemctl = format!("#!/bin/sh\nexec /bin/cat '{}'\n", systemd.path("jobs").display());
        std::fs::write(systemd.path("systemctl"), systemctl).unwrap();
        std::fs::set_permissions(systemd.path("systemctl"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let socket = UnixDatagram::bind(systemd.path("notify")).unwrap();
        let state = Arc::clone(&systemd.state);
        // It ends with the test's process.
        std::thread::spawn(move || {
            loop {
                receive(&socket, &state);
            }
        });
        systemd
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Lists this type of job for the service from now on.
    pub fn set_job(&self, kind: Option<&str>) {
        let jobs = kind.map(|kind| format!("12 {UNIT} {kind} running\n")).unwrap_or_default();
        std::fs::write(self.path("jobs"), jobs).unwrap();
    }

    /// How often the service was ready.
    pub fn ready(&self) -> usize {
        self.lock().ready
    }

    /// The names of the descriptors in the store.
    pub fn kept(&self) -> Vec<String> {
        self.lock().kept.keys().cloned().collect()
    }

    /// The variables of a process of the service.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let names: Vec<String> = self.kept();
        [
            ("NOTIFY_SOCKET", self.path("notify").display().to_string()),
            ("FDSTORE", DESCRIPTORS_MOST.to_string()),
            ("LISTEN_FDS", names.len().to_string()),
            ("LISTEN_FDNAMES", names.join(":")),
            ("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.folder.display())),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// A command that runs `program` with the descriptors of the store, in the very process that is started, and
    /// copies of the descriptors, which must live until it was started.
    pub(crate) fn command(&self, program: &Path) -> (Command, Vec<OwnedFd>) {
        let copy = |fd: &OwnedFd| {
            let copy = rustix::io::fcntl_dupfd_cloexec(fd, COPIES_FROM).unwrap();
            rustix::io::fcntl_setfd(&copy, FdFlags::empty()).unwrap();
            copy
        };
        let copies: Vec<OwnedFd> = self.lock().kept.values().map(copy).collect();
        let mut script = String::new();
        for (target, copy) in (3..).zip(&copies) {
            let copy = copy.as_raw_fd();
            write!(script, "exec {target}<&{copy} {copy}<&-; ").unwrap();
        }
        script += "LISTEN_PID=$$ exec \"$0\" \"$@\"";
        let mut command = Command::new("/bin/bash");
        command.args(["-c", &script]).arg(program);
        (command, copies)
    }
}

/// Receives one message of the service.
fn receive(socket: &UnixDatagram, state: &Mutex<State>) {
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    let fd = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let text = std::str::from_utf8(&bytes[..received.bytes]).unwrap();
    let mut state = state.lock().unwrap();
    match (text.split_once("\nFDNAME="), fd) {
        (Some(("FDSTORE=1\nFDPOLL=0", name)), Some(fd)) => {
            assert!(state.kept.len() < DESCRIPTORS_MOST, "systemd would drop {name}");
            assert!(state.kept.insert(name.to_owned(), fd).is_none(), "{name} is there already");
        }
        (Some(("FDSTOREREMOVE=1", name)), None) => drop(state.kept.remove(name)),
        (None, None) if text == "READY=1" => state.ready += 1,
        _ => panic!("{text}"),
    }
}
