//! Encodes the rows of a manifest and seals it.
//!
//! [`RowEncoder`] encodes rows; [`Seal`] computes the header and the bytes after the rows. Neither stores rows, so a
//! caller that has its rows in order can build a manifest of any size in constant memory: it writes folder rows, file
//! rows and heap as they come, and afterwards passes all of them to the seal in file order.
//!
//! Invariant: the same rows give the same bytes and the same snapshot id on every machine.

use sha2::{Digest, Sha256};

use super::built::{BuildError, limit};
use super::contents_hash::snapshot_hash;
use super::layout::{
    self, CHUNK_BYTES, CRC_BYTES, DIR_BYTES, FILE_BYTES, HEADER_BYTES, LINK_BYTES, PACK_BYTES, Section, StringRef,
    header, tag, target,
};
use super::rows::{LinkTarget, Totals};
use super::version_tag::{VersionTag, parse_md5};
use crate::block;
use crate::checksum::{crc32c, crc32c_append};
use crate::snapshot::SnapshotId;

/// A file's row before it has a name, a folder and block numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRow<'a> {
    /// Size in bytes.
    pub size: u64,
    pub(super) mtime_ns: i64,
    pub(super) tag: u32,
    pub(super) version: [u8; 16],
    /// The ETag if the tag is [`tag::HEAP`]; otherwise empty.
    pub(super) etag: &'a [u8],
}

/// The size of an encoded [`FileRow`] without its ETag.
const ROW_BYTES: usize = 36;

impl<'a> FileRow<'a> {
    /// Creates the row of a file of a plain snapshot.
    pub fn plain(size: u64, mtime_ns: i64, version: &'a VersionTag<'_>) -> Self {
        let (tag, version, etag): (_, _, &[u8]) = match version {
            VersionTag::MtimeSize { .. } => (u32::from(tag::MTIME_SIZE), [0; 16], &[]),
            VersionTag::ETag(etag) => match parse_md5(etag) {
                Some((md5, parts)) => (u32::from(tag::MD5) | parts << 8, md5, &[]),
                // An ETag is the value of a header and far below 64 KiB. A truncated one would match no version, and
                // never a wrong one.
                None => (u32::from(tag::HEAP), [0; 16], &etag.as_bytes()[..etag.len().min(usize::from(u16::MAX))]),
            },
        };
        Self { size, mtime_ns, tag, version, etag }
    }

    /// The ETag that is stored in the heap after the file's name. Usually empty.
    pub fn heap_etag(&self) -> &'a [u8] {
        self.etag
    }

    /// Appends the encoded row to `out`, for a caller that stores rows until all are sorted.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.size.to_le_bytes());
        out.extend_from_slice(&self.mtime_ns.to_le_bytes());
        out.extend_from_slice(&self.tag.to_le_bytes());
        out.extend_from_slice(&self.version);
        out.extend_from_slice(self.etag);
    }

    /// Decodes a row. `None` if there are too few bytes.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (row, etag) = bytes.split_at_checked(ROW_BYTES)?;
        let mut version = [0; 16];
        version.copy_from_slice(&row[20..]);
        let mtime_ns = layout::u64_at(row, 8).cast_signed();
        Some(Self { size: layout::u64_at(row, 0), mtime_ns, tag: layout::u32_at(row, 16), version, etag })
    }
}

/// A folder's row, without its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirRow {
    /// The length of the folder's name in bytes.
    pub name_len: usize,
    /// The row of the parent folder.
    pub parent: u32,
    /// The row of the first child folder, or the row that it would have.
    pub first_dir: u32,
    /// The number of child folders.
    pub dir_count: u32,
    /// The row of the first file, or the row that it would have.
    pub first_file: u32,
    /// The number of files in the folder itself.
    pub file_count: u32,
}

/// Encodes rows. The heap must contain the names of all folders, then for each file its name and
/// [`FileRow::heap_etag`], then the names of all links. Folders are numbered breadth first. Files are ordered by
/// folder, then by name, and so are links.
#[derive(Debug, Default)]
pub struct RowEncoder {
    heap_bytes: u64,
    dir_names_bytes: u64,
    dirs: u64,
    files: u64,
    blocks: u64,
    packs: u64,
    links: u64,
    bytes: u64,
}

impl RowEncoder {
    /// An encoder for a manifest whose folder names have `dir_names_bytes` in total.
    pub fn new(dir_names_bytes: u64) -> Self {
        Self { heap_bytes: dir_names_bytes, ..Self::default() }
    }

    fn string(&mut self, len: usize) -> StringRef {
        let at = StringRef::new(self.heap_bytes, len as u16);
        self.heap_bytes += len as u64;
        at
    }

    /// Encodes the row of the next folder.
    pub fn dir(&mut self, row: &DirRow) -> [u8; DIR_BYTES] {
        let name = StringRef::new(self.dir_names_bytes, row.name_len as u16);
        self.dir_names_bytes += row.name_len as u64;
        self.dirs += 1;
        let mut out = [0; DIR_BYTES];
        out[..8].copy_from_slice(&name.0.to_le_bytes());
        let fields = [row.parent, row.first_dir, row.dir_count, row.first_file, row.file_count];
        for (at, field) in out[8..].chunks_exact_mut(4).zip(fields) {
            at.copy_from_slice(&field.to_le_bytes());
        }
        out
    }

    /// Encodes the row of the next file. Errors: `TooLarge`.
    pub fn file(&mut self, name_len: usize, dir: u32, row: &FileRow<'_>) -> Result<[u8; FILE_BYTES], BuildError> {
        let first_block = limit("blocks", self.blocks)?;
        let name = self.string(name_len);
        let mut version = row.version;
        if row.tag as u8 == tag::HEAP {
            version[..8].copy_from_slice(&self.string(row.etag.len()).0.to_le_bytes());
        }
        self.files += 1;
        limit("files", self.files)?;
        self.blocks += block::block_count(row.size);
        limit("blocks", self.blocks)?;
        self.bytes = self.bytes.checked_add(row.size).ok_or(BuildError::TooLarge { what: "bytes", limit: u64::MAX })?;
        let mut out = [0; FILE_BYTES];
        out[..8].copy_from_slice(&name.0.to_le_bytes());
        out[8..16].copy_from_slice(&row.size.to_le_bytes());
        out[16..24].copy_from_slice(&row.mtime_ns.to_le_bytes());
        out[24..28].copy_from_slice(&dir.to_le_bytes());
        out[28..32].copy_from_slice(&first_block.to_le_bytes());
        out[32..36].copy_from_slice(&row.tag.to_le_bytes());
        out[36..].copy_from_slice(&version);
        Ok(out)
    }

    /// Encodes the row of the next pack, whose key and then ETag are stored in the heap.
    pub(super) fn pack(&mut self, key_len: usize, size: u64, etag_len: usize) -> [u8; PACK_BYTES] {
        let (key, etag) = (self.string(key_len), self.string(etag_len));
        self.packs += 1;
        let mut out = [0; PACK_BYTES];
        for (at, field) in out.chunks_exact_mut(8).zip([key.0, size, etag.0]) {
            at.copy_from_slice(&field.to_le_bytes());
        }
        out
    }

    /// Encodes the row of the next symbolic link, which leads to `target` from the folder `dir`. Its name is stored in
    /// the heap.
    pub fn link(&mut self, name_len: usize, mtime_ns: i64, dir: u32, target: LinkTarget) -> [u8; LINK_BYTES] {
        let name = self.string(name_len);
        self.links += 1;
        let (kind, index) = match target {
            LinkTarget::Dir(dir) => (target::DIR, dir.0),
            LinkTarget::File(file) => (target::FILE, file.0),
        };
        let mut out = [0; LINK_BYTES];
        out[..8].copy_from_slice(&name.0.to_le_bytes());
        out[8..16].copy_from_slice(&mtime_ns.to_le_bytes());
        for (at, field) in out[16..].chunks_exact_mut(4).zip([dir, index, kind]) {
            at.copy_from_slice(&field.to_le_bytes());
        }
        out
    }

    /// The counts and sizes of all rows so far. Errors: `TooLarge`.
    pub fn totals(&self) -> Result<Totals, BuildError> {
        Ok(Totals {
            dirs: limit("folders", self.dirs)?,
            files: limit("files", self.files)?,
            blocks: limit("blocks", self.blocks)?,
            packs: limit("packs", self.packs)?,
            links: limit("symbolic links", self.links)?,
            bytes: self.bytes,
        })
    }

    /// Creates the seal of a manifest that has the rows encoded so far. Errors: `TooLarge`, `TooLong`.
    pub fn seal(&self, packed: bool, name: &str, origin: &str, created_ns: i64) -> Result<Seal, BuildError> {
        let totals = self.totals()?;
        let mut meta = Vec::new();
        put_string(&mut meta, "the dataset's name", name)?;
        put_string(&mut meta, "the origin's URL", origin)?;
        let rows = |count: u32, bytes: usize| u64::from(count) * bytes as u64;
        let lens = [
            rows(totals.dirs, DIR_BYTES),
            rows(totals.files, FILE_BYTES),
            if packed { rows(totals.blocks, CRC_BYTES) } else { 0 },
            rows(totals.packs, PACK_BYTES),
            self.heap_bytes,
            rows(totals.links, LINK_BYTES),
        ];
        let version = if totals.links == 0 { layout::VERSION_PLAIN } else { layout::VERSION_LINKS };
        Ok(Seal {
            version,
            totals,
            packed,
            created_ns,
            lens,
            meta,
            hash: snapshot_hash(version, origin),
            at: HEADER_BYTES as u64,
            crc: 0,
            crcs: Vec::new(),
        })
    }
}

/// Appends a string of the metadata, named `what` in an error.
fn put_string(meta: &mut Vec<u8>, what: &'static str, string: &str) -> Result<(), BuildError> {
    let len = u16::try_from(string.len()).map_err(|_| BuildError::TooLong { what })?;
    meta.extend_from_slice(&len.to_le_bytes());
    meta.extend_from_slice(string.as_bytes());
    Ok(())
}

/// Computes the header of a manifest, its checksums and its snapshot id.
#[derive(Debug)]
pub struct Seal {
    version: u8,
    totals: Totals,
    packed: bool,
    created_ns: i64,
    /// The lengths of the sections before the metadata.
    lens: [u64; 6],
    meta: Vec<u8>,
    hash: Sha256,
    at: u64,
    /// The CRC of the incomplete chunk so far.
    crc: u32,
    crcs: Vec<u8>,
}

/// The parts of a manifest around its rows.
#[derive(Debug)]
pub struct Sealed {
    /// The first bytes of the file.
    pub header: [u8; HEADER_BYTES],
    /// The bytes that follow the heap and the links.
    pub tail: Vec<u8>,
    /// The id of the snapshot.
    pub snapshot: SnapshotId,
    /// Counts and sizes.
    pub totals: Totals,
}

impl Seal {
    /// Notes that the manifest describes a copy of the snapshot `snapshot` of `origin`. Errors: `TooLong`.
    pub fn mirrors(&mut self, snapshot: SnapshotId, origin: &str) -> Result<(), BuildError> {
        self.meta.extend_from_slice(&snapshot.0);
        put_string(&mut self.meta, "the URL of the mirrored origin", origin)
    }

    /// Processes the next bytes of the sections after the header: folder rows, file rows, block CRCs, pack rows, heap
    /// and link rows, in this order.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.check(bytes);
    }

    fn check(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let left = CHUNK_BYTES - (self.at % CHUNK_BYTES as u64) as usize;
            let (piece, rest) = bytes.split_at(left.min(bytes.len()));
            self.crc = crc32c_append(self.crc, piece);
            self.at += piece.len() as u64;
            if piece.len() == left {
                self.end_chunk();
            }
            bytes = rest;
        }
    }

    fn end_chunk(&mut self) {
        self.crcs.extend_from_slice(&self.crc.to_le_bytes());
        self.crc = 0;
    }

    /// Computes the header and the tail.
    ///
    /// # Panics
    /// If the seal did not receive all rows and the whole heap, which is a bug in the caller.
    pub fn finish(mut self) -> Sealed {
        let contents_end = HEADER_BYTES as u64 + self.lens.iter().sum::<u64>();
        assert_eq!(self.at, contents_end, "the seal must get all sections");
        let meta = std::mem::take(&mut self.meta);
        self.check(&meta);
        if !self.at.is_multiple_of(CHUNK_BYTES as u64) {
            self.end_chunk();
        }
        let snapshot = SnapshotId(self.hash.finalize().into());

        let mut head = [0; HEADER_BYTES];
        head[..8].copy_from_slice(&layout::MAGIC);
        head[header::VERSION] = self.version;
        head[header::FLAGS] = if self.packed { layout::FLAG_PACKED } else { 0 };
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        put(header::SNAPSHOT, &snapshot.0);
        let totals = self.totals;
        for (at, count) in [
            (header::DIRS, totals.dirs),
            (header::FILES, totals.files),
            (header::BLOCKS, totals.blocks),
            (header::PACKS, totals.packs),
        ] {
            put(at, &count.to_le_bytes());
        }
        put(header::BYTES, &totals.bytes.to_le_bytes());
        put(header::CREATED, &self.created_ns.to_le_bytes());
        let mut at = HEADER_BYTES as u64;
        let [dirs, files, crcs, packs, heap, links] = self.lens;
        let lens = [dirs, files, crcs, packs, heap, links, meta.len() as u64, self.crcs.len() as u64];
        for (nth, section) in Section::of_version(self.version).enumerate() {
            let len = lens[section as usize];
            put(header::SECTIONS + nth * 16, &at.to_le_bytes());
            put(header::SECTIONS + nth * 16 + 8, &len.to_le_bytes());
            at += len;
        }
        put(header::CHUNKS_CRC, &crc32c(&self.crcs).to_le_bytes());
        let crc = crc32c(&head[..header::CRC]);
        head[header::CRC..].copy_from_slice(&crc.to_le_bytes());
        Sealed { header: head, tail: [meta, self.crcs].concat(), snapshot, totals }
    }
}
