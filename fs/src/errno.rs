//! The only place where errors become errnos. `docs/SEMANTICS.md` documents the mapping for users.

use larder_dataset::ManifestError;

use crate::filesystem::FsError;
use larder_cachenode::fetch::FetchError;
use larder_cachenode::{ListRefused, PlanRefused};

/// An errno as a positive number, as the kernel expects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// The name of the errno, for those with which reads are answered; empty for all others.
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            libc::ENOENT => "ENOENT",
            libc::ESTALE => "ESTALE",
            libc::EACCES => "EACCES",
            libc::ETIMEDOUT => "ETIMEDOUT",
            libc::EIO => "EIO",
            _ => "",
        }
    }
}

impl From<&FsError> for Errno {
    fn from(error: &FsError) -> Self {
        Self(match error {
            FsError::NoSuchInode => libc::ESTALE,
            FsError::NotADirectory => libc::ENOTDIR,
            FsError::IsADirectory => libc::EISDIR,
            FsError::WrongKind => libc::EINVAL,
            FsError::NameTooLong => libc::ENAMETOOLONG,
            FsError::NoSuchAttribute => libc::ENODATA,
            FsError::Manifest(error) => Self::from(error).0,
        })
    }
}

impl From<&ManifestError> for Errno {
    fn from(error: &ManifestError) -> Self {
        Self(match error {
            ManifestError::NotAManifest | ManifestError::Version { .. } | ManifestError::Corrupt { .. } => libc::EIO,
        })
    }
}

impl From<ListRefused> for Errno {
    fn from(refused: ListRefused) -> Self {
        Self(match refused {
            ListRefused::Busy => libc::EBUSY,
            ListRefused::Later => libc::EAGAIN,
            ListRefused::Full => libc::ENOSPC,
            ListRefused::Unknown => libc::ENOENT,
        })
    }
}

impl From<PlanRefused> for Errno {
    fn from(refused: PlanRefused) -> Self {
        Self(match refused {
            PlanRefused::Unknown => libc::ENOENT,
            PlanRefused::OtherSnapshot => libc::ESTALE,
            PlanRefused::Invalid => libc::EINVAL,
            PlanRefused::TooMany => libc::ENOSPC,
            PlanRefused::NotAFolder => libc::ENOTDIR,
        })
    }
}

impl From<&FetchError> for Errno {
    fn from(error: &FetchError) -> Self {
        Self(match error {
            FetchError::Gone { .. } => libc::ENOENT,
            FetchError::Stale { .. } => libc::ESTALE,
            FetchError::Denied { .. } => libc::EACCES,
            FetchError::TimedOut { .. } => libc::ETIMEDOUT,
            FetchError::Unavailable { .. } | FetchError::Corrupt { .. } | FetchError::Stopped => libc::EIO,
            FetchError::Manifest(error) => Self::from(error).0,
        })
    }
}
