//! Access to a manifest's sections, which checks each chunk's CRC on first touch.
//!
//! Invariant: no byte of the body leaves this module before the CRC of its chunk was found right, and no offset or
//! length, however wrong, reaches outside the section it names.

use std::sync::atomic::{AtomicU64, Ordering};

use super::error::{ManifestError, corrupt};
use super::layout::{self, CHUNK_BYTES, CRC_BYTES, HEADER_BYTES, Section, StringRef, header, u32_at, u64_at};
use crate::checksum::crc32c;

/// The bytes of a manifest whose header and chunk CRCs are sound.
#[derive(Debug)]
pub(super) struct Sections<B> {
    bytes: B,
    /// Offset and length of each section.
    table: [(usize, usize); 7],
    /// One bit per chunk: set once its CRC was found right.
    checked: Box<[AtomicU64]>,
}

impl<B: AsRef<[u8]>> Sections<B> {
    /// Checks the header, the section table and the chunk CRCs' own CRC.
    pub(super) fn open(bytes: B) -> Result<Self, ManifestError> {
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
        if crc32c(&head[..header::CRC]) != u32_at(head, header::CRC) {
            return Err(corrupt("header"));
        }
        let table = read_section_table(head, all.len())?;
        let (crcs_at, crcs_len) = table[Section::ChunkCrcs as usize];
        let chunks = crcs_at.div_ceil(CHUNK_BYTES);
        if crcs_len != chunks * CRC_BYTES {
            return Err(corrupt("section length"));
        }
        if crc32c(&all[crcs_at..crcs_at + crcs_len]) != u32_at(head, header::CHUNKS_CRC) {
            return Err(corrupt("chunk checksums"));
        }
        let checked = (0..chunks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { table, checked, bytes })
    }

    /// The header.
    pub(super) fn header(&self) -> &[u8] {
        &self.bytes.as_ref()[..HEADER_BYTES]
    }

    /// Length of the whole manifest in bytes.
    pub(super) fn len_bytes(&self) -> u64 {
        self.bytes.as_ref().len() as u64
    }

    /// Length of a section in bytes.
    pub(super) fn section_bytes(&self, section: Section) -> usize {
        self.table[section as usize].1
    }

    /// A row of a section whose rows have `row_bytes` bytes.
    pub(super) fn row(&self, section: Section, row: u32, row_bytes: usize) -> Result<&[u8], ManifestError> {
        self.get(section, row as usize * row_bytes, row_bytes)
    }

    /// The string at the start of a folder's, file's or pack's row: its name or key.
    pub(super) fn name(&self, section: Section, row: u32, row_bytes: usize) -> Result<&[u8], ManifestError> {
        self.string(StringRef(u64_at(self.row(section, row, row_bytes)?, 0)))
    }

    /// A string of the heap.
    pub(super) fn string(&self, string: StringRef) -> Result<&[u8], ManifestError> {
        let offset = usize::try_from(string.offset()).map_err(|_| corrupt("string"))?;
        self.get(Section::Heap, offset, string.len() as usize)
    }

    /// Part of a section.
    pub(super) fn get(&self, section: Section, offset: usize, len: usize) -> Result<&[u8], ManifestError> {
        let (start, section_len) = self.table[section as usize];
        if offset.checked_add(len).is_none_or(|end| end > section_len) {
            return Err(corrupt("row beyond its section"));
        }
        self.range(start + offset, len)
    }

    /// The sections that describe the snapshot's contents: all before the metadata. Checks the CRC of every chunk.
    pub(super) fn contents(&self) -> Result<&[u8], ManifestError> {
        let body = self.table[Section::ChunkCrcs as usize].0;
        self.range(HEADER_BYTES, body - HEADER_BYTES)?;
        Ok(&self.bytes.as_ref()[HEADER_BYTES..self.table[Section::Meta as usize].0])
    }

    /// Bytes of the body, once the CRC of each chunk they touch was found right.
    fn range(&self, at: usize, len: usize) -> Result<&[u8], ManifestError> {
        let all = self.bytes.as_ref();
        if len > 0 {
            for chunk in at / CHUNK_BYTES..=(at + len - 1) / CHUNK_BYTES {
                // Relaxed is enough: the bytes are immutable, and checking a chunk twice does no harm.
                if self.checked[chunk / 64].load(Ordering::Relaxed) & 1 << (chunk % 64) == 0 {
                    self.check_chunk(all, chunk)?;
                }
            }
        }
        Ok(&all[at..at + len])
    }

    #[cold]
    fn check_chunk(&self, all: &[u8], chunk: usize) -> Result<(), ManifestError> {
        let crcs_at = self.table[Section::ChunkCrcs as usize].0;
        let start = (chunk * CHUNK_BYTES).max(HEADER_BYTES);
        let end = ((chunk + 1) * CHUNK_BYTES).min(crcs_at);
        if crc32c(&all[start..end]) != u32_at(all, crcs_at + chunk * CRC_BYTES) {
            return Err(corrupt("a chunk's checksum"));
        }
        self.checked[chunk / 64].fetch_or(1 << (chunk % 64), Ordering::Relaxed);
        Ok(())
    }
}

/// Reads the section table. The sections must follow each other without a gap, from the header to the end of the file.
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
