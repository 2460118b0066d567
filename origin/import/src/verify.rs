//! Verifying: does an origin still hold what a manifest says?
//!
//! The cast: [`verify_origin`], shallow (sizes and versions, by listing again or asking for each pack) or deep (every byte
//! is read and its checksum compared); [`VerifyReport`] is what was found, with the first hundred names of each kind.
//!
//! Invariant: every file of the manifest is counted exactly once, as ok or as one of the problems. Nothing is changed, and
//! a file that cannot be checked is no reason to stop.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use larder_dataset::{BLOCK_BYTES, BlockIndex, Entry, FileIndex, Location, Manifest, ManifestError, VersionTag};
use larder_origin::{Listed, Origin, OriginError};
use md5::{Digest, Md5};
use tokio_util::task::AbortOnDropHandle;

use crate::import::off_runtime;
use crate::journal::PageRecord;
use crate::listing::{self, ListError, PageOwner, Walk};
use crate::progress::Progress;
use crate::source::{object_range, tag_of};

/// How many names of each problem a report holds.
const NAMES_MAX: usize = 100;
/// One GET asks for at most this much: whole blocks.
const PIECE_BYTES: u64 = 2 * BLOCK_BYTES;
/// One GET covers at most this many files of a pack.
const FILES_PER_READ_MAX: usize = 4096;

/// Why nothing could be verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The manifest itself is damaged.
    #[error("verify the manifest")]
    Manifest(#[from] ManifestError),
    /// The origin cannot be listed.
    #[error(transparent)]
    List(#[from] ListError),
}

/// Files with one kind of problem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    /// How many.
    pub count: u64,
    /// The first hundred: path, and what was found.
    pub first: Vec<(Vec<u8>, String)>,
}

impl Problems {
    fn add(&mut self, path: Vec<u8>, found: impl Into<String>) {
        self.count += 1;
        if self.first.len() < NAMES_MAX {
            self.first.push((path, found.into()));
        }
    }
}

/// What verifying found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Files that are as the manifest says, as far as was looked.
    pub files_ok: u64,
    /// Of these, files that were read whole but have no checksum to compare with, only size and version.
    pub without_checksum: u64,
    /// Files that are not there any more.
    pub missing: Problems,
    /// Files of another version or size by now.
    pub changed: Problems,
    /// Files whose bytes do not fit their checksum.
    pub corrupt: Problems,
    /// Files that could not be looked at.
    pub unreadable: Problems,
    /// Bytes read for it.
    pub bytes_read: u64,
}

impl VerifyReport {
    /// True if every file is as the manifest says.
    pub fn is_clean(&self) -> bool {
        self.files_checked() == self.files_ok
    }

    fn files_checked(&self) -> u64 {
        let problems = [&self.missing, &self.changed, &self.corrupt, &self.unreadable];
        self.files_ok + problems.iter().map(|problems| problems.count).sum::<u64>()
    }

    fn add(&mut self, path: Vec<u8>, outcome: Outcome) {
        match outcome {
            Outcome::Ok => self.files_ok += 1,
            Outcome::OkWithoutChecksum => {
                self.files_ok += 1;
                self.without_checksum += 1;
            }
            Outcome::Missing(found) => self.missing.add(path, found),
            Outcome::Changed(found) => self.changed.add(path, found),
            Outcome::Corrupt(found) => self.corrupt.add(path, found),
            Outcome::Unreadable(found) => self.unreadable.add(path, found),
        }
    }
}

/// How a file was found.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Ok,
    OkWithoutChecksum,
    Missing(String),
    Changed(String),
    Corrupt(String),
    Unreadable(String),
}

impl Outcome {
    fn of_error(error: &OriginError) -> Self {
        match error {
            OriginError::NotFound { .. } => Self::Missing(error.to_string()),
            OriginError::Stale { .. } | OriginError::Truncated { .. } => Self::Changed(error.to_string()),
            OriginError::Denied { .. }
            | OriginError::Busy { .. }
            | OriginError::TimedOut { .. }
            | OriginError::Invalid { .. }
            | OriginError::TooLarge { .. }
            | OriginError::Unavailable { .. } => Self::Unreadable(error.to_string()),
        }
    }
}

/// Checks the manifest, then `origin` against it: shallow by sizes and versions, `deep` by reading every byte (CRC32C in
/// packed snapshots; MD5 where the ETag of a plain object is one), at most `concurrency` calls at once. Cancel-safe.
/// Errors: the manifest is damaged, or a plain origin cannot be listed; problems of single files are in the report.
pub async fn verify_origin<B: AsRef<[u8]> + Send + Sync + 'static>(
    manifest: Arc<Manifest<B>>,
    origin: Arc<dyn Origin>,
    deep: bool,
    concurrency: usize,
    progress: &dyn Progress,
) -> Result<VerifyReport, VerifyError> {
    let checked = Arc::clone(&manifest);
    off_runtime(move || checked.verify()).await?;
    if deep {
        verify_deep(manifest, origin, concurrency.max(1), progress).await
    } else if manifest.is_packed() {
        verify_packs(manifest, origin, concurrency.max(1), progress).await
    } else {
        verify_listing(manifest, origin, concurrency.max(1), progress).await
    }
}

/// What a listing or a HEAD says against what the manifest says.
fn compare(wanted_size: u64, wanted: Option<&VersionTag<'_>>, there: &Listed) -> Outcome {
    if there.size != wanted_size {
        Outcome::Changed(format!("{} bytes instead of {wanted_size}", there.size))
    } else if wanted.is_some_and(|wanted| *wanted != tag_of(&there.version)) {
        Outcome::Changed(format!("another version: {}", there.version))
    } else {
        Outcome::Ok
    }
}

async fn verify_listing<B: AsRef<[u8]> + Send + Sync>(
    manifest: Arc<Manifest<B>>,
    origin: Arc<dyn Origin>,
    concurrency: usize,
    progress: &dyn Progress,
) -> Result<VerifyReport, VerifyError> {
    let files = manifest.totals().files;
    let mut owner = Comparison {
        walk: Walk::new(origin.url().scheme()),
        manifest: &manifest,
        seen: vec![false; files as usize],
        report: VerifyReport::default(),
        progress,
    };
    listing::drive(&origin, &mut owner, concurrency, &mut 0).await?;
    let Comparison { seen, mut report, .. } = owner;
    for (index, _) in seen.iter().enumerate().filter(|(_, seen)| !**seen) {
        let file = manifest.file(FileIndex(index as u32))?;
        report.add(manifest.file_path(&file)?, Outcome::Missing("not listed any more".into()));
    }
    progress.verified(u64::from(files), u64::from(files), 0);
    Ok(report)
}

struct Comparison<'a, B> {
    walk: Walk,
    manifest: &'a Manifest<B>,
    seen: Vec<bool>,
    report: VerifyReport,
    progress: &'a dyn Progress,
}

impl<B: AsRef<[u8]> + Send + Sync> PageOwner for Comparison<'_, B> {
    type Error = VerifyError;

    fn walk(&mut self) -> &mut Walk {
        &mut self.walk
    }

    async fn take(&mut self, page: PageRecord) -> Result<(), VerifyError> {
        self.walk.accept(&page)?;
        for there in &page.files {
            // `resolve` forgives doubled slashes, which are keys of other objects.
            let Some(Entry::File(index)) = self.manifest.resolve(&there.key)? else { continue };
            let file = self.manifest.file(index)?;
            let path = self.manifest.file_path(&file)?;
            if path == there.key && !std::mem::replace(&mut self.seen[index.0 as usize], true) {
                let wanted = self.manifest.version(&file)?;
                self.report.add(path, compare(file.size, wanted.as_ref(), there));
            }
        }
        self.progress.verified(self.report.files_checked(), u64::from(self.manifest.totals().files), 0);
        Ok(())
    }
}

async fn verify_packs<B: AsRef<[u8]> + Send + Sync + 'static>(
    manifest: Arc<Manifest<B>>,
    origin: Arc<dyn Origin>,
    concurrency: usize,
    progress: &dyn Progress,
) -> Result<VerifyReport, VerifyError> {
    let totals = manifest.totals();
    let heads = futures::stream::iter((0..totals.packs).map(|number| {
        let (manifest, origin) = (Arc::clone(&manifest), Arc::clone(&origin));
        async move {
            let pack = manifest.pack(number)?;
            let wanted = (!pack.etag.is_empty()).then(|| VersionTag::ETag(pack.etag.into()));
            let outcome = match origin.head(pack.key).await {
                Ok(there) => compare(pack.size, wanted.as_ref(), &there),
                Err(error) => Outcome::of_error(&error),
            };
            Ok::<_, VerifyError>((number, outcome))
        }
    }));
    let mut bad = HashMap::new();
    let mut heads = heads.buffer_unordered(concurrency);
    while let Some((number, outcome)) = heads.try_next().await? {
        if outcome != Outcome::Ok {
            bad.insert(number, outcome);
        }
    }
    drop(heads);
    let report = off_runtime(move || {
        let mut report = VerifyReport::default();
        for index in 0..totals.files {
            let file = manifest.file(FileIndex(index))?;
            match file.location {
                Location::Pack { pack, .. } if bad.contains_key(&pack) => {
                    report.add(manifest.file_path(&file)?, bad[&pack].clone());
                }
                Location::Pack { .. } | Location::Object => report.add(Vec::new(), Outcome::Ok),
            }
        }
        Ok::<_, VerifyError>(report)
    })
    .await?;
    progress.verified(u64::from(totals.files), u64::from(totals.files), 0);
    Ok(report)
}

async fn verify_deep<B: AsRef<[u8]> + Send + Sync + 'static>(
    manifest: Arc<Manifest<B>>,
    origin: Arc<dyn Origin>,
    concurrency: usize,
    progress: &dyn Progress,
) -> Result<VerifyReport, VerifyError> {
    let total = u64::from(manifest.totals().files);
    let jobs = Jobs { manifest: Arc::clone(&manifest), next: 0 };
    let mut checks = futures::stream::iter(jobs)
        .map(|job| {
            let (manifest, origin) = (Arc::clone(&manifest), Arc::clone(&origin));
            async move {
                let check = async move { check(manifest, origin, job?).await };
                match AbortOnDropHandle::new(tokio::spawn(check)).await {
                    Ok(found) => found,
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                }
            }
        })
        .buffer_unordered(concurrency);
    let mut report = VerifyReport::default();
    while let Some((outcomes, bytes)) = checks.try_next().await? {
        report.bytes_read += bytes;
        for (index, outcome) in outcomes {
            let path = match outcome {
                // The path is only for people.
                Outcome::Ok | Outcome::OkWithoutChecksum => Vec::new(),
                _ => manifest.file_path(&manifest.file(index)?)?,
            };
            report.add(path, outcome);
        }
        progress.verified(report.files_checked(), total, report.bytes_read);
    }
    Ok(report)
}

/// Files that are checked by one task: a single one, or small ones that lie side by side in a pack.
type Job = Range<u32>;

/// Cuts the manifest's files into jobs.
struct Jobs<B> {
    manifest: Arc<Manifest<B>>,
    next: u32,
}

impl<B: AsRef<[u8]>> Iterator for Jobs<B> {
    type Item = Result<Job, ManifestError>;

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
            let beside = match (file.location, at) {
                (_, None) => true,
                (Location::Pack { pack, offset }, Some(at)) => at == (pack, offset) && bytes + file.size <= PIECE_BYTES,
                (Location::Object, Some(_)) => false,
            };
            if !beside {
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

type Checked = (Vec<(FileIndex, Outcome)>, u64);

async fn check<B: AsRef<[u8]> + Send + Sync + 'static>(
    manifest: Arc<Manifest<B>>,
    origin: Arc<dyn Origin>,
    job: Job,
) -> Result<Checked, VerifyError> {
    if job.len() == 1 {
        let index = FileIndex(job.start);
        let (outcome, bytes) = check_file(manifest, origin, index).await?;
        return Ok((vec![(index, outcome)], bytes));
    }
    // Side by side in one pack: one read for all.
    let (object, len) = {
        let first = manifest.file(FileIndex(job.start))?;
        let last = manifest.file(FileIndex(job.end - 1))?;
        let mut object = object_range(&manifest, &first, 0..first.size)?;
        object.range.end = object_range(&manifest, &last, 0..last.size)?.range.end;
        let len = object.range.end - object.range.start;
        (object, len)
    };
    match origin.read(&object.key, object.range, object.version.as_ref()).await {
        Ok(bytes) => {
            let outcomes = off_runtime(move || {
                let mut at = 0;
                job.map(|index| {
                    let file = manifest.file(FileIndex(index))?;
                    let end = at + file.size as usize;
                    let outcome = check_crcs(&manifest, file.first_block, bytes.get(at..end).unwrap_or_default())?;
                    at = end;
                    Ok((FileIndex(index), outcome))
                })
                .collect::<Result<Vec<_>, ManifestError>>()
            });
            Ok((outcomes.await?, len))
        }
        Err(error) => {
            let outcome = Outcome::of_error(&error);
            Ok((job.map(|index| (FileIndex(index), outcome.clone())).collect(), 0))
        }
    }
}

/// Compares whole blocks with their CRCs, from `first` on.
fn check_crcs<B: AsRef<[u8]>>(
    manifest: &Manifest<B>,
    first: BlockIndex,
    bytes: &[u8],
) -> Result<Outcome, ManifestError> {
    for (nth, block) in bytes.chunks(BLOCK_BYTES as usize).enumerate() {
        let found = larder_dataset::crc32c(block);
        match manifest.block_crc(BlockIndex(first.0 + nth as u32))? {
            Some(wanted) if wanted != found => {
                return Ok(Outcome::Corrupt(format!("CRC32C {found:08x} instead of {wanted:08x}")));
            }
            Some(_) | None => {}
        }
    }
    Ok(Outcome::Ok)
}

/// Reads one file piece by piece.
async fn check_file<B: AsRef<[u8]> + Send + Sync + 'static>(
    manifest: Arc<Manifest<B>>,
    origin: Arc<dyn Origin>,
    index: FileIndex,
) -> Result<(Outcome, u64), VerifyError> {
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
            Err(error) => return Ok((Outcome::of_error(&error), at)),
        };
        let block = BlockIndex(first_block.0 + (at / BLOCK_BYTES) as u32);
        let rows = Arc::clone(&manifest);
        let outcome;
        (outcome, hash) = off_runtime(move || {
            let mut hash = hash;
            if let Some(hash) = &mut hash {
                hash.update(&bytes);
            }
            check_crcs(&rows, block, &bytes).map(|outcome| (outcome, hash))
        })
        .await?;
        if outcome != Outcome::Ok {
            return Ok((outcome, end));
        }
        at = end;
    }
    let found = hash.map(|hash| hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    let outcome = match (wanted_md5, found) {
        (Some(wanted), Some(found)) if wanted != found => Outcome::Corrupt(format!(
            "MD5 {found}, which its ETag is not (the ETag is no MD5 where the store encrypts with a key of its own)"
        )),
        (Some(_), Some(_)) => Outcome::Ok,
        _ if manifest.is_packed() => Outcome::Ok,
        _ => Outcome::OkWithoutChecksum,
    };
    Ok((outcome, size))
}

/// There are no bytes to be read, but the object has to be there.
async fn check_empty<B: AsRef<[u8]> + Send + Sync + 'static>(
    manifest: &Manifest<B>,
    origin: &dyn Origin,
    index: FileIndex,
) -> Result<(Outcome, u64), VerifyError> {
    if manifest.is_packed() {
        return Ok((Outcome::Ok, 0));
    }
    let (key, wanted) = {
        let file = manifest.file(index)?;
        (manifest.file_path(&file)?, manifest.version(&file)?)
    };
    let outcome = match origin.head(&key).await {
        Ok(there) => compare(0, wanted.as_ref(), &there),
        Err(error) => Outcome::of_error(&error),
    };
    Ok((outcome, 0))
}

/// The ETag of an object that was put in one piece is its MD5, unless the store encrypts it.
fn single_part_md5(etag: &str) -> Option<&str> {
    let hex = etag.strip_prefix('"')?.strip_suffix('"')?;
    (hex.len() == 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(hex)
}

#[cfg(test)]
mod tests;
