//! Reasons why a single block was not written.

use std::io;

use larder_dataset::BlockIndex;

use crate::free_share::TooLittleFree;

/// The text that [`WriteError::ReadOnly`] shows as its reason.
pub(crate) const READ_ONLY: &str = "disk read-only";

/// Why a block was not kept. In every case its space is given back.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A bug in the caller: the record is not of the permit's block, or has another length.
    #[error(
        "block {got} of {got_bytes} bytes does not match the permit for block {permitted} of {permitted_bytes} bytes"
    )]
    WrongBlock {
        /// The block that the permit is for.
        permitted: BlockIndex,
        /// The length that the permit is for.
        permitted_bytes: u32,
        /// The block of the record.
        got: BlockIndex,
        /// The record's length in bytes.
        got_bytes: u32,
    },
    /// A bug in the caller: the permit or the record belongs to another dataset.
    #[error("the permit or the record belongs to another dataset")]
    WrongDataset,
    /// The disk is full.
    #[error("write to the cache: {source}")]
    Full {
        /// The system's error.
        source: io::Error,
    },
    /// The disk has no free space beyond the part that the cache must leave free.
    #[error("write to the cache: {source}")]
    TooLittleFree {
        /// States the configured part that stays free.
        source: io::Error,
    },
    /// The disk is read-only.
    #[error("write to the cache: {source}")]
    ReadOnly {
        /// The system's error.
        source: io::Error,
    },
    /// The cache folder was deleted.
    #[error("write to the cache: its folder was deleted: {source}")]
    Gone {
        /// The system's error.
        source: io::Error,
    },
    /// Any other failure of the disk.
    #[error("write to the cache: {source}")]
    Disk {
        /// The system's error.
        source: io::Error,
    },
}

impl WriteError {
    pub(crate) fn of(source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull if source.get_ref().is_some_and(|cause| cause.is::<TooLittleFree>()) => {
                Self::TooLittleFree { source }
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::Full { source }
            }
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { source },
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::Gone { source },
            _ => Self::Disk { source },
        }
    }

    pub(crate) const fn reason(&self) -> &'static str {
        match self {
            Self::WrongBlock { .. } | Self::WrongDataset => "misuse",
            Self::Full { .. } => "disk full",
            Self::TooLittleFree { .. } => "too little of the disk is free (--keep-free)",
            Self::ReadOnly { .. } => READ_ONLY,
            Self::Gone { .. } => "cache folder deleted",
            Self::Disk { .. } => "disk error",
        }
    }
}
