//! Cached files that the kernel reads by itself (FUSE passthrough, Linux 6.9 and later): the answer to OPEN names a
//! file, and the kernel answers all reads from that one, without a request and with one copy in its page cache. Readers
//! that have the file open do not even notice when this process ends.
//!
//! Only a process with CAP_SYS_ADMIN may register such a file. A mount for which this does not work answers OPEN with
//! ENOSYS, like all others.
//!
//! The kernel allows one mode for all who have a file open at the same time, and fails an OPEN that is answered with
//! the other one. A file that was not wholly cached when it was opened is therefore read through this process until the
//! last of those who have it open by then has closed it.
//!
//! Invariant: a file has one registration for as long as the mount exists, and none while it is open without one.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::BackingId;
use tracing::{debug, info};

/// The files that are open, and those that the kernel reads by itself, of one mount.
#[derive(Debug)]
pub(crate) struct Passthrough {
    fuse: Arc<OwnedFd>,
    files: Mutex<HashMap<u64, Mode>>,
}

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Through this process, by this many who have it open.
    Served(u64),
    /// By the kernel, from the file that was registered under this number.
    Lent(u32),
}

impl Passthrough {
    /// None if no file can be registered on the connection `fuse`.
    pub(crate) fn new(fuse: &Arc<OwnedFd>) -> Option<Self> {
        let passthrough = Self { fuse: Arc::clone(fuse), files: Mutex::default() };
        let probe = rustix::fs::memfd_create("larder-passthrough", rustix::fs::MemfdFlags::CLOEXEC);
        match probe.map_err(io::Error::from).and_then(|probe| passthrough.register(&File::from(probe))) {
            Ok(_) => Some(passthrough),
            Err(error) => {
                info!(%error, "the kernel cannot read cached files by itself: they are read through this process");
                None
            }
        }
    }

    /// Registers a file with the kernel, which keeps it open until the mount ends. Returns its number.
    fn register(&self, file: &File) -> io::Result<u32> {
        BackingId::create_raw(&*self.fuse, file)
    }

    /// Opens a file of the mount. Calls `lend` for the file that the kernel may read in its place, if that is to be
    /// decided. Returns its number; None if this process answers the reads.
    pub(crate) fn open(&self, node: u64, lend: impl FnOnce() -> Option<File>) -> Option<u32> {
        let mut files = self.lock();
        match files.get_mut(&node) {
            Some(Mode::Lent(number)) => return Some(*number),
            Some(Mode::Served(count)) => {
                *count += 1;
                return None;
            }
            None => {}
        }
        let number = lend().and_then(|file| {
            self.register(&file).inspect_err(|error| debug!(%error, "cannot register a cached file")).ok()
        });
        files.insert(node, number.map_or(Mode::Served(1), Mode::Lent));
        number
    }

    /// Closes a file of the mount.
    pub(crate) fn release(&self, node: u64) {
        let mut files = self.lock();
        match files.get_mut(&node) {
            Some(Mode::Served(1)) => {
                files.remove(&node);
            }
            Some(Mode::Served(count)) => *count -= 1,
            Some(Mode::Lent(_)) | None => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Mode>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No file can be registered on it.
    fn without_a_kernel() -> Passthrough {
        let fuse = OwnedFd::from(tempfile::tempfile().unwrap());
        Passthrough { fuse: Arc::new(fuse), files: Mutex::default() }
    }

    // SEMANTICS: C22
    #[test]
    fn a_file_changes_its_mode_only_when_nobody_has_it_open() {
        let passthrough = without_a_kernel();
        let mode = |node: u64| passthrough.lock().get(&node).copied();
        // Asked once for all who open it at the same time.
        assert_eq!(passthrough.open(7, || None), None);
        assert_eq!(passthrough.open(7, || panic!("it is open")), None);
        assert_eq!(mode(7), Some(Mode::Served(2)));
        passthrough.release(7);
        assert_eq!(passthrough.open(7, || panic!("it is still open")), None);
        passthrough.release(7);
        passthrough.release(7);
        assert_eq!(mode(7), None);
        // What cannot be registered is served.
        assert_eq!(passthrough.open(7, || Some(tempfile::tempfile().unwrap())), None);
        assert_eq!(mode(7), Some(Mode::Served(1)));
        // A registration stays.
        passthrough.lock().insert(8, Mode::Lent(3));
        for _ in 0..2 {
            assert_eq!(passthrough.open(8, || panic!("it is registered")), Some(3));
            passthrough.release(8);
        }
        assert_eq!(mode(8), Some(Mode::Lent(3)));
        passthrough.release(9);
        assert!(Passthrough::new(&passthrough.fuse).is_none());
    }
}
