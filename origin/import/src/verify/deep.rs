//! Deep verification: reads every byte, and compares its checksum if there is one.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use larder_dataset::{
    BLOCK_BYTES, BlockIndex, FileIndex, Location, Manifest, ManifestBytes, ManifestError, VersionTag, crc32c,
};
use larder_origin::Origin;
use md5::{Digest, Md5};
use tokio_util::task::AbortOnDropHandle;

use super::report::{Finding, VerifyError, VerifyReport};
use crate::blocking::off_runtime;
use crate::object_range::object_range;
use crate::progress::Progress;
use crate::version::tag_of;

/// The most bytes that one GET reads: whole blocks.
const PIECE_BYTES: u64 = 2 * BLOCK_BYTES;
/// The most files of a pack that one GET covers.
const FILES_PER_READ_MAX: usize = 4096;

/// Reads every file and compares its checksum.
pub(super) async fn verify_deep<B: ManifestBytes + Send + Sync + 'static>(
    manifest: Arc<Manifest<B>>,
    origin: Arc<dyn Origin>,
    concurrency: usize,
    progress: &dyn Progress,
) -> Result<VerifyReport, VerifyError> {
    let total = u64::from(manifest.totals().files);
    let runs = FileRuns { manifest: Arc::clone(&manifest), next: 0 };
    let mut checks = futures::stream::iter(runs)
        .map(|run| {
            let (manifest, origin) = (Arc::clone(&manifest), Arc::clone(&origin));
            async move {
                let check = async move { check(manifest, origin, run?).await };
                match AbortOnDropHandle::new(tokio::spawn(check)).await {
                    Ok(found) => found,
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                }
            }
        })
        .buffer_unordered(concurrency);
    let mut report = VerifyReport::default();
    while let Some((findings, bytes)) = checks.try_next().await? {
        report.bytes_read += bytes;
        for (index, finding) in findings {
            let path = match finding {
                // A report names only files with problems.
                Finding::Ok | Finding::OkWithoutChecksum => Vec::new(),
                _ => manifest.file_path(&manifest.file(index)?)?,
            };
            report.add(path, finding);
        }
        progress.verified(report.files_checked(), total, report.bytes_read);
    }
    Ok(report)
}

/// The files that one task checks: a single file, or small files that are adjacent in a pack.
type FileRun = Range<u32>;

/// Divides the manifest's files into runs.
struct FileRuns<B> {
    manifest: Arc<Manifest<B>>,
    next: u32,
}

impl<B: ManifestBytes> Iterator for FileRuns<B> {
    type Item = Result<FileRun, ManifestError>;

    fn next(&mut self) -> Option<Self::Item> {
        let files = self.manifest.totals().files;
        if self.next >= files {
            return None;
        }
        let start = self.next;
        let mut at = None;
        let mut bytes = 0;
        while self.next < files && (self.next - start) < FILES_PER_READ_MAX as u32 {
            let file = match self.manifest.file(FileIndex(self.next)) {
                Ok(file) => file,
                Err(error) => {
                    self.next = files;
                    return Some(Err(error));
                }
            };
            let adjacent = match (file.location, at) {
                (_, None) => true,
                (Location::Pack { pack, offset }, Some(at)) => at == (pack, offset) && bytes + file.size <= PIECE_BYTES,
                (Location::Object, Some(_)) => false,
            };
            if !adjacent {
                break;
            }
            self.next += 1;
            match file.location {
                Location::Pack { pack, offset } if file.size <= PIECE_BYTES => {
                    bytes += file.size;
                    at = Some((pack, offset + file.size));
                }
                Location::Pack { .. } | Location::Object => break,
            }
        }
        Some(Ok(start..self.next))
    }
}

/// The findings of a run, and the number of bytes read for them.
type RunFindings = (Vec<(FileIndex, Finding)>, u64);

async fn check<B: ManifestBytes + Send + Sync + 'static>(
    manifest: Arc<Manifest<B>>,
    origin: Arc<dyn Origin>,
    run: FileRun,
) -> Result<RunFindings, VerifyError> {
    if run.len() == 1 {
        let index = FileIndex(run.start);
        let (finding, bytes) = check_file(manifest, origin, index).await?;
        return Ok((vec![(index, finding)], bytes));
    }
    // The files are adjacent in one pack, so a single read fetches all of them.
    let (object, len) = {
        let first = manifest.file(FileIndex(run.start))?;
        let last = manifest.file(FileIndex(run.end - 1))?;
        let mut object = object_range(&manifest, &first, 0..first.size)?;
        object.range.end = object_range(&manifest, &last, 0..last.size)?.range.end;
        let len = object.range.end - object.range.start;
        (object, len)
    };
    match origin.read(&object.key, object.range, object.version.as_ref()).await {
        Ok(bytes) => {
            let findings = off_runtime(move || {
                let mut at = 0;
                run.map(|index| {
                    let file = manifest.file(FileIndex(index))?;
                    let end = at + file.size as usize;
                    let finding = check_crcs(&manifest, file.first_block, bytes.get(at..end).unwrap_or_default())?;
                    at = end;
                    Ok((FileIndex(index), finding))
                })
                .collect::<Result<Vec<_>, ManifestError>>()
            });
            Ok((findings.await?, len))
        }
        Err(error) => {
            let finding = Finding::of_error(&error);
            Ok((run.map(|index| (FileIndex(index), finding.clone())).collect(), 0))
        }
    }
}

/// Compares whole blocks with their CRCs. `first` is the first block.
fn check_crcs<B: ManifestBytes>(
    manifest: &Manifest<B>,
    first: BlockIndex,
    bytes: &[u8],
) -> Result<Finding, ManifestError> {
    for (nth, block) in bytes.chunks(BLOCK_BYTES as usize).enumerate() {
        let found = crc32c(block);
        match manifest.block_crc(BlockIndex(first.0 + nth as u32))? {
            Some(wanted) if wanted != found => {
                return Ok(Finding::Corrupt(format!("CRC32C {found:08x} instead of {wanted:08x}")));
            }
            Some(_) | None => {}
        }
    }
    Ok(Finding::Ok)
}

/// Reads and checks one file piece by piece.
async fn check_file<B: ManifestBytes + Send + Sync + 'static>(
    manifest: Arc<Manifest<B>>,
    origin: Arc<dyn Origin>,
    index: FileIndex,
) -> Result<(Finding, u64), VerifyError> {
    let (size, first_block, wanted) = {
        let file = manifest.file(index)?;
        (file.size, file.first_block, if manifest.is_packed() { None } else { manifest.version(&file)? })
    };
    let wanted_md5 = match &wanted {
        Some(VersionTag::ETag(etag)) => single_part_md5(etag).map(str::to_owned),
        Some(VersionTag::MtimeSize { .. }) | None => None,
    };
    drop(wanted);
    if size == 0 {
        return check_empty(&manifest, origin.as_ref(), index).await;
    }
    let mut hash = wanted_md5.as_ref().map(|_| Md5::new());
    let mut at = 0;
    while at < size {
        let end = size.min(at + PIECE_BYTES);
        let object = object_range(&manifest, &manifest.file(index)?, at..end)?;
        let bytes: Bytes = match origin.read(&object.key, object.range, object.version.as_ref()).await {
            Ok(bytes) => bytes,
            Err(error) => return Ok((Finding::of_error(&error), at)),
        };
        let block = BlockIndex(first_block.0 + (at / BLOCK_BYTES) as u32);
        let rows = Arc::clone(&manifest);
        let finding;
        (finding, hash) = off_runtime(move || {
            let mut hash = hash;
            if let Some(hash) = &mut hash {
                hash.update(&bytes);
            }
            check_crcs(&rows, block, &bytes).map(|finding| (finding, hash))
        })
        .await?;
        if finding != Finding::Ok {
            return Ok((finding, end));
        }
        at = end;
    }
    let found = hash.map(|hash| hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    let finding = match (wanted_md5, found) {
        (Some(wanted), Some(found)) if wanted != found => Finding::Corrupt(format!(
            "MD5 {found} differs from the ETag (which is no MD5 if the store encrypts objects with its own key)"
        )),
        (Some(_), Some(_)) => Finding::Ok,
        _ if manifest.is_packed() => Finding::Ok,
        _ => Finding::OkWithoutChecksum,
    };
    Ok((finding, size))
}

/// Checks an empty file: it has no bytes to read, but its object must exist.
async fn check_empty<B: ManifestBytes + Send + Sync + 'static>(
    manifest: &Manifest<B>,
    origin: &dyn Origin,
    index: FileIndex,
) -> Result<(Finding, u64), VerifyError> {
    if manifest.is_packed() {
        return Ok((Finding::Ok, 0));
    }
    let (key, wanted) = {
        let file = manifest.file(index)?;
        (manifest.file_path(&file)?, manifest.version(&file)?)
    };
    let finding = match origin.head(&key).await {
        Ok(found) => Finding::compare(0, wanted.as_ref(), found.size, &tag_of(&found.version)),
        Err(error) => Finding::of_error(&error),
    };
    Ok((finding, 0))
}

/// The MD5 in the ETag of an object that was uploaded in one piece. It is not an MD5 if the store encrypts the object.
fn single_part_md5(etag: &str) -> Option<&str> {
    let hex = etag.strip_prefix('"')?.strip_suffix('"')?;
    (hex.len() == 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(hex)
}
