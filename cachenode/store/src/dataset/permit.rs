//! The permit to write one block.

use std::sync::Arc;

use larder_dataset::BlockIndex;

use super::shared::{Shared, Victim};

/// Space for one block, granted before the block is fetched. Dropping an unused permit gives the space back. Dropping
/// never blocks.
#[derive(Debug)]
#[must_use = "dropping it gives the room back"]
pub struct AdmissionPermit {
    pub(super) shared: Arc<Shared>,
    pub(super) block: BlockIndex,
    pub(super) len: u32,
    /// The blocks that leave for this one, until their slots are cleared.
    pub(super) victims: Vec<Victim>,
}

impl AdmissionPermit {
    /// The block that may be written.
    pub const fn block(&self) -> BlockIndex {
        self.block
    }

    /// The length in bytes that the block must have.
    pub const fn block_len(&self) -> u32 {
        self.len
    }
}

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        self.shared.end_permit(self.block, self.len, std::mem::take(&mut self.victims));
    }
}
