//! Access to a manifest's sections, which checks each chunk's CRC on first touch, and again after bytes were lost.
//!
//! Invariant: no byte of the body leaves this module before the CRC of its chunk was found right since the last loss,
//! and no offset or length, however wrong, reaches outside the section it names. [`Sections::stable`] returns only
//! values that were read from such bytes.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::bytes::ManifestBytes;
use super::error::{ManifestError, corrupt};
use super::layout::{self, CHUNK_BYTES, CRC_BYTES, HEADER_BYTES, Section, StringRef, header, u32_at, u64_at};
use crate::checksum::crc32c;

/// The bytes of a manifest whose header and chunk CRCs are sound.
#[derive(Debug)]
pub(super) struct Sections<B> {
    bytes: B,
    /// Offset and length of each section.
    table: [(usize, usize); 7],
    /// A word for each [`CHUNKS_PER_WORD`] chunks: in the lower half a bit for each, set once its CRC was found right;
    /// in the upper half how often bytes had been lost before that. A word of an earlier loss says nothing.
    checked: Box<[AtomicU64]>,
}

const CHUNKS_PER_WORD: usize = 32;

/// The error for bytes that were lost.
const UNREADABLE: &str = "unreadable on its disk";

impl<B: ManifestBytes> Sections<B> {
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
        if bytes.losses() > 0 {
            return Err(corrupt(UNREADABLE));
        }
        let checked = (0..chunks.div_ceil(CHUNKS_PER_WORD)).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { table, checked, bytes })
    }

    /// The holder of the bytes.
    pub(super) fn holder(&self) -> &B {
        &self.bytes
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

    /// Runs `read`, which reads bytes of the manifest. Errors: also `Corrupt` if bytes were lost meanwhile, since
    /// `read` may have seen anything in their place.
    pub(super) fn stable<T, E: From<ManifestError>>(&self, read: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let losses = self.bytes.losses();
        let found = read()?;
        // After all loads of `read`.
        fence(Ordering::Acquire);
        if self.bytes.losses() == losses { Ok(found) } else { Err(corrupt(UNREADABLE).into()) }
    }

    /// Announces that part of a section, as far as it reaches, will be read soon.
    pub(super) fn will_read(&self, section: Section, part: Range<usize>) {
        let (start, len) = self.table[section as usize];
        let end = part.end.min(len);
        if part.start < end {
            self.bytes.will_read(start + part.start..start + end);
        }
    }

    /// Bytes of the body, once the CRC of each chunk they touch was found right.
    fn range(&self, at: usize, len: usize) -> Result<&[u8], ManifestError> {
        let all = self.bytes.as_ref();
        if len > 0 {
            let losses = self.bytes.losses();
            for chunk in at / CHUNK_BYTES..=(at + len - 1) / CHUNK_BYTES {
                // Relaxed is enough: checking a chunk twice does no harm.
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
        // If bytes were lost meanwhile, others may have checked after that already, and this check says nothing.
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
