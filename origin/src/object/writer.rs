//! Writing objects of any size, and removing them, through object_store.

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutResult, WriteMultipart};

use crate::error::OriginError;
use crate::key::Key;
use crate::object::error::attempt_error;
use crate::object::keys::path;
use crate::retry::{AttemptError, RetryPolicy};
use crate::version::Version;

/// The size of the parts in which larger objects are uploaded. S3 allows 10,000 parts, so an object may have up to 156
/// GiB.
pub const UPLOAD_PART_BYTES: usize = 16 << 20;
const PART: usize = UPLOAD_PART_BYTES;

/// The most parts in flight. Together with the part being filled, they bound the memory of a stream.
const PARTS_IN_FLIGHT: usize = 3;

fn written_version(result: PutResult) -> Option<Version> {
    Version::from_etag(result.e_tag.as_deref()?)
}

/// Writes objects. object_store retries, since it knows which part of an upload to send again.
pub(crate) struct Writer<'a> {
    pub(crate) store: &'a dyn ObjectStore,
    pub(crate) policy: &'a RetryPolicy,
}

impl Writer<'_> {
    /// Writes a whole object and returns its version, if the store reports it.
    pub(crate) async fn put(&self, key: &[u8], full: &str, bytes: Bytes) -> Result<Option<Version>, OriginError> {
        if bytes.len() > PART {
            return self.put_stream(key, full, futures::stream::iter([Ok(bytes)]).boxed()).await;
        }
        let path = path(key, full)?;
        let result = self.within(key, self.store.put_opts(&path, bytes.into(), PutOptions::default())).await?;
        Ok(written_version(result))
    }

    /// Writes a stream, in parts only if it is larger than one part.
    pub(crate) async fn put_stream(
        &self,
        key: &[u8],
        full: &str,
        mut chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Option<Version>, OriginError> {
        let path = path(key, full)?;
        let mut first = Vec::new();
        let mut length = 0;
        while length <= PART {
            match chunks.next().await.transpose()? {
                Some(chunk) => {
                    length += chunk.len();
                    first.push(chunk);
                }
                None => {
                    let payload = first.into_iter().collect();
                    let put = self.store.put_opts(&path, payload, PutOptions::default());
                    return Ok(written_version(self.within(key, put).await?));
                }
            }
        }
        let upload = self.within(key, self.store.put_multipart_opts(&path, PutMultipartOptions::default())).await?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, PART);
        match self.upload(key, &mut upload, first, chunks).await {
            Ok(()) => Ok(written_version(self.within(key, upload.finish()).await?)),
            Err(error) => {
                // The store keeps uploaded parts until the upload is aborted or a lifecycle rule deletes them.
                if let Err(error) = self.within(key, upload.abort()).await {
                    tracing::warn!(key = %Key::from(key), error = &error as &dyn std::error::Error, "abort upload");
                }
                Err(error)
            }
        }
    }

    /// Removes an object, if it exists.
    pub(crate) async fn delete(&self, key: &[u8], full: &str) -> Result<(), OriginError> {
        match self.within(key, self.store.delete(&path(key, full)?)).await {
            Err(OriginError::NotFound { .. }) => Ok(()),
            deleted => deleted,
        }
    }

    async fn upload(
        &self,
        key: &[u8],
        upload: &mut WriteMultipart,
        first: Vec<Bytes>,
        chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<(), OriginError> {
        let mut chunks = futures::stream::iter(first.into_iter().map(Ok)).chain(chunks);
        while let Some(mut chunk) = chunks.try_next().await? {
            // A chunk that spans many parts must not put all of them in flight at once.
            while !chunk.is_empty() {
                self.within(key, upload.wait_for_capacity(PARTS_IN_FLIGHT)).await?;
                upload.put(chunk.split_to(chunk.len().min(PART)));
            }
        }
        Ok(())
    }

    async fn within<T>(
        &self,
        key: &[u8],
        step: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, OriginError> {
        match tokio::time::timeout(self.policy.deadline, step).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => match attempt_error(error, key, None, self.policy) {
                AttemptError::Final(error) | AttemptError::Retryable(error) => Err(error),
            },
            Err(_) => Err(OriginError::TimedOut { key: Key::from(key), after: self.policy.deadline }),
        }
    }
}
