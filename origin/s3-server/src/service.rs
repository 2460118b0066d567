//! S3's operations over the [`Store`].
//!
//! s3s has already checked the signature and parsed the request when one of these is called. What a client of ours
//! never asks for is left out and answered 501. The invariant: a body that goes out is that of the tag in its head.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CommonPrefix, CompleteMultipartUploadInput,
    CompleteMultipartUploadOutput, CreateBucketInput, CreateBucketOutput, CreateMultipartUploadInput,
    CreateMultipartUploadOutput, DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput,
    DeletedObject, ETag, ETagCondition, EncodingType, GetBucketLocationInput, GetBucketLocationOutput, GetObjectInput,
    GetObjectOutput, HeadBucketInput, HeadBucketOutput, HeadObjectInput, HeadObjectOutput, ListObjectsInput,
    ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output, Object as ListedObject, PutObjectInput,
    PutObjectOutput, Range, StreamingBlob, Timestamp, UploadPartInput, UploadPartOutput,
};
use s3s::{Body, S3, S3Request, S3Response, S3Result, s3_error};

use crate::store::{Content, Listing, Object, Start, Store};

/// Pieces that a file goes out in.
const PIECE: u64 = 1 << 20;

/// Keys in a page at most, as on Amazon.
const PAGE_KEYS: i32 = 1000;

/// What `encoding-type=url` leaves as it is.
const KEPT: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'*').remove(b'/');

/// The operations, as s3s calls them.
#[derive(Debug)]
pub(crate) struct Service {
    store: Arc<Store>,
}

impl Service {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self { store }
    }

    fn existing_bucket(&self, bucket: &str) -> S3Result<()> {
        if self.store.has_bucket(bucket) { Ok(()) } else { Err(s3_error!(NoSuchBucket)) }
    }

    fn existing_object(&self, bucket: &str, key: &str) -> S3Result<Arc<Object>> {
        match self.store.get(bucket, key) {
            Some(object) => Ok(object),
            None => {
                self.existing_bucket(bucket)?;
                Err(s3_error!(NoSuchKey))
            }
        }
    }
}

fn tag(object: &Object) -> ETag {
    ETag::Strong(object.etag.clone())
}

fn matches(condition: &ETagCondition, object: &Object) -> bool {
    match condition {
        ETagCondition::Any => true,
        ETagCondition::ETag(tag) => tag.as_strong() == Some(object.etag.as_str()),
    }
}

fn check_conditions(
    object: &Object,
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
) -> S3Result<()> {
    if if_match.is_some_and(|condition| !matches(condition, object)) {
        return Err(s3_error!(PreconditionFailed));
    }
    if if_none_match.is_some_and(|condition| matches(condition, object)) {
        return Err(s3_error!(NotModified));
    }
    Ok(())
}

/// The bytes asked for, and the header that says so if that is not the whole object.
fn asked(range: Option<Range>, len: u64) -> S3Result<(std::ops::Range<u64>, Option<String>)> {
    match range {
        None => Ok((0..len, None)),
        Some(range) => {
            let range = range.check(len).map_err(|_| s3_error!(InvalidRange))?;
            let header = format!("bytes {}-{}/{len}", range.start, range.end - 1);
            Ok((range, Some(header)))
        }
    }
}

async fn body(object: Arc<Object>, range: std::ops::Range<u64>) -> S3Result<StreamingBlob> {
    match &object.content {
        Content::Memory(bytes) => Ok(Body::from(bytes.slice(range.start as usize..range.end as usize)).into()),
        Content::File { path, .. } => {
            // The first piece is read before the head goes out, so that a file that is gone is an error and not a
            // broken body; most files are one piece.
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

/// s3s wants bodies that are `Sync`, which a boxed stream is not; nobody ever polls one from two threads.
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

fn encoded(text: &str, url: bool) -> String {
    // As Amazon does, a space is a plus sign and a plus sign is escaped.
    if url { utf8_percent_encode(text, &KEPT).to_string().replace("%20", "+") } else { text.to_string() }
}

/// Where to go on, in letters that survive XML and URLs.
fn token(start: &Start) -> String {
    let (kind, key) = match start {
        Start::Beginning => ('b', ""),
        Start::After(key) => ('k', key.as_str()),
        Start::AfterPrefix(prefix) => ('p', prefix.as_str()),
    };
    format!("{kind}{}", utf8_percent_encode(key, NON_ALPHANUMERIC).to_string().replace('%', "-"))
}

fn parse_token(token: &str) -> Option<Start> {
    let key = percent_encoding::percent_decode_str(&token.get(1..)?.replace('-', "%")).decode_utf8().ok()?.into_owned();
    match token.as_bytes().first()? {
        b'b' => Some(Start::Beginning),
        b'k' => Some(Start::After(key)),
        b'p' => Some(Start::AfterPrefix(key)),
        _ => None,
    }
}

/// The keys and common prefixes of a page, as a listing shows them.
fn shown(page: &Listing, url: bool) -> (Vec<ListedObject>, Vec<CommonPrefix>) {
    let objects = page.objects.iter().map(|(key, object)| ListedObject {
        key: Some(encoded(key, url)),
        e_tag: Some(tag(object)),
        last_modified: Some(Timestamp::from(object.modified)),
        size: Some(object.len() as i64),
        ..ListedObject::default()
    });
    let prefixes = page.prefixes.iter().map(|prefix| CommonPrefix { prefix: Some(encoded(prefix, url)) });
    (objects.collect(), prefixes.collect())
}

#[async_trait::async_trait]
impl S3 for Service {
    async fn get_object(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let input = request.input;
        self.store.gets.fetch_add(1, Ordering::Relaxed);
        let object = self.existing_object(&input.bucket, &input.key)?;
        self.store.count_get(&object);
        check_conditions(&object, input.if_match.as_ref(), input.if_none_match.as_ref())?;
        let (range, content_range) = asked(input.range, object.len())?;
        let length = range.end - range.start;
        self.store.get_bytes.fetch_add(length, Ordering::Relaxed);
        Ok(S3Response::new(GetObjectOutput {
            accept_ranges: Some("bytes".to_string()),
            content_length: Some(length as i64),
            content_range,
            e_tag: Some(tag(&object)),
            last_modified: Some(Timestamp::from(object.modified)),
            body: Some(body(object, range).await?),
            ..GetObjectOutput::default()
        }))
    }

    async fn head_object(&self, request: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let input = request.input;
        self.store.heads.fetch_add(1, Ordering::Relaxed);
        let object = self.existing_object(&input.bucket, &input.key)?;
        check_conditions(&object, input.if_match.as_ref(), input.if_none_match.as_ref())?;
        Ok(S3Response::new(HeadObjectOutput {
            accept_ranges: Some("bytes".to_string()),
            content_length: Some(object.len() as i64),
            e_tag: Some(tag(&object)),
            last_modified: Some(Timestamp::from(object.modified)),
            ..HeadObjectOutput::default()
        }))
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let input = request.input;
        self.store.puts.fetch_add(1, Ordering::Relaxed);
        self.existing_bucket(&input.bucket)?;
        let before = self.store.get(&input.bucket, &input.key);
        let may = match (&before, &input.if_match, &input.if_none_match) {
            (Some(object), Some(condition), _) => matches(condition, object),
            (None, Some(_), _) => false,
            (Some(object), None, Some(condition)) => !matches(condition, object),
            (_, None, _) => true,
        };
        if !may {
            return Err(s3_error!(PreconditionFailed));
        }
        let bytes = collected(input.body).await?;
        if input.content_length.is_some_and(|length| length != bytes.len() as i64) {
            return Err(s3_error!(IncompleteBody));
        }
        let etag = self.store.put_memory(&input.bucket, &input.key, bytes);
        Ok(S3Response::new(PutObjectOutput { e_tag: Some(ETag::Strong(etag)), ..PutObjectOutput::default() }))
    }

    async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.existing_bucket(&request.input.bucket)?;
        self.store.delete(&request.input.bucket, &request.input.key);
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let input = request.input;
        self.existing_bucket(&input.bucket)?;
        let quiet = input.delete.quiet.unwrap_or_default();
        let deleted = input.delete.objects.into_iter().map(|object| {
            self.store.delete(&input.bucket, &object.key);
            DeletedObject { key: Some(object.key), ..DeletedObject::default() }
        });
        let deleted: Vec<_> = deleted.collect();
        let deleted = Some(deleted).filter(|_| !quiet);
        Ok(S3Response::new(DeleteObjectsOutput { deleted, ..DeleteObjectsOutput::default() }))
    }

    /// The older form of a listing, which some clients still ask for.
    async fn list_objects(&self, request: S3Request<ListObjectsInput>) -> S3Result<S3Response<ListObjectsOutput>> {
        let input = request.input;
        self.store.lists.fetch_add(1, Ordering::Relaxed);
        let url = input.encoding_type.as_ref().is_some_and(|kind| kind.as_str() == EncodingType::URL);
        let limit = input.max_keys.unwrap_or(PAGE_KEYS).clamp(0, PAGE_KEYS);
        let prefix = input.prefix.clone().unwrap_or_default();
        let delimiter = input.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty());
        let start = match &input.marker {
            // The last entry of the page before may have been a common prefix.
            Some(marker) if delimiter.is_some_and(|delimiter| marker.ends_with(delimiter)) => {
                Start::AfterPrefix(marker.clone())
            }
            Some(marker) => Start::After(marker.clone()),
            None => Start::Beginning,
        };
        let page = self
            .store
            .list(&input.bucket, &prefix, delimiter, start, limit as usize)
            .ok_or_else(|| s3_error!(NoSuchBucket))?;
        let (contents, prefixes) = shown(&page, url);
        let next = page.next.as_ref().filter(|_| limit > 0);
        let next_marker = next.and_then(|start| match start {
            Start::Beginning => None,
            Start::After(key) | Start::AfterPrefix(key) => Some(encoded(key, url)),
        });
        Ok(S3Response::new(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(encoded(&prefix, url)),
            // Amazon shows it even if none was sent.
            marker: Some(input.marker.as_deref().map(|marker| encoded(marker, url)).unwrap_or_default()),
            delimiter: input.delimiter.as_deref().map(|delimiter| encoded(delimiter, url)),
            max_keys: Some(limit),
            is_truncated: Some(next.is_some()),
            // Amazon gives it only where there are prefixes; without, the last key is the marker.
            next_marker: next_marker.filter(|_| delimiter.is_some()),
            encoding_type: input.encoding_type,
            contents: Some(contents),
            common_prefixes: Some(prefixes),
            ..ListObjectsOutput::default()
        }))
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.existing_bucket(&request.input.bucket)?;
        // None is what the first region, us-east-1, answers.
        Ok(S3Response::new(GetBucketLocationOutput::default()))
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = request.input;
        self.store.lists.fetch_add(1, Ordering::Relaxed);
        let url = input.encoding_type.as_ref().is_some_and(|kind| kind.as_str() == EncodingType::URL);
        let limit = input.max_keys.unwrap_or(PAGE_KEYS).clamp(0, PAGE_KEYS);
        let start = match (&input.continuation_token, &input.start_after) {
            (Some(token), _) => {
                parse_token(token).ok_or_else(|| s3_error!(InvalidArgument, "no token of this server"))?
            }
            (None, Some(after)) => Start::After(after.clone()),
            (None, None) => Start::Beginning,
        };
        let prefix = input.prefix.clone().unwrap_or_default();
        let delimiter = input.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty());
        let page = self
            .store
            .list(&input.bucket, &prefix, delimiter, start, limit as usize)
            .ok_or_else(|| s3_error!(NoSuchBucket))?;
        let (contents, prefixes) = shown(&page, url);
        // As on Amazon, a page of no keys is never truncated.
        let next = page.next.as_ref().filter(|_| limit > 0);
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(encoded(&prefix, url)),
            delimiter: input.delimiter.as_deref().map(|delimiter| encoded(delimiter, url)),
            start_after: input.start_after.as_deref().map(|after| encoded(after, url)),
            max_keys: Some(limit),
            key_count: Some((contents.len() + prefixes.len()) as i32),
            continuation_token: input.continuation_token,
            is_truncated: Some(next.is_some()),
            next_continuation_token: next.map(token),
            encoding_type: input.encoding_type,
            contents: Some(contents),
            common_prefixes: Some(prefixes),
            ..ListObjectsV2Output::default()
        }))
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let input = request.input;
        self.existing_bucket(&input.bucket)?;
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(self.store.begin_upload()),
            ..CreateMultipartUploadOutput::default()
        }))
    }

    async fn upload_part(&self, request: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        let input = request.input;
        self.store.puts.fetch_add(1, Ordering::Relaxed);
        let bytes = collected(input.body).await?;
        if input.content_length.is_some_and(|length| length != bytes.len() as i64) {
            return Err(s3_error!(IncompleteBody));
        }
        let etag =
            self.store.put_part(&input.upload_id, input.part_number, bytes).ok_or_else(|| s3_error!(NoSuchUpload))?;
        Ok(S3Response::new(UploadPartOutput { e_tag: Some(ETag::Strong(etag)), ..UploadPartOutput::default() }))
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let input = request.input;
        let parts = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        let numbers: Option<Vec<i32>> = parts.iter().map(|part| part.part_number).collect();
        let numbers = numbers.filter(|numbers| !numbers.is_empty()).ok_or_else(|| s3_error!(InvalidPart))?;
        let etag = self
            .store
            .finish_upload(&input.bucket, &input.key, &input.upload_id, &numbers)
            .ok_or_else(|| s3_error!(NoSuchUpload))?;
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: Some(ETag::Strong(etag)),
            ..CompleteMultipartUploadOutput::default()
        }))
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        if !self.store.abort_upload(&request.input.upload_id) {
            return Err(s3_error!(NoSuchUpload));
        }
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }

    async fn head_bucket(&self, request: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        self.existing_bucket(&request.input.bucket)?;
        Ok(S3Response::new(HeadBucketOutput::default()))
    }

    async fn create_bucket(&self, request: S3Request<CreateBucketInput>) -> S3Result<S3Response<CreateBucketOutput>> {
        let bucket = request.input.bucket;
        if !self.store.create_bucket(&bucket) {
            return Err(s3_error!(BucketAlreadyOwnedByYou));
        }
        Ok(S3Response::new(CreateBucketOutput { location: Some(format!("/{bucket}")) }))
    }
}
