//! Fetches blocks from the origin.

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use larder_dataset::{BlockIndex, BlockPart, FileIndex};
use larder_import::{ObjectRange, object_range};
use larder_origin::{Origin, OriginError, Urgency};

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

    /// Fetches the expected blocks by one GET. Blocks whose checksum is not the manifest's are fetched again, one GET
    /// each. Errors name the block `requested`.
    pub(super) async fn fetch(
        &self,
        requested: BlockIndex,
        receiver: &mut BlockReceiver<'_>,
        urgency: &Urgency,
    ) -> Result<(), FetchError> {
        self.get(requested, receiver, urgency).await?;
        for _ in 1..CHECKSUM_ATTEMPTS {
            for block in receiver.take_corrupt() {
                receiver.expect_again(block);
                self.get(requested, receiver, urgency).await?;
            }
        }
        Ok(())
    }

    /// Fetches a part of a block by one GET. Its checksum is not known.
    pub(super) async fn fetch_part(&self, file: FileIndex, part: &BlockPart) -> Result<Bytes, FetchError> {
        let start = part.file_offset + u64::from(part.start);
        let ObjectRange { key, range, version } = self.object(file, start..start + u64::from(part.len))?;
        let read = self.origin(&Urgency::HIGH).read(&key, range, version.as_ref()).await;
        let bytes = read.map_err(|error| self.fetch_error(part.block, error))?;
        self.count(u64::from(part.len));
        Ok(bytes)
    }

    fn object(&self, file: FileIndex, range: Range<u64>) -> Result<ObjectRange, FetchError> {
        let manifest = &self.context.manifest;
        Ok(manifest.stable(|| object_range(manifest, &manifest.file(file)?, range.clone()))?)
    }

    fn origin(&self, urgency: &Urgency) -> Arc<dyn Origin> {
        let origin = Arc::clone(&self.origin.read().unwrap_or_else(PoisonError::into_inner));
        if urgency.is_high() {
            return origin;
        }
        origin.with_urgency(urgency).unwrap_or(origin)
    }

    fn count(&self, bytes: u64) {
        add(&self.context.counters.origin_gets, 1);
        add(&self.context.counters.origin_bytes, bytes);
    }

    async fn get(
        &self,
        requested: BlockIndex,
        receiver: &mut BlockReceiver<'_>,
        urgency: &Urgency,
    ) -> Result<(), FetchError> {
        let object = |pending: &PendingBlock| {
            let start = pending.part.file_offset;
            self.object(pending.file, start..start + u64::from(pending.part.block_len))
        };
        let Some((first, last)) = receiver.ends() else { return Ok(()) };
        let ObjectRange { key, mut range, version } = object(first)?;
        range.end = object(last)?.range.end;
        let bytes = range.end - range.start;
        let origin = self.origin(urgency);
        let read = origin.read_to(&key, range, version.as_ref(), &mut |bytes| receiver.receive(bytes)).await;
        read.map_err(|error| self.fetch_error(requested, error))?;
        self.count(bytes);
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
