//! The buckets and objects of the server.
//!
//! [`Store`] is one lock round all buckets, held for look-ups only; [`Object`]s are shared, so that a body goes out
//! while its key is overwritten. The invariant: an [`Object`] never changes, so its tag always fits its bytes.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::SystemTime;

use bytes::Bytes;
use md5::{Digest, Md5};

use crate::Counters;

/// Where the bytes of an object are.
#[derive(Debug)]
pub(crate) enum Content {
    Memory(Bytes),
    File { path: PathBuf, len: u64 },
}

/// One version of an object.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) content: Content,
    /// Without quotes.
    pub(crate) etag: String,
    pub(crate) modified: SystemTime,
    /// The same for `Last-Modified`.
    pub(crate) http_date: String,
    /// Of the key, over all of its versions.
    gets: Arc<AtomicU64>,
}

impl Object {
    pub(crate) fn len(&self) -> u64 {
        match &self.content {
            Content::Memory(bytes) => bytes.len() as u64,
            Content::File { len, .. } => *len,
        }
    }
}

type Bucket = BTreeMap<String, Arc<Object>>;

/// An upload in parts, by part number.
#[derive(Debug, Default)]
struct Upload {
    parts: BTreeMap<i32, (Bytes, [u8; 16])>,
}

/// All that the server holds.
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

/// Where a page of a listing starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    Beginning,
    /// After this key.
    After(String),
    /// After all keys that begin with this.
    AfterPrefix(String),
}

/// One page of a listing.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) objects: Vec<(String, Arc<Object>)>,
    pub(crate) prefixes: Vec<String>,
    /// Where the next page starts, if there is one.
    pub(crate) next: Option<Start>,
}

impl Store {
    // A panic while holding these locks leaves whole maps behind: no change takes two steps.
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<String, Bucket>> {
        self.buckets.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<String, Bucket>> {
        self.buckets.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn uploads(&self) -> RwLockWriteGuard<'_, BTreeMap<String, Upload>> {
        self.uploads.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a bucket and gives whether it is new.
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
        let etag = hex(&Md5::digest(&bytes));
        self.put(bucket, key, Content::Memory(bytes), etag.clone());
        etag
    }

    pub(crate) fn put_file(&self, bucket: &str, key: &str, path: PathBuf, len: u64, etag: String) {
        self.put(bucket, key, Content::File { path, len }, etag);
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

    /// A page of at most `limit` keys and common prefixes; `None` if there is no such bucket.
    pub(crate) fn list(
        &self,
        bucket: &str,
        prefix: &str,
        delimiter: Option<&str>,
        start: Start,
        limit: usize,
    ) -> Option<Listing> {
        let buckets = self.read();
        let bucket = buckets.get(bucket)?;
        let mut listing = Listing::default();
        let mut at = start;
        loop {
            let from = match &at {
                Start::AfterPrefix(below) => match successor(below) {
                    Some(next) => Bound::Included(next),
                    None => return Some(listing),
                },
                Start::After(key) if key.as_str() >= prefix => Bound::Excluded(key.clone()),
                Start::After(_) | Start::Beginning => Bound::Included(prefix.to_string()),
            };
            let from = match from {
                Bound::Included(key) if key.as_str() < prefix => Bound::Included(prefix.to_string()),
                from => from,
            };
            let Some((key, object)) = bucket.range::<String, _>((from, Bound::Unbounded)).next() else {
                return Some(listing);
            };
            let Some(rest) = key.strip_prefix(prefix) else {
                return Some(listing);
            };
            if listing.objects.len() + listing.prefixes.len() >= limit {
                listing.next = Some(at);
                return Some(listing);
            }
            at = match delimiter.and_then(|delimiter| Some(rest.find(delimiter)? + delimiter.len())) {
                Some(end) => {
                    let below = format!("{prefix}{}", &rest[..end]);
                    listing.prefixes.push(below.clone());
                    Start::AfterPrefix(below)
                }
                None => {
                    listing.objects.push((key.clone(), Arc::clone(object)));
                    Start::After(key.clone())
                }
            };
        }
    }

    pub(crate) fn begin_upload(&self) -> String {
        let id = format!("upload-{}", self.next_upload.fetch_add(1, Ordering::Relaxed));
        self.uploads().insert(id.clone(), Upload::default());
        id
    }

    /// Keeps a part and gives its tag; `None` if there is no such upload.
    pub(crate) fn put_part(&self, upload: &str, number: i32, bytes: Bytes) -> Option<String> {
        let digest: [u8; 16] = Md5::digest(&bytes).into();
        self.uploads().get_mut(upload)?.parts.insert(number, (bytes, digest));
        Some(hex(&digest))
    }

    /// Puts the parts together as Amazon does, with a tag made of the parts' tags; `None` if there is no such upload or
    /// one of the parts is not there.
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

/// The first string after all that begin with `prefix`; there is none after the last letter of Unicode.
fn successor(prefix: &str) -> Option<String> {
    let mut letters: Vec<char> = prefix.chars().collect();
    while let Some(last) = letters.pop() {
        // The surrogates between these two are no letters.
        let next = if last == '\u{D7FF}' { Some('\u{E000}') } else { char::from_u32(last as u32 + 1) };
        if let Some(next) = next {
            letters.push(next);
            return Some(letters.into_iter().collect());
        }
    }
    None
}

/// The MD5 of a file, as an entity tag without quotes.
pub(crate) fn md5_of_file(path: &Path) -> io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let mut digest = Md5::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&digest.finalize())),
            n => digest.update(&buffer[..n]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All pages of a listing, as S3 shows them: keys and prefixes in one order.
    fn pages(store: &Store, prefix: &str, delimiter: Option<&str>, limit: usize) -> Vec<String> {
        let mut all = Vec::new();
        let mut start = Start::Beginning;
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
            let page = store.list("b", prefix, None, Start::After(after.into()), 10).expect("bucket");
            page.objects.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert_eq!(keys("", "b/1"), ["b/2", "c"]);
        assert_eq!(keys("b/", ""), ["b/1", "b/2"]);
        assert_eq!(keys("b/", "a"), ["b/1", "b/2"]);
        assert_eq!(keys("b/", "c"), Vec::<String>::new());
        assert!(store.list("none", "", None, Start::Beginning, 1).is_none());
    }

    #[test]
    fn tags_are_those_of_amazon() {
        let store = Store::default();
        assert_eq!(store.put_memory("b", "k", Bytes::from_static(b"hello")), "5d41402abc4b2a76b9719d911017c592");
        let upload = store.begin_upload();
        store.put_part(&upload, 2, Bytes::from_static(b"world")).expect("upload");
        store.put_part(&upload, 1, Bytes::from_static(b"hello")).expect("upload");
        assert_eq!(store.finish_upload("b", "k", &upload, &[1, 3]), None, "a part that is not there");
        let etag = store.finish_upload("b", "k", &upload, &[1, 2]).expect("both parts");
        assert!(etag.ends_with("-2"), "{etag}");
        let object = store.get("b", "k").expect("object");
        assert!(matches!(&object.content, Content::Memory(bytes) if bytes == "helloworld"));
        assert_eq!(store.finish_upload("b", "k", &upload, &[1]), None, "an upload ends once");
    }
}
