//! Copies a snapshot to a mirror: the objects that it lacks, then its manifest.
//!
//! - `objects` numbers the objects of a snapshot; `missing` finds those that the mirror lacks, by a listing of it.
//! - `copier` copies single objects, and `check` compares their bytes on the way.
//! - The journal records the versions of the copies, for stores whose entity tags are no MD5s.
//!
//! The mirror's manifest has the rows of the source with the mirror's own versions
//! ([`Manifest::mirrored_at`](larder_dataset::Manifest::mirrored_at)). Beside it is the manifest of the source
//! ([`source_manifest_key`]).
//!
//! Invariant: a manifest of a mirror is stored after every object that it names was copied and compared, so no reader
//! sees a part of a snapshot. Nothing is removed from a mirror unless the caller says so, and nothing before the
//! manifest is stored.

mod check;
mod copier;
mod error;
mod missing;
mod objects;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use copier::{Copied, Copier};
pub use error::SyncError;
use futures::StreamExt;
use larder_dataset::{Manifest, ManifestBytes, SnapshotId, VersionTag};
use larder_origin::Origin;
use missing::Found;
use objects::{Known, Objects};
use tokio_util::task::AbortOnDropHandle;

use crate::blocking::off_runtime;
use crate::import::is_reserved;
use crate::journal::{CopiedRecord, Journal, JournalIdentity, JournalKind};
use crate::progress::Progress;
use crate::publish::{publish_mirror, source_manifest_key};

/// The most copies that one record of the journal names.
const RECORD_COPIES: usize = 1024;

/// The options of a copy to a mirror.
#[derive(Clone, Debug)]
pub struct SyncOptions {
    /// The most objects that are copied at the same time.
    pub concurrency: usize,
    /// The memory for objects that are on their way, in bytes.
    pub memory_bytes: u64,
    /// The most bytes per second to read from the source; `None`: no limit.
    pub max_rate: Option<u64>,
    /// True if source and mirror are on the same server under the same credentials, so that the store can copy by
    /// itself.
    pub same_store: bool,
    /// True to remove the objects of the mirror that the snapshot does not have.
    pub delete: bool,
    /// True to change nothing.
    pub dry_run: bool,
    /// Distinguishes the mirror from others with the same URL, for example by its server.
    pub place: String,
    /// The folder of the journal. The journal is kept until the manifest is stored.
    pub journal_dir: PathBuf,
    /// The age above which a journal is started over.
    pub max_age_resume: Duration,
}

impl SyncOptions {
    /// The defaults: 64 objects at a time, 256 MiB of memory, journals of up to a week.
    pub fn new(journal_dir: impl Into<PathBuf>) -> Self {
        Self {
            concurrency: 64,
            memory_bytes: 256 << 20,
            max_rate: None,
            same_store: false,
            delete: false,
            dry_run: false,
            place: String::new(),
            journal_dir: journal_dir.into(),
            max_age_resume: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

/// The manifests that a mirror has before a copy.
#[derive(Debug)]
pub struct Before<B> {
    /// Its own.
    pub mirror: Manifest<B>,
    /// That of the snapshot that it mirrors, if it is there.
    pub source: Option<Manifest<B>>,
}

/// The outcome of a copy, or of a dry run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// The objects of the snapshot.
    pub objects: u64,
    /// The bytes of these objects.
    pub bytes: u64,
    /// Objects that this run copied, or would copy.
    pub objects_copied: u64,
    /// The bytes of these objects.
    pub bytes_copied: u64,
    /// Those of them that the store copied by itself.
    pub objects_by_store: u64,
    /// Those of them that were copied twice because bytes changed on their way.
    pub objects_repeated: u64,
    /// Objects of the mirror that the snapshot does not have.
    pub objects_other: u64,
    /// Those of them that were removed, or would be.
    pub objects_deleted: u64,
    /// True if the mirror's manifest was stored, or would be. False if it was there already.
    pub published: bool,
    /// The id that the mirror has as a snapshot of its own; `None` if that is not known yet.
    pub snapshot: Option<SnapshotId>,
}

/// Checks that the manifest of a destination is that of a mirror of the snapshot's origin. Errors: `NotAMirror`,
/// `OtherSource`, `Manifest`.
pub fn check_mirror<B: ManifestBytes>(there: &Manifest<B>, manifest: &Manifest<B>) -> Result<(), SyncError> {
    let (_, origin) = manifest.name_and_origin()?;
    match there.mirrored()? {
        Some(mirrored) if mirrored.origin == origin => Ok(()),
        Some(mirrored) => Err(SyncError::OtherSource { origin: mirrored.origin.to_owned() }),
        None => Err(SyncError::NotAMirror { origin: there.name_and_origin()?.1.to_owned() }),
    }
}

/// Brings the mirror `dst` up to date with the snapshot of `manifest`, whose bytes are in `src`. `before` are the
/// manifests that the mirror has. Cancel-safe: the copied objects are kept. Errors: as described there; whatever they
/// are but `Delete`, the mirror has the manifest that it had.
pub async fn sync<B: ManifestBytes + Send + Sync + 'static>(
    manifest: Arc<Manifest<B>>,
    src: Arc<dyn Origin>,
    dst: Arc<dyn Origin>,
    before: Option<Before<B>>,
    options: SyncOptions,
    progress: &dyn Progress,
) -> Result<Synced, SyncError> {
    let url = dst.url().to_string();
    let identity =
        JournalIdentity::new(JournalKind::Sync, &[&manifest.snapshot().0, url.as_bytes(), options.place.as_bytes()]);
    let prepared = {
        let (manifest, options) = (Arc::clone(&manifest), options.clone());
        off_runtime(move || Prepared::new(manifest, before, identity, &options)).await?
    };
    let Prepared { objects, known, journal, current } = prepared;
    if let Some(note) = journal.note() {
        progress.noted(note);
    }
    let concurrency = options.concurrency.max(1);
    let Found { mut copies, others } = missing::find(&objects, &known, &dst, concurrency, progress).await?;
    let (mut done, missing) = count(&objects, &copies)?;
    let kept = source_manifest_key(manifest.snapshot());
    let others: Vec<_> = others.into_iter().filter(|key| *key != kept).collect();
    done.objects_other = others.len() as u64;
    if options.dry_run {
        let to_delete = if options.delete { done.objects_other } else { 0 };
        let published = current.is_none() || done.objects_copied > 0;
        return Ok(Synced { objects_deleted: to_delete, published, ..done });
    }

    let copier = Copier::new(
        Arc::clone(&objects),
        src,
        Arc::clone(&dst),
        options.same_store,
        options.max_rate,
        options.memory_bytes,
    );
    let mut run = Run { journal: Some(journal), copies: &mut copies, done: &mut done, progress };
    run.copy(&Arc::new(copier), missing, concurrency).await?;
    let journal = run.journal.take();

    let built = {
        let (manifest, url) = (Arc::clone(&manifest), url.clone());
        let copies: Option<Vec<_>> = copies.into_iter().collect();
        let copies = copies.expect("every object was there or was copied");
        let build = move || manifest.mirrored_at::<SyncError>(&url, |number| copies[number as usize].clone());
        off_runtime(build).await?
    };
    done.snapshot = Some(built.snapshot);
    done.published = current != done.snapshot;
    if done.published {
        publish_mirror(dst.as_ref(), &manifest, &built).await?;
    }
    if options.delete {
        done.objects_deleted = delete(&dst, others, concurrency).await?;
    }
    if let Some(journal) = journal {
        off_runtime(move || journal.discard()).await?;
    }
    Ok(done)
}

/// The facts that are known before the mirror is listed.
struct Prepared<B> {
    objects: Arc<Objects<B>>,
    known: Vec<Known>,
    journal: Journal,
    /// The mirror as a snapshot of its own, if it mirrors this snapshot already.
    current: Option<SnapshotId>,
}

impl<B: ManifestBytes> Prepared<B> {
    fn new(
        manifest: Arc<Manifest<B>>,
        before: Option<Before<B>>,
        identity: JournalIdentity,
        options: &SyncOptions,
    ) -> Result<Self, SyncError> {
        // Copying reads every row anyway. After this check, the names are known to be valid.
        manifest.verify()?;
        let objects = Objects::new(Arc::clone(&manifest))?;
        for number in 0..objects.count() {
            let key = objects.get(number)?.key;
            if is_reserved(&key) {
                return Err(SyncError::Reserved { key });
            }
        }
        let mut current = None;
        let mut known = vec![Known::Nothing; objects.count() as usize];
        if let Some(Before { mirror, source }) = before {
            check_mirror(&mirror, &manifest)?;
            let is_of_this = mirror.mirrored()?.is_some_and(|mirrored| mirrored.snapshot == manifest.snapshot());
            current = (is_of_this && source.is_some()).then(|| mirror.snapshot());
            known = objects.known(&mirror, source.as_ref())?;
        }
        let mut is_empty = true;
        let mut journal = Journal::open(&options.journal_dir, identity, options.max_age_resume, false, |payload| {
            is_empty = false;
            for (number, version) in CopiedRecord::decode(payload)?.copies {
                if let Some(known) = known.get_mut(number as usize) {
                    *known = Known::Version(version);
                }
            }
            Ok(())
        })?;
        if options.dry_run && is_empty {
            journal.finish()?;
        }
        Ok(Self { objects: Arc::new(objects), known, journal, current })
    }
}

/// Counts the objects, and lists those that the mirror lacks.
fn count<B: ManifestBytes>(
    objects: &Objects<B>,
    copies: &[Option<VersionTag<'static>>],
) -> Result<(Synced, Vec<u32>), SyncError> {
    let (mut done, mut missing) = (Synced::default(), Vec::new());
    for (number, copy) in (0_u32..).zip(copies) {
        let size = objects.get(number)?.size;
        done.objects += 1;
        done.bytes = done.bytes.saturating_add(size);
        if copy.is_none() {
            missing.push(number);
            done.objects_copied += 1;
            done.bytes_copied = done.bytes_copied.saturating_add(size);
        }
    }
    Ok((done, missing))
}

/// A copy in progress.
struct Run<'a> {
    /// `None` while it is written to.
    journal: Option<Journal>,
    copies: &'a mut [Option<VersionTag<'static>>],
    /// Counts what is to be copied.
    done: &'a mut Synced,
    progress: &'a dyn Progress,
}

impl Run<'_> {
    /// Copies the objects, and ends at the first that cannot be copied. The copies until then are noted.
    async fn copy<B: ManifestBytes + Send + Sync + 'static>(
        &mut self,
        copier: &Arc<Copier<B>>,
        missing: Vec<u32>,
        concurrency: usize,
    ) -> Result<(), SyncError> {
        let before = self.done.bytes - self.done.bytes_copied;
        let (mut objects, mut bytes) = (self.done.objects - self.done.objects_copied, before);
        let copying = missing.into_iter().map(|number| {
            let copier = Arc::clone(copier);
            async move {
                match AbortOnDropHandle::new(tokio::spawn(copier.copy(number))).await {
                    Ok(copied) => copied,
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                }
            }
        });
        let mut copying = futures::stream::iter(copying).buffer_unordered(concurrency).ready_chunks(RECORD_COPIES);
        while let Some(ended) = copying.next().await {
            let (mut record, mut failure) = (CopiedRecord::default(), None);
            for copied in ended {
                match copied {
                    Ok(Copied { number, size, version, by_store, repeated }) => {
                        objects += 1;
                        bytes = bytes.saturating_add(size);
                        self.done.objects_by_store += u64::from(by_store);
                        if let Some(why) = repeated {
                            self.done.objects_repeated += 1;
                            self.progress.noted(&format!("copied again: {why}"));
                        }
                        self.copies[number as usize] = Some(version.clone());
                        record.copies.push((number, version));
                    }
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
            if let Some(mut journal) = self.journal.take() {
                let payload = record.encode();
                self.journal = Some(off_runtime(move || journal.append(&payload).map(|()| journal)).await?);
            }
            if let Some(error) = failure {
                return Err(error);
            }
            self.progress.copied(objects, self.done.objects, bytes, self.done.bytes, before);
        }
        Ok(())
    }
}

/// Removes objects of the mirror, and returns their number.
async fn delete(dst: &Arc<dyn Origin>, keys: Vec<Vec<u8>>, concurrency: usize) -> Result<u64, SyncError> {
    let mut deleted = 0;
    let removing = keys.into_iter().map(|key| async move {
        match dst.delete(&key).await {
            Ok(()) => Ok(()),
            Err(source) => Err(SyncError::Delete { key, source }),
        }
    });
    let mut removing = futures::stream::iter(removing).buffer_unordered(concurrency);
    while let Some(removed) = removing.next().await {
        removed?;
        deleted += 1;
    }
    Ok(deleted)
}
