//! Errors of a packing.

use larder_dataset::manifest::BuildError;
use larder_dataset::{ManifestError, Rejection};
use larder_origin::{Key, OriginError};

use crate::journal::JournalError;
use crate::publish::PublishError;

/// Why a packing failed. No manifest was stored. The finished packs are kept for the next run.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// A file differs from its description in the snapshot.
    #[error(
        "{} changed or vanished at the origin since the snapshot was made: import the dataset again, then pack it",
        Key::from(path.as_slice())
    )]
    SourceChanged {
        /// The file's path.
        path: Vec<u8>,
        /// The error of the origin.
        source: OriginError,
    },
    /// A file cannot be read.
    #[error("read {}", Key::from(path.as_slice()))]
    Read {
        /// The file's path.
        path: Vec<u8>,
        /// The error of the origin.
        source: OriginError,
    },
    /// A pack cannot be written.
    #[error("write pack {}", Key::from(key.as_slice()))]
    Write {
        /// The pack's key.
        key: Vec<u8>,
        /// The error of the origin.
        source: OriginError,
    },
    /// The snapshot's manifest is damaged.
    #[error("read the manifest of the snapshot")]
    Manifest(#[from] ManifestError),
    /// The snapshot's manifest contains an invalid name, so Larder did not write it.
    #[error("the snapshot's manifest names {}: {reason}", Key::from(path.as_slice()))]
    Name {
        /// The file's or folder's path.
        path: Vec<u8>,
        /// Why the name is invalid.
        reason: Rejection,
    },
    /// The configured pack size is out of range.
    #[error("the pack size must be 1 byte to 1 GiB, not {pack_bytes} bytes")]
    PackSize {
        /// The configured size in bytes.
        pack_bytes: u64,
    },
    /// The journal is not usable, for example because another run has it open.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// No manifest can be built from the packs.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The manifest could not be stored. The packs were stored.
    #[error(transparent)]
    Publish(#[from] PublishError),
}
