//! The rows of a manifest as readers see them.

use crate::block::{self, BlockIndex, BlockPart};

/// The row number of a folder; 0 is the root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirIndex(pub u32);

/// The row number of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileIndex(pub u32);

/// The object of a name or an inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A folder.
    Dir(DirIndex),
    /// A file.
    File(FileIndex),
}

/// A folder's row.
#[derive(Clone, Copy, Debug)]
pub struct Dir<'a> {
    /// Its name; empty for the root.
    pub name: &'a [u8],
    /// The folder that contains it; the root is its own parent.
    pub parent: DirIndex,
    /// Its first child folder; the others follow, sorted by name.
    pub first_dir: u32,
    /// Number of child folders.
    pub dir_count: u32,
    /// Its first file; the others follow, sorted by name.
    pub first_file: u32,
    /// Number of files.
    pub file_count: u32,
}

/// Where a file's bytes are in the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// The file is an object of its own, whose key is the file's path.
    Object,
    /// The file is part of a pack.
    Pack {
        /// Number of the pack.
        pack: u32,
        /// Offset of the file's first byte in the pack.
        offset: u64,
    },
}

/// A file's row.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Size in bytes.
    pub size: u64,
    /// Time of last modification, nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// The folder that contains it.
    pub dir: DirIndex,
    /// Its first block; meaningless for an empty file.
    pub first_block: BlockIndex,
    /// Where its bytes are.
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

/// Where the blocks of a file are. It borrows nothing from the manifest, so that a read that is answered later need not
/// look the file up again.
#[derive(Clone, Copy, Debug)]
pub struct FileBlocks {
    /// The file.
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

/// A pack's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pack<'a> {
    /// Its key below the origin.
    pub key: &'a [u8],
    /// Size in bytes.
    pub size: u64,
    /// Its ETag as the origin sends it; empty for a local folder.
    pub etag: &'a str,
}

/// Counts and sizes of a whole snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Number of folders, the root included.
    pub dirs: u32,
    /// Number of files.
    pub files: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// Number of packs; 0 for a plain snapshot.
    pub packs: u32,
    /// Sum of the files' sizes in bytes.
    pub bytes: u64,
}
