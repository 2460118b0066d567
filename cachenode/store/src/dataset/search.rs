//! The search for disowned blocks. It runs beside admissions.
//!
//! Invariant: it never holds the lock while it asks who owns a block.

use super::admission::Shared;

/// Pages of slots that one step of the search visits at most: a million blocks.
const PAGES_AT_ONCE: usize = 2048;

impl Shared {
    /// One step of the search for disowned blocks, if one is wanted. Reads the slot table.
    pub(super) fn search_disowned(&self) {
        let Some(ownership) = &self.config.ownership else { return };
        let mut state = self.lock();
        let step = state.disowned.begin(ownership.version());
        self.disowned.show(&state.disowned, self.is_stopped());
        drop(state);
        let Some((version, first)) = step else { return };
        let (mut blocks, mut next) = (Vec::new(), Some(first));
        let mut len_of = self.config.block_lens.in_order();
        for _ in 0..PAGES_AT_ONCE {
            let Some(from) = next.filter(|_| !self.is_stopped()) else { break };
            blocks.clear();
            next = self.slots.page_of_present(from, &mut blocks);
            if !ownership.retain_disowned(version, &mut blocks) {
                break;
            }
            // The lengths are looked up before the lock is taken.
            let found: Vec<_> = blocks.iter().filter_map(|&block| Some((block, len_of(block)?))).collect();
            if !self.lock().disowned.add(version, found.into_iter(), next) {
                break;
            }
        }
        let mut state = self.lock();
        state.disowned.end();
        self.disowned.show(&state.disowned, self.is_stopped());
    }
}
