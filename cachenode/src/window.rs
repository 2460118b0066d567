//! The window: blocks that the store does not keep, held in memory until each of their bytes was read. Without it, a file
//! read in several pieces would be fetched once for each piece. (The kernel's read-ahead requests the pieces in any order,
//! and requests a piece twice if memory is short. So neither the end of a block nor a count of bytes shows that its reader is
//! done.)
//!
//! Invariant: the window never exceeds its capacity, except for a single block that is larger than the capacity.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Mutex;

use bytes::Bytes;
use larder_dataset::BlockIndex;

/// A bounded set of blocks; the oldest is dropped first.
#[derive(Debug)]
pub(crate) struct Window {
    capacity_bytes: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    blocks: HashMap<BlockIndex, WindowBlock>,
    order: VecDeque<BlockIndex>,
    bytes: u64,
}

#[derive(Debug)]
struct WindowBlock {
    bytes: Bytes,
    /// The ranges that were read, sorted; no two of them touch.
    read: Vec<Range<u32>>,
}

impl WindowBlock {
    /// Marks a range as read; true if the whole block is now read.
    fn mark_read(&mut self, mut range: Range<u32>) -> bool {
        self.read.retain(|other| {
            let apart = other.end < range.start || range.end < other.start;
            if !apart {
                range = range.start.min(other.start)..range.end.max(other.end);
            }
            apart
        });
        let at = self.read.partition_point(|other| other.start < range.start);
        self.read.insert(at, range);
        self.read[0] == (0..self.bytes.len() as u32)
    }
}

impl Window {
    /// An empty window.
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, inner: Mutex::default() }
    }

    /// The block, if it is here. Marks `range` of it as read.
    pub(crate) fn read(&self, block: BlockIndex, range: Range<u32>) -> Option<Bytes> {
        let mut inner = self.lock();
        let bytes = inner.blocks.get(&block)?.bytes.clone();
        inner.mark_read(block, range);
        Some(bytes)
    }

    /// The block, if it is here. Marks nothing as read.
    pub(crate) fn peek(&self, block: BlockIndex) -> Option<Bytes> {
        self.lock().blocks.get(&block).map(|held| held.bytes.clone())
    }

    /// True if the block is here.
    pub(crate) fn contains(&self, block: BlockIndex) -> bool {
        self.lock().blocks.contains_key(&block)
    }

    /// Marks `range` of a block as read by a reader that had its bytes from elsewhere.
    pub(crate) fn mark_read(&self, block: BlockIndex, range: Range<u32>) {
        self.lock().mark_read(block, range);
    }

    /// Adds a block, and drops the oldest ones if they no longer fit.
    pub(crate) fn insert(&self, block: BlockIndex, bytes: Bytes) {
        let mut inner = self.lock();
        inner.remove(block);
        inner.bytes += bytes.len() as u64;
        inner.blocks.insert(block, WindowBlock { bytes, read: Vec::new() });
        inner.order.push_back(block);
        while inner.bytes > self.capacity_bytes && inner.blocks.len() > 1 {
            if let Some(oldest) = inner.order.pop_front() {
                inner.forget(oldest);
            }
        }
    }

    /// Bytes held now.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // No code under this lock can panic halfway, so the state behind a poisoned lock is consistent.
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Inner {
    fn mark_read(&mut self, block: BlockIndex, range: Range<u32>) {
        if self.blocks.get_mut(&block).is_some_and(|held| held.mark_read(range)) {
            self.remove(block);
        }
    }

    fn remove(&mut self, block: BlockIndex) {
        if self.blocks.contains_key(&block) {
            self.order.retain(|&other| other != block);
            self.forget(block);
        }
    }

    fn forget(&mut self, block: BlockIndex) {
        if let Some(held) = self.blocks.remove(&block) {
            self.bytes -= held.bytes.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zeros(len: usize) -> Bytes {
        Bytes::from(vec![0; len])
    }

    #[test]
    fn the_oldest_block_makes_room_and_nothing_is_counted_twice() {
        let window = Window::new(100);
        for block in 0..3 {
            window.insert(BlockIndex(block), zeros(40));
        }
        assert_eq!(window.bytes(), 80);
        assert!(window.read(BlockIndex(0), 0..1).is_none() && window.read(BlockIndex(2), 0..1).is_some());
        window.insert(BlockIndex(2), zeros(60));
        assert_eq!(window.bytes(), 100);
        window.insert(BlockIndex(9), zeros(500));
        assert_eq!(window.bytes(), 500, "a single block may exceed the capacity");
    }

    #[test]
    fn a_block_goes_once_each_of_its_bytes_was_read_in_whatever_order_and_however_often() {
        let window = Window::new(100);
        window.insert(BlockIndex(1), zeros(30));
        window.mark_read(BlockIndex(1), 20..30);
        for _ in 0..3 {
            assert!(window.read(BlockIndex(1), 5..15).is_some(), "a range that is read again leaves the block here");
        }
        assert!(window.read(BlockIndex(1), 10..25).is_some());
        assert_eq!(window.bytes(), 30);
        assert!(window.read(BlockIndex(1), 0..5).is_some(), "the last unread range");
        assert!(window.read(BlockIndex(1), 0..5).is_none());
        assert_eq!(window.bytes(), 0);
    }
}
