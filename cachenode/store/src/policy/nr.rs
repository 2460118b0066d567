//! NR, no replacement: the first blocks admitted stay until the dataset is released, so that every epoch hits cache /
//! dataset. Where blocks are read in a new order each epoch, every eviction discards a block that is as likely to be
//! used next as its replacement. No eviction is therefore worth its write.

use larder_dataset::BlockIndex;

use super::contract::Policy;

/// Admits blocks until the cache is full. Its only state is a counter.
#[derive(Debug)]
pub(super) struct Nr {
    used_bytes: u64,
    capacity_bytes: u64,
}

impl Nr {
    /// An empty cache.
    pub(super) const fn new(capacity_bytes: u64) -> Self {
        Self { used_bytes: 0, capacity_bytes }
    }
}

impl Policy for Nr {
    fn admit(&mut self, _: BlockIndex, len: u32, _: &mut Vec<BlockIndex>) -> bool {
        let fits = len > 0 && self.used_bytes.saturating_add(u64::from(len)) <= self.capacity_bytes;
        if fits {
            self.used_bytes += u64::from(len);
        }
        fits
    }

    fn restore(&mut self, _: BlockIndex, len: u32) {
        self.used_bytes += u64::from(len);
    }

    fn trim(&mut self, _: &mut Vec<BlockIndex>) {}

    fn touch(&mut self, _: BlockIndex) {}

    fn wants_touch(&self) -> bool {
        false
    }

    fn forget(&mut self, _: BlockIndex, len: u32) {
        self.used_bytes = self.used_bytes.saturating_sub(u64::from(len));
    }

    fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    fn set_capacity(&mut self, capacity_bytes: u64) {
        self.capacity_bytes = capacity_bytes;
    }

    fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }
}
