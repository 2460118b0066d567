//! Import: one listing of an origin becomes a manifest.
//!
//! [`import`] lists many prefixes in parallel. `Ledger` owns the builder, the journal and the counts, and accepts the
//! pages one after the other. [`Imported`] is the outcome, with the journal that the caller discards once the manifest is
//! stored.
//!
//! Invariant: the builder and the journal hold the same pages, so a run that continues after `kill -9` ends with the
//! manifest of a run that was never stopped. Every listed key is a file, a folder, a skipped key with a reason, or
//! reserved. This module knows neither where the manifest goes nor how progress is shown.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use larder_dataset::manifest::{BuildError, Built, PlainFile};
use larder_dataset::name::{self, NameRules, RESERVED};
use larder_dataset::{ManifestBuilder, Rejection};
use larder_origin::{Origin, Scheme};

use crate::blocking::off_runtime;
use crate::clock::nanoseconds_now;
use crate::journal::{BadRecord, Journal, JournalError, JournalIdentity, JournalKind, PageFile, PageRecord};
use crate::listing::{self, ListError, PageOwner, Walk};
use crate::progress::Progress;

/// How to import.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// The name of the dataset.
    pub name: String,
    /// What distinguishes this origin from others of the same URL, such as its server. Neither shown nor stored.
    pub place: String,
    /// The folder of the journal, which is kept until the manifest is stored.
    pub journal_dir: PathBuf,
    /// Maximum number of LIST calls in flight.
    pub concurrency: usize,
    /// An older journal is started over.
    pub max_age_resume: Duration,
    /// Lists everything again, whatever the journal holds.
    pub restart: bool,
}

impl ImportOptions {
    /// 16 calls in flight, journals of up to a day.
    pub fn new(name: impl Into<String>, journal_dir: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            place: String::new(),
            journal_dir: journal_dir.into(),
            concurrency: 16,
            max_age_resume: Duration::from_secs(24 * 3600),
            restart: false,
        }
    }
}

/// A key that was listed but is not in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedKey {
    /// The key below the origin.
    pub key: Vec<u8>,
    /// The reason, in words.
    pub reason: Cow<'static, str>,
}

/// The outcome of an import.
#[derive(Debug)]
#[must_use = "store the manifest, then discard the journal"]
pub struct Imported {
    /// The manifest.
    pub built: Built,
    /// Every key that cannot be a file, sorted.
    pub skipped: Vec<SkippedKey>,
    /// Number of objects below `.larder/`, which are Larder's own.
    pub reserved: u64,
    /// Number of files that an earlier run had listed.
    pub resumed_files: u64,
    /// Number of LIST calls of this run.
    pub list_requests: u64,
    /// To be discarded once the manifest is stored. If it is dropped instead, the next import continues from the end.
    pub journal: Journal,
}

/// Why an import failed. The journal keeps everything listed so far.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The origin cannot be listed.
    #[error(transparent)]
    List(#[from] ListError),
    /// The journal cannot be used; another run may hold it.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The listing does not make a manifest.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// Lists `origin` into a manifest, continuing where an earlier run was stopped. Cancel-safe: the journal keeps everything
/// listed so far. Errors: `List` when a call fails for good or the listing is inconsistent, `Journal` also when the same
/// import is running, `Build` when the dataset is too large or changed during the listing.
pub async fn import(
    origin: Arc<dyn Origin>,
    options: ImportOptions,
    progress: &dyn Progress,
) -> Result<Imported, ImportError> {
    let url = origin.url().to_string();
    let scheme = origin.url().scheme();
    let identity = JournalIdentity::new(JournalKind::Import, &[url.as_bytes(), options.place.as_bytes()]);
    let ImportOptions { name, journal_dir, concurrency, max_age_resume, restart, .. } = options;
    let ledger = off_runtime(move || {
        let mut contents = Contents::new(scheme);
        let mut walk = Walk::new(scheme);
        let journal = Journal::open(&journal_dir, identity, max_age_resume, restart, |payload| {
            let page = PageRecord::decode(payload)?;
            let first = walk.is_first(&page);
            walk.accept(&page).map_err(|_| BadRecord)?;
            contents.add(&page, first);
            Ok(())
        })?;
        walk.requeue();
        Ok::<_, JournalError>(Ledger { contents, walk, journal })
    })
    .await?;

    let resumed_files = ledger.contents.files;
    let mut owner = LedgerOwner { ledger: Some(ledger), progress };
    owner.report();
    let mut list_requests = 0;
    listing::drive(&origin, &mut owner, concurrency, &mut list_requests).await?;

    let Ledger { contents, journal, .. } = owner.into_ledger();
    off_runtime(move || {
        let Contents { builder, mut skipped, reserved, .. } = contents;
        let built = builder.finish(&name, &url, nanoseconds_now())?;
        let shadowed = built.rejected.iter();
        skipped.extend(shadowed.map(|key| SkippedKey { key: key.key.clone(), reason: key.reason.as_str().into() }));
        skipped.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(Imported { built, skipped, reserved, resumed_files, list_requests, journal })
    })
    .await
}

/// Everything listed so far.
struct Contents {
    scheme: Scheme,
    rules: NameRules,
    builder: ManifestBuilder,
    skipped: Vec<SkippedKey>,
    reserved: u64,
    files: u64,
    bytes: u64,
}

impl Contents {
    fn new(scheme: Scheme) -> Self {
        Self {
            scheme,
            rules: listing::rules_of(scheme),
            builder: ManifestBuilder::new(),
            skipped: Vec::new(),
            reserved: 0,
            files: 0,
            bytes: 0,
        }
    }

    /// Adds a page; `first` is true for the first page of a unit.
    fn add(&mut self, page: &PageRecord, first: bool) {
        for file in &page.files {
            self.add_file(file);
        }
        for (key, reason) in &page.skipped {
            self.skipped.push(SkippedKey { key: key.clone(), reason: reason.clone() });
        }
        // A folder origin has empty directories; a prefix of an object store exists only because something is below it.
        let empty = first && page.next.is_none() && page.files.is_empty() && page.prefixes.is_empty();
        if empty && self.scheme == Scheme::Folder && !page.prefix.is_empty() {
            let path = &page.prefix[..page.prefix.len() - 1];
            self.add_folder(path, &page.prefix);
        }
    }

    fn add_file(&mut self, file: &PageFile) {
        if is_reserved(&file.key) {
            self.reserved += 1;
            return;
        }
        let added = match file.key.strip_suffix(b"/") {
            // The marker of the dataset's own folder.
            None if file.key.is_empty() && file.size == 0 => return,
            Some(path) if file.size == 0 => return self.add_folder(path, &file.key),
            Some(path) => Err(name::check(path, self.rules).err().unwrap_or(Rejection::MarkerWithBytes)),
            None => {
                let file = PlainFile {
                    path: &file.key,
                    size: file.size,
                    mtime_ns: file.mtime_ns,
                    version: file.version.borrowed(),
                };
                self.builder.push(&file, self.rules)
            }
        };
        match added {
            Ok(()) => {
                self.files += 1;
                self.bytes = self.bytes.saturating_add(file.size);
            }
            Err(reason) => self.skip(&file.key, reason),
        }
    }

    fn add_folder(&mut self, path: &[u8], key: &[u8]) {
        if is_reserved(key) {
            return;
        }
        if let Err(reason) = self.builder.push_folder(path, self.rules) {
            self.skip(key, reason);
        }
    }

    fn skip(&mut self, key: &[u8], reason: Rejection) {
        self.skipped.push(SkippedKey { key: key.to_vec(), reason: reason.as_str().into() });
    }
}

/// True below `.larder/`, where Larder stores the manifest and its other objects of a dataset.
fn is_reserved(key: &[u8]) -> bool {
    key.strip_prefix(RESERVED).is_some_and(|rest| rest.starts_with(b"/"))
}

/// All state of a run; moves to a blocking thread and back for each page.
struct Ledger {
    contents: Contents,
    walk: Walk,
    journal: Journal,
}

struct LedgerOwner<'a> {
    /// `None` only while a page is being accepted, or after an error.
    ledger: Option<Ledger>,
    progress: &'a dyn Progress,
}

impl LedgerOwner<'_> {
    fn ledger(&mut self) -> &mut Ledger {
        self.ledger.as_mut().expect("only an error or a dropped future leaves no ledger, and both end the run")
    }

    fn into_ledger(self) -> Ledger {
        self.ledger.expect("only an error or a dropped future leaves no ledger, and both end the run")
    }

    fn report(&mut self) {
        let progress = self.progress;
        let ledger = self.ledger();
        let (done, known) = ledger.walk.counts();
        progress.listed(ledger.contents.files, ledger.contents.bytes, done, known);
    }
}

impl PageOwner for LedgerOwner<'_> {
    type Error = ImportError;

    fn walk(&mut self) -> &mut Walk {
        &mut self.ledger().walk
    }

    async fn take(&mut self, page: PageRecord) -> Result<(), ImportError> {
        if let Some(mut ledger) = self.ledger.take() {
            let taken = off_runtime(move || {
                let first = ledger.walk.is_first(&page);
                // An inconsistent page must not reach the journal, where it would stop every later run too.
                ledger.walk.accept(&page)?;
                ledger.journal.append(&page.encode())?;
                ledger.contents.add(&page, first);
                Ok::<_, ImportError>(ledger)
            });
            self.ledger = Some(taken.await?);
        }
        self.report();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
