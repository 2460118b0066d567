//! Errors of a copy to a mirror.

use larder_dataset::ManifestError;
use larder_dataset::manifest::BuildError;
use larder_origin::{Key, OriginError};

use crate::journal::JournalError;
use crate::listing::ListError;
use crate::publish::PublishError;

/// Why a mirror was not brought up to date. Its manifest is the one that it had before, and the copied objects are kept
/// for the next run.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// An object of the source is not the one that the snapshot describes.
    #[error(
        "{} changed or vanished at the source since the snapshot was made, so the mirror keeps its manifest: import the \
         source again, then run this again",
        Key::from(key.as_slice())
    )]
    SourceChanged {
        /// The object's key.
        key: Vec<u8>,
        /// The error of the origin.
        source: OriginError,
    },
    /// An object cannot be read.
    #[error("read {} of the source", Key::from(key.as_slice()))]
    Read {
        /// The object's key.
        key: Vec<u8>,
        /// The error of the origin.
        source: OriginError,
    },
    /// An object cannot be written.
    #[error("write {} to the mirror", Key::from(key.as_slice()))]
    Write {
        /// The object's key.
        key: Vec<u8>,
        /// The error of the origin.
        source: OriginError,
    },
    /// An object cannot be removed. The manifest was stored.
    #[error("remove {} from the mirror (--delete)", Key::from(key.as_slice()))]
    Delete {
        /// The object's key.
        key: Vec<u8>,
        /// The error of the origin.
        source: OriginError,
    },
    /// Bytes that were read differ from their checksum.
    #[error(
        "{} is corrupt at the source: {what}; nothing of it was copied: replace it there, import the source again, then \
         run this again",
        Key::from(key.as_slice())
    )]
    CorruptSource {
        /// The object's key.
        key: Vec<u8>,
        /// The checksums.
        what: String,
    },
    /// The copy of an object has other bytes than the object.
    #[error(
        "{} is corrupt in the mirror: {what}; it is copied again when this is run again",
        Key::from(key.as_slice())
    )]
    CorruptCopy {
        /// The object's key.
        key: Vec<u8>,
        /// The checksums.
        what: String,
    },
    /// An object of the snapshot has a key that belongs to Larder itself.
    #[error(
        "the snapshot names {}, which Larder keeps for itself: its manifest is not to be trusted",
        Key::from(key.as_slice())
    )]
    Reserved {
        /// The object's key.
        key: Vec<u8>,
    },
    /// The destination has a dataset of its own.
    #[error(
        "the destination has a dataset of its own ({origin}), which would be lost: choose another prefix, or remove its \
         .larder/manifest first"
    )]
    NotAMirror {
        /// The URL in its manifest.
        origin: String,
    },
    /// The destination mirrors another origin.
    #[error(
        "the destination mirrors {origin}: choose another prefix, or remove its .larder/manifest to make it a mirror of \
         this source"
    )]
    OtherSource {
        /// The URL of the other origin.
        origin: String,
    },
    /// The snapshot's manifest is damaged.
    #[error("read the manifest of the snapshot")]
    Manifest(#[from] ManifestError),
    /// The mirror cannot be listed.
    #[error("list the mirror")]
    List(#[from] ListError),
    /// The journal is not usable, for example because another run has it open.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// No manifest can be built for the mirror.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The manifest could not be stored. The objects were.
    #[error(transparent)]
    Publish(#[from] PublishError),
}
