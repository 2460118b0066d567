//! Fetches blocks from the origin.

use std::sync::{Arc, PoisonError, RwLock};

use larder_dataset::BlockIndex;
use larder_import::{ObjectRange, object_range};
use larder_origin::{Origin, OriginError};

use super::context::FetchContext;
use super::error::{CHECKSUM_ATTEMPTS, FetchError};
use super::in_flight::PendingBlock;
use super::receive::BlockReceiver;
use crate::counters::add;

/// Fetches blocks from the origin.
#[derive(Debug)]
pub(super) struct FromOrigin {
    context: Arc<FetchContext>,
    /// Replaced when newer credentials arrive. Cloned for each GET; the lock is never held across an await.
    origin: RwLock<Arc<dyn Origin>>,
}

impl FromOrigin {
    pub(super) fn new(context: Arc<FetchContext>, origin: Arc<dyn Origin>) -> Self {
        Self { context, origin: RwLock::new(origin) }
    }

    /// GETs that start from now on use `origin`.
    pub(super) fn replace(&self, origin: Arc<dyn Origin>) {
        *self.origin.write().unwrap_or_else(PoisonError::into_inner) = origin;
    }

    /// Fetches the expected blocks by one GET. Blocks whose checksum is not the manifest's are fetched again, one GET each.
    /// Errors name the block `requested`.
    pub(super) async fn fetch(
        &self,
        requested: BlockIndex,
        receiver: &mut BlockReceiver<'_>,
    ) -> Result<(), FetchError> {
        self.get(requested, receiver).await?;
        for _ in 1..CHECKSUM_ATTEMPTS {
            for block in receiver.take_corrupt() {
                receiver.expect_again(block);
                self.get(requested, receiver).await?;
            }
        }
        Ok(())
    }

    async fn get(&self, requested: BlockIndex, receiver: &mut BlockReceiver<'_>) -> Result<(), FetchError> {
        let object = |pending: &PendingBlock| {
            let manifest = &self.context.manifest;
            manifest.stable(|| {
                let file = manifest.file(pending.file)?;
                let end = pending.part.file_offset + u64::from(pending.part.block_len);
                object_range(manifest, &file, pending.part.file_offset..end)
            })
        };
        let Some((first, last)) = receiver.ends() else { return Ok(()) };
        let ObjectRange { key, mut range, version } = object(first)?;
        range.end = object(last)?.range.end;
        let bytes = range.end - range.start;
        let origin = Arc::clone(&self.origin.read().unwrap_or_else(PoisonError::into_inner));
        let read = origin.read_to(&key, range, version.as_ref(), &mut |bytes| receiver.receive(bytes)).await;
        read.map_err(|error| self.fetch_error(requested, error))?;
        add(&self.context.counters.origin_gets, 1);
        add(&self.context.counters.origin_bytes, bytes);
        Ok(())
    }

    fn fetch_error(&self, block: BlockIndex, error: OriginError) -> FetchError {
        match error {
            OriginError::NotFound { .. } => FetchError::Gone { block },
            OriginError::Stale { .. } => FetchError::Stale { block },
            OriginError::Denied { .. } => FetchError::Denied { block, source: Arc::new(error) },
            OriginError::TimedOut { .. } => FetchError::TimedOut { block, deadline: self.context.config.read_deadline },
            OriginError::Busy { .. }
            | OriginError::Truncated { .. }
            | OriginError::TooLarge { .. }
            | OriginError::Invalid { .. }
            | OriginError::Unavailable { .. } => FetchError::Unavailable { block, source: Arc::new(error) },
        }
    }
}
