//! The meaning of errno values.

use rustix::io::Errno;

use crate::error::OriginError;
use crate::key::Key;

/// The error of a failed system call. `verb` describes the operation.
pub(super) fn failed(key: &[u8], verb: &'static str, errno: Errno) -> OriginError {
    let key = Key::from(key);
    match errno {
        // ELOOP means a symbolic link in the path, and EXDEV a path that leaves the root. Such an entry is not part of
        // the dataset.
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NAMETOOLONG | Errno::ISDIR => {
            OriginError::NotFound { key }
        }
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            OriginError::Denied { key, source: Box::new(std::io::Error::from(errno)) }
        }
        errno => OriginError::Unavailable { source: format!("{verb} {key}: {}", std::io::Error::from(errno)).into() },
    }
}

/// The error of a write through the standard library.
pub(super) fn write_failed(key: &[u8], error: std::io::Error) -> OriginError {
    match Errno::from_io_error(&error) {
        Some(errno) => failed(key, "write", errno),
        None => OriginError::Unavailable { source: Box::new(error) },
    }
}
