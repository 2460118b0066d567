//! Writes packs: reads the files ahead, piece by piece, and concatenates them.
//!
//! Invariant: every byte in a pack has the version that the source manifest records.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use larder_dataset::{BLOCK_BYTES, FileIndex, Manifest, ManifestBytes, crc32c, crc32c_append};
use larder_origin::{Origin, OriginError, Version};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::AbortOnDropHandle;

use super::error::PackError;
use super::plan::PackPlan;
use crate::journal::PackRecord;
use crate::object_range::object_range;
use crate::version::into_tag;

/// The most bytes that one GET reads. A multiple of the block size, so that a piece determines the CRCs of its blocks.
const PIECE_BYTES: u64 = 2 * BLOCK_BYTES;

/// The part of a file that one GET reads.
struct Piece {
    file: FileIndex,
    range: Range<u64>,
}

/// A piece that was read, with the CRCs of its blocks. Dropping it returns its share of the read-ahead.
struct ReadPiece {
    bytes: Bytes,
    crcs: Vec<u32>,
    _ahead: OwnedSemaphorePermit,
}

/// Reads files from one origin and writes them as packs to another.
pub(super) struct PackWriter<B> {
    manifest: Arc<Manifest<B>>,
    src: Arc<dyn Origin>,
    dst: Arc<dyn Origin>,
    concurrency: usize,
    ahead: Arc<Semaphore>,
}

impl<B: ManifestBytes + Send + Sync + 'static> PackWriter<B> {
    /// Creates a writer. It makes at most `concurrency` GET calls per pack, and reads at most `read_ahead_bytes` ahead
    /// for all packs together.
    pub(super) fn new(
        manifest: Arc<Manifest<B>>,
        src: Arc<dyn Origin>,
        dst: Arc<dyn Origin>,
        concurrency: usize,
        read_ahead_bytes: u64,
    ) -> Self {
        // Counted in KiB, because a semaphore issues at most u32::MAX permits at a time.
        let ahead = Arc::new(Semaphore::new((read_ahead_bytes.max(PIECE_BYTES) >> 10) as usize));
        Self { manifest, src, dst, concurrency: concurrency.max(1), ahead }
    }

    /// Writes one pack.
    pub(super) async fn write_pack(self: Arc<Self>, plan: PackPlan) -> Result<PackRecord, PackError> {
        let (key, version, block_crcs) =
            if plan.streamed { self.stream_pack(&plan).await? } else { self.put_pack(&plan).await? };
        Ok(PackRecord {
            pack: plan.number,
            key,
            size: plan.bytes,
            version: into_tag(version),
            first_file: plan.files.start,
            end_file: plan.files.end,
            block_crcs,
        })
    }

    /// Builds the pack in memory. Its key is derived from its contents.
    async fn put_pack(self: &Arc<Self>, plan: &PackPlan) -> Result<(Vec<u8>, Version, Vec<u32>), PackError> {
        let mut bytes = Vec::with_capacity(plan.bytes as usize);
        let mut crcs = Vec::new();
        let mut pieces = self.pieces(plan);
        while let Some(piece) = pieces.try_next().await? {
            bytes.extend_from_slice(&piece.bytes);
            crcs.extend_from_slice(&piece.crcs);
        }
        let key = pack_key(plan.number, crc32c(&bytes));
        match self.dst.put(&key, bytes.into()).await {
            Ok(version) => Ok((key, version, crcs)),
            Err(source) => Err(PackError::Write { key, source }),
        }
    }

    /// Writes the pack while it is read. Its key is needed before its contents are known, so it is derived from the
    /// snapshot.
    async fn stream_pack(self: &Arc<Self>, plan: &PackPlan) -> Result<(Vec<u8>, Version, Vec<u32>), PackError> {
        let name = crc32c_append(crc32c(&self.manifest.snapshot().0), &plan.files.start.to_le_bytes());
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
                    // The stream's error only ends the write; this error names the file and the cause.
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
    /// piece of the pack. The oldest piece of each pack can therefore always be read, and packs cannot block each
    /// other.
    fn pieces(self: &Arc<Self>, plan: &PackPlan) -> BoxStream<'static, Result<ReadPiece, PackError>> {
        let (rows, ahead) = (Arc::clone(&self.manifest), Arc::clone(&self.ahead));
        futures::stream::iter(plan.files.clone().map(FileIndex))
            .map(move |file| {
                let size = match rows.file(file) {
                    Ok(row) => row.size,
                    Err(error) => return futures::stream::iter(vec![Err(PackError::from(error))]),
                };
                let starts = (0..size).step_by(PIECE_BYTES as usize);
                let pieces = starts.map(|start| Ok(Piece { file, range: start..size.min(start + PIECE_BYTES) }));
                futures::stream::iter(pieces.collect::<Vec<_>>())
            })
            .flatten()
            .and_then(move |piece| {
                let ahead = Arc::clone(&ahead);
                async move {
                    let share = (piece.range.end - piece.range.start).div_ceil(1 << 10) as u32;
                    let share = ahead.acquire_many_owned(share).await.expect("the semaphore is never closed");
                    Ok((piece, share))
                }
            })
            .map_ok({
                let writer = Arc::clone(self);
                move |(piece, share)| {
                    let writer = Arc::clone(&writer);
                    let read = AbortOnDropHandle::new(tokio::spawn(writer.read_piece(piece, share)));
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
                let crcs = bytes.chunks(BLOCK_BYTES as usize).map(crc32c).collect();
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
