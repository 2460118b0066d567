//! The window: blocks that the store does not keep, held in memory until each of their bytes was read. Without it, a
//! file read in several pieces would be fetched once for each piece. (The kernel's read-ahead requests the pieces in
//! any order, and requests a piece twice if memory is short. So neither the end of a block nor a count of bytes shows
//! that its reader is done.)
//!
//! A block's room is reserved before it is fetched. If there is none, because more readers are in the middle of a block
//! than the window can hold, the block is read *in pieces*: each piece is fetched when it is requested, and nothing is
//! held. So many readers cost more GETs, but no more bytes and no more memory. To make room, blocks are dropped that
//! were read, and then those that nobody has read for [`STALE`]; what is left of these is read in pieces, too.
//!
//! A block of a large file that is read here and there is fetched in pieces, too, of which each is larger than the one
//! before. They are held for a while (`pieces`).
//!
//! A block that was read stays for [`READ_STAYS`]: the kernel may have lost a page of it before the reader had it, and
//! requests that page again. A request for the whole block is a new reading, and is not answered from it. For
//! [`LOST_AFTER`] a page of it that is requested again is fetched without the rest.
//!
//! Invariants: the window never exceeds its capacity, nor its part of the memory of the process, except for a single
//! block that is larger; a block is not held and read in pieces at the same time.

mod pieces;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_dataset::{BlockIndex, BlockPart};

use crate::memory::{Account, Permit};

pub(crate) use pieces::Miss;
use pieces::Pieces;

/// A partly read block gives way to others when it was not read for this long.
const STALE: Duration = Duration::from_secs(10);

/// How long a block stays after it was read.
const READ_STAYS: Duration = Duration::from_millis(250);

/// How long after a block was read pages of it may be found to be lost, and the most bytes of a request for them.
const LOST_AFTER: Duration = Duration::from_secs(10);
const LOST_BYTES_MOST: u32 = 64 << 10;

/// The part of the capacity that blocks may fill which were read, that pieces may fill, and that blocks may fill which
/// are fetched ahead of readers.
const SHARE_READ: u64 = 8;
const SHARE_PIECES: u64 = 8;
const SHARE_AHEAD: u64 = 2;

/// The most blocks that are known to have been read.
const WERE_READ_MOST: usize = 256;

/// How many of the oldest blocks are looked at for a stale one.
const LOOKED_AT: usize = 64;

/// The most blocks that are known to have been dropped unread.
const DROPPED_MOST: usize = 64;

/// The most blocks that are known to be read in pieces. The oldest is forgotten, and fetched whole if it is read again.
const IN_PIECES_MOST: usize = 4096;

/// A bounded set of blocks.
#[derive(Debug)]
pub(crate) struct Window {
    capacity_bytes: u64,
    /// Blocks may be read in pieces: there is no checksum of a whole block to compare.
    allows_pieces: bool,
    stale: Duration,
    /// Of the process. Blocks are dropped if there is none, as if they were more than the capacity.
    memory: Account,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Blocks of which bytes are to be read.
    unread: Blocks,
    /// Blocks that were read.
    read: Blocks,
    /// Room that is reserved for blocks in flight.
    reserved_bytes: u64,
    /// Blocks that are read in pieces, and what was read of them.
    in_pieces: HashMap<BlockIndex, ReadRanges>,
    in_pieces_order: VecDeque<BlockIndex>,
    /// When blocks were read, the oldest first.
    were_read: VecDeque<(BlockIndex, Instant)>,
    /// Pieces of blocks that are read here and there.
    pieces: Pieces,
    /// Blocks of which nothing was read before they were dropped, since somebody asked last.
    dropped: Vec<BlockIndex>,
}

/// Blocks in memory, the oldest first.
#[derive(Debug, Default)]
struct Blocks {
    by_index: HashMap<BlockIndex, Held>,
    order: VecDeque<BlockIndex>,
    bytes: u64,
}

#[derive(Debug)]
struct Held {
    bytes: Bytes,
    read: ReadRanges,
    /// When it was last read, or came.
    used: Instant,
    _memory: Option<Permit>,
}

impl Held {
    fn part(&self, part: &BlockPart) -> Bytes {
        self.bytes.slice(part.start as usize..(part.start + part.len) as usize)
    }
}

/// The ranges of a block that were read, sorted; no two of them touch.
#[derive(Debug, Default)]
pub(crate) struct ReadRanges(Vec<Range<u32>>);

/// Room for a block in flight. It goes back when this is dropped.
#[derive(Debug)]
pub(crate) struct WindowRoom {
    window: Arc<Window>,
    block: BlockIndex,
    bytes: u64,
    memory: Option<Permit>,
}

impl WindowRoom {
    /// Puts the block into its room.
    pub(crate) fn fill(mut self, bytes: Bytes) {
        let window = Arc::clone(&self.window);
        let mut inner = window.lock();
        inner.reserved_bytes -= std::mem::take(&mut self.bytes);
        inner.hold(self.block, bytes, self.memory.take());
    }
}

impl Drop for WindowRoom {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.window.lock().reserved_bytes -= self.bytes;
        }
    }
}

impl Window {
    /// An empty window. `allows_pieces`: parts of blocks can be used without the rest.
    pub(crate) fn new(capacity_bytes: u64, allows_pieces: bool, memory: Account) -> Self {
        Self { capacity_bytes, allows_pieces, stale: STALE, memory, inner: Mutex::default() }
    }

    /// The bytes of this part, if they are here. Marks nothing as read.
    pub(crate) fn get(&self, part: &BlockPart) -> Option<Bytes> {
        let mut inner = self.lock();
        if let Some(held) = inner.unread.by_index.get_mut(&part.block) {
            held.used = Instant::now();
            return Some(held.part(part));
        }
        if part.len == part.block_len {
            return None;
        }
        inner.forget_read();
        inner.read.by_index.get(&part.block).map(|held| held.part(part)).or_else(|| inner.pieces.get(part))
    }

    /// The bytes of this part for a peer, if bytes of its block are to be read, or a piece has them.
    pub(crate) fn get_for_peer(&self, part: &BlockPart) -> Option<Bytes> {
        let inner = self.lock();
        inner.unread.by_index.get(&part.block).map(|held| held.part(part)).or_else(|| inner.pieces.get(part))
    }

    /// The block, if bytes of it are to be read.
    pub(crate) fn unread(&self, block: BlockIndex) -> Option<Bytes> {
        self.lock().unread.by_index.get(&block).map(|held| held.bytes.clone())
    }

    /// True if bytes of the block are to be read.
    pub(crate) fn contains(&self, block: BlockIndex) -> bool {
        self.lock().unread.by_index.contains_key(&block)
    }

    /// True if the block is read in pieces.
    pub(crate) fn is_in_pieces(&self, block: BlockIndex) -> bool {
        self.lock().in_pieces.contains_key(&block)
    }

    /// True if a part is to be fetched without the rest of its block.
    pub(crate) fn is_piece(&self, part: &BlockPart) -> bool {
        let inner = self.lock();
        let may_be_lost = self.allows_pieces && part.start > 0 && part.len <= LOST_BYTES_MOST;
        let is_recent = |&&(block, when): &&(BlockIndex, Instant)| block == part.block && when.elapsed() < LOST_AFTER;
        inner.in_pieces.contains_key(&part.block)
            || (may_be_lost && inner.were_read.iter().any(|read| is_recent(&read)))
    }

    /// The fetch for a part of a block of a large file that is nowhere here. None: the whole block.
    pub(crate) fn next_piece(&self, part: &BlockPart) -> Option<Miss> {
        if self.allows_pieces { self.lock().pieces.next(part) } else { None }
    }

    /// True if that is a piece now. Notes nothing.
    pub(crate) fn fetches_piece(&self, part: &BlockPart) -> bool {
        self.allows_pieces && self.lock().pieces.has_next(part)
    }

    /// Holds a piece for a while, if there is memory. Older pieces make room for it, and blocks do not.
    pub(crate) fn hold_piece(&self, piece: BlockPart, bytes: Bytes) {
        let len = u64::from(piece.len);
        let mut inner = self.lock();
        while !self.fits(&inner, len) && inner.pieces.drop_oldest() {}
        if self.fits(&inner, len)
            && let Some(memory) = self.memory.try_acquire(kib(len))
        {
            inner.pieces.hold(piece, bytes, memory, self.capacity_bytes / SHARE_PIECES);
        }
    }

    /// The blocks of which nothing was read before they were dropped, since the last call.
    pub(crate) fn take_dropped(&self) -> Vec<BlockIndex> {
        std::mem::take(&mut self.lock().dropped)
    }

    /// True if there is room for no more of the blocks that are fetched ahead of readers.
    pub(crate) fn is_full_of_ahead(&self, bytes: u32) -> bool {
        let inner = self.lock();
        inner.unread.bytes + inner.reserved_bytes + u64::from(bytes) > self.capacity_bytes / SHARE_AHEAD
    }

    /// Marks a part as read. Its reader has the bytes.
    pub(crate) fn mark_read(&self, part: &BlockPart) {
        let range = part.start..part.start + part.len;
        let mut inner = self.lock();
        if inner.unread.by_index.get_mut(&part.block).is_some_and(|held| held.read.add(range.clone(), part.block_len)) {
            inner.was_read(part.block, self.capacity_bytes / SHARE_READ);
        }
        if inner.in_pieces.get_mut(&part.block).is_some_and(|read| read.add(range, part.block_len)) {
            inner.in_pieces.remove(&part.block);
            inner.in_pieces_order.retain(|&other| other != part.block);
            inner.note_read(part.block);
        }
    }

    /// Room for a block that is about to be fetched. None: there is none, and the block is read in pieces from now on.
    pub(crate) fn reserve(self: &Arc<Self>, part: &BlockPart) -> Option<WindowRoom> {
        let (block, bytes) = (part.block, u64::from(part.block_len));
        let mut inner = self.lock();
        let Some(memory) = self.make_room(&mut inner, bytes) else {
            inner.read_in_pieces(block, ReadRanges::default());
            return None;
        };
        inner.reserved_bytes += bytes;
        Some(WindowRoom { window: Arc::clone(self), block, bytes, memory: Some(memory) })
    }

    /// From now on the block is read in pieces.
    pub(crate) fn read_in_pieces(&self, block: BlockIndex) {
        self.lock().read_in_pieces(block, ReadRanges::default());
    }

    /// Adds a block for which no room was reserved. The oldest make room.
    pub(crate) fn insert(&self, block: BlockIndex, bytes: Bytes) {
        let mut inner = self.lock();
        inner.unread.remove(block);
        let len = bytes.len() as u64;
        let memory = loop {
            if let Some(memory) = self.make_room(&mut inner, len) {
                break memory;
            }
            // The rest of the window is reserved. Its reader needs the block, which is the only one without room.
            let Some(&oldest) = inner.unread.order.front() else { break self.memory.take(kib(len)) };
            inner.leave(oldest, self.allows_pieces);
        };
        inner.hold(block, bytes, Some(memory));
    }

    /// Takes a block all of which was read elsewhere. It stays for late requests of its parts, if there is room.
    pub(crate) fn insert_read(&self, block: BlockIndex, bytes: Bytes, memory: Permit) {
        let mut inner = self.lock();
        if inner.unread.by_index.contains_key(&block) {
            return;
        }
        inner.read.remove(block);
        inner.note_read(block);
        let len = bytes.len() as u64;
        while !self.fits(&inner, len)
            && let Some(&oldest) = inner.read.order.front()
        {
            inner.read.remove(oldest);
        }
        if self.fits(&inner, len) {
            let held = Held { bytes, read: ReadRanges::default(), used: Instant::now(), _memory: Some(memory) };
            inner.read.push(block, held);
        }
        inner.limit_read(self.capacity_bytes / SHARE_READ);
    }

    /// Bytes held now.
    pub(crate) fn bytes(&self) -> u64 {
        let mut inner = self.lock();
        inner.forget_read();
        inner.unread.bytes + inner.read.bytes + inner.pieces.bytes()
    }

    /// True if this many bytes more are no more than the capacity.
    fn fits(&self, inner: &Inner, bytes: u64) -> bool {
        inner.bytes() + bytes <= self.capacity_bytes
    }

    /// Drops blocks that were read or are stale until this many bytes fit. Returns the memory for them; `None` if they
    /// do not fit.
    fn make_room(&self, inner: &mut Inner, bytes: u64) -> Option<Permit> {
        let now = Instant::now();
        loop {
            let fits = inner.bytes() == 0 || self.fits(inner, bytes);
            if let Some(memory) = fits.then(|| self.memory.try_acquire(kib(bytes))).flatten() {
                return Some(memory);
            }
            // Pieces, and blocks that were read, stay only for late requests of their parts, so they go first.
            if inner.pieces.drop_oldest() {
                continue;
            }
            if let Some(&oldest) = inner.read.order.front() {
                inner.read.remove(oldest);
                continue;
            }
            let is_stale = |block: &&BlockIndex| {
                inner.unread.by_index.get(block).is_some_and(|held| now.duration_since(held.used) >= self.stale)
            };
            let stale = *inner.unread.order.iter().take(LOOKED_AT).find(is_stale)?;
            inner.leave(stale, self.allows_pieces);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code under this lock can panic halfway, so the state behind a poisoned lock is consistent.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory of a block, in KiB.
fn kib(bytes: u64) -> u32 {
    (bytes >> 10) as u32 + 1
}

impl Inner {
    fn bytes(&self) -> u64 {
        self.unread.bytes + self.read.bytes + self.pieces.bytes() + self.reserved_bytes
    }

    fn hold(&mut self, block: BlockIndex, bytes: Bytes, memory: Option<Permit>) {
        self.read.remove(block);
        self.unread.remove(block);
        let read = self.in_pieces.remove(&block).unwrap_or_default();
        self.in_pieces_order.retain(|&other| other != block);
        self.unread.push(block, Held { bytes, read, used: Instant::now(), _memory: memory });
    }

    /// All of a block was read.
    fn was_read(&mut self, block: BlockIndex, most_bytes: u64) {
        if let Some(held) = self.unread.remove(block) {
            self.read.push(block, Held { used: Instant::now(), ..held });
            self.note_read(block);
        }
        self.limit_read(most_bytes);
    }

    /// Drops the oldest of the blocks that were read while they have more bytes.
    fn limit_read(&mut self, most_bytes: u64) {
        while self.read.bytes > most_bytes
            && let Some(&oldest) = self.read.order.front()
        {
            self.read.remove(oldest);
        }
    }

    fn note_read(&mut self, block: BlockIndex) {
        self.were_read.push_back((block, Instant::now()));
        if self.were_read.len() > WERE_READ_MOST {
            self.were_read.pop_front();
        }
    }

    /// Forgets the blocks that were read a while ago, and old pieces.
    fn forget_read(&mut self) {
        self.pieces.drop_old();
        while let Some(&oldest) = self.read.order.front()
            && self.read.by_index.get(&oldest).is_none_or(|held| held.used.elapsed() >= READ_STAYS)
        {
            self.read.remove(oldest);
        }
    }

    /// Drops a block of which bytes are to be read.
    fn leave(&mut self, block: BlockIndex, allows_pieces: bool) {
        let Some(held) = self.unread.remove(block) else { return };
        if held.read.0.is_empty() && self.dropped.len() < DROPPED_MOST {
            self.dropped.push(block);
        }
        if allows_pieces {
            self.read_in_pieces(block, held.read);
        }
    }

    fn read_in_pieces(&mut self, block: BlockIndex, read: ReadRanges) {
        if self.in_pieces.contains_key(&block) {
            return;
        }
        self.in_pieces.insert(block, read);
        self.in_pieces_order.push_back(block);
        if self.in_pieces_order.len() > IN_PIECES_MOST
            && let Some(oldest) = self.in_pieces_order.pop_front()
        {
            self.in_pieces.remove(&oldest);
        }
    }
}

impl Blocks {
    fn push(&mut self, block: BlockIndex, held: Held) {
        self.bytes += held.bytes.len() as u64;
        self.order.push_back(block);
        self.by_index.insert(block, held);
    }

    fn remove(&mut self, block: BlockIndex) -> Option<Held> {
        let held = self.by_index.remove(&block)?;
        self.order.retain(|&other| other != block);
        self.bytes -= held.bytes.len() as u64;
        Some(held)
    }
}

impl ReadRanges {
    /// True if nothing was read.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if all of a range was read.
    pub(crate) fn covers(&self, range: &Range<u32>) -> bool {
        self.0.iter().any(|read| read.start <= range.start && range.end <= read.end)
    }

    /// Adds a range; true if the whole block is now read.
    pub(crate) fn add(&mut self, mut range: Range<u32>, block_len: u32) -> bool {
        self.0.retain(|other| {
            let apart = other.end < range.start || range.end < other.start;
            if !apart {
                range = range.start.min(other.start)..range.end.max(other.end);
            }
            apart
        });
        let at = self.0.partition_point(|other| other.start < range.start);
        self.0.insert(at, range);
        self.0[0] == (0..block_len)
    }
}

#[cfg(test)]
mod tests;
