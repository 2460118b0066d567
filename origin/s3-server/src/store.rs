//! The buckets and objects of the server.
//!
//! [`Store`] has one lock around all buckets, held only for look-ups. Objects are reference-counted, so that a body can
//! be sent while its key is overwritten.

pub(crate) mod digest;
pub(crate) mod listing;
pub(crate) mod object;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::SystemTime;

use bytes::Bytes;
use md5::{Digest, Md5};

use crate::counters::Counters;
use digest::hex;
use listing::{ListingPage, PageStart};
use object::{Content, Object};

type Bucket = BTreeMap<String, Arc<Object>>;

/// An upload in parts, by part number.
#[derive(Debug, Default)]
struct Upload {
    parts: BTreeMap<i32, (Bytes, [u8; 16])>,
}

/// The contents of the server.
#[derive(Debug, Default)]
pub(crate) struct Store {
    buckets: RwLock<BTreeMap<String, Bucket>>,
    uploads: RwLock<BTreeMap<String, Upload>>,
    next_upload: AtomicU64,
    pub(crate) gets: AtomicU64,
    pub(crate) get_bytes: AtomicU64,
    pub(crate) lists: AtomicU64,
    pub(crate) heads: AtomicU64,
    pub(crate) puts: AtomicU64,
}

impl Store {
    // No change takes two steps, so a panic under one of these locks leaves its map consistent.
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<String, Bucket>> {
        self.buckets.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<String, Bucket>> {
        self.buckets.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn uploads(&self) -> RwLockWriteGuard<'_, BTreeMap<String, Upload>> {
        self.uploads.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a bucket. Returns whether it is new.
    pub(crate) fn create_bucket(&self, bucket: &str) -> bool {
        let mut buckets = self.write();
        if buckets.contains_key(bucket) {
            return false;
        }
        buckets.insert(bucket.to_string(), Bucket::new());
        true
    }

    pub(crate) fn has_bucket(&self, bucket: &str) -> bool {
        self.read().contains_key(bucket)
    }

    pub(crate) fn put_memory(&self, bucket: &str, key: &str, bytes: Bytes) -> String {
        let md5 = Md5::digest(&bytes).into();
        self.put_hashed(bucket, key, bytes, md5)
    }

    /// Stores bytes that have this MD5, and returns their tag.
    pub(crate) fn put_hashed(&self, bucket: &str, key: &str, bytes: Bytes, md5: [u8; 16]) -> String {
        let etag = hex(&md5);
        self.put(bucket, key, Content::Memory(bytes), etag.clone());
        etag
    }

    pub(crate) fn put_file(&self, bucket: &str, key: &str, path: PathBuf, len: u64, etag: String) {
        self.put(bucket, key, Content::File { path, len }, etag);
    }

    /// Stores a copy of an object, under the same tag.
    pub(crate) fn put_copy(&self, bucket: &str, key: &str, object: &Object) {
        self.put(bucket, key, object.content.clone(), object.etag.clone());
    }

    fn put(&self, bucket: &str, key: &str, content: Content, etag: String) {
        let mut buckets = self.write();
        let bucket = buckets.entry(bucket.to_string()).or_default();
        let gets = bucket.get(key).map(|before| Arc::clone(&before.gets)).unwrap_or_default();
        let modified = SystemTime::now();
        let http_date = httpdate::fmt_http_date(modified);
        bucket.insert(key.to_string(), Arc::new(Object { content, etag, modified, http_date, gets }));
    }

    pub(crate) fn delete(&self, bucket: &str, key: &str) -> bool {
        self.write().get_mut(bucket).is_some_and(|bucket| bucket.remove(key).is_some())
    }

    pub(crate) fn get(&self, bucket: &str, key: &str) -> Option<Arc<Object>> {
        self.read().get(bucket)?.get(key).cloned()
    }

    pub(crate) fn count_get(&self, object: &Object) {
        object.gets.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn gets_of(&self, bucket: &str, key: &str) -> u64 {
        self.get(bucket, key).map_or(0, |object| object.gets.load(Ordering::Relaxed))
    }

    pub(crate) fn counters(&self) -> Counters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counters {
            gets: read(&self.gets),
            get_bytes: read(&self.get_bytes),
            lists: read(&self.lists),
            heads: read(&self.heads),
            puts: read(&self.puts),
        }
    }

    pub(crate) fn reset_counters(&self) {
        for count in [&self.gets, &self.get_bytes, &self.lists, &self.heads, &self.puts] {
            count.store(0, Ordering::Relaxed);
        }
        for object in self.read().values().flat_map(Bucket::values) {
            object.gets.store(0, Ordering::Relaxed);
        }
    }

    /// A page of at most `limit` keys and common prefixes. `None` if the bucket does not exist.
    pub(crate) fn list(
        &self,
        bucket: &str,
        prefix: &str,
        delimiter: Option<&str>,
        start: PageStart,
        limit: usize,
    ) -> Option<ListingPage> {
        Some(listing::list(self.read().get(bucket)?, prefix, delimiter, start, limit))
    }

    pub(crate) fn begin_upload(&self) -> String {
        let id = format!("upload-{}", self.next_upload.fetch_add(1, Ordering::Relaxed));
        self.uploads().insert(id.clone(), Upload::default());
        id
    }

    /// Stores a part that has this MD5, and returns its tag. `None` if the upload does not exist.
    pub(crate) fn put_part(&self, upload: &str, number: i32, bytes: Bytes, md5: [u8; 16]) -> Option<String> {
        self.uploads().get_mut(upload)?.parts.insert(number, (bytes, md5));
        Some(hex(&md5))
    }

    /// Assembles the parts as Amazon does, with a tag computed from the parts' tags. `None` if the upload or one of the
    /// parts does not exist.
    pub(crate) fn finish_upload(&self, bucket: &str, key: &str, upload: &str, numbers: &[i32]) -> Option<String> {
        let mut uploads = self.uploads();
        let parts = &uploads.get(upload)?.parts;
        let chosen: Vec<_> = numbers.iter().map(|number| parts.get(number)).collect::<Option<_>>()?;
        let mut whole = Vec::with_capacity(chosen.iter().map(|(bytes, _)| bytes.len()).sum());
        let mut digest = Md5::new();
        for (bytes, part) in &chosen {
            whole.extend_from_slice(bytes);
            digest.update(part);
        }
        let etag = format!("{}-{}", hex(&digest.finalize()), chosen.len());
        uploads.remove(upload);
        drop(uploads);
        self.put(bucket, key, Content::Memory(whole.into()), etag.clone());
        Some(etag)
    }

    pub(crate) fn abort_upload(&self, upload: &str) -> bool {
        self.uploads().remove(upload).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All pages of a listing as S3 shows them: keys and prefixes in one order.
    fn pages(store: &Store, prefix: &str, delimiter: Option<&str>, limit: usize) -> Vec<String> {
        let mut all = Vec::new();
        let mut start = PageStart::Beginning;
        loop {
            let page = store.list("b", prefix, delimiter, start, limit).expect("bucket");
            assert!(page.objects.len() + page.prefixes.len() <= limit);
            let mut names: Vec<_> = page.objects.into_iter().map(|(key, _)| key).chain(page.prefixes).collect();
            names.sort();
            all.extend(names);
            match page.next {
                Some(next) => start = next,
                None => return all,
            }
        }
    }

    #[test]
    fn pages_of_any_size_list_everything_once_and_in_order() {
        let store = Store::default();
        let keys = ["", "a", "a/", "a/b", "a/c/d", "a0", "b//c", "b/\u{10FFFF}", "b/\u{10FFFF}x", "c", "é/x"];
        keys.iter().for_each(|key| {
            store.put_memory("b", key, Bytes::from_static(b"x"));
        });
        for limit in 1..=12 {
            assert_eq!(pages(&store, "", None, limit), keys, "{limit}");
            assert_eq!(pages(&store, "", Some("/"), limit), ["", "a", "a/", "a0", "b/", "c", "é/"], "{limit}");
            assert_eq!(pages(&store, "a/", Some("/"), limit), ["a/", "a/b", "a/c/"], "{limit}");
            assert_eq!(pages(&store, "b/", Some("/"), limit), ["b//", "b/\u{10FFFF}", "b/\u{10FFFF}x"], "{limit}");
        }
    }

    #[test]
    fn listing_may_start_anywhere() {
        let store = Store::default();
        for key in ["a", "b/1", "b/2", "c"] {
            store.put_memory("b", key, Bytes::new());
        }
        let keys = |prefix: &str, after: &str| {
            let page = store.list("b", prefix, None, PageStart::After(after.into()), 10).expect("bucket");
            page.objects.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert_eq!(keys("", "b/1"), ["b/2", "c"]);
        assert_eq!(keys("b/", ""), ["b/1", "b/2"]);
        assert_eq!(keys("b/", "a"), ["b/1", "b/2"]);
        assert_eq!(keys("b/", "c"), Vec::<String>::new());
        assert!(store.list("none", "", None, PageStart::Beginning, 1).is_none());
    }

    #[test]
    fn tags_are_those_of_amazon() {
        let store = Store::default();
        assert_eq!(store.put_memory("b", "k", Bytes::from_static(b"hello")), "5d41402abc4b2a76b9719d911017c592");
        let upload = store.begin_upload();
        for (number, part) in [(2, "world"), (1, "hello")] {
            store.put_part(&upload, number, part.into(), Md5::digest(part).into()).expect("upload");
        }
        assert_eq!(store.finish_upload("b", "k", &upload, &[1, 3]), None, "a part that does not exist");
        let etag = store.finish_upload("b", "k", &upload, &[1, 2]).expect("both parts");
        assert!(etag.ends_with("-2"), "{etag}");
        let object = store.get("b", "k").expect("object");
        assert!(matches!(&object.content, Content::Memory(bytes) if bytes == "helloworld"));
        assert_eq!(store.finish_upload("b", "k", &upload, &[1]), None, "an upload ends once");
    }
}
