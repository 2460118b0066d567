//! The results of a listing.

use crate::version::Version;

/// An object as a listing reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The key below the origin's prefix. It has no leading `/` unless the key in the store has one there. Any bytes in
    /// a folder, UTF-8 elsewhere. The object whose name is the prefix itself plus `/` has the empty key.
    pub key: Vec<u8>,
    /// The object's size in bytes.
    pub size: u64,
    /// The modification time in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// The version to request in later reads.
    pub version: Version,
}

/// An entry that can never be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The key of the entry. Ends with `/` if it is a folder.
    pub key: Vec<u8>,
    /// Why the entry cannot be read, for messages.
    pub reason: &'static str,
}

/// A symbolic link in a folder. It is not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedLink {
    /// The key of the link.
    pub key: Vec<u8>,
    /// The text of the link.
    pub target: Vec<u8>,
    /// The modification time of the link in nanoseconds since 1970.
    pub mtime_ns: i64,
}

/// One page of a listing. Each field is sorted by the bytes of the keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The objects of the page.
    pub files: Vec<ObjectInfo>,
    /// For [`Depth::One`]: the prefixes one level down. Each ends with `/` and appears once over all pages.
    pub prefixes: Vec<Vec<u8>>,
    /// Folder entries that are neither regular files nor links, or whose metadata cannot be read.
    pub skipped: Vec<Skipped>,
    /// The symbolic links of a folder.
    pub links: Vec<ListedLink>,
    /// The value of `after` for the next page; `None` on the last page. It need not be an existing key.
    pub next: Option<Vec<u8>>,
}

/// How deep a listing goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Only the level directly below the prefix. Deeper keys are summarized as prefixes.
    One,
    /// All levels.
    All,
}
