//! The layout of a manifest file: all numbers little-endian, nothing aligned, nothing to parse.
//!
//! ```text
//!    0  header, 256 bytes        magic "LARDERMF", version, flags, snapshot id, counts, sections, CRCs
//!  256  dirs        28 bytes each   breadth first; the children of a folder are neighbours, sorted by name
//!       files       52 bytes each   sorted by (folder, name); the row number makes the inode number
//!       block CRCs   4 bytes each   CRC32C of each block; only in packed snapshots
//!       packs       24 bytes each   key, size and ETag of each pack; only in packed snapshots
//!       heap                        names, pack keys, unusual ETags
//!       links       28 bytes each   sorted by (folder, name); only in version 2
//!       meta                        name of the dataset, URL of its origin; in the manifest of a mirror also the id
//!                                   and the URL of the snapshot that it mirrors
//!       chunk CRCs   4 bytes each   CRC32C of each 64 KiB of the file from byte 256 up to here
//! ```
//!
//! The header's CRC covers the header and, through a field of it, the chunk CRCs; these cover everything else. A reader
//! checks a chunk when it first touches it, so opening costs the same for a thousand files and for ten million.
//!
//! A manifest with symbolic links has version 2, whose section table has one more entry. All others have version 1, so
//! programs that know no links read them, and the ids of their snapshots do not change.

/// The first bytes of a manifest.
pub(crate) const MAGIC: [u8; 8] = *b"LARDERMF";
/// The version of a manifest without links.
pub(crate) const VERSION_PLAIN: u8 = 1;
/// The version of a manifest with links, and the last that this code reads.
pub(crate) const VERSION_LINKS: u8 = 2;
/// The size of the header.
pub(crate) const HEADER_BYTES: usize = 256;
/// The number of bytes that one chunk CRC covers.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;
/// The size of a folder's row.
pub(crate) const DIR_BYTES: usize = 28;
/// The size of a file's row.
pub(crate) const FILE_BYTES: usize = 52;
/// The size of a pack's row.
pub(crate) const PACK_BYTES: usize = 24;
/// The size of a link's row.
pub(crate) const LINK_BYTES: usize = 28;
/// The size of a CRC.
pub(crate) const CRC_BYTES: usize = 4;

/// Flag: the files' bytes are in packs.
pub(crate) const FLAG_PACKED: u8 = 1;

/// Offsets of the header's fields.
pub(crate) mod header {
    /// Version byte.
    pub(crate) const VERSION: usize = 8;
    /// Flags byte.
    pub(crate) const FLAGS: usize = 9;
    /// Snapshot id, 32 bytes.
    pub(crate) const SNAPSHOT: usize = 16;
    /// Number of folders, u32.
    pub(crate) const DIRS: usize = 48;
    /// Number of files, u32.
    pub(crate) const FILES: usize = 52;
    /// Number of blocks, u32.
    pub(crate) const BLOCKS: usize = 56;
    /// Number of packs, u32.
    pub(crate) const PACKS: usize = 60;
    /// Sum of the files' sizes, u64.
    pub(crate) const BYTES: usize = 64;
    /// Creation time, i64 nanoseconds since the epoch.
    pub(crate) const CREATED: usize = 72;
    /// Section table: offset u64 and length u64 of each section of the version.
    pub(crate) const SECTIONS: usize = 80;
    /// CRC32C of the chunk CRCs.
    pub(crate) const CHUNKS_CRC: usize = 248;
    /// CRC32C of bytes 0..252.
    pub(crate) const CRC: usize = 252;
}

/// The sections, in file order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    /// Folder rows.
    Dirs,
    /// File rows.
    Files,
    /// CRC32C of each block.
    BlockCrcs,
    /// Pack rows.
    Packs,
    /// Names and other strings.
    Heap,
    /// Link rows.
    Links,
    /// The dataset's name and its origin's URL.
    Meta,
    /// CRC32C of each chunk.
    ChunkCrcs,
}

impl Section {
    /// The number of sections.
    pub(crate) const COUNT: usize = 8;

    /// The sections of a version, in file order.
    pub(crate) fn of_version(version: u8) -> impl Iterator<Item = Self> {
        use Section::{BlockCrcs, ChunkCrcs, Dirs, Files, Heap, Links, Meta, Packs};
        let all = [Dirs, Files, BlockCrcs, Packs, Heap, Links, Meta, ChunkCrcs];
        all.into_iter().filter(move |section| *section != Links || version >= VERSION_LINKS)
    }
}

/// How a link row stores the kind of its target.
pub(crate) mod target {
    /// A folder.
    pub(crate) const DIR: u32 = 0;
    /// A file.
    pub(crate) const FILE: u32 = 1;
}

/// How a file row stores the version of its bytes: the low byte of the row's tag.
pub(crate) mod tag {
    /// The modification time and size, which the row stores anyway.
    pub(crate) const MTIME_SIZE: u8 = 0;
    /// `"<32 hex digits>"`, and `-N` before the closing quote when the tag's upper 24 bits are N > 0.
    pub(crate) const MD5: u8 = 1;
    /// Any other ETag: 8 bytes of string reference.
    pub(crate) const HEAP: u8 = 2;
    /// In a pack: its number u32, 4 bytes of zero, offset u64.
    pub(crate) const PACKED: u8 = 3;
}

/// A reference into the heap: offset << 16 | length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StringRef(pub(crate) u64);

impl StringRef {
    /// Packs an offset below 2^48 and a length.
    pub(crate) const fn new(offset: u64, len: u16) -> Self {
        Self(offset << 16 | len as u64)
    }
    /// Offset in the heap.
    pub(crate) const fn offset(self) -> u64 {
        self.0 >> 16
    }
    /// Length in bytes.
    pub(crate) const fn len(self) -> u64 {
        self.0 & 0xffff
    }
}

/// Reads a little-endian u32 at `at`. The caller has checked the bounds.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

/// Reads a little-endian u64 at `at`. The caller has checked the bounds.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}
