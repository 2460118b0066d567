//! Writes the sections and the header of a manifest.
//!
//! Callers add rows in their final order: folders, then files sorted by folder and name, then packs.

use super::built::{BuildError, Built, RejectedKey, limit};
use super::contents_hash::snapshot_id;
use super::layout::{self, CHUNK_BYTES, HEADER_BYTES, Section, StringRef, header, tag};
use super::rows::Totals;
use super::tree::FolderTree;
use crate::block;
use crate::checksum::{crc32c, crc32c_append};

/// A file's row before it has a name, a folder and block numbers.
pub(super) struct FileRow {
    pub(super) tag: u32,
    pub(super) size: u64,
    pub(super) mtime_ns: i64,
    /// With [`tag::HEAP`], a reference into [`Writer::etags`] that becomes one into the heap.
    pub(super) version: [u8; 16],
    /// Index of its first block's CRC in [`Writer::crcs`].
    pub(super) crcs_at: u32,
}

pub(super) struct Writer<'a> {
    /// ETags of the files added, one after the other.
    etags: &'a [u8],
    /// CRCs of the blocks of the files added.
    crcs: &'a [u32],
    packed: bool,
    dirs: Vec<u8>,
    files: Vec<u8>,
    block_crcs: Vec<u8>,
    packs: Vec<u8>,
    heap: Vec<u8>,
    counts: RowCounts,
}

#[derive(Default)]
struct RowCounts {
    dirs: u64,
    files: u64,
    blocks: u64,
    packs: u64,
    bytes: u64,
}

impl<'a> Writer<'a> {
    pub(super) fn new(etags: &'a [u8], crcs: &'a [u32], packed: bool) -> Self {
        Self {
            etags,
            crcs,
            packed,
            dirs: Vec::new(),
            files: Vec::new(),
            block_crcs: Vec::new(),
            packs: Vec::new(),
            heap: Vec::new(),
            counts: RowCounts::default(),
        }
    }

    fn string(&mut self, string: &[u8]) -> StringRef {
        let at = StringRef::new(self.heap.len() as u64, string.len() as u16);
        self.heap.extend_from_slice(string);
        at
    }

    pub(super) fn folders(
        &mut self,
        tree: &FolderTree,
        folder_of_files: impl Iterator<Item = u32>,
    ) -> Result<(), BuildError> {
        let mut counts = vec![0_u32; tree.folders.len()];
        for folder in folder_of_files {
            counts[folder as usize] += 1;
        }
        let mut first_file = 0_u32;
        for (folder, file_count) in tree.folders.iter().zip(counts) {
            let name = self.string(&folder.name);
            self.dirs.extend_from_slice(&name.0.to_le_bytes());
            for field in [folder.parent, folder.first_dir, folder.dir_count, first_file, file_count] {
                self.dirs.extend_from_slice(&field.to_le_bytes());
            }
            first_file += file_count;
        }
        self.counts.dirs = u64::from(limit("folders", tree.folders.len() as u64)?);
        Ok(())
    }

    pub(super) fn file(&mut self, row: &FileRow, dir: u32, name: &[u8]) -> Result<(), BuildError> {
        let name = self.string(name);
        let first_block = limit("blocks", self.counts.blocks)?;
        let blocks = block::block_count(row.size);
        let mut version = row.version;
        if row.tag as u8 == tag::HEAP {
            let etag = StringRef(layout::u64_at(&version, 0));
            let etag = &self.etags[etag.offset() as usize..(etag.offset() + etag.len()) as usize];
            version[..8].copy_from_slice(&self.string(etag).0.to_le_bytes());
        }
        self.files.extend_from_slice(&name.0.to_le_bytes());
        self.files.extend_from_slice(&row.size.to_le_bytes());
        self.files.extend_from_slice(&row.mtime_ns.to_le_bytes());
        self.files.extend_from_slice(&dir.to_le_bytes());
        self.files.extend_from_slice(&first_block.to_le_bytes());
        self.files.extend_from_slice(&row.tag.to_le_bytes());
        self.files.extend_from_slice(&version);
        if self.packed {
            for crc in &self.crcs[row.crcs_at as usize..row.crcs_at as usize + blocks as usize] {
                self.block_crcs.extend_from_slice(&crc.to_le_bytes());
            }
        }
        let counts = &mut self.counts;
        counts.files += 1;
        counts.blocks += blocks;
        counts.bytes =
            counts.bytes.checked_add(row.size).ok_or(BuildError::TooLarge { what: "bytes", limit: u64::MAX })?;
        limit("blocks", counts.blocks)?;
        Ok(())
    }

    pub(super) fn pack(&mut self, key: &[u8], size: u64, etag: &str) -> Result<(), BuildError> {
        let key = self.string(key);
        let etag = self.string(etag.as_bytes());
        self.packs.extend_from_slice(&key.0.to_le_bytes());
        self.packs.extend_from_slice(&size.to_le_bytes());
        self.packs.extend_from_slice(&etag.0.to_le_bytes());
        self.counts.packs += 1;
        limit("packs", self.counts.packs)?;
        Ok(())
    }

    pub(super) fn finish(
        self,
        name: &str,
        origin: &str,
        created_ns: i64,
        rejected: Vec<RejectedKey>,
    ) -> Result<Built, BuildError> {
        let totals = Totals {
            dirs: limit("folders", self.counts.dirs)?,
            files: limit("files", self.counts.files)?,
            blocks: limit("blocks", self.counts.blocks)?,
            packs: limit("packs", self.counts.packs)?,
            bytes: self.counts.bytes,
        };
        let snapshot = snapshot_id(
            origin,
            [&self.dirs, &self.files, &self.block_crcs, &self.packs, &self.heap].into_iter().map(Vec::as_slice),
        );
        let mut meta = Vec::new();
        for (what, string) in [("the dataset's name", name), ("the origin's URL", origin)] {
            let len = u16::try_from(string.len()).map_err(|_| BuildError::TooLong { what })?;
            meta.extend_from_slice(&len.to_le_bytes());
            meta.extend_from_slice(string.as_bytes());
        }
        let mut parts =
            vec![vec![0; HEADER_BYTES], self.dirs, self.files, self.block_crcs, self.packs, self.heap, meta];
        parts.push(chunk_crcs(&parts));

        let mut head = std::mem::take(&mut parts[0]);
        head[..8].copy_from_slice(&layout::MAGIC);
        head[header::VERSION] = layout::VERSION;
        head[header::FLAGS] = if self.packed { layout::FLAG_PACKED } else { 0 };
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        put(header::SNAPSHOT, &snapshot.0);
        for (at, count) in [
            (header::DIRS, totals.dirs),
            (header::FILES, totals.files),
            (header::BLOCKS, totals.blocks),
            (header::PACKS, totals.packs),
        ] {
            put(at, &count.to_le_bytes());
        }
        put(header::BYTES, &totals.bytes.to_le_bytes());
        put(header::CREATED, &created_ns.to_le_bytes());
        let mut at = HEADER_BYTES as u64;
        for (nth, part) in parts[1..].iter().enumerate() {
            put(header::SECTIONS + nth * 16, &at.to_le_bytes());
            put(header::SECTIONS + nth * 16 + 8, &(part.len() as u64).to_le_bytes());
            at += part.len() as u64;
        }
        put(header::CHUNKS_CRC, &crc32c(&parts[Section::ChunkCrcs as usize + 1]).to_le_bytes());
        let crc = crc32c(&head[..header::CRC]);
        head[header::CRC..].copy_from_slice(&crc.to_le_bytes());
        parts[0] = head;
        Ok(Built { parts, rejected, snapshot, totals })
    }
}

/// CRC32C of each chunk of the body, as if `parts` were one piece; the header at the front is left out.
fn chunk_crcs(parts: &[Vec<u8>]) -> Vec<u8> {
    let total: usize = parts.iter().map(Vec::len).sum();
    let mut crcs = vec![0_u32; total.div_ceil(CHUNK_BYTES)];
    let mut at = HEADER_BYTES;
    for mut part in parts[1..].iter().map(Vec::as_slice) {
        while !part.is_empty() {
            let (piece, rest) = part.split_at((CHUNK_BYTES - at % CHUNK_BYTES).min(part.len()));
            let crc = &mut crcs[at / CHUNK_BYTES];
            *crc = crc32c_append(*crc, piece);
            at += piece.len();
            part = rest;
        }
    }
    crcs.iter().flat_map(|crc| crc.to_le_bytes()).collect()
}
