//! Finds the objects that a mirror lacks, by one listing of it.
//!
//! An object of the mirror is a copy if the mirror's manifest or the journal says so and it has not changed since, or
//! if its entity tag and that of the source are the same MD5. Everything else is copied, or copied again.

use std::sync::Arc;

use larder_dataset::{ManifestBytes, VersionTag};
use larder_origin::{Origin, OriginError, Scheme};

use super::error::SyncError;
use super::objects::{Known, Objects};
use crate::import::is_reserved;
use crate::journal::{PageFile, PageRecord};
use crate::listing::{self, LinkObjects, ListError, PageOwner, Walk};
use crate::progress::Progress;
use crate::publish::SOURCE_MANIFESTS;
use crate::version::tag_of;

/// The objects of a mirror.
#[derive(Debug)]
pub(super) struct Found {
    /// The versions of the copies that are there, by number.
    pub(super) copies: Vec<Option<VersionTag<'static>>>,
    /// The keys of other objects: of none of the snapshot's, and none of Larder's own but manifests of earlier
    /// sources.
    pub(super) others: Vec<Vec<u8>>,
}

/// Lists the mirror.
pub(super) async fn find<B: ManifestBytes + Send + Sync>(
    objects: &Objects<B>,
    known: &[Known],
    dst: &Arc<dyn Origin>,
    concurrency: usize,
    progress: &dyn Progress,
) -> Result<Found, SyncError> {
    let found = Found { copies: vec![None; objects.count() as usize], others: Vec::new() };
    let walk = Walk::new(dst.url().scheme());
    let mut owner = Finder { objects, known, found, walk, files: 0, bytes: 0, progress };
    match listing::drive(dst, &mut owner, LinkObjects::AreFiles, concurrency, &mut 0).await {
        // A folder that does not exist yet.
        Err(SyncError::List(ListError::Origin { source: OriginError::NotFound { .. }, .. }))
            if dst.url().scheme() == Scheme::Folder => {}
        listed => listed?,
    }
    Ok(owner.found)
}

struct Finder<'a, B> {
    objects: &'a Objects<B>,
    known: &'a [Known],
    found: Found,
    walk: Walk,
    files: u64,
    bytes: u64,
    progress: &'a dyn Progress,
}

impl<B: ManifestBytes> Finder<'_, B> {
    fn add(&mut self, file: PageFile) -> Result<(), SyncError> {
        self.files += 1;
        self.bytes += file.size;
        let Some(number) = self.objects.number_of(&file.key)? else {
            let is_kept = is_reserved(&file.key) && !file.key.starts_with(SOURCE_MANIFESTS);
            // The markers of folders are nobody's bytes.
            if !is_kept && !file.key.is_empty() && !file.key.ends_with(b"/") {
                self.found.others.push(file.key);
            }
            return Ok(());
        };
        let object = self.objects.get(number)?;
        let is_copy = match &self.known[number as usize] {
            Known::Version(version) => *version == file.version,
            Known::Unversioned => true,
            Known::Nothing => false,
        };
        let is_same = || {
            let tag = object.version.as_ref().map(tag_of);
            file.version.md5().is_some() && tag.as_ref() == Some(&file.version)
        };
        if file.size == object.size && (is_copy || is_same()) {
            self.found.copies[number as usize] = Some(file.version);
        }
        Ok(())
    }
}

impl<B: ManifestBytes + Send + Sync> PageOwner for Finder<'_, B> {
    type Error = SyncError;

    fn walk(&mut self) -> &mut Walk {
        &mut self.walk
    }

    async fn take(&mut self, mut page: PageRecord) -> Result<(), SyncError> {
        self.walk.accept(&mut page)?;
        for file in page.files {
            self.add(file)?;
        }
        let (done, known) = self.walk.counts();
        self.progress.listed(self.files, self.bytes, done, known);
        Ok(())
    }
}
