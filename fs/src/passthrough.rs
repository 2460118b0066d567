//! Cached files that the kernel reads by itself (FUSE passthrough, Linux 6.9 and later): the answer to OPEN names a
//! file, and the kernel answers all reads from that one, without a request and with one copy in its page cache. Readers
//! that have the file open do not even notice when this process ends.
//!
//! Only a process with CAP_SYS_ADMIN may register such a file: this one, or the keeper of the connection, which does it
//! on request. A mount for which neither works answers OPEN with ENOSYS, like all others.
//!
//! The kernel allows one mode for all who have a file open at the same time, and fails an OPEN that is answered with
//! the other one. A file that was not wholly cached when it was opened is therefore read through this process until the
//! last of those who have it open by then has closed it. So is one that others opened while it was being registered. A
//! process that takes over a connection does not know who has which file open. It gives the answers of its predecessor
//! and lends no more files.
//!
//! Invariants: a file that the kernel reads by itself has one number for as long as the mount exists. On a connection
//! that may be taken over, the number is in the connection's memory before the kernel has it.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuser::BackingId;
use larder_daemon_api::handover::{Message, Socket, unnamed_file};
use larder_daemon_api::socket::LENDER_SOCKET;
use larder_daemon_api::v1;
use tracing::{info, warn};

use crate::requests::{LENT_MOST, Requests};

/// How long the keeper may take for each step of a registration.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long no file is lent after a registration failed: the keeper may be gone.
const PAUSE: Duration = Duration::from_secs(30);

/// The files that are open, and those that the kernel reads by itself, of one mount.
#[derive(Debug)]
pub(crate) struct Passthrough {
    registrar: Registrar,
    files: Mutex<Files>,
}

/// The process that registers files with the kernel.
#[derive(Debug)]
enum Registrar {
    /// This process, on this connection. The numbers are stored in the connection's memory, if it has one.
    Own(Arc<OwnedFd>, Option<Arc<Requests>>),
    /// The keeper, which has these sockets, for this mount. The numbers are stored in the connection's memory.
    Keeper(Keeper, Arc<Requests>),
    /// Nobody: an earlier process did.
    Nobody,
}

/// The process that registers files on a connection that outlives this process.
#[derive(Clone, Debug)]
pub(crate) enum Lender {
    /// This one, which made the mount.
    Own,
    /// The keeper of the connection.
    Keeper(Keeper),
}

/// The keeper of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Keeper {
    sockets: Vec<PathBuf>,
    mount: String,
}

#[derive(Debug, Default)]
struct Files {
    modes: HashMap<u64, Mode>,
    lent: usize,
    /// No file is lent before.
    paused_until: Option<Instant>,
}

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Through this process, by this many who have it open. Once they have closed it, by the kernel, if it is
    /// registered under a number.
    Served(u64, Option<u32>),
    /// By the kernel, from the file that was registered under this number.
    Lent(u32),
}

impl Lender {
    /// The keeper of the connection of `mount`. None if none has a socket in these folders.
    pub(crate) fn find(run_dirs: &[PathBuf], mount: &str) -> Option<Self> {
        let sockets: Vec<PathBuf> = run_dirs.iter().map(|dir| dir.join(LENDER_SOCKET)).collect();
        let has_one = sockets.iter().any(|socket| socket.exists());
        has_one.then(|| Self::Keeper(Keeper { sockets, mount: mount.to_owned() }))
    }

    /// This process, for a mount that it makes. None if every read is verified.
    pub(crate) fn of_own(verify_always: bool) -> Option<Self> {
        (!verify_always).then_some(Self::Own)
    }
}

impl Keeper {
    fn register(&self, file: &File) -> io::Result<u32> {
        let mut refused = io::ErrorKind::NotFound.into();
        for socket in &self.sockets {
            match self.ask(socket, file) {
                Ok(number) => return Ok(number),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn ask(&self, socket: &Path, file: &File) -> io::Result<u32> {
        let socket = Socket::connect_within(socket, PATIENCE)?;
        socket.send(Message::Lend(v1::Lend { mount: self.mount.clone() }), &[file.as_fd()])?;
        match socket.receive()? {
            Some((Message::Lent(lent), _)) if lent.error.is_empty() => Ok(lent.number),
            Some((Message::Lent(lent), _)) => Err(io::Error::other(lent.error)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Registrar {
    /// Registers a file with the kernel, which keeps it open until the mount ends. Returns its number.
    fn register(&self, file: &File) -> io::Result<u32> {
        match self {
            Self::Own(fuse, _) => BackingId::create_raw(&**fuse, file),
            Self::Keeper(keeper, _) => keeper.register(file),
            Self::Nobody => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// True if this many files that are lent leave room for one more.
    fn has_room(&self, lent: usize) -> bool {
        match self {
            Self::Own(_, None) => true,
            Self::Own(_, Some(_)) | Self::Keeper(..) => lent < LENT_MOST,
            Self::Nobody => false,
        }
    }

    /// Stores the number of the `nth` file that is lent.
    fn remember(&self, nth: usize, node: u64, number: u32) -> io::Result<()> {
        match self {
            Self::Own(_, Some(memory)) | Self::Keeper(_, memory) => memory.keep_lent(nth, node, number),
            Self::Own(_, None) | Self::Nobody => Ok(()),
        }
    }
}

impl Files {
    /// Lends no file for a while.
    fn failed(&mut self, error: &io::Error) -> Option<u32> {
        warn!(%error, "the kernel cannot read a cached file by itself");
        self.paused_until = Some(Instant::now() + PAUSE);
        None
    }
}

impl Passthrough {
    /// For a connection that ends with this process. None if no file can be registered on the connection `fuse`.
    pub(crate) fn new(fuse: &Arc<OwnedFd>) -> Option<Self> {
        let passthrough = Self { registrar: Registrar::Own(Arc::clone(fuse), None), files: Mutex::default() };
        let probe = unnamed_file("larder-passthrough");
        match probe.and_then(|probe| passthrough.registrar.register(&File::from(probe))) {
            Ok(_) => Some(passthrough),
            Err(error) => {
                info!(%error, "the kernel cannot read cached files by itself: they are read through this process");
                None
            }
        }
    }

    /// For a connection that outlives this process, which is the first to serve it.
    pub(crate) fn lending(lender: Lender, fuse: &Arc<OwnedFd>, memory: &Arc<Requests>) -> Self {
        let registrar = match lender {
            Lender::Own => Registrar::Own(Arc::clone(fuse), Some(Arc::clone(memory))),
            Lender::Keeper(keeper) => Registrar::Keeper(keeper, Arc::clone(memory)),
        };
        Self { registrar, files: Mutex::default() }
    }

    /// For a connection on which an earlier process has lent files: their inodes, with their numbers.
    pub(crate) fn resumed(lent: impl IntoIterator<Item = (u64, u32)>) -> Self {
        let modes = lent.into_iter().map(|(node, number)| (node, Mode::Lent(number))).collect();
        Self { registrar: Registrar::Nobody, files: Mutex::new(Files { modes, ..Files::default() }) }
    }

    /// Opens a file of the mount. Calls `lend` for the file that the kernel may read in its place, if that is to be
    /// decided. Returns its number; None if this process answers the reads. Waits for the keeper, for a few seconds at
    /// most.
    pub(crate) fn open(&self, node: u64, lend: impl FnOnce() -> Option<File>) -> Option<u32> {
        {
            let mut files = self.lock();
            match files.modes.get_mut(&node) {
                Some(Mode::Lent(number)) => return Some(*number),
                Some(Mode::Served(count, _)) => {
                    *count += 1;
                    return None;
                }
                None => {}
            }
            // Until it is registered; others who open the file by then decide how it is read.
            files.modes.insert(node, Mode::Served(1, None));
            let is_paused = files.paused_until.is_some_and(|until| Instant::now() < until);
            if is_paused || !self.registrar.has_room(files.lent) {
                return None;
            }
        }
        let registered = self.registrar.register(&lend()?);
        let mut files = self.lock();
        let mode = files.modes.get(&node).copied();
        match (registered, mode) {
            (Ok(number), Some(Mode::Served(1, _))) => self.lend(&mut files, node, number),
            (Ok(number), Some(Mode::Served(count, _))) => {
                files.modes.insert(node, Mode::Served(count, Some(number)));
                None
            }
            (Ok(_), Some(Mode::Lent(_)) | None) => None,
            (Err(error), _) => files.failed(&error),
        }
    }

    /// Lets the kernel read a file that nobody has open, or only the caller. Returns its number; None if the next
    /// process would not know it.
    fn lend(&self, files: &mut Files, node: u64, number: u32) -> Option<u32> {
        match self.registrar.remember(files.lent, node, number) {
            Ok(()) => {
                files.modes.insert(node, Mode::Lent(number));
                files.lent += 1;
                Some(number)
            }
            Err(error) => files.failed(&error),
        }
    }

    /// Closes a file of the mount.
    pub(crate) fn release(&self, node: u64) {
        let mut files = self.lock();
        match files.modes.get_mut(&node) {
            Some(&mut Mode::Served(1, number)) => {
                files.modes.remove(&node);
                if let Some(number) = number {
                    let _ = self.lend(&mut files, node, number);
                }
            }
            Some(Mode::Served(count, _)) => *count -= 1,
            Some(Mode::Lent(_)) | None => {}
        }
    }

    /// True if it may lend files.
    #[cfg(test)]
    pub(crate) fn lends(&self) -> bool {
        !matches!(self.registrar, Registrar::Nobody)
    }

    fn lock(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use larder_daemon_api::handover::{Listener, request_memory};

    use super::*;

    fn file() -> Option<File> {
        Some(tempfile::tempfile().unwrap())
    }

    // SEMANTICS: C22
    #[test]
    fn a_file_changes_its_mode_only_when_nobody_has_it_open() {
        // No file can be registered on it.
        let fuse = Arc::new(OwnedFd::from(tempfile::tempfile().unwrap()));
        assert!(Passthrough::new(&fuse).is_none());
        let passthrough = Passthrough { registrar: Registrar::Own(fuse, None), files: Mutex::default() };
        let mode = |node: u64| passthrough.lock().modes.get(&node).copied();
        // Asked once for all who open it at the same time.
        assert_eq!(passthrough.open(7, || None), None);
        assert_eq!(passthrough.open(7, || panic!("it is open")), None);
        assert_eq!(mode(7), Some(Mode::Served(2, None)));
        passthrough.release(7);
        assert_eq!(passthrough.open(7, || panic!("it is still open")), None);
        passthrough.release(7);
        passthrough.release(7);
        assert_eq!(mode(7), None);
        // A file that cannot be registered is served, and so is the one that is opened next.
        assert_eq!(passthrough.open(7, file), None);
        assert_eq!(mode(7), Some(Mode::Served(1, None)));
        assert_eq!(passthrough.open(6, || panic!("it waits after a failure")), None);
        // A registration stays.
        passthrough.lock().modes.insert(8, Mode::Lent(3));
        for _ in 0..2 {
            assert_eq!(passthrough.open(8, || panic!("it is registered")), Some(3));
            passthrough.release(8);
        }
        assert_eq!(mode(8), Some(Mode::Lent(3)));
        passthrough.release(9);
    }

    // SEMANTICS: C22
    #[test]
    fn the_keeper_registers_files_and_the_next_process_knows_their_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let run_dirs = ["none", "run"].map(|name| folder.path().join(name));
        assert!(Lender::find(&run_dirs, "m").is_none(), "a keeper of an earlier version");
        std::fs::create_dir(&run_dirs[1]).unwrap();
        let listener = Listener::bind(&run_dirs[1].join(LENDER_SOCKET)).unwrap();
        let keeper = std::thread::spawn(move || {
            for number in 1..=3 {
                let socket = listener.accept().unwrap();
                let Some((Message::Lend(lend), Some(_))) = socket.receive().unwrap() else { panic!("no request") };
                assert_eq!(lend.mount, "m");
                let error = if number == 3 { "full".to_owned() } else { String::new() };
                socket.send(Message::Lent(v1::Lent { number, error }), &[]).unwrap();
            }
        });
        let memory = request_memory().unwrap();
        {
            let (requests, _) = Requests::open(memory.as_fd()).unwrap();
            requests.answers_opens().unwrap();
            let lender = Lender::find(&run_dirs, "m").unwrap();
            let fuse = Arc::new(OwnedFd::from(tempfile::tempfile().unwrap()));
            let passthrough = Passthrough::lending(lender, &fuse, &requests);
            assert_eq!(passthrough.open(7, file), Some(1));
            assert_eq!(passthrough.open(7, || panic!("it is registered")), Some(1));
            // Somebody else opened it meanwhile, whose answer was given already.
            let other = || {
                assert_eq!(passthrough.open(8, || panic!("it is open")), None);
                file()
            };
            assert_eq!(passthrough.open(8, other), None);
            passthrough.release(8);
            assert_eq!(passthrough.open(8, || panic!("it is open")), None);
            (0..2).for_each(|_| passthrough.release(8));
            // The number is not wasted: the kernel keeps the file open.
            assert_eq!(passthrough.open(8, || panic!("it is registered")), Some(2));
            assert_eq!(passthrough.open(9, file), None, "the keeper cannot");
            keeper.join().unwrap();
        }
        let (requests, _) = Requests::open(memory.as_fd()).unwrap();
        let next = Passthrough::resumed(requests.lent().unwrap().unwrap());
        assert_eq!(next.open(7, || panic!("it is registered")), Some(1));
        assert_eq!(next.open(8, || panic!("it is registered")), Some(2));
        next.release(9);
        assert_eq!(next.open(9, || panic!("somebody may have it open")), None);
        next.release(7);
        assert_eq!(next.open(7, || panic!("it is registered")), Some(1));
    }
}
