//! An origin in memory for this crate's tests: a map of keys that fails on request.
//!
//! Invariant: it lists like an object store (in key order, with pages and common prefixes).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt;
use futures::stream::BoxStream;
use larder_origin::{Depth, Key, Md5Answer, ObjectInfo, Origin, OriginError, OriginUrl, Page, Version};
use md5::{Digest, Md5};

/// Objects by key. Counts the calls, and fails them from a configured call on.
#[derive(Debug)]
pub(crate) struct MemoryOrigin {
    url: OriginUrl,
    page: usize,
    objects: Mutex<BTreeMap<Vec<u8>, (Bytes, Version)>>,
    pub(crate) lists: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) puts: AtomicU64,
    /// The number of LIST calls that succeed before they start to fail; `u64::MAX` for no failure.
    pub(crate) lists_allowed: AtomicU64,
    /// The same for PUT calls.
    pub(crate) puts_allowed: AtomicU64,
    /// If set, the answer to every LIST call.
    pub(crate) answer: Mutex<Option<Page>>,
    /// If set, a key and the size that HEAD calls report for it.
    pretended: Mutex<Option<(Vec<u8>, u64)>>,
    /// Every key written, in order.
    pub(crate) written: Mutex<Vec<Vec<u8>>>,
    /// Another origin of the same store, whose objects it can copy by itself.
    pub(crate) beside: Mutex<Option<std::sync::Arc<MemoryOrigin>>>,
    /// True if entity tags are no MD5s.
    pub(crate) encrypted: AtomicBool,
    /// Calls of `put_with_md5`.
    pub(crate) md5_puts: AtomicU64,
    /// True if these store the bytes whatever their MD5 is.
    pub(crate) ignores_md5: AtomicBool,
}

fn down() -> OriginError {
    OriginError::Unavailable { source: "configured to fail".into() }
}

/// The ETag of an object that was put in one piece.
pub(crate) fn etag_of(bytes: &[u8]) -> Version {
    let hex: String = Md5::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    Version::ETag(format!("\"{hex}\""))
}

impl MemoryOrigin {
    pub(crate) fn new(url: &str, page: usize) -> Self {
        Self {
            url: url.parse().unwrap(),
            page,
            objects: Mutex::default(),
            lists: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            puts: AtomicU64::new(0),
            lists_allowed: AtomicU64::new(u64::MAX),
            puts_allowed: AtomicU64::new(u64::MAX),
            answer: Mutex::default(),
            pretended: Mutex::default(),
            written: Mutex::default(),
            beside: Mutex::default(),
            encrypted: AtomicBool::new(false),
            md5_puts: AtomicU64::new(0),
            ignores_md5: AtomicBool::new(false),
        }
    }

    pub(crate) fn set(&self, key: impl AsRef<[u8]>, bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        let version = etag_of(&bytes);
        self.objects.lock().unwrap().insert(key.as_ref().to_vec(), (bytes, version));
    }

    /// Changes the bytes of an object without changing its version.
    pub(crate) fn rot(&self, key: &[u8], bytes: impl Into<Bytes>) {
        self.objects.lock().unwrap().get_mut(key).unwrap().0 = bytes.into();
    }

    pub(crate) fn remove(&self, key: &[u8]) {
        self.objects.lock().unwrap().remove(key).unwrap();
    }

    /// Makes HEAD calls report another size.
    pub(crate) fn pretend_size(&self, key: &[u8], size: u64) {
        *self.pretended.lock().unwrap() = Some((key.to_vec(), size));
    }

    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        self.objects.lock().unwrap().keys().cloned().collect()
    }

    fn get(&self, key: &[u8]) -> Result<(Bytes, Version), OriginError> {
        let objects = self.objects.lock().unwrap();
        objects.get(key).cloned().ok_or(OriginError::NotFound { key: Key::from(key) })
    }
}

fn listed(key: &[u8], bytes: &Bytes, version: &Version) -> ObjectInfo {
    ObjectInfo { key: key.to_vec(), size: bytes.len() as u64, mtime_ns: 7, version: version.clone() }
}

#[async_trait]
impl Origin for MemoryOrigin {
    fn url(&self) -> &OriginUrl {
        &self.url
    }

    async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
        // Yields, so that other calls can be in flight at the same time.
        tokio::task::yield_now().await;
        if self.lists.fetch_add(1, Ordering::SeqCst) >= self.lists_allowed.load(Ordering::SeqCst) {
            return Err(down());
        }
        if let Some(page) = self.answer.lock().unwrap().clone() {
            return Ok(page);
        }
        let mut page = Page::default();
        let objects = self.objects.lock().unwrap();
        for (key, (bytes, version)) in objects.range(prefix.to_vec()..) {
            if !key.starts_with(prefix) {
                break;
            }
            let entry = match (depth, key[prefix.len()..].iter().position(|&byte| byte == b'/')) {
                (Depth::One, Some(slash)) => &key[..prefix.len() + slash + 1],
                (Depth::One, None) | (Depth::All, _) => key,
            };
            if after.is_some_and(|after| entry <= after) || page.prefixes.last().is_some_and(|last| last == entry) {
                continue;
            }
            if page.files.len() + page.prefixes.len() == self.page {
                let last_file = page.files.last().map(|file| file.key.clone());
                page.next = last_file.max(page.prefixes.last().cloned());
                break;
            }
            if depth == Depth::One && entry.ends_with(b"/") && entry != prefix {
                page.prefixes.push(entry.to_vec());
            } else {
                page.files.push(listed(key, bytes, version));
            }
        }
        Ok(page)
    }

    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError> {
        tokio::task::yield_now().await;
        self.reads.fetch_add(1, Ordering::SeqCst);
        let (bytes, there) = self.get(key)?;
        if let Some(expected) = version.filter(|version| **version != there) {
            return Err(OriginError::Stale { key: Key::from(key), expected: expected.clone(), got: Some(there) });
        }
        if range.end > bytes.len() as u64 {
            let (expected, got) = (range.end - range.start, bytes.len() as u64);
            return Err(OriginError::Truncated { key: Key::from(key), expected, got });
        }
        Ok(bytes.slice(range.start as usize..range.end as usize))
    }

    async fn head(&self, key: &[u8]) -> Result<ObjectInfo, OriginError> {
        let info = self.get(key).map(|(bytes, version)| listed(key, &bytes, &version))?;
        let pretended = self.pretended.lock().unwrap().clone().filter(|(of, _)| of == key);
        Ok(ObjectInfo { size: pretended.map_or(info.size, |(_, size)| size), ..info })
    }

    async fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError> {
        let (bytes, version) = self.get(key)?;
        let size = bytes.len() as u64;
        if size > limit {
            Err(OriginError::TooLarge { key: Key::from(key), size, limit })
        } else {
            Ok((bytes, version))
        }
    }

    async fn put(&self, key: &[u8], bytes: Bytes) -> Result<Version, OriginError> {
        if self.puts.fetch_add(1, Ordering::SeqCst) >= self.puts_allowed.load(Ordering::SeqCst) {
            return Err(down());
        }
        self.written.lock().unwrap().push(key.to_vec());
        self.set(key, bytes.clone());
        Ok(etag_of(&bytes))
    }

    async fn put_with_md5(&self, key: &[u8], bytes: Bytes, md5: &[u8; 16]) -> Result<Md5Answer, OriginError> {
        self.md5_puts.fetch_add(1, Ordering::SeqCst);
        let found: [u8; 16] = Md5::digest(&bytes).into();
        if found != *md5 && !self.ignores_md5.load(Ordering::SeqCst) {
            return Ok(Md5Answer::Differs);
        }
        self.put(key, bytes).await.map(Md5Answer::Stored)
    }

    async fn put_stream(
        &self,
        key: &[u8],
        mut chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Version, OriginError> {
        let mut all = Vec::new();
        while let Some(chunk) = chunks.try_next().await? {
            all.extend_from_slice(&chunk);
        }
        self.put(key, all.into()).await
    }

    async fn delete(&self, key: &[u8]) -> Result<(), OriginError> {
        self.objects.lock().unwrap().remove(key);
        Ok(())
    }

    async fn copy_from(
        &self,
        source: &OriginUrl,
        object: &ObjectInfo,
        key: &[u8],
    ) -> Result<Option<Version>, OriginError> {
        let bytes = self.beside.lock().unwrap().as_ref().filter(|beside| beside.url == *source).map(|beside| {
            beside.objects.lock().unwrap().get(&object.key).filter(|(_, version)| *version == object.version).cloned()
        });
        let Some((bytes, version)) = bytes.flatten() else { return Ok(None) };
        self.set(key, bytes);
        Ok(Some(version))
    }

    async fn has_opaque_tag(&self, _: &[u8]) -> Result<bool, OriginError> {
        Ok(self.encrypted.load(Ordering::SeqCst))
    }
}
