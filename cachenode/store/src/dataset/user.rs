//! A user of a dataset's cache.

use std::sync::{Arc, Weak};

use super::shared::Shared;
use crate::ownership::Ownership;

/// A user of a dataset's cache. While it exists, no block that it owns is disowned.
#[derive(Debug)]
#[must_use = "dropping it gives its blocks up"]
pub struct CacheUser {
    shared: Weak<Shared>,
    number: u64,
}

impl CacheUser {
    /// A user without an `ownership` owns all blocks.
    pub(super) fn new(shared: &Arc<Shared>, ownership: Option<Arc<dyn Ownership>>) -> Self {
        let number = shared.change_owners(|owners| owners.add(ownership));
        Self { shared: Arc::downgrade(shared), number }
    }
}

impl Drop for CacheUser {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.change_owners(|owners| owners.remove(self.number));
        }
    }
}
