//! The streams that are read ahead of, and how far ahead of each. Pure: what happens to their blocks drives it.
//!
//! The depth of a stream is the number of bytes that are fetched ahead of its reader. It begins at [`Depth::LEAST`]. It
//! doubles when a read waits for a block of the stream: had it been requested sooner, it would be here. So it stays
//! where bandwidth × delay is in flight, unless there is less memory, or the origin bears fewer requests. A stream
//! never has more ahead of it than twice what it has read, and the least, so one that stops wastes no more than that.
//! The depth is halved when blocks were dropped unread, or when the reader has left most of them out. If it was the
//! least, the stream ends.
//!
//! A stream in a file moves with each block that is read. One across files moves when its reader comes to the middle of
//! what it brought, if half of those before the middle were read: a shuffled reader, who meets such a block by chance,
//! seldom has (see `ahead`).
//!
//! Invariants: there are at most [`STREAMS`] streams, and a new one replaces the oldest. A stream has at most
//! [`AHEAD_BLOCKS`] blocks ahead of the block at which it moved last, and none beyond its limit. At most one caller
//! extends a stream: two would fetch a block twice that is read and gone between their looks.

use larder_dataset::{BLOCK_BYTES, BlockIndex};

/// The most streams at a time: places in files, or runs of files.
pub(crate) const STREAMS: usize = 64;

/// The most blocks that are ahead of a stream. At most 63, since a bit of [`Stream::read`] stands for each.
pub(crate) const AHEAD_BLOCKS: usize = 32;

/// The limit of a stream across files.
pub(crate) const NO_LIMIT: BlockIndex = BlockIndex(u32::MAX);

/// Blocks that the reader of a stream in a file may leave out. Readers that share a file take its blocks in no exact
/// order.
const LEFT_OUT_MOST: u32 = 2;

/// The bytes that are fetched ahead of a reader at first, and at most: as much as may wait for the disk or for the reader
/// of a dataset.
pub(crate) const AHEAD_BYTES_LEAST: u64 = 12 << 20;
pub(crate) const AHEAD_BYTES_MOST: u64 = 64 << 20;

/// How many bytes ahead of its reader a stream fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Depth(u64);

impl Depth {
    /// The depth of a stream that begins.
    pub(crate) const LEAST: Self = Self(AHEAD_BYTES_LEAST);

    const MOST: Self = Self(AHEAD_BYTES_MOST);

    pub(crate) fn bytes(self) -> u64 {
        self.0
    }

    /// A read waited for a block. `read_bytes`: what the stream has read so far.
    fn waited(self, read_bytes: u64) -> Self {
        let earned = Self(Self::LEAST.0 + 2 * read_bytes);
        Self(2 * self.0).min(Self::MOST).min(earned).max(self)
    }

    /// Half the depth, because blocks that it brought were not read. None: it was the least.
    fn unread(self) -> Option<Self> {
        (self > Self::LEAST).then(|| Self(self.0 / 2).max(Self::LEAST))
    }
}

/// The blocks to fetch ahead of a stream now: those after `block`, up to its depth and its limit. Those up to `last`
/// were fetched before; they may have been read and dropped again, and are not fetched again. To be reported to
/// [`Streams::extended`], or to [`Streams::end`]: the stream does not go on before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    /// The number of the stream.
    pub(crate) stream: u64,
    pub(crate) block: BlockIndex,
    pub(crate) last: BlockIndex,
    pub(crate) limit: BlockIndex,
    pub(crate) depth: Depth,
}

/// All streams.
#[derive(Debug)]
pub(super) struct Streams {
    slots: [Option<Stream>; STREAMS],
    next_slot: usize,
    begun: u64,
}

/// A stream. Blocks are their numbers in the snapshot.
#[derive(Clone, Copy, Debug)]
struct Stream {
    number: u64,
    /// The block at which it began.
    began: u32,
    /// The first and the last of those that are ahead. None is: `last` is the block before `first`.
    first: u32,
    last: u32,
    /// No block after this one is fetched.
    limit: BlockIndex,
    /// One bit for each block ahead that was read, `first` in the lowest. Used across files.
    read: u64,
    depth: Depth,
    /// The last block for which a read waited.
    waited: u32,
    /// The last block that was not here when its turn came.
    fetched: u32,
    /// Somebody extends the stream, and whether and where it has moved meanwhile.
    is_extended: bool,
    moved: Option<BlockIndex>,
}

impl Stream {
    fn begin(number: u64, BlockIndex(block): BlockIndex, limit: BlockIndex) -> Self {
        Self {
            number,
            began: block,
            first: block + 1,
            last: block,
            limit,
            read: 0,
            depth: Depth::LEAST,
            waited: block,
            fetched: block,
            is_extended: false,
            moved: None,
        }
    }

    fn is_across_files(&self) -> bool {
        self.limit == NO_LIMIT
    }

    fn has_ahead(&self, block: u32) -> bool {
        self.first <= block && block <= self.last
    }

    /// True if a read of this block is one of the stream's: it is ahead, or beside what is.
    fn is_at(&self, block: u32) -> bool {
        self.first <= block + 1 && block <= self.last.saturating_add(1) && block <= self.limit.0
    }

    /// The blocks to fetch now that the reader is at this one. None: whoever extends the stream does it.
    fn extend(&mut self, block: BlockIndex) -> Option<Next> {
        if self.is_extended {
            self.moved = Some(block);
            return None;
        }
        self.is_extended = true;
        let Self { number, last, limit, depth, .. } = *self;
        Some(Next { stream: number, block, last: BlockIndex(last), limit, depth })
    }

    /// A block ahead was read. True if the stream moves, and is to be extended; None if it ends.
    fn was_read(&mut self, block: u32) -> Option<bool> {
        let at = block - self.first;
        let left_out = if self.is_across_files() {
            let read_before = (self.read & bits_below(at)).count_ones();
            self.read |= bits_below(at + 1) & !bits_below(at);
            let middle = (self.last - self.first).div_ceil(2);
            if at != middle {
                return Some(false);
            }
            2 * read_before < middle
        } else {
            at > LEFT_OUT_MOST
        };
        if left_out {
            self.depth = self.depth.unread()?;
        }
        self.move_to(block);
        (block < self.limit.0).then_some(true)
    }

    /// A read waits for a block. True if the stream is to be extended.
    fn was_waited_for(&mut self, block: u32) -> bool {
        let before = (self.depth, self.first);
        if block > self.waited {
            self.waited = block;
            let read_blocks = u64::from(block - self.began) + 1;
            self.depth = self.depth.waited(read_blocks * BLOCK_BYTES);
        }
        // Across files it moves in the middle alone.
        if self.is_across_files() {
            return false;
        }
        self.move_to(block);
        before != (self.depth, self.first)
    }

    /// The reader is at this block.
    fn move_to(&mut self, block: u32) {
        if block >= self.first {
            self.read = self.read.checked_shr(block + 1 - self.first).unwrap_or_default();
            self.first = block + 1;
            self.last = self.last.max(block);
        }
    }
}

/// The lowest `count` bits.
fn bits_below(count: u32) -> u64 {
    1_u64.checked_shl(count).map_or(u64::MAX, |bit| bit - 1)
}

impl Default for Streams {
    fn default() -> Self {
        Self { slots: [None; STREAMS], next_slot: 0, begun: 0 }
    }
}

impl Streams {
    /// A stream begins at a block that is being read, or goes on there if there is one already.
    pub(super) fn begin(&mut self, block: BlockIndex, limit: BlockIndex) -> Option<Next> {
        let mut streams = self.slots.iter_mut().flatten();
        if let Some(stream) = streams.find(|stream| stream.is_at(block.0) && stream.limit == limit) {
            stream.move_to(block.0);
            return stream.extend(block);
        }
        self.begun += 1;
        let slot = self.next_slot;
        self.next_slot = (slot + 1) % STREAMS;
        self.slots[slot].insert(Stream::begin(self.begun, block, limit)).extend(block)
    }

    /// The blocks of a stream up to `last` are here or in flight. `fetched` is the last of them that was not here
    /// before. A stream whose last [`AHEAD_BLOCKS`] were here has caught up with an earlier reader, and ends. Returns
    /// what to fetch next if the stream has moved meanwhile.
    pub(super) fn extended(&mut self, number: u64, last: BlockIndex, fetched: Option<BlockIndex>) -> Option<Next> {
        let slot = self.slots.iter_mut().find(|slot| slot.is_some_and(|stream| stream.number == number))?;
        let stream = slot.as_mut()?;
        stream.last = stream.last.max(last.0);
        stream.fetched = stream.fetched.max(fetched.map_or(0, |block| block.0));
        stream.is_extended = false;
        if stream.last - stream.fetched >= AHEAD_BLOCKS as u32 {
            *slot = None;
            return None;
        }
        let moved = stream.moved.take()?;
        stream.extend(moved)
    }

    /// A stream ends, and what is to be fetched for it is not.
    pub(super) fn end(&mut self, number: u64) {
        if let Some(slot) = self.position(|stream| stream.number == number) {
            self.slots[slot] = None;
        }
    }

    /// A block was read. Returns what is to be fetched now.
    pub(super) fn read(&mut self, block: BlockIndex) -> Option<Next> {
        let mut next = None;
        for slot in &mut self.slots {
            let Some(stream) = slot.as_mut().filter(|stream| stream.has_ahead(block.0)) else { continue };
            match stream.was_read(block.0) {
                // Of two streams at a block, the other one goes on with the next.
                Some(true) if next.is_none() => next = stream.extend(block),
                Some(_) => {}
                None => *slot = None,
            }
        }
        next
    }

    /// A read waits for a block. Returns what is to be fetched now.
    pub(super) fn waited(&mut self, block: BlockIndex) -> Option<Next> {
        let mut next = None;
        for stream in self.slots.iter_mut().flatten().filter(|stream| stream.is_at(block.0)) {
            // Of two streams at a block, the other one goes on with the next.
            if next.is_none() && stream.was_waited_for(block.0) {
                next = stream.extend(block);
            }
        }
        next
    }

    /// A block was dropped before it was read.
    pub(super) fn dropped(&mut self, block: BlockIndex) {
        let Some(slot) = self.position(|stream| stream.has_ahead(block.0)) else { return };
        self.slots[slot] = self.slots[slot].and_then(|stream| Some(Stream { depth: stream.depth.unread()?, ..stream }));
    }

    /// The first and the last block that is ahead of each stream.
    pub(super) fn ahead(&self) -> impl Iterator<Item = Option<(u32, u32)>> {
        self.slots.iter().map(|slot| slot.filter(|stream| stream.first <= stream.last).map(|s| (s.first, s.last)))
    }

    fn position(&self, is_it: impl Fn(&Stream) -> bool) -> Option<usize> {
        self.slots.iter().position(|slot| slot.as_ref().is_some_and(&is_it))
    }
}

#[cfg(test)]
mod tests;
