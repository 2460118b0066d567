//! Packing: concatenates the files of a snapshot into objects of about 64 MiB.
//!
//! `plan` divides the files, in manifest order, into packs; `writer` writes the packs; `manifest` builds their
//! manifest, which is stored last. The journal records the finished packs.
//!
//! Invariant: the manifest is stored after every pack that it names, so no reader sees a manifest with missing packs.

mod error;
mod manifest;
mod plan;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use error::PackError;
use futures::{StreamExt, TryStreamExt};
use larder_dataset::manifest::{Built, Totals};
use larder_dataset::{Manifest, ManifestBytes};
use larder_origin::Origin;
use plan::{PackPlan, plan};
use writer::PackWriter;

use crate::blocking::off_runtime;
use crate::journal::{Journal, JournalIdentity, JournalKind, PackRecord};
use crate::progress::Progress;
use crate::publish::{MANIFEST_KEY, publish_mirror, put_manifest};
use crate::version::tag_of;

/// The most packs in progress: while one is written, the next ones are read.
const PACKS_AT_ONCE: usize = 3;
/// The largest pack size in bytes. A pack is written with a single PUT, whose size stores limit.
const PACK_BYTES_MAX: u64 = 1 << 30;

/// The options of a packing.
#[derive(Clone, Debug)]
pub struct PackOptions {
    /// The size of a pack in bytes. A larger file gets a pack of its own.
    pub pack_bytes: u64,
    /// The most GET calls in flight for each of the three packs in progress.
    pub concurrency: usize,
    /// The most bytes that are read ahead, in addition to the packs in progress.
    pub read_ahead_bytes: u64,
    /// Distinguishes these origins from others with the same URLs, for example by their servers.
    pub endpoint: Option<String>,
    /// The folder of the journal. The journal is kept until the manifest is stored.
    pub journal_dir: PathBuf,
    /// The age above which a journal is started over.
    pub max_age_resume: Duration,
    /// True to pack everything again and ignore the journal.
    pub restart: bool,
    /// True if the packs are a mirror of the snapshot: their manifest then names it.
    pub mirror: bool,
}

impl PackOptions {
    /// The defaults: packs of 64 MiB, 16 calls in flight, 64 MiB read ahead, journals of up to a week.
    pub fn new(journal_dir: impl Into<PathBuf>) -> Self {
        Self {
            pack_bytes: 64 << 20,
            concurrency: 16,
            read_ahead_bytes: 64 << 20,
            endpoint: None,
            journal_dir: journal_dir.into(),
            max_age_resume: Duration::from_secs(7 * 24 * 3600),
            restart: false,
            mirror: false,
        }
    }
}

/// The result of a packing. Packs and manifest are stored.
#[derive(Debug)]
pub struct Packed {
    /// The manifest that is stored under [`MANIFEST_KEY`].
    pub built: Built,
    /// The number of packs that this run wrote.
    pub packs_written: u64,
    /// The number of packs that an earlier run had written.
    pub packs_resumed: u64,
}

/// Packs the snapshot of `manifest`, whose bytes are in `src`, into `dst`, and stores the new manifest there. The
/// source may be plain or packed. Cancel-safe: finished packs are kept. Uses memory for at most three packs and the
/// read-ahead.
pub async fn pack<B: ManifestBytes + Send + Sync + 'static>(
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
    let identity = JournalIdentity::new(
        JournalKind::Pack,
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
            // Packing reads every row anyway. After this check, the sizes are known to add up and the names to be
            // valid.
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

    let mut run = PackRun { done: plan.iter().map(|_| None).collect(), totals: manifest.totals(), files: 0, bytes: 0 };
    let packs_resumed = kept.len() as u64;
    for record in kept {
        run.finish(&plan, record);
    }
    run.report(progress);

    let writer =
        PackWriter::new(Arc::clone(&manifest), src, Arc::clone(&dst), options.concurrency, options.read_ahead_bytes);
    let writer = Arc::new(writer);
    let missing: Vec<PackPlan> = plan.iter().filter(|pack| run.done[pack.number as usize].is_none()).cloned().collect();
    let packs_written = missing.len() as u64;
    let mut writes = futures::stream::iter(missing.into_iter().map(|pack| Arc::clone(&writer).write_pack(pack)))
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
    let built = {
        let (manifest, mirror) = (Arc::clone(&manifest), options.mirror);
        off_runtime(move || manifest::build(&manifest, &plan, done.into_iter().flatten(), &url, mirror)).await?
    };
    if options.mirror {
        publish_mirror(dst.as_ref(), &manifest, &built).await?;
    } else {
        put_manifest(dst.as_ref(), MANIFEST_KEY, &built).await?;
    }
    if let Some(journal) = journal {
        off_runtime(move || journal.discard()).await?;
    }
    Ok(Packed { built, packs_written, packs_resumed })
}

/// The packs of an earlier run that match the plan and still exist unchanged at the destination.
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
            // If the HEAD of a pack fails, the pack is written again, and the write reports the cause.
            let there = dst.head(&record.key).await.ok()?;
            ((there.size, tag_of(&there.version)) == (record.size, record.version.borrowed())).then_some(record)
        })
        .buffer_unordered(concurrency.max(1))
        .filter_map(std::future::ready)
        .collect()
        .await
}

/// The packs that are finished so far.
struct PackRun {
    done: Vec<Option<PackRecord>>,
    totals: Totals,
    files: u64,
    bytes: u64,
}

impl PackRun {
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
