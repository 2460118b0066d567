//! Copies single objects: reads them piece by piece, checks the pieces, and writes them.
//!
//! An object of one piece whose entity tag is an MD5 is sent with it: the mirror compares the bytes, and this process
//! need not hash them. What the mirror does not store so is checked here and sent without it.
//!
//! Invariant: an object becomes visible in the mirror only after all of its bytes were compared with the checksums that
//! the source has for them, here or by a mirror that was seen to refuse a wrong MD5. It counts as copied only after the
//! mirror was found to have the same bytes: by its entity tag, or by reading them back.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use larder_dataset::{ManifestBytes, VersionTag, crc32c_append};
use larder_origin::{Key, Md5Answer, ObjectInfo, Origin, OriginError, Rate, Urgency, Version};
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;

use super::check::{Check, Mismatch};
use super::error::SyncError;
use super::objects::{Objects, SourceObject};
use crate::blocking::off_runtime;
use crate::version::{into_tag, tag_of};

/// The most bytes that one GET reads.
const PIECE_BYTES: u64 = 8 << 20;

/// The most pieces of an object that are read ahead.
const PIECES_AT_ONCE: usize = 4;

/// After this many objects that the mirror did not store with their MD5, no more are sent so: it does not write this
/// way, or its entity tags or those of the source are no MD5s.
const NOT_STORED_MOST: u32 = 16;

/// The memory that a copy of an object of several pieces takes: the pieces read ahead, and those that the writer of a
/// large object has in flight.
const LARGE_KIB: u32 = 96 << 10;

/// A copied object.
#[derive(Debug)]
pub(super) struct Copied {
    pub(super) number: u32,
    pub(super) size: u64,
    pub(super) version: VersionTag<'static>,
    /// True if the store itself made the copy.
    pub(super) by_store: bool,
    /// A copy that was made again because bytes changed on their way, in words.
    pub(super) repeated: Option<String>,
}

/// The objects after which a wrong MD5 was sent, or not.
#[derive(Debug, Default)]
struct Probes {
    objects: u64,
    /// The number of the next object that is sent with one.
    next: u64,
}

/// Copies the objects of a snapshot.
#[derive(Debug)]
pub(super) struct Copier<B> {
    objects: Arc<Objects<B>>,
    src: Arc<dyn Origin>,
    dst: Arc<dyn Origin>,
    same_store: bool,
    rate: Option<Rate>,
    /// True if the mirror refuses bytes with a wrong MD5. One that ignores MD5s would show bytes before they are
    /// compared.
    refuses_wrong_md5: OnceLock<bool>,
    /// Held while that is being found out.
    probes: tokio::sync::Mutex<Probes>,
    /// The objects that the mirror did not store with their MD5.
    not_stored: AtomicU32,
    /// In KiB. Objects wait for theirs in order.
    memory: Semaphore,
    memory_kib: u32,
}

impl<B: ManifestBytes + Send + Sync + 'static> Copier<B> {
    /// Copies within one store if `same_store`, reads at most `rate` bytes per second, and holds about `memory_bytes`.
    pub(super) fn new(
        objects: Arc<Objects<B>>,
        src: Arc<dyn Origin>,
        dst: Arc<dyn Origin>,
        same_store: bool,
        rate: Option<u64>,
        memory_bytes: u64,
    ) -> Self {
        let memory_kib = u32::try_from(memory_bytes >> 10).unwrap_or(u32::MAX).max(LARGE_KIB);
        let memory = Semaphore::new(memory_kib as usize);
        let (refuses_wrong_md5, probes, not_stored) = Default::default();
        let rate = rate.map(Rate::new);
        Self { objects, src, dst, same_store, rate, refuses_wrong_md5, probes, not_stored, memory, memory_kib }
    }

    /// Copies an object. Bytes that were changed on their way are copied once more.
    pub(super) async fn copy(self: Arc<Self>, number: u32) -> Result<Copied, SyncError> {
        let object = Arc::new(self.objects.get(number)?);
        let size = object.size;
        if let Some(version) = self.copied_by_store(&object).await {
            return Ok(Copied { number, size, version, by_store: true, repeated: None });
        }
        let kib = if size > PIECE_BYTES { LARGE_KIB } else { (size >> 10) as u32 + 1 };
        let _memory = self.memory.acquire_many(kib.min(self.memory_kib)).await.expect("the semaphore is never closed");
        let mut repeated = None;
        loop {
            match self.copy_bytes(number, &object).await {
                Ok(version) => {
                    return Ok(Copied { number, size, version: into_tag(version), by_store: false, repeated });
                }
                Err(error @ (SyncError::CorruptSource { .. } | SyncError::CorruptCopy { .. }))
                    if repeated.is_none() =>
                {
                    repeated = Some(error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The version of a copy that the store itself made. `None` if it did not.
    async fn copied_by_store(&self, object: &SourceObject) -> Option<VersionTag<'static>> {
        let version = object.version.clone().filter(|_| self.same_store)?;
        let SourceObject { key, size, .. } = object;
        let info = ObjectInfo { key: key.clone(), size: *size, mtime_ns: 0, version };
        self.dst.copy_from(self.src.url(), &info, key).await.ok().flatten().map(into_tag)
    }

    async fn copy_bytes(self: &Arc<Self>, number: u32, object: &Arc<SourceObject>) -> Result<Version, SyncError> {
        let tag = object.version.as_ref().map(tag_of);
        let check = Check::new(object.size, tag.as_ref(), self.objects.blocks(number)?);
        let md5 = check.only_md5();
        let check = Arc::new(Mutex::new(check));
        let (key, mut failure) = (&object.key, None);
        let put = if object.size == 0 {
            self.dst.put(key, Bytes::new()).await
        } else if object.size <= PIECE_BYTES {
            let bytes = Arc::clone(self).read(Arc::clone(object), 0..object.size).await?;
            if let Some(md5) = &md5
                && let Some(version) = self.stored_with_md5(key, &bytes, md5).await
            {
                return Ok(version);
            }
            let bytes = Arc::clone(self).checked(Arc::clone(object), Arc::clone(&check), bytes).await?;
            if let Some(md5) = md5 {
                self.send_wrong_md5(key, &bytes, md5).await;
            }
            self.dst.put(key, bytes).await
        } else {
            let pieces = self.pieces(object, &check);
            let failure = &mut failure;
            let chunks = pieces.map(move |piece| {
                piece.map_err(|error| {
                    // The stream's error only ends the write; this error names the cause.
                    *failure = Some(error);
                    OriginError::Unavailable { source: "the object cannot be read".into() }
                })
            });
            self.dst.put_stream(key, chunks.boxed()).await
        };
        let version = match (put, failure) {
            (_, Some(error)) => return Err(error),
            (Err(source), None) => return Err(SyncError::Write { key: key.clone(), source }),
            (Ok(version), None) => version,
        };
        let (etag, crc) = {
            let check = check.lock().unwrap_or_else(PoisonError::into_inner);
            (check.etag(), check.crc())
        };
        if tag_of(&version) != etag {
            self.read_back(object, &version, crc).await?;
        }
        Ok(version)
    }

    /// The version of a copy whose bytes the mirror compared with the MD5 of the source's entity tag. `None` if they
    /// are still to be checked and written.
    async fn stored_with_md5(&self, key: &[u8], bytes: &Bytes, md5: &[u8; 16]) -> Option<Version> {
        let compares = self.refuses_wrong_md5.get() == Some(&true);
        if !compares || self.not_stored.load(Ordering::Relaxed) >= NOT_STORED_MOST {
            return None;
        }
        // An error, as in an outage, says nothing about the objects after this one.
        let stored = match self.dst.put_with_md5(key, bytes.clone(), md5).await.ok()? {
            // Any other tag, as of a mirror that encrypts, shows nothing.
            Md5Answer::Stored(version) => Some(version).filter(|it| tag_of(it) == VersionTag::from_md5(md5, 0)),
            Md5Answer::Differs | Md5Answer::Refused => None,
        };
        if stored.is_none() {
            self.not_stored.fetch_add(1, Ordering::Relaxed);
        }
        stored
    }

    /// Sends the first object once with a wrong MD5, to see whether the mirror refuses it. The bytes are checked, so a
    /// mirror that stores them shows none that are wrong. Without an answer, as in an outage, the second object is sent
    /// so, then the fourth, the eighth and so on.
    async fn send_wrong_md5(&self, key: &[u8], bytes: &Bytes, mut md5: [u8; 16]) {
        // Others do not wait for the answer.
        let Ok(mut probes) = self.probes.try_lock() else { return };
        probes.objects += 1;
        if self.refuses_wrong_md5.get().is_some() || probes.objects < probes.next {
            return;
        }
        probes.next = probes.objects * 2;
        md5[0] ^= 1;
        if let Ok(answer) = self.dst.put_with_md5(key, bytes.clone(), &md5).await {
            let _ = self.refuses_wrong_md5.set(answer == Md5Answer::Differs);
        }
    }

    /// The checked bytes of an object of several pieces, in order.
    fn pieces(
        self: &Arc<Self>,
        object: &Arc<SourceObject>,
        check: &Arc<Mutex<Check>>,
    ) -> BoxStream<'static, Result<Bytes, SyncError>> {
        let size = object.size;
        let (reader, read) = (Arc::clone(self), Arc::clone(object));
        let (checker, checked, check) = (Arc::clone(self), Arc::clone(object), Arc::clone(check));
        futures::stream::iter((0..size).step_by(PIECE_BYTES as usize))
            .map(move |start| {
                let end = size.min(start + PIECE_BYTES);
                let piece = Arc::clone(&reader).read(Arc::clone(&read), start..end);
                let piece = AbortOnDropHandle::new(tokio::spawn(piece));
                async move {
                    match piece.await {
                        Ok(bytes) => bytes,
                        Err(error) => std::panic::resume_unwind(error.into_panic()),
                    }
                }
            })
            .buffered(PIECES_AT_ONCE)
            .and_then(move |bytes| Arc::clone(&checker).checked(Arc::clone(&checked), Arc::clone(&check), bytes))
            .boxed()
    }

    async fn read(self: Arc<Self>, object: Arc<SourceObject>, range: std::ops::Range<u64>) -> Result<Bytes, SyncError> {
        if let Some(rate) = &self.rate {
            rate.wait(range.end - range.start, &Urgency::HIGH).await;
        }
        let key = object.key.clone();
        match self.src.read(&key, range, object.version.as_ref()).await {
            Ok(bytes) => Ok(bytes),
            Err(
                source @ (OriginError::Stale { .. } | OriginError::NotFound { .. } | OriginError::Truncated { .. }),
            ) => Err(SyncError::SourceChanged { key, source }),
            Err(source) => Err(SyncError::Read { key, source }),
        }
    }

    async fn checked(
        self: Arc<Self>,
        object: Arc<SourceObject>,
        check: Arc<Mutex<Check>>,
        bytes: Bytes,
    ) -> Result<Bytes, SyncError> {
        let (updated, bytes) = off_runtime(move || {
            let updated = check.lock().unwrap_or_else(PoisonError::into_inner).update(&bytes);
            (updated, bytes)
        })
        .await;
        let key = &object.key;
        let what = match updated {
            Ok(()) => return Ok(bytes),
            Err(Mismatch::Md5 { wanted, found }) => {
                let opaque = self.src.has_opaque_tag(key).await;
                if opaque.map_err(|source| SyncError::Read { key: key.clone(), source })? {
                    return Ok(bytes);
                }
                let hex = |md5: [u8; 16]| md5.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
                format!("MD5 {} instead of {}", hex(found), hex(wanted))
            }
            Err(Mismatch::Block { file, wanted, found }) => {
                let manifest = self.objects.manifest();
                let path = manifest.file_path(&manifest.file(file)?)?;
                format!("CRC32C {found:08x} instead of {wanted:08x} in {}", Key::from(path.as_slice()))
            }
        };
        Err(SyncError::CorruptSource { key: key.clone(), what })
    }

    /// Compares the bytes of a copy with their CRC32C: its version shows nothing about them.
    async fn read_back(&self, object: &SourceObject, version: &Version, wanted: u32) -> Result<(), SyncError> {
        let key = &object.key;
        let mut found = 0;
        for start in (0..object.size).step_by(PIECE_BYTES as usize) {
            let range = start..object.size.min(start + PIECE_BYTES);
            let bytes = self.dst.read(key, range, Some(version)).await;
            let bytes = bytes.map_err(|source| SyncError::Write { key: key.clone(), source })?;
            found = off_runtime(move || crc32c_append(found, &bytes)).await;
        }
        if found == wanted {
            return Ok(());
        }
        let what = format!("CRC32C {found:08x} instead of {wanted:08x}");
        Err(SyncError::CorruptCopy { key: key.clone(), what })
    }
}
