//! Receiving the body of an answer.

use bytes::BytesMut;
use futures::StreamExt;
use object_store::client::HttpResponseBody;

use crate::error::OriginError;
use crate::retry::{AttemptError, Retry};

/// Passes each chunk of a body to `take` as it arrives and returns their total length. Stops after `limit` bytes and
/// ignores the rest.
pub(super) async fn receive(
    retry: &Retry,
    body: HttpResponseBody,
    limit: u64,
    take: &mut (dyn FnMut(&[u8]) + Send),
) -> Result<u64, AttemptError> {
    let mut stream = body.bytes_stream();
    let mut got = 0;
    while let Some(chunk) = retry.progress(stream.next()).await? {
        let chunk =
            chunk.map_err(|error| AttemptError::Retryable(OriginError::Unavailable { source: Box::new(error) }))?;
        let fits = (limit - got).min(chunk.len() as u64);
        take(&chunk[..fits as usize]);
        got += fits;
        if fits < chunk.len() as u64 {
            // Only a server that ignores `Range` sends more: the rest of the object.
            return Ok(got);
        }
    }
    Ok(got)
}

/// A buffer for this many bytes. It reserves at most the size of an upload's part, since the server's claim may be
/// false.
pub(super) fn buffer(bytes: u64) -> BytesMut {
    BytesMut::with_capacity(bytes.min(16 << 20) as usize)
}

/// The error for an answer that contradicts itself or the request.
pub(super) fn malformed(what: &'static str) -> AttemptError {
    AttemptError::Retryable(OriginError::Unavailable { source: format!("the server sent {what}").into() })
}
