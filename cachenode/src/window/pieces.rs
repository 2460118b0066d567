//! Blocks of large files that are read here and there: how much of a block each miss fetches, and the pieces that were
//! fetched.
//!
//! The first misses in a block fetch little more than was asked for, the later ones more and more, and finally the
//! whole block is fetched behind the piece. A reader of a few places thus fetches a few times the bytes that it asks
//! for, and one that covers the file pays a few GETs more for each block: once the misses of the dataset meet blocks
//! that were missed before, the second miss of a block is followed by all of it. A miss at the beginning of a file, a
//! larger one at the beginning of a block, one that goes on where the last one ended, and one that asks for a quarter
//! of the block are not those of a reader here and there: the whole block is fetched.
//!
//! The pieces answer reads near those that fetched them. The oldest leave first. Those of models are held here, too.
//!
//! Invariant: the piece of a miss is at least what was asked for, and at most a quarter of its block.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_dataset::{BlockIndex, BlockPart};

use crate::memory::Permit;

/// The sizes to which the pieces of a block are rounded, by how many misses there were before. Of 500 reads of 4 KiB in
/// 2 GB, a third meets a block in which there was another, so larger sizes must come late: with these, such a reader
/// fetches 9 times what it asks for (a test simulates it), and 60 times if they are 64 KiB, 256 KiB and 1 MiB. A GET
/// with a delay of 15 ms over a connection of 60 MB/s takes as long as 0.9 MB, so after five of them the rest of a
/// block costs no more than they did.
const SIZES: [u32; 5] = [16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Readers cover what they read if at least this many misses came before the present one in its block, in the mean of
/// the last ones. Of 500 reads of 512 blocks, the last ones have one before them.
const COVERS: f32 = 1.5;

/// The part that the latest miss has in that mean.
const LATEST: f32 = 1.0 / 64.0;

/// A request for one of this many parts of a block fetches all of it.
const LARGE_PART: u32 = 4;

/// A request for so much from the beginning of a block comes from a reader in order: the kernel reads ahead of it. At
/// the beginning of a file it does not do so yet.
const BEGINS_BYTES: u32 = 64 << 10;

/// The time for which a piece stays.
const STAYS: Duration = Duration::from_secs(10);

/// The most blocks whose misses are known. The oldest is forgotten, and begins with the smallest size again.
const BLOCKS_MOST: usize = 4096;

/// The misses of all blocks, and the pieces.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    misses: HashMap<BlockIndex, Misses>,
    misses_order: VecDeque<BlockIndex>,
    /// How many misses came before one in its block, in the mean of the last ones.
    before: f32,
    /// The oldest first.
    held: VecDeque<Piece>,
    bytes: u64,
}

/// The misses of a block.
#[derive(Clone, Copy, Debug, Default)]
struct Misses {
    count: usize,
    /// The ends of what the last one asked for and of its piece.
    asked_end: u32,
    piece_end: u32,
}

#[derive(Debug)]
struct Piece {
    part: BlockPart,
    bytes: Bytes,
    since: Instant,
    _memory: Permit,
}

/// The fetch for a miss of a reader here and there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Miss {
    /// The piece that its reader waits for.
    pub(crate) piece: BlockPart,
    /// The whole block is fetched behind it.
    pub(crate) then_block: bool,
}

impl Misses {
    /// The fetch for a miss of this part; `covers` if readers cover what they read. None: the whole block, for which
    /// the reader waits.
    fn next(&mut self, part: &BlockPart, covers: bool) -> Option<Miss> {
        let goes_on = self.count > 0 && (self.asked_end..=self.piece_end).contains(&part.start);
        let is_last = self.count == SIZES.len() || (covers && self.count > 0);
        let size = if is_last { SIZES[0] } else { SIZES[self.count] };
        let start = part.start / size * size;
        let asked_end = part.start + part.len;
        let piece_end = asked_end.next_multiple_of(size).min(part.block_len);
        let piece = BlockPart { start, len: piece_end - start, ..*part };
        let large = part.block_len / LARGE_PART;
        let begins = part.start == 0 && (part.file_offset == 0 || part.len >= BEGINS_BYTES);
        if goes_on || begins || part.len >= large || piece.len > large {
            return None;
        }
        *self = Self { count: self.count + 1, asked_end, piece_end };
        Some(Miss { piece, then_block: is_last })
    }
}

impl Pieces {
    /// The fetch for a miss of this part. None: the whole block, for which the reader waits.
    pub(super) fn next(&mut self, part: &BlockPart) -> Option<Miss> {
        let mut misses = self.misses.get(&part.block).copied().unwrap_or_default();
        self.before += (misses.count as f32 - self.before) * LATEST;
        let miss = misses.next(part, self.before >= COVERS);
        if miss.is_none_or(|miss| miss.then_block) {
            // If the block leaves again, its misses are counted from the first.
            if self.misses.remove(&part.block).is_some() {
                self.misses_order.retain(|&other| other != part.block);
            }
        } else if self.misses.insert(part.block, misses).is_none() {
            self.misses_order.push_back(part.block);
            if self.misses_order.len() > BLOCKS_MOST
                && let Some(oldest) = self.misses_order.pop_front()
            {
                self.misses.remove(&oldest);
            }
        }
        miss
    }

    /// True if a miss of this part would fetch a piece alone.
    pub(super) fn has_next(&self, part: &BlockPart) -> bool {
        let mut misses = self.misses.get(&part.block).copied().unwrap_or_default();
        misses.next(part, self.before >= COVERS).is_some_and(|miss| !miss.then_block)
    }

    /// The bytes of a part, if a piece has them.
    pub(super) fn get(&self, part: &BlockPart) -> Option<Bytes> {
        let end = part.start + part.len;
        let has_it = |piece: &&Piece| {
            let Piece { part: BlockPart { block, start, len, .. }, .. } = piece;
            *block == part.block && *start <= part.start && end <= start + len
        };
        let Piece { part: BlockPart { start, .. }, bytes, .. } = self.held.iter().find(has_it)?;
        Some(bytes.slice((part.start - start) as usize..(end - start) as usize))
    }

    /// Holds a piece, and drops the oldest until all have at most `most_bytes`.
    pub(super) fn hold(&mut self, part: BlockPart, bytes: Bytes, memory: Permit, most_bytes: u64) {
        self.bytes += bytes.len() as u64;
        self.held.push_back(Piece { part, bytes, since: Instant::now(), _memory: memory });
        while self.bytes > most_bytes && self.drop_oldest() {}
    }

    /// Drops the oldest piece. False: there is none.
    pub(super) fn drop_oldest(&mut self) -> bool {
        let oldest = self.held.pop_front();
        self.bytes -= oldest.as_ref().map_or(0, |piece| piece.bytes.len() as u64);
        oldest.is_some()
    }

    /// Drops the pieces that came a while ago.
    pub(super) fn drop_old(&mut self) {
        while self.held.front().is_some_and(|piece| piece.since.elapsed() >= STAYS) {
            self.drop_oldest();
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests;
