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
    /// The free room of the disk.
    Disk,
}

/// Says what to do.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CacheSize => f.write_str(
                "the other datasets of this larderd have the rest of its --cache-size: restart it with a larger one, \
                 or unmount others",
            ),
            Self::KeepFree { percent } => write!(
                f,
                "the cache leaves {percent} % of its disk free (--keep-free of larderd): free some of the disk, and \
                 the cache grows by itself, or restart larderd with a lower --keep-free"
            ),
            Self::Disk => f.write_str(
                "the cache takes at most four fifths of what is free on its disk: free some of it, and the cache grows \
                 by itself, or use a larger disk (--cache-dir)",
            ),
        }
    }
}
