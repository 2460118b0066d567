//! FIFO: evicts the block that was admitted first, whether or not it was used since.

use larder_dataset::BlockIndex;

use super::contract::Policy;
use super::queue::Queue;

/// The queue in order of admission.
#[derive(Debug)]
pub(super) struct Fifo {
    queue: Queue,
}

impl Fifo {
    /// An empty queue.
    pub(super) fn new(capacity_bytes: u64, blocks: u32) -> Self {
        Self { queue: Queue::new(capacity_bytes, blocks) }
    }
}

impl Policy for Fifo {
    fn admit(&mut self, block: BlockIndex, len: u32, evict: &mut Vec<BlockIndex>) -> bool {
        self.queue.admit(block, len, evict)
    }

    fn restore(&mut self, block: BlockIndex, len: u32) {
        self.queue.push(block, len);
    }

    fn trim(&mut self, evict: &mut Vec<BlockIndex>) {
        self.queue.evict_to(self.queue.capacity_bytes, evict);
    }

    fn touch(&mut self, _: BlockIndex) {}

    fn wants_touch(&self) -> bool {
        false
    }

    fn forget(&mut self, block: BlockIndex, _: u32) {
        self.queue.remove(block);
    }

    fn used_bytes(&self) -> u64 {
        self.queue.used_bytes
    }

    fn set_capacity(&mut self, capacity_bytes: u64) {
        self.queue.capacity_bytes = capacity_bytes;
    }

    fn capacity_bytes(&self) -> u64 {
        self.queue.capacity_bytes
    }
}
