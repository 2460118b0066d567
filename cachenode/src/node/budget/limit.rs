//! Reasons why a dataset gets less room than it wants.

use std::fmt;

use larder_dataset::size::show_bytes;

/// A limit of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// The size that was configured.
    CacheSize,
    /// The part of the disk that stays free.
    KeepFree {
        /// Of the whole disk.
        percent: u8,
    },
    /// Four fifths of the free room of the disk.
    Disk,
    /// The quota of the namespace that pays for the dataset.
    Quota {
        /// Bytes on the disk that its other open datasets reserve.
        reserved_bytes: u64,
        /// Bytes on the disk that all of them may reserve.
        limit_bytes: u64,
    },
    /// All of the disk, of which no part has to stay free.
    DiskFull,
}

/// Says what to do.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CacheSize => f.write_str(
                "other datasets use the rest of larderd's --cache-size: restart larderd with a larger one, or \
                unmount other datasets",
            ),
            Self::KeepFree { percent } => write!(
                f,
                "the cache leaves {percent} % of its disk free (--keep-free of larderd): free disk space and the \
                cache grows automatically, or restart larderd with a lower --keep-free"
            ),
            Self::Disk => f.write_str(
                "the cache takes at most four fifths of the free space on its disk: free disk space and the \
                cache grows automatically, or use a larger disk (--cache-dir)",
            ),
            // Readers of other namespaces see this, so it names none.
            Self::Quota { reserved_bytes, limit_bytes } => write!(
                f,
                "the CacheQuota of the namespace that pays for the dataset allows {} on each node \
                (reservedBytesPerNode), of which other datasets have {}: end pods that use those, or ask an \
                administrator for more",
                show_bytes(*limit_bytes),
                show_bytes(*reserved_bytes)
            ),
            Self::DiskFull => f.write_str(
                "the disk of the cache is full: free disk space and the cache grows automatically, or use a larger \
                disk (--cache-dir)",
            ),
        }
    }
}
