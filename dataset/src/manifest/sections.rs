//! Access to a manifest's sections. Checks each chunk's CRC on first touch, and again after bytes were lost.
//!
//! Invariant: no byte of the body leaves this module before its chunk's CRC was found right since the last loss. No
//! offset or length, however wrong, reaches outside its section. [`Sections::stable`] returns only values that were
//! read from such bytes.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::bytes::ManifestBytes;
use super::error::{ManifestError, corrupt};
use super::layout::{self, CHUNK_BYTES, CRC_BYTES, HEADER_BYTES, Section, StringRef, header, u32_at, u64_at};
use crate::checksum::crc32c;

/// The bytes of a manifest whose header and chunk CRCs are valid.
#[derive(Debug)]
pub(super) struct Sections<B> {
    bytes: B,
    table: SectionTable,
    /// One word for each [`CHUNKS_PER_WORD`] chunks. The lower half has one bit per chunk, which is set once its CRC
    /// was found right. The upper half is the number of losses at that time. A word with an earlier number of losses is
    /// out of date, and its bits do not count.
    checked: Box<[AtomicU64]>,
}

const CHUNKS_PER_WORD: usize = 32;

/// The error text for bytes that were lost.
const UNREADABLE: &str = "unreadable on its disk";

impl<B: ManifestBytes> Sections<B> {
    /// Opens a manifest: checks the header, the section table, and the CRC of the chunk CRCs.
    pub(super) fn open(bytes: B) -> Result<Self, ManifestError> {
        let all = bytes.as_ref();
        let (head, table) = checked_header(all, all.len() as u64)?;
        let (crcs_at, crcs_len) = table[Section::ChunkCrcs as usize];
        let chunks = crcs_at.div_ceil(CHUNK_BYTES);
        if crc32c(&all[crcs_at..crcs_at + crcs_len]) != u32_at(head, header::CHUNKS_CRC) {
            return Err(corrupt("chunk checksums"));
        }
        if bytes.losses() > 0 {
            return Err(corrupt(UNREADABLE));
        }
        let checked = (0..chunks.div_ceil(CHUNKS_PER_WORD)).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { table, checked, bytes })
    }

    /// The owner of the bytes.
    pub(super) fn holder(&self) -> &B {
        &self.bytes
    }

    /// The header.
    pub(super) fn header(&self) -> &[u8] {
        &self.bytes.as_ref()[..HEADER_BYTES]
    }

    /// The length of the whole manifest in bytes.
    pub(super) fn len_bytes(&self) -> u64 {
        self.bytes.as_ref().len() as u64
    }

    /// The section table.
    pub(super) fn table(&self) -> &SectionTable {
        &self.table
    }

    /// The length of a section in bytes.
    pub(super) fn section_bytes(&self, section: Section) -> usize {
        self.table[section as usize].1
    }

    /// A row of a section. Each of its rows has `row_bytes` bytes.
    pub(super) fn row(&self, section: Section, row: u32, row_bytes: usize) -> Result<&[u8], ManifestError> {
        self.get(section, row as usize * row_bytes, row_bytes)
    }

    /// The name or key of a folder, file or pack, to which the first field of its row refers.
    pub(super) fn name(&self, section: Section, row: u32, row_bytes: usize) -> Result<&[u8], ManifestError> {
        self.string(StringRef(u64_at(self.row(section, row, row_bytes)?, 0)))
    }

    /// A string in the heap.
    pub(super) fn string(&self, string: StringRef) -> Result<&[u8], ManifestError> {
        let offset = usize::try_from(string.offset()).map_err(|_| corrupt("string"))?;
        self.get(Section::Heap, offset, string.len() as usize)
    }

    /// `len` bytes of a section, starting at `offset`.
    pub(super) fn get(&self, section: Section, offset: usize, len: usize) -> Result<&[u8], ManifestError> {
        let (start, section_len) = self.table[section as usize];
        if offset.checked_add(len).is_none_or(|end| end > section_len) {
            return Err(corrupt("row beyond its section"));
        }
        self.range(start + offset, len)
    }

    /// The sections that describe the snapshot's contents: all sections before the metadata. Checks the CRC of every
    /// chunk.
    pub(super) fn contents(&self) -> Result<&[u8], ManifestError> {
        let body = self.table[Section::ChunkCrcs as usize].0;
        self.range(HEADER_BYTES, body - HEADER_BYTES)?;
        Ok(&self.bytes.as_ref()[HEADER_BYTES..self.table[Section::Meta as usize].0])
    }

    /// Runs `read`, which reads bytes of the manifest. Errors: `Corrupt` too if bytes were lost while it ran, since
    /// `read` may have seen arbitrary values in their place.
    pub(super) fn stable<T, E: From<ManifestError>>(&self, read: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let losses = self.bytes.losses();
        let found = read()?;
        // Orders the loss counter's load after all loads of `read`.
        fence(Ordering::Acquire);
        if self.bytes.losses() == losses { Ok(found) } else { Err(corrupt(UNREADABLE).into()) }
    }

    /// Hints that a part of a section will be read soon. Ignores a part beyond the section's end.
    pub(super) fn will_read(&self, section: Section, part: Range<usize>) {
        let (start, len) = self.table[section as usize];
        let end = part.end.min(len);
        if part.start < end {
            self.bytes.will_read(start + part.start..start + end);
        }
    }

    /// Bytes of the body. Checks the CRC of each chunk that they touch.
    fn range(&self, at: usize, len: usize) -> Result<&[u8], ManifestError> {
        let all = self.bytes.as_ref();
        if len > 0 {
            let losses = self.bytes.losses();
            for chunk in at / CHUNK_BYTES..=(at + len - 1) / CHUNK_BYTES {
                // Relaxed is sufficient: a chunk that is checked twice does no harm.
                let word = self.checked[chunk / CHUNKS_PER_WORD].load(Ordering::Relaxed);
                if word >> 32 != u64::from(losses) || word & 1 << (chunk % CHUNKS_PER_WORD) == 0 {
                    self.check_chunk(all, chunk, losses)?;
                }
            }
        }
        Ok(&all[at..at + len])
    }

    #[cold]
    fn check_chunk(&self, all: &[u8], chunk: usize, losses: u32) -> Result<(), ManifestError> {
        let crcs_at = self.table[Section::ChunkCrcs as usize].0;
        let bytes = (chunk * CHUNK_BYTES).max(HEADER_BYTES)..((chunk + 1) * CHUNK_BYTES).min(crcs_at);
        let crc_at = crcs_at + chunk * CRC_BYTES;
        let is_right = || crc32c(&all[bytes.clone()]) == u32_at(all, crc_at);
        let is_back = || {
            let lost = self.bytes.losses() > 0;
            lost && self.bytes.read_again(&[bytes.clone(), crc_at..crc_at + CRC_BYTES]) && is_right()
        };
        if !is_right() && !is_back() {
            return Err(corrupt(if self.bytes.losses() > 0 { UNREADABLE } else { "a chunk's checksum" }));
        }
        let (checked_after, bit) = (u64::from(losses), 1 << (chunk % CHUNKS_PER_WORD));
        // If bytes were lost during this check, another thread may have recorded a newer check. This one is then
        // dropped.
        let _ =
            self.checked[chunk / CHUNKS_PER_WORD].fetch_update(
                Ordering::Relaxed,
                Ordering::Relaxed,
                |word| match (word >> 32).cmp(&checked_after) {
                    std::cmp::Ordering::Equal => Some(word | bit),
                    std::cmp::Ordering::Less => Some(checked_after << 32 | bit),
                    std::cmp::Ordering::Greater => None,
                },
            );
        Ok(())
    }
}

/// The offset and length of each section.
pub(super) type SectionTable = [(usize, usize); Section::COUNT];

/// Returns the header and the section table of a manifest of `len` bytes that begins with `start`. Errors: the header
/// is damaged, or its sections are shorter or longer than the manifest.
pub(super) fn checked_header(start: &[u8], len: u64) -> Result<(&[u8], SectionTable), ManifestError> {
    let Some(head) = start.get(..HEADER_BYTES) else {
        return Err(if start.starts_with(&layout::MAGIC) {
            corrupt("shorter than its header")
        } else {
            ManifestError::NotAManifest
        });
    };
    if head[..8] != layout::MAGIC {
        return Err(ManifestError::NotAManifest);
    }
    if !(layout::VERSION_PLAIN..=layout::VERSION_LINKS).contains(&head[header::VERSION]) {
        return Err(ManifestError::Version { found: head[header::VERSION], supported: layout::VERSION_LINKS });
    }
    if crc32c(&head[..header::CRC]) != u32_at(head, header::CRC) {
        return Err(corrupt("header"));
    }
    let table = read_section_table(head, len)?;
    let (crcs_at, crcs_len) = table[Section::ChunkCrcs as usize];
    if crcs_len != crcs_at.div_ceil(CHUNK_BYTES) * CRC_BYTES {
        return Err(corrupt("section length"));
    }
    Ok((head, table))
}

/// Reads the section table. The sections must be adjacent, from the header to the end of the file. A section that the
/// version does not have is empty.
fn read_section_table(head: &[u8], file_len: u64) -> Result<SectionTable, ManifestError> {
    let mut sections = [(0, 0); Section::COUNT];
    let mut at = HEADER_BYTES as u64;
    for (nth, section) in Section::of_version(head[header::VERSION]).enumerate() {
        let offset = u64_at(head, header::SECTIONS + nth * 16);
        let len = u64_at(head, header::SECTIONS + nth * 16 + 8);
        if offset != at {
            return Err(corrupt("section table"));
        }
        at = at.checked_add(len).filter(|&end| end <= file_len).ok_or(corrupt("cut off"))?;
        sections[section as usize] = (offset as usize, len as usize);
    }
    if at == file_len { Ok(sections) } else { Err(corrupt("longer than its sections")) }
}
