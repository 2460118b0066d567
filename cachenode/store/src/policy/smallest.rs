//! Smallest: no replacement, and the room is kept for the smallest blocks. Where all blocks are read equally often, a
//! cached block saves one request and its bytes, so a byte of the cache saves most in the smallest block. The share of
//! the bytes that hit is that of `nr`; the share of the requests is larger.
//!
//! The sizes of all blocks and the capacity yield a limit. Blocks below it are wanted; of the class at the limit, as
//! many as fit are wanted, whichever come first; larger ones are not. Until the sizes are known, all blocks are wanted.
//!
//! The readers may never ask for some of the small blocks. A block that is too large is therefore wanted when it is
//! missed for the second time: by then an epoch has usually passed, and the room that is left would stay empty.

use std::cmp::Ordering;

use larder_dataset::BlockIndex;

use super::contract::{Policy, Wish};
use super::nr::Nr;
use super::sizes::{Sizes, class_of};

/// Admits the smallest blocks until the cache is full.
#[derive(Debug)]
pub(super) struct Smallest {
    kept: Nr,
    /// The sizes of all blocks.
    all: Sizes,
    /// The sizes of the cached blocks.
    cached: Sizes,
    /// The class at the limit, and the bytes of it that are wanted. None if all blocks are wanted.
    limit: Option<(usize, u64)>,
    /// A bit for each block that was missed and too large since the limit moved. Empty until there is one.
    missed: Vec<u64>,
    blocks: u32,
}

impl Smallest {
    /// An empty cache for blocks `0..blocks`.
    pub(super) fn new(capacity_bytes: u64, blocks: u32) -> Self {
        let (all, cached) = (Sizes::default(), Sizes::default());
        Self { kept: Nr::new(capacity_bytes), all, cached, limit: None, missed: Vec::new(), blocks }
    }

    fn is_small(&self, len: u32) -> bool {
        let Some((class, bytes)) = self.limit else { return true };
        match class_of(len).cmp(&class) {
            Ordering::Less => true,
            Ordering::Equal => self.cached.in_class(class).saturating_add(u64::from(len)) <= bytes,
            Ordering::Greater => false,
        }
    }

    /// Sets the limit for the sizes and the capacity. The room that a new one gives is for small blocks first, so the
    /// misses so far are forgotten.
    fn move_limit(&mut self) {
        let limit = self.all.limit(self.kept.capacity_bytes());
        if self.limit != limit {
            self.limit = limit;
            self.missed = Vec::new();
        }
    }

    /// Notes a miss of a block. True if it was noted before.
    fn is_missed_again(&mut self, block: BlockIndex) -> bool {
        if self.missed.is_empty() {
            self.missed = vec![0; self.blocks.div_ceil(64) as usize];
        }
        let Some(word) = self.missed.get_mut(block.0 as usize / 64) else { return false };
        let bit = 1 << (block.0 % 64);
        let was_missed = *word & bit != 0;
        *word |= bit;
        was_missed
    }
}

impl Policy for Smallest {
    fn wants(&mut self, block: BlockIndex, len: u32, wish: Wish) -> bool {
        self.is_small(len)
            || match wish {
                Wish::Missed => self.is_missed_again(block),
                Wish::Fill => false,
                Wish::Listed => true,
            }
    }

    fn set_sizes(&mut self, sizes: &Sizes) {
        self.all.clone_from(sizes);
        self.move_limit();
    }

    fn admit(&mut self, block: BlockIndex, len: u32, evict: &mut Vec<BlockIndex>) -> bool {
        let admitted = self.kept.admit(block, len, evict);
        if admitted {
            self.cached.add(len);
        }
        admitted
    }

    fn restore(&mut self, block: BlockIndex, len: u32) {
        self.kept.restore(block, len);
        self.cached.add(len);
    }

    fn trim(&mut self, evict: &mut Vec<BlockIndex>) {
        self.kept.trim(evict);
    }

    fn touch(&mut self, _: BlockIndex) {}

    fn wants_touch(&self) -> bool {
        false
    }

    fn forget(&mut self, block: BlockIndex, len: u32) {
        self.kept.forget(block, len);
        self.cached.remove(len);
    }

    fn used_bytes(&self) -> u64 {
        self.kept.used_bytes()
    }

    fn set_capacity(&mut self, capacity_bytes: u64) {
        self.kept.set_capacity(capacity_bytes);
        self.move_limit();
    }

    fn capacity_bytes(&self) -> u64 {
        self.kept.capacity_bytes()
    }
}
