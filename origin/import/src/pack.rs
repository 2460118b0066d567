//! Packing: the files of a snapshot, back to back, in objects of about 64 MiB.
//!
//! The cast: `Plan` cuts the files, in manifest order, into packs; [`pack`] reads them, writes the packs, and the manifest
//! last; the journal remembers the packs that are finished.
//!
//! Invariant: the manifest is stored after every pack it names, so no reader sees one whose packs are missing; and every
//! byte in a pack is of the version the source manifest is bound to. The plan depends on the source manifest and the pack
//! size alone, so that a later run makes the same one.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use larder_dataset::manifest::{BuildError, Built, PackObject, Packed as PackedFile};
use larder_dataset::{
    BLOCK_BYTES, DirIndex, FileIndex, Manifest, ManifestBuilder, ManifestError, NameRules, Rejection,
};
use larder_origin::{Key, Origin, OriginError, Version};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::AbortOnDropHandle;

use crate::import::{nanoseconds_now, off_runtime};
use crate::journal::{Identity, Journal, JournalError, Kind, PackRecord};
use crate::progress::Progress;
use crate::publish::{MANIFEST_KEY, PublishError, put_manifest};
use crate::source::object_range;

/// One GET asks for at most this much; whole blocks, so that each piece gives the CRCs of its blocks.
const PIECE_BYTES: u64 = 2 * BLOCK_BYTES;
/// A pack's record must fit a journal frame however small its files are.
const FILES_PER_PACK_MAX: u32 = 1 << 20;
/// While one pack is written the next are read.
const PACKS_AT_ONCE: usize = 3;
/// Packs are written whole by one PUT, for which stores have a limit.
const PACK_BYTES_MAX: u64 = 1 << 30;

/// How to pack.
#[derive(Clone, Debug)]
pub struct PackOptions {
    /// Bytes of a pack; a larger file gets one of its own.
    pub pack_bytes: u64,
    /// How many GET calls are in flight at most for each of the three packs in the making.
    pub concurrency: usize,
    /// How many bytes are read ahead at most, beside the packs in the making.
    pub read_ahead_bytes: u64,
    /// What, beside their URLs, tells these origins from others, such as the servers they are reached at.
    pub endpoint: Option<String>,
    /// Where the journal is kept until the manifest is stored.
    pub journal_dir: PathBuf,
    /// An older journal is not gone on with.
    pub max_age_resume: Duration,
    /// Packs everything again, whatever the journal says.
    pub restart: bool,
}

impl PackOptions {
    /// Packs of 64 MiB, 16 calls at once, 64 MiB read ahead, journals of up to a week.
    pub fn new(journal_dir: impl Into<PathBuf>) -> Self {
        Self {
            pack_bytes: 64 << 20,
            concurrency: 16,
            read_ahead_bytes: 64 << 20,
            endpoint: None,
            journal_dir: journal_dir.into(),
            max_age_resume: Duration::from_secs(7 * 24 * 3600),
            restart: false,
        }
    }
}

/// The outcome of a packing, which is stored.
#[derive(Debug)]
pub struct Packed {
    /// The manifest, as it is stored under [`MANIFEST_KEY`].
    pub built: Built,
    /// Packs that this run wrote.
    pub packs_written: u64,
    /// Packs that an earlier run had written.
    pub packs_resumed: u64,
}

/// Why a packing failed. No manifest was stored; the packs finished until then are kept for the next run.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// A file is not what the snapshot says.
    #[error("{} changed or vanished at the origin since the snapshot was made: import the dataset again, then pack it", Key::from(path.as_slice()))]
    SourceChanged {
        /// The file's path.
        path: Vec<u8>,
        /// What the origin said.
        source: OriginError,
    },
    /// A file cannot be read.
    #[error("read {}", Key::from(path.as_slice()))]
    Read {
        /// The file's path.
        path: Vec<u8>,
        /// Why.
        source: OriginError,
    },
    /// A pack cannot be written.
    #[error("write pack {}", Key::from(key.as_slice()))]
    Write {
        /// The pack's key.
        key: Vec<u8>,
        /// Why.
        source: OriginError,
    },
    /// The snapshot's manifest is damaged.
    #[error("read the manifest of the snapshot")]
    Manifest(#[from] ManifestError),
    /// The snapshot's manifest has a name that cannot be; it was not made by Larder.
    #[error("the snapshot's manifest names {}: {reason}", Key::from(path.as_slice()))]
    Name {
        /// The file's or folder's path.
        path: Vec<u8>,
        /// What is wrong with it.
        reason: Rejection,
    },
    /// The options make no sense.
    #[error("packs have 1 byte to 1 GiB, not {pack_bytes} bytes")]
    PackSize {
        /// What was asked for.
        pack_bytes: u64,
    },
    /// The journal cannot be used; somebody else may be using it.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The packs do not make a manifest.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The manifest cannot be stored; the packs are.
    #[error(transparent)]
    Publish(#[from] PublishError),
}

/// Packs the snapshot of `manifest`, whose bytes are in `src`, into `dst`, and stores the new manifest there. The source
/// may be plain or packed. Cancel-safe: finished packs are kept. Holds at most three packs and the read-ahead in memory.
pub async fn pack<B: AsRef<[u8]> + Send + Sync + 'static>(
    manifest: Arc<Manifest<B>>,
    src: Arc<dyn Origin>,
    dst: Arc<dyn Origin>,
    options: PackOptions,
    progress: &dyn Progress,
) -> Result<Packed, PackError> {
    if !(1..=PACK_BYTES_MAX).contains(&options.pack_bytes) {
        return Err(PackError::PackSize { pack_bytes: options.pack_bytes });
    }
    let url = dst.url().to_string();
    let identity = Identity::new(
        Kind::Pack,
        &[
            &manifest.snapshot().0,
            url.as_bytes(),
            &options.pack_bytes.to_le_bytes(),
            options.endpoint.as_deref().unwrap_or_default().as_bytes(),
        ],
    );
    let (plan, journal, records) = {
        let (manifest, options) = (Arc::clone(&manifest), options.clone());
        off_runtime(move || {
            // Every row is read anyway; from here on their sizes are known to add up and their names to be names.
            manifest.verify()?;
            let plan = plan(&manifest, options.pack_bytes)?;
            let mut records = HashMap::new();
            let journal =
                Journal::open(&options.journal_dir, identity, options.max_age_resume, options.restart, |payload| {
                    let record = PackRecord::decode(payload)?;
                    records.insert(record.pack, record);
                    Ok(())
                })?;
            Ok::<_, PackError>((plan, journal, records))
        })
        .await?
    };
    let kept = still_there(&dst, &plan, records, options.concurrency).await;

    let mut run = Run { done: plan.iter().map(|_| None).collect(), totals: manifest.totals(), files: 0, bytes: 0 };
    let packs_resumed = kept.len() as u64;
    for record in kept {
        run.finish(&plan, record);
    }
    run.report(progress);

    let reader = Arc::new(Reader {
        manifest: Arc::clone(&manifest),
        src,
        dst: Arc::clone(&dst),
        concurrency: options.concurrency.max(1),
        // Counted in KiB, since a semaphore's permits are u32 at a time.
        ahead: Arc::new(Semaphore::new((options.read_ahead_bytes.max(PIECE_BYTES) >> 10) as usize)),
    });
    let missing: Vec<PackPlan> = plan.iter().filter(|pack| run.done[pack.number as usize].is_none()).cloned().collect();
    let packs_written = missing.len() as u64;
    let mut writes = futures::stream::iter(missing.into_iter().map(|pack| Arc::clone(&reader).write_pack(pack)))
        .buffer_unordered(PACKS_AT_ONCE);
    let mut journal = Some(journal);
    while let Some(record) = writes.try_next().await? {
        if let Some(mut open) = journal.take() {
            let payload = record.encode();
            journal = Some(off_runtime(move || open.append(&payload).map(|()| open)).await?);
        }
        run.finish(&plan, record);
        run.report(progress);
    }
    drop(writes);

    let done = run.done;
    let built = off_runtime(move || build(&manifest, &plan, done.into_iter().flatten(), &url)).await?;
    put_manifest(dst.as_ref(), MANIFEST_KEY, &built).await?;
    if let Some(journal) = journal {
        off_runtime(move || journal.discard()).await?;
    }
    Ok(Packed { built, packs_written, packs_resumed })
}

/// One pack to be made: files that follow each other in the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PackPlan {
    number: u32,
    files: Range<u32>,
    bytes: u64,
    /// Too large to be held: written as it is read.
    streamed: bool,
}

/// Cuts the files into packs. Empty files go where they stand, so that a pack of a large file may have some too.
fn plan<B: AsRef<[u8]>>(manifest: &Manifest<B>, pack_bytes: u64) -> Result<Vec<PackPlan>, PackError> {
    let mut packs = Vec::new();
    let mut open = 0..0_u32;
    let mut bytes = 0_u64;
    let mut close = |files: Range<u32>, bytes: u64| {
        // No more packs than files, which are numbered by u32.
        packs.push(PackPlan { number: packs.len() as u32, files, bytes, streamed: bytes > pack_bytes });
    };
    for index in 0..manifest.totals().files {
        let size = manifest.file(FileIndex(index))?.size;
        let full = size > 0 && bytes > 0 && bytes.saturating_add(size) > pack_bytes;
        if full || open.len() >= FILES_PER_PACK_MAX as usize {
            close(open.clone(), bytes);
            (open, bytes) = (index..index, 0);
        }
        open.end = index + 1;
        bytes = bytes.saturating_add(size);
    }
    if !open.is_empty() {
        close(open, bytes);
    }
    Ok(packs)
}

/// The packs of an earlier run that fit the plan and are at the destination as they were written.
async fn still_there(
    dst: &Arc<dyn Origin>,
    plan: &[PackPlan],
    mut records: HashMap<u32, PackRecord>,
    concurrency: usize,
) -> Vec<PackRecord> {
    let planned = plan.iter().filter_map(|pack| {
        let record = records.remove(&pack.number)?;
        let fits = (record.first_file..record.end_file, record.size) == (pack.files.clone(), pack.bytes);
        fits.then_some(record)
    });
    futures::stream::iter(planned.collect::<Vec<_>>())
        .map(|record| async move {
            // What cannot be looked at is written again, which then tells what is wrong.
            let there = dst.head(&record.key).await.ok()?;
            ((there.size, &there.version) == (record.size, &record.version)).then_some(record)
        })
        .buffer_unordered(concurrency.max(1))
        .filter_map(std::future::ready)
        .collect()
        .await
}

/// What is finished so far.
struct Run {
    done: Vec<Option<PackRecord>>,
    totals: larder_dataset::manifest::Totals,
    files: u64,
    bytes: u64,
}

impl Run {
    fn finish(&mut self, plan: &[PackPlan], record: PackRecord) {
        let number = record.pack as usize;
        self.files += plan[number].files.len() as u64;
        self.bytes += plan[number].bytes;
        self.done[number] = Some(record);
    }

    fn report(&self, progress: &dyn Progress) {
        progress.packed(self.files, u64::from(self.totals.files), self.bytes, self.totals.bytes);
    }
}

/// One GET's worth of a file.
struct Piece {
    file: FileIndex,
    range: Range<u64>,
}

/// A piece that was read, with the CRCs of its blocks; gives its share of the read-ahead back when dropped.
struct ReadPiece {
    bytes: Bytes,
    crcs: Vec<u32>,
    _ahead: OwnedSemaphorePermit,
}

struct Reader<B> {
    manifest: Arc<Manifest<B>>,
    src: Arc<dyn Origin>,
    dst: Arc<dyn Origin>,
    concurrency: usize,
    ahead: Arc<Semaphore>,
}

impl<B: AsRef<[u8]> + Send + Sync + 'static> Reader<B> {
    async fn write_pack(self: Arc<Self>, plan: PackPlan) -> Result<PackRecord, PackError> {
        let (key, version, block_crcs) =
            if plan.streamed { self.stream_pack(&plan).await? } else { self.put_pack(&plan).await? };
        Ok(PackRecord {
            pack: plan.number,
            key,
            size: plan.bytes,
            version,
            first_file: plan.files.start,
            end_file: plan.files.end,
            block_crcs,
        })
    }

    /// Holds the pack in memory; its name tells its contents.
    async fn put_pack(self: &Arc<Self>, plan: &PackPlan) -> Result<(Vec<u8>, Version, Vec<u32>), PackError> {
        let mut bytes = Vec::with_capacity(plan.bytes as usize);
        let mut crcs = Vec::new();
        let mut pieces = self.pieces(plan);
        while let Some(piece) = pieces.try_next().await? {
            bytes.extend_from_slice(&piece.bytes);
            crcs.extend_from_slice(&piece.crcs);
        }
        let key = pack_key(plan.number, larder_dataset::crc32c(&bytes));
        match self.dst.put(&key, bytes.into()).await {
            Ok(version) => Ok((key, version, crcs)),
            Err(source) => Err(PackError::Write { key, source }),
        }
    }

    /// Passes the pack on as it comes. Its name must be known before its contents are, so it tells their version.
    async fn stream_pack(self: &Arc<Self>, plan: &PackPlan) -> Result<(Vec<u8>, Version, Vec<u32>), PackError> {
        let name = larder_dataset::crc32c_append(
            larder_dataset::crc32c(&self.manifest.snapshot().0),
            &plan.files.start.to_le_bytes(),
        );
        let key = pack_key(plan.number, name);
        let mut crcs = Vec::new();
        let mut read_error = None;
        let put = {
            let (crcs, read_error) = (&mut crcs, &mut read_error);
            let chunks = self.pieces(plan).map(move |piece| match piece {
                Ok(piece) => {
                    crcs.extend_from_slice(&piece.crcs);
                    Ok(piece.bytes)
                }
                Err(error) => {
                    // The stream's own error only ends the write; this one says which file and why.
                    *read_error = Some(error);
                    Err(OriginError::Unavailable { source: "a file of the pack cannot be read".into() })
                }
            });
            self.dst.put_stream(&key, chunks.boxed()).await
        };
        match (put, read_error) {
            (_, Some(error)) => Err(error),
            (Err(source), None) => Err(PackError::Write { key, source }),
            (Ok(version), None) => Ok((key, version, crcs)),
        }
    }

    /// The bytes of the pack's files in order, read ahead. A piece gets its share of the read-ahead before any later
    /// piece of the pack does; so the oldest piece of each pack can always be read, and the packs cannot block each other.
    fn pieces(self: &Arc<Self>, plan: &PackPlan) -> BoxStream<'static, Result<ReadPiece, PackError>> {
        let (reader, asker) = (Arc::clone(self), Arc::clone(self));
        futures::stream::iter(plan.files.clone().map(FileIndex))
            .map(move |file| {
                let size = match reader.manifest.file(file) {
                    Ok(row) => row.size,
                    Err(error) => return futures::stream::iter(vec![Err(PackError::from(error))]),
                };
                let starts = (0..size).step_by(PIECE_BYTES as usize);
                let pieces = starts.map(|start| Ok(Piece { file, range: start..size.min(start + PIECE_BYTES) }));
                futures::stream::iter(pieces.collect::<Vec<_>>())
            })
            .flatten()
            .and_then(move |piece| {
                let ahead = Arc::clone(&asker.ahead);
                async move {
                    let share = (piece.range.end - piece.range.start).div_ceil(1 << 10) as u32;
                    let share = ahead.acquire_many_owned(share).await.expect("the semaphore is never closed");
                    Ok((piece, share))
                }
            })
            .map_ok({
                let reader = Arc::clone(self);
                move |(piece, share)| {
                    let reader = Arc::clone(&reader);
                    let read = AbortOnDropHandle::new(tokio::spawn(reader.read_piece(piece, share)));
                    async move {
                        match read.await {
                            Ok(read) => read,
                            Err(error) => std::panic::resume_unwind(error.into_panic()),
                        }
                    }
                }
            })
            .try_buffered(self.concurrency)
            .boxed()
    }

    async fn read_piece(self: Arc<Self>, piece: Piece, share: OwnedSemaphorePermit) -> Result<ReadPiece, PackError> {
        let (object, path) = {
            let file = self.manifest.file(piece.file)?;
            (object_range(&self.manifest, &file, piece.range)?, self.manifest.file_path(&file)?)
        };
        match self.src.read(&object.key, object.range, object.version.as_ref()).await {
            Ok(bytes) => {
                let crcs = bytes.chunks(BLOCK_BYTES as usize).map(larder_dataset::crc32c).collect();
                Ok(ReadPiece { bytes, crcs, _ahead: share })
            }
            Err(source @ (OriginError::Stale { .. } | OriginError::NotFound { .. })) => {
                Err(PackError::SourceChanged { path, source })
            }
            Err(source) => Err(PackError::Read { path, source }),
        }
    }
}

fn pack_key(number: u32, crc: u32) -> Vec<u8> {
    format!("packs/{number:06}-{crc:08x}.pack").into_bytes()
}

/// The manifest of the packs. Blocking.
fn build<B: AsRef<[u8]>>(
    manifest: &Manifest<B>,
    plan: &[PackPlan],
    done: impl Iterator<Item = PackRecord>,
    url: &str,
) -> Result<Built, PackError> {
    let mut builder = ManifestBuilder::new();
    let mut packs = Vec::with_capacity(plan.len());
    for (plan, record) in plan.iter().zip(done) {
        let (mut offset, mut blocks) = (0, record.block_crcs.as_slice());
        for index in plan.files.clone() {
            let file = manifest.file(FileIndex(index))?;
            let path = manifest.file_path(&file)?;
            let count = file.parts(0, file.size).count();
            let Some((block_crcs, rest)) = blocks.split_at_checked(count) else {
                return Err(PackError::Manifest(ManifestError::Corrupt { what: "block count" }));
            };
            blocks = rest;
            let (size, mtime_ns, pack) = (file.size, file.mtime_ns, plan.number);
            let row = PackedFile { path: &path, size, mtime_ns, pack, offset, block_crcs };
            builder.push_packed(&row).map_err(|reason| PackError::Name { path: path.clone(), reason })?;
            offset += file.size;
        }
        let etag = match record.version {
            Version::ETag(etag) => etag,
            Version::MtimeSize { .. } => String::new(),
        };
        packs.push(PackObject { key: record.key, size: record.size, etag });
    }
    builder.set_packs(packs);
    keep_empty_folders(manifest, &mut builder)?;
    let (name, _) = manifest.name_and_origin()?;
    Ok(builder.finish(name, url, nanoseconds_now())?)
}

fn keep_empty_folders<B: AsRef<[u8]>>(manifest: &Manifest<B>, builder: &mut ManifestBuilder) -> Result<(), PackError> {
    for index in 1..manifest.totals().dirs {
        let dir = manifest.dir(DirIndex(index))?;
        if dir.dir_count == 0 && dir.file_count == 0 {
            let mut path = Vec::new();
            manifest.dir_path(DirIndex(index), &mut path)?;
            builder
                .push_folder(&path, NameRules::FOLDER)
                .map_err(|reason| PackError::Name { path: path.clone(), reason })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
