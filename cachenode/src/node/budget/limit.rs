//! Reasons why a dataset gets less room than it wants.

use std::fmt;

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
            Self::DiskFull => f.write_str(
                "the disk of the cache is full: free disk space and the cache grows automatically, or use a larger \
                disk (--cache-dir)",
            ),
        }
    }
}
