//! The results of a listing.

use crate::version::Version;

/// An object as a listing reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The key below the origin's prefix, without a leading `/` unless the store has one there. Any bytes in a folder,
    /// UTF-8 elsewhere. The object whose name is the prefix itself plus `/` has the empty key.
    pub key: Vec<u8>,
    /// Size in bytes.
    pub size: u64,
    /// Modification time in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// The version to which reads are to be bound.
    pub version: Version,
}

/// An entry that can never be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Its key; ends with `/` if it is a folder.
    pub key: Vec<u8>,
    /// Why it cannot be read, in words for people.
    pub reason: &'static str,
}

/// One page of a listing; each of its parts is sorted by the bytes of the keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The objects.
    pub files: Vec<ObjectInfo>,
    /// For [`Depth::One`]: the prefixes one level down. Each ends with `/` and appears once over all pages.
    pub prefixes: Vec<Vec<u8>>,
    /// Folder entries that are not regular files or whose metadata cannot be read.
    pub skipped: Vec<Skipped>,
    /// The value of `after` for the next page, which need not be an existing key.
    pub next: Option<Vec<u8>>,
}

/// How deep a listing goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Only the level directly below the prefix; deeper keys are summarized as prefixes.
    One,
    /// All levels.
    All,
}
