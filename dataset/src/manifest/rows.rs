//! The rows of a manifest, decoded.

use std::borrow::Cow;

use super::version_tag::VersionTag;
use crate::block::{self, BlockIndex, BlockPart};
use crate::snapshot::SnapshotId;

/// The row number of a folder; 0 is the root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirIndex(pub u32);

/// The row number of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileIndex(pub u32);

/// The row number of a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkIndex(pub u32);

/// The row that a name or an inode number refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A folder.
    Dir(DirIndex),
    /// A file.
    File(FileIndex),
    /// A symbolic link.
    Link(LinkIndex),
}

/// The end of a symbolic link, which is never another link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkTarget {
    /// A folder.
    Dir(DirIndex),
    /// A file.
    File(FileIndex),
}

impl From<LinkTarget> for Entry {
    fn from(target: LinkTarget) -> Self {
        match target {
            LinkTarget::Dir(dir) => Self::Dir(dir),
            LinkTarget::File(file) => Self::File(file),
        }
    }
}

/// A folder's row.
#[derive(Clone, Copy, Debug)]
pub struct Dir<'a> {
    /// The folder's own row.
    pub index: DirIndex,
    /// The folder's name; empty for the root.
    pub name: &'a [u8],
    /// The parent folder. The root is its own parent.
    pub parent: DirIndex,
    /// The first child folder. The others follow it, sorted by name.
    pub first_dir: u32,
    /// The number of child folders.
    pub dir_count: u32,
    /// The first file in the folder. The others follow it, sorted by name.
    pub first_file: u32,
    /// The number of files in the folder itself.
    pub file_count: u32,
}

/// The location of a file's bytes in the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// The file is an object. Its key is the file's path.
    Object,
    /// The file is part of a pack.
    Pack {
        /// The number of the pack.
        pack: u32,
        /// The offset of the file's first byte in the pack.
        offset: u64,
    },
}

/// A file's row.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// The file's name without its folder.
    pub name: &'a [u8],
    /// Size in bytes.
    pub size: u64,
    /// The time of the last modification, in nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// The folder that contains the file.
    pub dir: DirIndex,
    /// The file's first block. Meaningless for an empty file.
    pub first_block: BlockIndex,
    /// The location of the file's bytes in the origin.
    pub location: Location,
    pub(super) tag: u32,
    pub(super) version: [u8; 16],
}

impl File<'_> {
    /// The blocks that a read of `len` bytes at `offset` touches.
    pub fn parts(&self, offset: u64, len: u64) -> impl Iterator<Item = BlockPart> + use<> {
        block::parts(self.first_block, self.size, offset, len)
    }
}

/// The location of a file's blocks. It borrows nothing from the manifest, so that a read that is answered later need
/// not look the file up again.
#[derive(Clone, Copy, Debug)]
pub struct FileBlocks {
    /// The row of the file.
    pub file: FileIndex,
    first_block: BlockIndex,
    size: u64,
}

impl FileBlocks {
    pub(super) fn of(index: FileIndex, file: &File<'_>) -> Self {
        Self { file: index, first_block: file.first_block, size: file.size }
    }

    /// The blocks that a read of `len` bytes at `offset` touches.
    pub fn parts(&self, offset: u64, len: u64) -> impl Iterator<Item = BlockPart> + use<> {
        block::parts(self.first_block, self.size, offset, len)
    }
}

/// A symbolic link's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link<'a> {
    /// The link's name without its folder.
    pub name: &'a [u8],
    /// The time of the last modification, in nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// The folder that contains the link.
    pub dir: DirIndex,
    /// The file or folder that the link leads to.
    pub target: LinkTarget,
}

/// A pack's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pack<'a> {
    /// The pack's key below the origin.
    pub key: &'a [u8],
    /// Size in bytes.
    pub size: u64,
    /// The pack's ETag as the origin sends it; empty for a local folder.
    pub etag: &'a str,
}

impl<'a> Pack<'a> {
    /// The version of the pack's object. `None` in a local folder, where blocks have CRCs instead.
    pub fn version(&self) -> Option<VersionTag<'a>> {
        (!self.etag.is_empty()).then_some(VersionTag::ETag(Cow::Borrowed(self.etag)))
    }
}

/// Counts and sizes of a whole snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// The number of folders, including the root.
    pub dirs: u32,
    /// The number of files.
    pub files: u32,
    /// The number of blocks of all files.
    pub blocks: u32,
    /// The number of packs; 0 for a plain snapshot.
    pub packs: u32,
    /// The number of symbolic links, which do not count as files.
    pub links: u32,
    /// The sum of the files' sizes in bytes.
    pub bytes: u64,
}

/// The snapshot of which a manifest describes a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mirrored<'a> {
    /// The id of the snapshot that was copied.
    pub snapshot: SnapshotId,
    /// The URL of the origin that it was copied from.
    pub origin: &'a str,
}
