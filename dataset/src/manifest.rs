//! The manifest: the index of one snapshot, and the inode table of its mounts.
//!
//! The cast: [`ManifestBuilder`] makes one from a listing; [`Manifest`] reads one in place over any bytes, usually a
//! mapped file, without parsing it; `layout` is the format. A file's inode number is its row number, so that any daemon
//! that has the manifest can answer for any inode that any earlier daemon gave out.
//!
//! Invariant: what is read was covered by a CRC when it was first touched, and no bytes, however broken, make a reader
//! panic, loop or reach outside the file: they give [`ManifestError::Corrupt`].

mod build;
mod layout;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::atomic::{AtomicU64, Ordering as Memory};

pub use build::{BuildError, Built, FileSource, ManifestBuilder, PackObject, Packed, RejectedKey};
use layout::{
    CHUNK_BYTES, CRC_BYTES, DIR_BYTES, FILE_BYTES, HEADER_BYTES, PACK_BYTES, Section, StringRef, header, tag,
};
use layout::{u32_at, u64_at};

use crate::block::{self, BlockIndex, BlockPart};
use crate::snapshot::SnapshotId;

/// The row number of a folder; 0 is the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirIndex(pub u32);

/// The row number of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileIndex(pub u32);

/// What a name or an inode number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A folder.
    Dir(DirIndex),
    /// A file.
    File(FileIndex),
}

/// Why a manifest cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Not a manifest at all.
    #[error("not a Larder manifest (wrong first bytes)")]
    NotAManifest,
    /// Made by another version of Larder.
    #[error("manifest format version {found}, this program reads version {supported}: import the dataset again")]
    Version {
        /// The version byte found.
        found: u8,
        /// The version this code reads.
        supported: u8,
    },
    /// Cut off, or its bytes have changed.
    #[error("manifest is damaged ({what}): import the dataset again")]
    Corrupt {
        /// Which part does not hold together.
        what: &'static str,
    },
}

const fn corrupt(what: &'static str) -> ManifestError {
    ManifestError::Corrupt { what }
}

/// A folder's row.
#[derive(Clone, Copy, Debug)]
pub struct Dir<'a> {
    /// Its name; empty for the root.
    pub name: &'a [u8],
    /// The folder it is in; the root is its own parent.
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
    /// An object of its own, under the file's path.
    Object,
    /// In a pack.
    Pack {
        /// Which pack.
        pack: u32,
        /// First byte in it.
        offset: u64,
    },
}

/// A file's row.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Bytes.
    pub size: u64,
    /// Time of last modification, nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// The folder it is in.
    pub dir: DirIndex,
    /// Its first block; meaningless when it is empty.
    pub first_block: BlockIndex,
    /// Where its bytes are.
    pub location: Location,
    tag: u32,
    version: [u8; 16],
}

impl File<'_> {
    /// The blocks that a read of `len` bytes at `offset` touches.
    pub fn parts(&self, offset: u64, len: u64) -> impl Iterator<Item = BlockPart> + use<> {
        block::parts(self.first_block, self.size, offset, len)
    }
}

/// What the bytes of an object are bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionTag<'a> {
    /// An ETag exactly as the origin sends it, quotes included.
    ETag(Cow<'a, str>),
    /// The modification time and size of a local file.
    MtimeSize {
        /// Nanoseconds since the epoch.
        mtime_ns: i64,
        /// Bytes.
        size: u64,
    },
}

/// A pack's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pack<'a> {
    /// Its key below the origin.
    pub key: &'a [u8],
    /// Bytes.
    pub size: u64,
    /// Its ETag as the origin sends it; empty for a local folder.
    pub etag: &'a str,
}

/// The files' counts and sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Folders, the root included.
    pub dirs: u32,
    /// Files.
    pub files: u32,
    /// Blocks.
    pub blocks: u32,
    /// Packs; 0 for a plain snapshot.
    pub packs: u32,
    /// Sum of the files' sizes.
    pub bytes: u64,
}

/// A manifest read in place over `B`, usually a mapped file. Shared by any number of threads; never allocates but for
/// unusual version tags.
#[derive(Debug)]
pub struct Manifest<B> {
    bytes: B,
    sections: [(usize, usize); 7],
    totals: Totals,
    snapshot: SnapshotId,
    created_ns: i64,
    packed: bool,
    /// A bit for each chunk whose CRC was found right.
    checked: Box<[AtomicU64]>,
}

impl<B: AsRef<[u8]>> Manifest<B> {
    /// Reads the header and the chunk CRCs; rows are checked when first touched. Errors say what is wrong.
    pub fn open(bytes: B) -> Result<Self, ManifestError> {
        let all = bytes.as_ref();
        let Some(head) = all.get(..HEADER_BYTES) else {
            return Err(if all.starts_with(&layout::MAGIC) {
                corrupt("shorter than its header")
            } else {
                ManifestError::NotAManifest
            });
        };
        if head[..8] != layout::MAGIC {
            return Err(ManifestError::NotAManifest);
        }
        if head[header::VERSION] != layout::VERSION {
            return Err(ManifestError::Version { found: head[header::VERSION], supported: layout::VERSION });
        }
        if crate::checksum::crc32c(&head[..header::CRC]) != u32_at(head, header::CRC) {
            return Err(corrupt("header"));
        }
        let totals = Totals {
            dirs: u32_at(head, header::DIRS),
            files: u32_at(head, header::FILES),
            blocks: u32_at(head, header::BLOCKS),
            packs: u32_at(head, header::PACKS),
            bytes: u64_at(head, header::BYTES),
        };
        let packed = head[header::FLAGS] & layout::FLAG_PACKED != 0;
        let sections = read_section_table(head, all.len())?;
        let expect = |section: Section, rows: u32, row: usize| {
            if sections[section as usize].1 as u64 == u64::from(rows) * row as u64 {
                Ok(())
            } else {
                Err(corrupt("section length"))
            }
        };
        expect(Section::Dirs, totals.dirs, DIR_BYTES)?;
        expect(Section::Files, totals.files, FILE_BYTES)?;
        expect(Section::BlockCrcs, if packed { totals.blocks } else { 0 }, CRC_BYTES)?;
        expect(Section::Packs, totals.packs, PACK_BYTES)?;
        if totals.dirs == 0 {
            return Err(corrupt("no root folder"));
        }
        let (crcs_at, crcs_len) = sections[Section::ChunkCrcs as usize];
        let chunks = crcs_at.div_ceil(CHUNK_BYTES);
        if crcs_len != chunks * CRC_BYTES {
            return Err(corrupt("section length"));
        }
        if crate::checksum::crc32c(&all[crcs_at..crcs_at + crcs_len]) != u32_at(head, header::CHUNKS_CRC) {
            return Err(corrupt("chunk checksums"));
        }
        let mut snapshot = [0; 32];
        snapshot.copy_from_slice(&head[header::SNAPSHOT..header::SNAPSHOT + 32]);
        Ok(Self {
            sections,
            totals,
            snapshot: SnapshotId(snapshot),
            created_ns: u64_at(head, header::CREATED).cast_signed(),
            packed,
            checked: (0..chunks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            bytes,
        })
    }

    /// Which snapshot this is.
    pub fn snapshot(&self) -> SnapshotId {
        self.snapshot
    }

    /// Counts and sizes.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// When it was made, nanoseconds since the epoch.
    pub fn created_ns(&self) -> i64 {
        self.created_ns
    }

    /// True if the files' bytes lie in packs.
    pub fn is_packed(&self) -> bool {
        self.packed
    }

    /// Bytes of the manifest itself.
    pub fn len_bytes(&self) -> u64 {
        self.bytes.as_ref().len() as u64
    }

    /// The name of the dataset and the URL of its origin.
    pub fn name_and_origin(&self) -> Result<(&str, &str), ManifestError> {
        let meta = self.section(Section::Meta, 0, self.sections[Section::Meta as usize].1)?;
        let (name, rest) = split_string(meta)?;
        let (origin, _) = split_string(rest)?;
        Ok((name, origin))
    }

    /// A folder's row. `Corrupt` also when there is no such row.
    pub fn dir(&self, dir: DirIndex) -> Result<Dir<'_>, ManifestError> {
        let row = self.row(Section::Dirs, dir.0, DIR_BYTES)?;
        let found = Dir {
            name: self.string(StringRef(u64_at(row, 0)))?,
            parent: DirIndex(u32_at(row, 8)),
            first_dir: u32_at(row, 12),
            dir_count: u32_at(row, 16),
            first_file: u32_at(row, 20),
            file_count: u32_at(row, 24),
        };
        let dirs_end = u64::from(found.first_dir) + u64::from(found.dir_count);
        let files_end = u64::from(found.first_file) + u64::from(found.file_count);
        // Parents come before their children, so that walking up always ends at the root.
        let ordered = if dir.0 == 0 { found.parent.0 == 0 } else { found.parent < dir };
        if ordered && dirs_end <= u64::from(self.totals.dirs) && files_end <= u64::from(self.totals.files) {
            Ok(found)
        } else {
            Err(corrupt("folder row"))
        }
    }

    /// A file's row. `Corrupt` also when there is no such row.
    pub fn file(&self, file: FileIndex) -> Result<File<'_>, ManifestError> {
        let row = self.row(Section::Files, file.0, FILE_BYTES)?;
        let mut version = [0; 16];
        version.copy_from_slice(&row[36..52]);
        let tag = u32_at(row, 32);
        let found = File {
            name: self.string(StringRef(u64_at(row, 0)))?,
            size: u64_at(row, 8),
            mtime_ns: u64_at(row, 16).cast_signed(),
            dir: DirIndex(u32_at(row, 24)),
            first_block: BlockIndex(u32_at(row, 28)),
            location: if tag as u8 == tag::PACKED {
                Location::Pack { pack: u32_at(&version, 0), offset: u64_at(&version, 8) }
            } else {
                Location::Object
            },
            tag,
            version,
        };
        let blocks_end = block::block_count(found.size).checked_add(u64::from(found.first_block.0));
        if found.dir.0 < self.totals.dirs && blocks_end.is_some_and(|end| end <= u64::from(self.totals.blocks)) {
            Ok(found)
        } else {
            Err(corrupt("file row"))
        }
    }

    /// A pack's row.
    pub fn pack(&self, pack: u32) -> Result<Pack<'_>, ManifestError> {
        let row = self.row(Section::Packs, pack, PACK_BYTES)?;
        let etag = self.string(StringRef(u64_at(row, 16)))?;
        Ok(Pack {
            key: self.string(StringRef(u64_at(row, 0)))?,
            size: u64_at(row, 8),
            etag: std::str::from_utf8(etag).map_err(|_| corrupt("pack row"))?,
        })
    }

    /// What the bytes of a file's object (or of its pack) are bound to. `None`: a pack in a local folder, whose blocks
    /// have CRCs instead.
    pub fn version(&self, file: &File<'_>) -> Result<Option<VersionTag<'_>>, ManifestError> {
        Ok(match file.tag as u8 {
            tag::MTIME_SIZE => Some(VersionTag::MtimeSize { mtime_ns: file.mtime_ns, size: file.size }),
            tag::MD5 => {
                use std::fmt::Write;
                let mut etag = String::with_capacity(44);
                etag.push('"');
                for byte in file.version {
                    // Writing to a String cannot fail.
                    let _ = write!(etag, "{byte:02x}");
                }
                if file.tag >> 8 > 0 {
                    let _ = write!(etag, "-{}", file.tag >> 8);
                }
                etag.push('"');
                Some(VersionTag::ETag(Cow::Owned(etag)))
            }
            tag::HEAP => {
                let etag = self.string(StringRef(u64_at(&file.version, 0)))?;
                Some(VersionTag::ETag(Cow::Borrowed(std::str::from_utf8(etag).map_err(|_| corrupt("version tag"))?)))
            }
            tag::PACKED => {
                let pack = self.pack(u32_at(&file.version, 0))?;
                (!pack.etag.is_empty()).then_some(VersionTag::ETag(Cow::Borrowed(pack.etag)))
            }
            _ => return Err(corrupt("version tag")),
        })
    }

    /// The CRC32C of a block, known ahead only in packed snapshots.
    pub fn block_crc(&self, block: BlockIndex) -> Result<Option<u32>, ManifestError> {
        if !self.packed {
            return Ok(None);
        }
        Ok(Some(u32_at(self.row(Section::BlockCrcs, block.0, CRC_BYTES)?, 0)))
    }

    /// The CRC32C of a whole file, known ahead only in packed snapshots.
    pub fn file_crc(&self, file: &File<'_>) -> Result<Option<u32>, ManifestError> {
        let mut crc = None;
        for part in file.parts(0, file.size) {
            let Some(next) = self.block_crc(part.block)? else { return Ok(None) };
            crc = Some(
                crc.map_or(next, |so_far| crate::checksum::crc32c_combine(so_far, next, u64::from(part.block_len))),
            );
        }
        Ok(if self.packed { crc.or(Some(0)) } else { None })
    }

    /// Finds `name` in a folder, by binary search.
    pub fn lookup(&self, dir: &Dir<'_>, name: &[u8]) -> Result<Option<Entry>, ManifestError> {
        let files = dir.first_file..dir.first_file + dir.file_count;
        if let Some(row) = search(files, |row| Ok(self.name_of(Section::Files, row, FILE_BYTES)?.cmp(name)))? {
            return Ok(Some(Entry::File(FileIndex(row))));
        }
        let dirs = dir.first_dir..dir.first_dir + dir.dir_count;
        let found = search(dirs, |row| Ok(self.name_of(Section::Dirs, row, DIR_BYTES)?.cmp(name)))?;
        Ok(found.map(|row| Entry::Dir(DirIndex(row))))
    }

    /// Finds a clean relative path; the empty one is the root.
    pub fn resolve(&self, path: &[u8]) -> Result<Option<Entry>, ManifestError> {
        let mut at = Entry::Dir(DirIndex(0));
        for part in path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
            let Entry::Dir(dir) = at else { return Ok(None) };
            match self.lookup(&self.dir(dir)?, part)? {
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// Appends the path of a folder to `out`; nothing for the root.
    pub fn dir_path(&self, dir: DirIndex, out: &mut Vec<u8>) -> Result<(), ManifestError> {
        let mut chain = Vec::new();
        let mut at = dir;
        while at.0 != 0 {
            let row = self.dir(at)?;
            chain.push(row.name);
            at = row.parent;
        }
        for (nth, name) in chain.iter().rev().enumerate() {
            if nth > 0 {
                out.push(b'/');
            }
            out.extend_from_slice(name);
        }
        Ok(())
    }

    /// The path of a file, which is also its key below the origin in a plain snapshot.
    pub fn file_path(&self, file: &File<'_>) -> Result<Vec<u8>, ManifestError> {
        let mut path = Vec::new();
        self.dir_path(file.dir, &mut path)?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(file.name);
        Ok(path)
    }

    /// The file that a block belongs to.
    pub fn file_of_block(&self, block: BlockIndex) -> Result<FileIndex, ManifestError> {
        // The last file whose first block is not beyond; empty files before it share its number.
        let (mut low, mut high) = (0, self.totals.files);
        while low < high {
            let middle = low + (high - low) / 2;
            let file = self.file(FileIndex(middle))?;
            if u64::from(file.first_block.0) + block::block_count(file.size) <= u64::from(block.0) {
                low = middle + 1
            } else {
                high = middle
            }
        }
        let file = self.file(FileIndex(low))?;
        if file.first_block <= block { Ok(FileIndex(low)) } else { Err(corrupt("block numbers")) }
    }

    /// Checks every CRC and every row, and that the snapshot id is that of the contents. Reads the whole manifest.
    pub fn verify(&self) -> Result<(), ManifestError> {
        let body = self.sections[Section::ChunkCrcs as usize].0;
        self.range(HEADER_BYTES, body - HEADER_BYTES)?;
        let (mut first_dir, mut first_file, mut first_block, mut bytes) = (1, 0, 0, 0_u64);
        for index in 0..self.totals.dirs {
            let dir = self.dir(DirIndex(index))?;
            if dir.first_dir != first_dir || dir.first_file != first_file {
                return Err(corrupt("folder rows"));
            }
            self.verify_names(Section::Dirs, dir.first_dir, dir.dir_count, DIR_BYTES)?;
            self.verify_names(Section::Files, dir.first_file, dir.file_count, FILE_BYTES)?;
            first_dir += dir.dir_count;
            first_file += dir.file_count;
            for row in dir.first_file..first_file {
                let file = self.file(FileIndex(row))?;
                self.version(&file)?;
                if file.dir.0 != index || file.first_block.0 != first_block {
                    return Err(corrupt("file rows"));
                }
                first_block += block::block_count(file.size) as u32;
                bytes = bytes.checked_add(file.size).ok_or(corrupt("file rows"))?;
            }
        }
        let totals = self.totals;
        if (first_dir, first_file, first_block, bytes) != (totals.dirs, totals.files, totals.blocks, totals.bytes) {
            return Err(corrupt("totals"));
        }
        let (_, origin) = self.name_and_origin()?;
        let contents = &self.bytes.as_ref()[HEADER_BYTES..self.sections[Section::Meta as usize].0];
        if build::snapshot_id(origin, [contents].into_iter()) != self.snapshot {
            return Err(corrupt("snapshot id"));
        }
        Ok(())
    }

    fn verify_names(&self, section: Section, first: u32, count: u32, row_bytes: usize) -> Result<(), ManifestError> {
        let mut last: &[u8] = &[];
        for row in first..first.checked_add(count).ok_or(corrupt("row numbers"))? {
            let name = self.name_of(section, row, row_bytes)?;
            if name <= last || name.contains(&b'/') || name == b"." || name == b".." {
                return Err(corrupt("names"));
            }
            last = name;
        }
        Ok(())
    }

    fn name_of(&self, section: Section, row: u32, row_bytes: usize) -> Result<&[u8], ManifestError> {
        self.string(StringRef(u64_at(self.row(section, row, row_bytes)?, 0)))
    }

    fn row(&self, section: Section, row: u32, row_bytes: usize) -> Result<&[u8], ManifestError> {
        self.section(section, row as usize * row_bytes, row_bytes)
    }

    fn string(&self, string: StringRef) -> Result<&[u8], ManifestError> {
        let offset = usize::try_from(string.offset()).map_err(|_| corrupt("string"))?;
        self.section(Section::Heap, offset, string.len() as usize)
    }

    fn section(&self, section: Section, offset: usize, len: usize) -> Result<&[u8], ManifestError> {
        let (start, section_len) = self.sections[section as usize];
        if offset.checked_add(len).is_none_or(|end| end > section_len) {
            return Err(corrupt("row beyond its section"));
        }
        self.range(start + offset, len)
    }

    /// Bytes of the body, after the CRC of each chunk they lie in was found right once.
    fn range(&self, at: usize, len: usize) -> Result<&[u8], ManifestError> {
        let all = self.bytes.as_ref();
        if len > 0 {
            for chunk in at / CHUNK_BYTES..=(at + len - 1) / CHUNK_BYTES {
                // Relaxed is enough: the bytes are immutable, and checking them twice does no harm.
                if self.checked[chunk / 64].load(Memory::Relaxed) & 1 << (chunk % 64) == 0 {
                    self.check_chunk(all, chunk)?;
                }
            }
        }
        Ok(&all[at..at + len])
    }

    #[cold]
    fn check_chunk(&self, all: &[u8], chunk: usize) -> Result<(), ManifestError> {
        let crcs_at = self.sections[Section::ChunkCrcs as usize].0;
        let start = (chunk * CHUNK_BYTES).max(HEADER_BYTES);
        let end = ((chunk + 1) * CHUNK_BYTES).min(crcs_at);
        if crate::checksum::crc32c(&all[start..end]) != u32_at(all, crcs_at + chunk * CRC_BYTES) {
            return Err(corrupt("a chunk's checksum"));
        }
        self.checked[chunk / 64].fetch_or(1 << (chunk % 64), Memory::Relaxed);
        Ok(())
    }
}

/// The sections must follow each other without a gap, from the header to the end of the file.
fn read_section_table(head: &[u8], file_len: usize) -> Result<[(usize, usize); 7], ManifestError> {
    let mut sections = [(0, 0); 7];
    let mut at = HEADER_BYTES as u64;
    for (nth, section) in sections.iter_mut().enumerate() {
        let offset = u64_at(head, header::SECTIONS + nth * 16);
        let len = u64_at(head, header::SECTIONS + nth * 16 + 8);
        if offset != at {
            return Err(corrupt("section table"));
        }
        at = at.checked_add(len).filter(|&end| end <= file_len as u64).ok_or(corrupt("cut off"))?;
        *section = (offset as usize, len as usize);
    }
    if at == file_len as u64 { Ok(sections) } else { Err(corrupt("longer than its sections")) }
}

fn split_string(bytes: &[u8]) -> Result<(&str, &[u8]), ManifestError> {
    let (len, rest) = bytes.split_first_chunk::<2>().ok_or(corrupt("meta"))?;
    let (string, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len))).ok_or(corrupt("meta"))?;
    Ok((std::str::from_utf8(string).map_err(|_| corrupt("meta"))?, rest))
}

/// Binary search over row numbers; `compare` says how a row stands to what is wanted.
fn search(
    rows: std::ops::Range<u32>,
    mut compare: impl FnMut(u32) -> Result<Ordering, ManifestError>,
) -> Result<Option<u32>, ManifestError> {
    let (mut low, mut high) = (rows.start, rows.end);
    while low < high {
        let middle = low + (high - low) / 2;
        match compare(middle)? {
            Ordering::Less => low = middle + 1,
            Ordering::Greater => high = middle,
            Ordering::Equal => return Ok(Some(middle)),
        }
    }
    Ok(None)
}
