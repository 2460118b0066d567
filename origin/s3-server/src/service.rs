//! S3's operations over the [`Store`].
//!
//! s3s checks the signature and parses the request before it calls an operation. Operations that none of our clients
//! uses are answered with 501. The invariant: a body always matches the tag in its head.

mod body;
mod listing;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CompleteMultipartUploadInput, CompleteMultipartUploadOutput,
    CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopySource, CreateBucketInput, CreateBucketOutput,
    CreateMultipartUploadInput, CreateMultipartUploadOutput, DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput,
    DeleteObjectsOutput, DeletedObject, ETag, ETagCondition, EncodingType, GetBucketLocationInput,
    GetBucketLocationOutput, GetObjectInput, GetObjectOutput, HeadBucketInput, HeadBucketOutput, HeadObjectInput,
    HeadObjectOutput, ListObjectsInput, ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output, PutObjectInput,
    PutObjectOutput, Range, Timestamp, UploadPartInput, UploadPartOutput,
};
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};

use crate::store::Store;
use crate::store::listing::PageStart;
use crate::store::object::Object;
use listing::{encoded, entries, parse_token, token};

/// The most keys in a page, as on Amazon.
const PAGE_KEYS: i32 = 1000;

/// The implementation of s3s's trait.
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

/// The requested range of bytes, and its `Content-Range` header if the request has a range.
fn requested(range: Option<Range>, len: u64) -> S3Result<(std::ops::Range<u64>, Option<String>)> {
    match range {
        None => Ok((0..len, None)),
        Some(range) => {
            let range = range.check(len).map_err(|_| s3_error!(InvalidRange))?;
            let header = format!("bytes {}-{}/{len}", range.start, range.end - 1);
            Ok((range, Some(header)))
        }
    }
}

#[async_trait::async_trait]
impl S3 for Service {
    async fn get_object(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let input = request.input;
        self.store.gets.fetch_add(1, Ordering::Relaxed);
        let object = self.existing_object(&input.bucket, &input.key)?;
        self.store.count_get(&object);
        check_conditions(&object, input.if_match.as_ref(), input.if_none_match.as_ref())?;
        let (range, content_range) = requested(input.range, object.len())?;
        let length = range.end - range.start;
        self.store.get_bytes.fetch_add(length, Ordering::Relaxed);
        Ok(S3Response::new(GetObjectOutput {
            accept_ranges: Some("bytes".to_string()),
            content_length: Some(length as i64),
            content_range,
            e_tag: Some(tag(&object)),
            last_modified: Some(Timestamp::from(object.modified)),
            body: Some(body::outgoing(object, range).await?),
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
        let (bytes, md5) = body::received(input.body, input.content_length, input.content_md5.as_deref()).await?;
        let etag = self.store.put_hashed(&input.bucket, &input.key, bytes, md5);
        Ok(S3Response::new(PutObjectOutput { e_tag: Some(ETag::Strong(etag)), ..PutObjectOutput::default() }))
    }

    async fn copy_object(&self, request: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        let input = request.input;
        let CopySource::Bucket { bucket, key, .. } = &input.copy_source else { return Err(s3_error!(NotImplemented)) };
        let object = self.existing_object(bucket, key)?;
        check_conditions(&object, input.copy_source_if_match.as_ref(), None)?;
        self.existing_bucket(&input.bucket)?;
        self.store.put_copy(&input.bucket, &input.key, &object);
        let result = CopyObjectResult { e_tag: Some(tag(&object)), ..CopyObjectResult::default() };
        Ok(S3Response::new(CopyObjectOutput { copy_object_result: Some(result), ..CopyObjectOutput::default() }))
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

    /// The older form of a listing, which some clients still use.
    async fn list_objects(&self, request: S3Request<ListObjectsInput>) -> S3Result<S3Response<ListObjectsOutput>> {
        let input = request.input;
        self.store.lists.fetch_add(1, Ordering::Relaxed);
        let url = input.encoding_type.as_ref().is_some_and(|kind| kind.as_str() == EncodingType::URL);
        let limit = input.max_keys.unwrap_or(PAGE_KEYS).clamp(0, PAGE_KEYS);
        let prefix = input.prefix.clone().unwrap_or_default();
        let delimiter = input.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty());
        let start = match &input.marker {
            // The last entry of the previous page may have been a common prefix.
            Some(marker) if delimiter.is_some_and(|delimiter| marker.ends_with(delimiter)) => {
                PageStart::AfterPrefix(marker.clone())
            }
            Some(marker) => PageStart::After(marker.clone()),
            None => PageStart::Beginning,
        };
        let page = self
            .store
            .list(&input.bucket, &prefix, delimiter, start, limit as usize)
            .ok_or_else(|| s3_error!(NoSuchBucket))?;
        let (contents, prefixes) = entries(&page, url);
        let next = page.next.as_ref().filter(|_| limit > 0);
        let next_marker = next.and_then(|start| match start {
            PageStart::Beginning => None,
            PageStart::After(key) | PageStart::AfterPrefix(key) => Some(encoded(key, url)),
        });
        Ok(S3Response::new(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(encoded(&prefix, url)),
            // Amazon includes the marker even if the request has none.
            marker: Some(input.marker.as_deref().map(|marker| encoded(marker, url)).unwrap_or_default()),
            delimiter: input.delimiter.as_deref().map(|delimiter| encoded(delimiter, url)),
            max_keys: Some(limit),
            is_truncated: Some(next.is_some()),
            // Amazon sends it only with a delimiter. Without one, the last key is the marker.
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
        // No location is Amazon's answer for us-east-1, its first region.
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
            (Some(token), _) => parse_token(token)
                .ok_or_else(|| s3_error!(InvalidArgument, "not a continuation token of this server"))?,
            (None, Some(after)) => PageStart::After(after.clone()),
            (None, None) => PageStart::Beginning,
        };
        let prefix = input.prefix.clone().unwrap_or_default();
        let delimiter = input.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty());
        let page = self
            .store
            .list(&input.bucket, &prefix, delimiter, start, limit as usize)
            .ok_or_else(|| s3_error!(NoSuchBucket))?;
        let (contents, prefixes) = entries(&page, url);
        // As on Amazon, a page of 0 keys is never truncated.
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
        let (bytes, md5) = body::received(input.body, input.content_length, input.content_md5.as_deref()).await?;
        let etag = self.store.put_part(&input.upload_id, input.part_number, bytes, md5);
        let etag = etag.ok_or_else(|| s3_error!(NoSuchUpload))?;
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
