//! The queue of LRU and FIFO: a doubly linked list through three flat arrays, so that pushing, removing from the middle
//! and popping the oldest are O(1) and allocate nothing.
//!
//! Invariant: a block is in the queue if and only if its length is not 0, and `used_bytes` is the sum of all lengths.
//! Links are block numbers plus one; 0 marks the end. An array of zeros uses no memory until it is touched.

use larder_dataset::BlockIndex;

#[derive(Debug)]
pub(super) struct Queue {
    older: Vec<u32>,
    newer: Vec<u32>,
    len: Vec<u32>,
    oldest: u32,
    newest: u32,
    pub(super) used_bytes: u64,
    pub(super) capacity_bytes: u64,
}

impl Queue {
    pub(super) fn new(capacity_bytes: u64, blocks: u32) -> Self {
        let zeros = || vec![0; blocks as usize];
        Self { older: zeros(), newer: zeros(), len: zeros(), oldest: 0, newest: 0, used_bytes: 0, capacity_bytes }
    }

    pub(super) fn contains(&self, block: BlockIndex) -> bool {
        self.len.get(block.0 as usize).is_some_and(|&len| len > 0)
    }

    /// Adds an absent block as the newest; false if it is present or out of range.
    pub(super) fn push(&mut self, block: BlockIndex, len: u32) -> bool {
        if len == 0 || block.0 as usize >= self.len.len() || self.contains(block) {
            return false;
        }
        self.len[block.0 as usize] = len;
        self.used_bytes += u64::from(len);
        self.link_newest(block);
        true
    }

    pub(super) fn remove(&mut self, block: BlockIndex) {
        if self.contains(block) {
            self.unlink(block);
            self.used_bytes -= u64::from(std::mem::take(&mut self.len[block.0 as usize]));
        }
    }

    pub(super) fn move_to_newest(&mut self, block: BlockIndex) {
        if self.contains(block) {
            self.unlink(block);
            self.link_newest(block);
        }
    }

    /// Makes space for an absent block and adds it, as [`Policy::admit`](super::contract::Policy::admit) requires.
    pub(super) fn admit(&mut self, block: BlockIndex, len: u32, evict: &mut Vec<BlockIndex>) -> bool {
        let known = (block.0 as usize) < self.len.len();
        if len == 0 || u64::from(len) > self.capacity_bytes || !known || self.contains(block) {
            return false;
        }
        self.evict_to(self.capacity_bytes - u64::from(len), evict);
        self.push(block, len)
    }

    /// Evicts the oldest blocks until at most `used_bytes` are used.
    pub(super) fn evict_to(&mut self, used_bytes: u64, evict: &mut Vec<BlockIndex>) {
        while self.used_bytes > used_bytes
            && let Some(oldest) = self.oldest.checked_sub(1).map(BlockIndex)
        {
            self.remove(oldest);
            evict.push(oldest);
        }
    }

    fn link_newest(&mut self, block: BlockIndex) {
        let link = block.0 + 1;
        self.older[block.0 as usize] = self.newest;
        self.newer[block.0 as usize] = 0;
        match self.newest.checked_sub(1) {
            Some(before) => self.newer[before as usize] = link,
            None => self.oldest = link,
        }
        self.newest = link;
    }

    fn unlink(&mut self, block: BlockIndex) {
        let (older, newer) = (self.older[block.0 as usize], self.newer[block.0 as usize]);
        match older.checked_sub(1) {
            Some(before) => self.newer[before as usize] = newer,
            None => self.oldest = newer,
        }
        match newer.checked_sub(1) {
            Some(after) => self.older[after as usize] = older,
            None => self.newest = older,
        }
    }
}
