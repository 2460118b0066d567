//! The bodies of requests and answers.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt};
use md5::{Digest, Md5};
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

/// Receives the whole body of a request, and returns it with its MD5. Errors: it does not have the length or the MD5
/// (`Content-MD5`) that the request announced.
pub(super) async fn received(
    body: Option<StreamingBlob>,
    length: Option<i64>,
    content_md5: Option<&str>,
) -> S3Result<(Bytes, [u8; 16])> {
    let bytes = collected(body).await?;
    if length.is_some_and(|length| length != bytes.len() as i64) {
        return Err(s3_error!(IncompleteBody));
    }
    let md5 = Md5::digest(&bytes).into();
    content_md5.map_or(Ok(()), |announced| compare(announced, md5))?;
    Ok((bytes, md5))
}

fn compare(announced: &str, found: [u8; 16]) -> S3Result<()> {
    let announced: Option<[u8; 16]> = STANDARD.decode(announced).ok().and_then(|md5| md5.try_into().ok());
    match announced {
        None => Err(s3_error!(InvalidDigest)),
        Some(announced) if announced != found => Err(s3_error!(BadDigest)),
        Some(_) => Ok(()),
    }
}

async fn collected(body: Option<StreamingBlob>) -> S3Result<Bytes> {
    let Some(mut body) = body else { return Ok(Bytes::new()) };
    let broken = |error: s3s::StdError| s3_error!(IncompleteBody, "{error}");
    let Some(first) = body.try_next().await.map_err(broken)? else { return Ok(Bytes::new()) };
    let mut whole = BytesMut::from(first.as_ref());
    while let Some(chunk) = body.try_next().await.map_err(broken)? {
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.freeze())
}

#[cfg(test)]
mod tests {
    use s3s::S3ErrorCode;

    use super::*;

    #[tokio::test]
    async fn a_body_has_the_md5_that_its_request_announced() {
        let receive = async |content_md5| {
            let body = StreamingBlob::from(Body::from(Bytes::from_static(b"hello")));
            received(Some(body), Some(5), content_md5).await.map_err(|error| error.code().clone())
        };
        let (bytes, md5) = receive(Some("XUFAKrxLKna5cZ2REBfFkg==")).await.expect("its MD5");
        assert_eq!(bytes, "hello");
        assert_eq!(md5, <[u8; 16]>::from(Md5::digest("hello")));
        assert_eq!(receive(None).await, Ok((bytes, md5)));
        assert_eq!(receive(Some("XUFAKrxLKna5cZ2REBfFkw==")).await, Err(S3ErrorCode::BadDigest));
        for invalid in ["", "XUFAKrxLKna5cZ2REBfF", "5d41402abc4b2a76b9719d911017c592", "XUFAKrxLKna5cZ2REBfFkg=!"] {
            assert_eq!(receive(Some(invalid)).await, Err(S3ErrorCode::InvalidDigest), "{invalid}");
        }
    }
}
