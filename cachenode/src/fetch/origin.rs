//! Fetches blocks from the origin.

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesOrdered;
use larder_dataset::{BLOCK_BYTES, BlockIndex, BlockPart, FileIndex};
use larder_import::{ObjectRange, object_range};
use larder_origin::{Origin, OriginError, PlaceReport, Scheme, Sink, Urgency};
use larder_telemetry::TRACE_TARGET;
use tracing::trace_span;

use super::context::FetchContext;
use super::error::{CHECKSUM_ATTEMPTS, FetchError};
use super::in_flight::PendingBlock;
use super::ranges::{Body, Ranges};
use super::receive::BlockReceiver;
use crate::counters::add;

/// Fetches blocks from the origin.
#[derive(Debug)]
pub(super) struct FromOrigin {
    context: Arc<FetchContext>,
    /// Replaced when newer credentials arrive. Cloned for each GET; the lock is never held across an await.
    origin: RwLock<Arc<dyn Origin>>,
    ranges: Ranges,
}

impl FromOrigin {
    pub(super) fn new(context: Arc<FetchContext>, origin: Arc<dyn Origin>) -> Self {
        Self { context, origin: RwLock::new(origin), ranges: Ranges::default() }
    }

    /// GETs that start from now on use `origin`.
    pub(super) fn replace(&self, origin: Arc<dyn Origin>) {
        *self.origin.write().unwrap_or_else(PoisonError::into_inner) = origin;
    }

    /// The kind of the origin.
    pub(super) fn scheme(&self) -> Scheme {
        self.origin(&Urgency::HIGH).url().scheme()
    }

    /// How many GETs the origin bears at the same time, as far as it is known now.
    pub(super) fn places(&self) -> usize {
        self.origin(&Urgency::HIGH).places()
    }

    /// True if reads go to a place that costs more than the one that is meant to be read.
    pub(super) fn is_costly(&self) -> bool {
        self.origin(&Urgency::HIGH).is_costly()
    }

    /// The places that the dataset is read from, if there are several.
    pub(super) fn report(&self) -> Vec<PlaceReport> {
        self.origin(&Urgency::HIGH).report()
    }

    /// Fetches the expected blocks by one GET, or a block of a large file by several ([`Ranges`]). Blocks whose
    /// checksum is not the manifest's are fetched again, one GET each, from another place if there is one. Errors name
    /// the block `requested`.
    pub(super) async fn fetch(
        &self,
        requested: BlockIndex,
        receiver: &mut BlockReceiver<'_>,
        urgency: &Urgency,
    ) -> Result<(), FetchError> {
        let mut origin = self.origin(urgency);
        self.get(requested, receiver, &*origin).await?;
        for _ in 1..CHECKSUM_ATTEMPTS {
            let corrupt = receiver.take_corrupt();
            if let Some(other) = origin.elsewhere().filter(|_| !corrupt.is_empty()) {
                origin = other;
            }
            for block in corrupt {
                receiver.expect_again(block);
                self.get(requested, receiver, &*origin).await?;
            }
        }
        Ok(())
    }

    /// Fetches a part of a block by one GET. Its checksum is not known.
    pub(super) async fn fetch_part(&self, file: FileIndex, part: &BlockPart) -> Result<Bytes, FetchError> {
        let start = part.file_offset + u64::from(part.start);
        let ObjectRange { key, range, version } = self.object(file, start..start + u64::from(part.len))?;
        let _span = trace_span!(target: TRACE_TARGET, "get", block = part.block.0, len = part.len);
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
        origin: &dyn Origin,
    ) -> Result<(), FetchError> {
        let object = |pending: &PendingBlock| {
            let start = pending.part.file_offset;
            self.object(pending.file, start..start + u64::from(pending.part.block_len))
        };
        let Some((first, last)) = receiver.ends() else { return Ok(()) };
        let ObjectRange { key, mut range, version } = object(first)?;
        range.end = object(last)?.range.end;
        let is_large = self.context.manifest.file(first.file).is_ok_and(|file| file.size > BLOCK_BYTES);
        let bytes = range.end - range.start;
        // It ends with this function, and need not be entered: nothing is below it.
        let _span = trace_span!(target: TRACE_TARGET, "get", block = requested.0, len = bytes);
        let read = if is_large {
            // On the heap, so that the thousands of others that may wait for the origin are small.
            Box::pin(self.read_large(origin, ObjectRange { key, range, version }, receiver)).await
        } else {
            let read = origin.read_to(&key, range, version.as_ref(), &mut |bytes| receiver.receive(bytes)).await;
            read.map(|()| self.count(bytes))
        };
        read.map_err(|error| self.fetch_error(requested, error))
    }

    /// Reads the range of a block of a large file, by one GET or by several at once. The receiver gets the bytes in
    /// order.
    async fn read_large(
        &self,
        origin: &dyn Origin,
        object: ObjectRange,
        receiver: &mut BlockReceiver<'_>,
    ) -> Result<(), OriginError> {
        let Range { start, end } = object.range;
        let ranges = self.ranges.of(end - start);
        if ranges == 1 {
            return self.read_to(origin, &object, &mut |bytes: &[u8]| receiver.receive(bytes)).await;
        }
        let len = (end - start).div_ceil(ranges);
        let mut arriving = FuturesOrdered::new();
        for start in (start..end).step_by(len as usize) {
            let range = start..end.min(start + len);
            arriving.push_back(self.read_range(origin, ObjectRange { range, ..object.clone() }));
        }
        while let Some(bytes) = arriving.next().await {
            receiver.receive(&bytes?);
        }
        Ok(())
    }

    /// Reads a range of an object by one GET, which is measured.
    async fn read_to(&self, origin: &dyn Origin, object: &ObjectRange, sink: &mut Sink<'_>) -> Result<(), OriginError> {
        let ObjectRange { key, range, version } = object;
        let mut body = Body::default();
        let mut receive = |bytes: &[u8]| {
            self.ranges.arrived(&mut body, bytes.len());
            sink(bytes);
        };
        origin.read_to(key, range.clone(), version.as_ref(), &mut receive).await?;
        self.ranges.ended(&body);
        self.count(range.end - range.start);
        Ok(())
    }

    async fn read_range(&self, origin: &dyn Origin, object: ObjectRange) -> Result<Vec<u8>, OriginError> {
        let mut bytes = Vec::with_capacity((object.range.end - object.range.start) as usize);
        self.read_to(origin, &object, &mut |arrived: &[u8]| bytes.extend_from_slice(arrived)).await?;
        Ok(bytes)
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
