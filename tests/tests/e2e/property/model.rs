//! What the mount must show: files with their bytes, and the errnos that the present trouble allows.

use rustix::io::Errno;

use super::drawn::Trouble;

/// The errnos that an operation may end in.
#[derive(Clone, Debug, Default)]
pub(super) struct Allowed {
    /// Allowed for every read.
    pub(super) errnos: Vec<Errno>,
    /// Any errno is allowed for every operation: the process is being killed, and even names may fail.
    pub(super) anything: bool,
}

pub(super) struct FileModel {
    pub(super) key: String,
    pub(super) bytes: Vec<u8>,
    pub(super) etag: String,
    /// The errno of reading bytes that are not cached, because the object was replaced or deleted.
    pub(super) lost: Option<Errno>,
    /// The object that replaced it, and its ETag: a new snapshot has these.
    pub(super) replacement: Option<(Vec<u8>, String)>,
}

impl Allowed {
    pub(super) fn permits(&self, error: &std::io::Error, lost: Option<Errno>) -> bool {
        let errno = Errno::from_io_error(error);
        self.anything || errno.is_some_and(|errno| lost == Some(errno) || self.errnos.contains(&errno))
    }
}

impl Trouble {
    pub(super) fn errnos(self) -> Vec<Errno> {
        match self {
            Self::Denied => vec![Errno::ACCESS],
            Self::Missing => vec![Errno::NOENT],
            // These pass at a retry, within a deadline that is far away.
            _ => vec![],
        }
    }
}
