//! Shallow verification: sizes and versions, without reading any file.

use std::collections::HashMap;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use larder_dataset::{Entry, FileIndex, Location, Manifest, ManifestBytes};
use larder_origin::Origin;

use super::report::{Finding, VerifyError, VerifyReport};
use crate::blocking::off_runtime;
use crate::journal::PageRecord;
use crate::listing::{self, LinkObjects, PageOwner, Walk};
use crate::progress::Progress;
use crate::version::tag_of;

/// Compares sizes and versions with a new listing of a plain origin.
pub(super) async fn verify_listing<B: ManifestBytes + Send + Sync>(
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
    listing::drive(&origin, &mut owner, LinkObjects::AreFiles, concurrency, &mut 0).await?;
    let Comparison { seen, mut report, .. } = owner;
    for (index, _) in seen.iter().enumerate().filter(|(_, seen)| !**seen) {
        let file = manifest.file(FileIndex(index as u32))?;
        report.add(manifest.file_path(&file)?, Finding::Missing("no longer listed".into()));
    }
    progress.verified(u64::from(files), u64::from(files), 0);
    Ok(report)
}

/// Compares the pages of a listing with a manifest.
struct Comparison<'a, B> {
    walk: Walk,
    manifest: &'a Manifest<B>,
    seen: Vec<bool>,
    report: VerifyReport,
    progress: &'a dyn Progress,
}

impl<B: ManifestBytes + Send + Sync> PageOwner for Comparison<'_, B> {
    type Error = VerifyError;

    fn walk(&mut self) -> &mut Walk {
        &mut self.walk
    }

    async fn take(&mut self, mut page: PageRecord) -> Result<(), VerifyError> {
        self.walk.accept(&mut page)?;
        for found in &page.files {
            // `resolve` accepts doubled slashes, but a key with them belongs to another object.
            let Some(Entry::File(index)) = self.manifest.resolve(&found.key)? else { continue };
            let file = self.manifest.file(index)?;
            let path = self.manifest.file_path(&file)?;
            if path == found.key && !std::mem::replace(&mut self.seen[index.0 as usize], true) {
                let wanted = self.manifest.version(&file)?;
                let finding = Finding::compare(file.size, wanted.as_ref(), found.size, &found.version);
                self.report.add(path, finding);
            }
        }
        self.progress.verified(self.report.files_checked(), u64::from(self.manifest.totals().files), 0);
        Ok(())
    }
}

/// Compares the size and version of each pack with those in its HEAD answer.
pub(super) async fn verify_packs<B: ManifestBytes + Send + Sync + 'static>(
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
            let wanted = pack.version();
            let finding = match origin.head(pack.key).await {
                Ok(found) => Finding::compare(pack.size, wanted.as_ref(), found.size, &tag_of(&found.version)),
                Err(error) => Finding::of_error(&error),
            };
            Ok::<_, VerifyError>((number, finding))
        }
    }));
    let mut bad = HashMap::new();
    let mut heads = heads.buffer_unordered(concurrency);
    while let Some((number, finding)) = heads.try_next().await? {
        if finding != Finding::Ok {
            bad.insert(number, finding);
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
                Location::Pack { .. } | Location::Object => report.add(Vec::new(), Finding::Ok),
            }
        }
        Ok::<_, VerifyError>(report)
    })
    .await?;
    progress.verified(u64::from(totals.files), u64::from(totals.files), 0);
    Ok(report)
}
