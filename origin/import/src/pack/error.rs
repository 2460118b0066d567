//! Why a packing fails.

use larder_dataset::manifest::BuildError;
use larder_dataset::{ManifestError, Rejection};
use larder_origin::{Key, OriginError};

use crate::journal::JournalError;
use crate::publish::PublishError;

/// Why a packing failed. No manifest was stored; the packs that were finished are kept for the next run.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// A file is not as the snapshot describes it.
    #[error(
        "{} changed or vanished at the origin since the snapshot was made: import the dataset again, then pack it",
        Key::from(path.as_slice())
    )]
    SourceChanged {
        /// The file's path.
        path: Vec<u8>,
        /// The origin's answer.
        source: OriginError,
    },
    /// A file cannot be read.
    #[error("read {}", Key::from(path.as_slice()))]
    Read {
        /// The file's path.
        path: Vec<u8>,
        /// The cause.
        source: OriginError,
    },
    /// A pack cannot be written.
    #[error("write pack {}", Key::from(key.as_slice()))]
    Write {
        /// The pack's key.
        key: Vec<u8>,
        /// The cause.
        source: OriginError,
    },
    /// The snapshot's manifest is damaged.
    #[error("read the manifest of the snapshot")]
    Manifest(#[from] ManifestError),
    /// The snapshot's manifest holds an invalid name; Larder did not make it.
    #[error("the snapshot's manifest names {}: {reason}", Key::from(path.as_slice()))]
    Name {
        /// The file's or folder's path.
        path: Vec<u8>,
        /// Why the name is invalid.
        reason: Rejection,
    },
    /// The pack size is out of range.
    #[error("the pack size must be 1 byte to 1 GiB, not {pack_bytes} bytes")]
    PackSize {
        /// The size that was requested.
        pack_bytes: u64,
    },
    /// The journal cannot be used; another run may hold it.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The packs do not make a manifest.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The manifest cannot be stored; the packs are.
    #[error(transparent)]
    Publish(#[from] PublishError),
}
