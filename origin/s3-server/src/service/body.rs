//! The bodies of requests and answers.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt};
use s3s::dto::StreamingBlob;
use s3s::{Body, S3Result, s3_error};

use crate::store::object::{Content, Object};

/// The size of the pieces in which files are sent.
const PIECE: u64 = 1 << 20;

/// Creates the body of an answer.
pub(super) async fn outgoing(object: Arc<Object>, range: std::ops::Range<u64>) -> S3Result<StreamingBlob> {
    match &object.content {
        Content::Memory(bytes) => Ok(Body::from(bytes.slice(range.start as usize..range.end as usize)).into()),
        Content::File { path, .. } => {
            // The first piece is read before the head is sent, so that a missing file causes an error and not a broken
            // body. Most files have one piece.
            let first_end = range.end.min(range.start + PIECE);
            let first = piece(path, range.start..first_end).await.map_err(|error| s3_error!(error, InternalError))?;
            if first_end == range.end {
                return Ok(Body::from(first).into());
            }
            let rest = futures::stream::unfold(first_end, move |at| {
                let object = Arc::clone(&object);
                async move {
                    let Content::File { path, .. } = &object.content else { return None };
                    let end = range.end.min(at + PIECE);
                    if at >= end {
                        return None;
                    }
                    Some((piece(path, at..end).await, end))
                }
            });
            let stream = futures::stream::iter([Ok(first)]).chain(rest).boxed();
            Ok(StreamingBlob::wrap(SyncStream(std::sync::Mutex::new(stream))))
        }
    }
}

/// Makes a stream `Sync`, as s3s requires of bodies. A body is never polled by two threads at the same time.
struct SyncStream(std::sync::Mutex<futures::stream::BoxStream<'static, io::Result<Bytes>>>);

impl futures::Stream for SyncStream {
    type Item = io::Result<Bytes>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        let stream = self.get_mut().0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        stream.poll_next_unpin(context)
    }
}

async fn piece(path: &Path, range: std::ops::Range<u64>) -> io::Result<Bytes> {
    let path = path.to_path_buf();
    tokio::task::spawn_blocking(move || {
        let mut bytes = BytesMut::zeroed((range.end - range.start) as usize);
        std::fs::File::open(path)?.read_exact_at(&mut bytes, range.start)?;
        Ok(bytes.freeze())
    })
    .await?
}

/// Receives the whole body of a request.
pub(super) async fn received(body: Option<StreamingBlob>) -> S3Result<Bytes> {
    let Some(mut body) = body else { return Ok(Bytes::new()) };
    let broken = |error: s3s::StdError| s3_error!(IncompleteBody, "{error}");
    let Some(first) = body.try_next().await.map_err(broken)? else { return Ok(Bytes::new()) };
    let mut whole = BytesMut::from(first.as_ref());
    while let Some(chunk) = body.try_next().await.map_err(broken)? {
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.freeze())
}
