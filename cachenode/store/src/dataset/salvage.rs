//! Segments to which no slot points, though they may hold blocks: those of a disk that was away during the last run,
//! and all of them once the slot table and the index were lost with the first disk. The records say which blocks they
//! hold.
//!
//! Invariant: a record is taken only where one may begin: at the start of a segment, after another record, or after
//! space that was freed or never written. Data of a file that looks like a record is not taken for one: it would have
//! to contain the id of a snapshot that contains the file.

use larder_dataset::BlockIndex;
use tracing::info;

use super::shared::Shared;
use crate::buffer;
use crate::record::{self, ALIGN_BYTES, Header, RecordError};
use crate::segment::Segment;
use crate::slots::Place;

impl Shared {
    /// True if a segment without slots may hold blocks. Where the table was there all the time, such a segment holds
    /// what the last run was about to delete.
    pub(super) fn may_salvage(&self, segment: &Segment, is_table_new: bool) -> bool {
        segment.key.is_none() && (is_table_new || !self.space.is_beside_tables(segment))
    }

    /// Sets the slots of a segment's blocks that are cached nowhere else, and returns these blocks. Frees the space of
    /// the others. Blocks on the disk.
    pub(super) fn salvage(&self, segment: &Segment) -> Vec<(Place, BlockIndex, u32)> {
        let mut found = Vec::new();
        let end = segment.bytes().unwrap_or_default();
        buffer::with(ALIGN_BYTES, |page| {
            let mut offset = 0;
            while offset < end && !self.is_stopped() {
                let Some(next) = segment.next_written(offset).filter(|&next| next < end) else { return };
                offset = next;
                if !segment.read_head(offset, page).unwrap_or(false) {
                    return;
                }
                let Header { key, block, len } = match record::decode_header(page) {
                    Ok(header) => header,
                    Err(RecordError::Absent) => {
                        offset += ALIGN_BYTES as u64;
                        continue;
                    }
                    // Where the next record begins is unknown.
                    Err(RecordError::NotARecord | RecordError::Version { .. } | RecordError::Damaged) => return,
                };
                let place = Place { segment: segment.number, page: (offset / ALIGN_BYTES as u64) as u32 };
                let extent = record::extent_bytes(len) as u64;
                offset += extent;
                let is_other_len = || self.config.block_lens.len_of(block).is_some_and(|known| known != len);
                if key != self.key || block.0 >= self.slots.blocks() || is_other_len() {
                    continue;
                }
                if self.slots.get(block).is_some() {
                    if segment.can_free() {
                        let _ = segment.free(place.offset(), extent);
                    }
                } else if self.slots.set(block, Some(place)).is_ok() {
                    self.base.index.put_waiting(self.number, block, place);
                    found.push((place, block, len));
                }
            }
        });
        info!(
            dataset = self.config.name, blocks = found.len(), segment = segment.number, dir = ?segment.disk.dir(),
            "blocks found again on a disk"
        );
        found
    }
}
