//! The search for disowned blocks. It runs concurrently with admissions.
//!
//! Invariant: the search never holds the lock while it asks which node owns a block. It frees no room, so that a disk
//! that hangs keeps it from no block on the others.

use super::shared::Shared;

/// The most pages of slots that one step visits: 2048 pages of 512 slots are a million blocks.
const PAGES_AT_ONCE: usize = 2048;

impl Shared {
    /// Runs one step of the search for disowned blocks, if one is wanted. Reads the slot table. Clears first the slots
    /// of the blocks that earlier admissions evicted.
    pub(super) fn search_disowned(&self) {
        self.clear_unclaimed();
        let mut state = self.lock();
        let list = state.owners.version();
        let step = state.disowned.begin(list);
        let owned = state.owners.owned();
        self.disowned.show(&state.disowned, self.is_stopped());
        drop(state);
        let Some((version, first)) = step else { return };
        let mut blocks = Vec::new();
        let mut pages = self.slots.pages(first);
        let mut len_of = self.config.block_lens.in_order();
        for _ in 0..PAGES_AT_ONCE {
            if self.is_stopped() || pages.rest().is_none() {
                break;
            }
            blocks.clear();
            blocks.extend(pages.next().into_iter().flat_map(|page| self.slots.present(page)).map(|(block, _)| block));
            if !owned.retain_disowned(&mut blocks) {
                break;
            }
            // Lengths come from the manifest on disk, so they are looked up before the lock is taken.
            let found: Vec<_> = blocks.iter().filter_map(|&block| Some((block, len_of(block)?))).collect();
            if !self.lock().disowned.add(version, found.into_iter(), pages.rest()) {
                break;
            }
        }
        let mut state = self.lock();
        state.disowned.end();
        self.disowned.show(&state.disowned, self.is_stopped());
    }
}
