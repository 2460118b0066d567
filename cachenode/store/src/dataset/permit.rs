//! The permit to write one block.

use std::sync::Arc;

use larder_dataset::BlockIndex;

use super::shared::Shared;

/// Room for one block, granted before the block is fetched. Dropped unused it gives the room back; never blocks.
#[derive(Debug)]
#[must_use = "dropping it gives the room back"]
pub struct AdmissionPermit {
    pub(super) shared: Arc<Shared>,
    pub(super) block: BlockIndex,
    pub(super) len: u32,
    pub(super) number: u64,
}

impl AdmissionPermit {
    /// The block.
    pub const fn block(&self) -> BlockIndex {
        self.block
    }

    /// Bytes of the block.
    pub const fn block_len(&self) -> u32 {
        self.len
    }
}

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        // Does nothing if the block was written: the permit is no longer pending.
        self.shared.cancel(self.block, self.len, self.number);
    }
}
