//! A lock for each cache.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use larder_dataset::CacheId;
use tokio::sync::OwnedMutexGuard;

/// The locks of the caches that are in use. A lock is forgotten when nobody holds it or waits for it.
#[derive(Debug, Default)]
pub(super) struct OneEach(Mutex<HashMap<CacheId, Weak<tokio::sync::Mutex<()>>>>);

impl OneEach {
    /// Takes the lock of a cache. Cancel-safe.
    pub(super) async fn lock(&self, cache: CacheId) -> OwnedMutexGuard<()> {
        self.of(cache).lock_owned().await
    }

    fn of(&self, cache: CacheId) -> Arc<tokio::sync::Mutex<()>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = all.get(&cache).and_then(Weak::upgrade) {
            return lock;
        }
        all.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::default();
        all.insert(cache, Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_cache_has_one_lock_which_is_forgotten_when_nobody_has_it() {
        let each = OneEach::default();
        let [one, other] = [1, 2].map(|byte| CacheId([byte; 32]));
        let held = each.lock(one).await;
        assert!(each.of(one).try_lock().is_err());
        drop(each.lock(other).await);
        drop(held);
        drop(each.lock(one).await);
        drop(each.lock(other).await);
        assert_eq!(each.0.lock().unwrap().len(), 1, "the last one that was made");
    }
}
