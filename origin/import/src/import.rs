//! Import: one listing of an origin becomes a manifest.
//!
//! [`import`] lists many parts of an origin in parallel. `Ledger` owns the sorted contents, the journal and the counts,
//! and accepts the pages one by one. [`Imported`] is the result: a draft of the manifest in a file.
//!
//! Invariant: the contents and the journal have the same pages. A run that continues after `kill -9` therefore ends
//! with the same manifest as an uninterrupted run. Once a manifest was built from a journal, no later run continues
//! that journal. Every listed key is a file, a folder, a link, a skipped key with a reason, or reserved. Memory does
//! not grow with the number of keys, except for links up to a limit, and disk space only up to a limit. This module
//! does not know where the manifest is stored or how progress is displayed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use larder_dataset::Rejection;
use larder_dataset::manifest::{BuildError, FileRow};
use larder_dataset::name::{self, NameRules, RESERVED};
use larder_origin::{Origin, Scheme};

use crate::assemble::{AssembleError, LeftOut, RowSorter};
use crate::blocking::off_runtime;
use crate::disk::{DiskLimit, DiskUse, Held};
use crate::draft::{DRAFT_SUFFIX, DraftManifest, remove_orphaned_drafts};
use crate::journal::{
    Journal, JournalError, JournalIdentity, JournalKind, PageFile, PageLink, PageRecord, Refused, remove_old_journals,
};
use crate::links::TOO_MANY;
use crate::listing::{self, LinkObjects, ListError, PageOwner, Walk};
use crate::progress::Progress;
use crate::skipped::Skipped;
pub use crate::skipped::SkippedKey;

/// The age above which no import continues a journal.
const RESUMED_MOST: Duration = Duration::from_secs(24 * 3600);

/// The options of an import.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// The name of the dataset, which the manifest stores.
    pub name: String,
    /// Distinguishes this origin from others with the same URL, for example by its server. Neither displayed nor
    /// stored.
    pub place: String,
    /// The folder of the journal. The journal is kept until the manifest is stored.
    pub journal_dir: PathBuf,
    /// The most LIST calls in flight.
    pub concurrency: usize,
    /// The age above which a journal is started over: at most a day, after which any import removes it.
    pub max_age_resume: Duration,
    /// True to list everything again and ignore the journal.
    pub restart: bool,
    /// True if objects of a store whose names end in `.rclonelink` are symbolic links. Those of a folder always are
    /// links.
    pub link_objects: bool,
    /// The share of memory for sorting, in bytes; about three times as much is used. Further records are sorted on the
    /// disk, in the folder of the journal.
    pub sort_bytes: usize,
    /// The disk space that the journal, the sorted records and the manifest may take together.
    pub disk: DiskLimit,
}

impl ImportOptions {
    /// The defaults: 16 calls in flight, journals of up to a day, 64 MiB for sorting,
    /// as much of the disk as it takes.
    pub fn new(name: impl Into<String>, journal_dir: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            place: String::new(),
            journal_dir: journal_dir.into(),
            concurrency: 16,
            max_age_resume: RESUMED_MOST,
            restart: false,
            link_objects: false,
            sort_bytes: 64 << 20,
            disk: DiskLimit::default(),
        }
    }
}

/// The result of an import.
#[derive(Debug)]
#[must_use = "store the manifest"]
pub struct Imported {
    /// The manifest, in a file that is deleted when this is dropped.
    pub manifest: DraftManifest,
    /// The first keys that cannot be files, sorted.
    pub skipped: Vec<SkippedKey>,
    /// The number of keys that cannot be files, by reason.
    pub skipped_counts: BTreeMap<String, u64>,
    /// The number of objects below `.larder/`, which belong to Larder itself.
    pub reserved: u64,
    /// The number of files that an earlier run had listed.
    pub resumed_files: u64,
    /// The number of LIST calls that this run made.
    pub list_requests: u64,
    /// The number of all listed keys, including skipped and reserved ones.
    pub keys: u64,
    /// The number of bytes that were sorted on the disk because they exceeded the memory for sorting.
    pub spilled_bytes: u64,
    /// Keeps the journal locked, so that no other import of this origin removes the draft.
    _journal: Journal,
}

/// Why an import failed. The journal keeps all pages that were listed.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A call to list the origin failed, or its answers are inconsistent.
    #[error(transparent)]
    List(#[from] ListError),
    /// The journal is not usable, for example because another run has it open.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// No manifest can be built from the listing.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The listing could not be kept, sorted or made a manifest: the disk fails, has too little room, or the listing
    /// takes more space than it may.
    #[error("sort the listing in {}", dir.display())]
    Disk {
        /// The folder of the journal.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl ImportError {
    fn assembling(dir: &Path) -> impl Fn(AssembleError) -> Self + use<> {
        let dir = dir.to_path_buf();
        move |error| match error {
            AssembleError::Build(source) => Self::Build(source),
            AssembleError::Disk(source) => Self::Disk { dir: dir.clone(), source },
        }
    }
}

/// Lists `origin` into a manifest, and continues the work of an earlier run that was stopped. Cancel-safe: the journal
/// keeps all pages that were listed. Errors: `List` if a call fails permanently or the listing is inconsistent;
/// `Journal`, also if the same import is already running; `Build` if the dataset is too large or changed during the
/// listing; `Disk`. After an error other than a failed call, the next import lists everything again.
pub async fn import(
    origin: Arc<dyn Origin>,
    options: ImportOptions,
    progress: &dyn Progress,
) -> Result<Imported, ImportError> {
    let url = origin.url().to_string();
    let scheme = origin.url().scheme();
    let link_objects = match options.link_objects && scheme != Scheme::Folder {
        true => LinkObjects::Read,
        false => LinkObjects::AreFiles,
    };
    let mut parameters = vec![url.as_bytes(), options.place.as_bytes()];
    if link_objects == LinkObjects::Read {
        parameters.push(b"link-objects");
    }
    let identity = JournalIdentity::new(JournalKind::Import, &parameters);
    let ImportOptions { name, journal_dir, concurrency, max_age_resume, restart, sort_bytes, disk, .. } = options;
    let ledger = off_runtime(move || {
        let mut walk = Walk::new(scheme);
        let (mut contents, disk) = (None, DiskUse::new(disk));
        let journal_held = disk.hold();
        let journal = Journal::open(&journal_dir, identity, max_age_resume, restart, |payload| {
            let mut page = PageRecord::decode(payload)?;
            journal_held.count(Journal::record_bytes(payload)).map_err(Refused::Stop)?;
            let first = walk.is_first(&page);
            walk.accept(&mut page).map_err(|_| Refused::Bad)?;
            let contents = match &mut contents {
                Some(contents) => contents,
                none => none.insert(Contents::new(scheme, &journal_dir, &disk, sort_bytes).map_err(Refused::Stop)?),
            };
            contents.add(&page, first).map_err(Refused::Stop)
        })?;
        let contents = match contents {
            Some(contents) => contents,
            None => Contents::new(scheme, &journal_dir, &disk, sort_bytes)
                .map_err(|source| ImportError::Disk { dir: journal_dir.clone(), source })?,
        };
        walk.requeue();
        remove_orphaned_drafts(&journal_dir);
        remove_old_journals(&journal_dir, RESUMED_MOST);
        Ok::<_, ImportError>(Ledger { contents, walk, journal, journal_held, dir: journal_dir })
    })
    .await?;

    if let Some(note) = ledger.journal.note() {
        progress.noted(note);
    }
    let resumed_files = ledger.contents.files;
    let mut owner = LedgerOwner { ledger: Some(ledger), progress };
    owner.report();
    let mut list_requests = 0;
    if let Err(error) = listing::drive(&origin, &mut owner, link_objects, concurrency, &mut list_requests).await {
        if !matches!(error, ImportError::List(ListError::Origin { .. })) {
            owner.forget().await;
        }
        return Err(error);
    }

    let Ledger { contents, mut journal, journal_held, dir, .. } = owner.into_ledger();
    off_runtime(move || {
        let Contents { mut rows, mut skipped, reserved, keys, .. } = contents;
        let path = journal.path().with_extension(DRAFT_SUFFIX);
        // A key that was added since then may be missing, whatever run listed its part.
        let listed_ns = journal.started_ns();
        let assembled = rows.settle().map_err(AssembleError::Disk).and_then(|spilled_bytes| {
            let draft = DraftManifest::create(&path, |file| {
                rows.assemble(file, &name, &url, listed_ns, |left_out| match left_out {
                    LeftOut::File(key) => skipped.push(key, Rejection::ShadowedByFolder.as_str()),
                    LeftOut::Link(path, reason) => skipped.push(listing::link_key(scheme, path), reason),
                })
            });
            Ok((draft?, spilled_bytes))
        });
        // From here on the listing either becomes a manifest or is useless, so no later run may continue it.
        let emptied = journal.finish();
        drop(journal_held);
        let (manifest, spilled_bytes) = assembled.map_err(ImportError::assembling(&dir))?;
        emptied?;
        let (skipped, skipped_counts) = skipped.finish();
        Ok(Imported {
            manifest,
            skipped,
            skipped_counts,
            reserved,
            resumed_files,
            list_requests,
            keys,
            spilled_bytes,
            _journal: journal,
        })
    })
    .await
}

/// The contents of all pages so far.
struct Contents {
    scheme: Scheme,
    rules: NameRules,
    rows: RowSorter,
    skipped: Skipped,
    reserved: u64,
    keys: u64,
    files: u64,
    bytes: u64,
}

impl Contents {
    fn new(scheme: Scheme, dir: &Path, disk: &DiskUse, sort_bytes: usize) -> io::Result<Self> {
        Ok(Self {
            scheme,
            rules: listing::rules_of(scheme),
            rows: RowSorter::new(dir, disk.clone(), sort_bytes)?,
            skipped: Skipped::default(),
            reserved: 0,
            keys: 0,
            files: 0,
            bytes: 0,
        })
    }

    /// Adds a page. `first` is true for the first page of a prefix.
    fn add(&mut self, page: &PageRecord, first: bool) -> io::Result<()> {
        self.keys += (page.files.len() + page.skipped.len() + page.prefixes.len() + page.links.len()) as u64;
        for file in &page.files {
            self.add_file(file)?;
        }
        for link in &page.links {
            self.add_link(link)?;
        }
        for (key, reason) in &page.skipped {
            self.skipped.push(key.clone(), reason);
        }
        // A folder origin can have empty directories. In an object store, a prefix exists only if there is a key below
        // it.
        let empty = first && page.next.is_none() && page.files.is_empty() && page.prefixes.is_empty();
        if empty && self.scheme == Scheme::Folder && !page.prefix.is_empty() {
            let path = &page.prefix[..page.prefix.len() - 1];
            self.add_folder(path, &page.prefix)?;
        }
        Ok(())
    }

    fn add_file(&mut self, file: &PageFile) -> io::Result<()> {
        if is_reserved(&file.key) {
            self.reserved += 1;
            return Ok(());
        }
        let refused = match file.key.strip_suffix(b"/") {
            // This is the marker of the dataset's root folder.
            None if file.key.is_empty() && file.size == 0 => return Ok(()),
            Some(path) if file.size == 0 => return self.add_folder(path, &file.key),
            Some(path) => Some(name::check(path, self.rules).err().unwrap_or(Rejection::MarkerWithBytes)),
            None => name::check(&file.key, self.rules).err(),
        };
        if let Some(reason) = refused {
            self.skipped.push(file.key.clone(), reason.as_str());
            return Ok(());
        }
        self.files += 1;
        self.bytes = self.bytes.saturating_add(file.size);
        self.rows.push(&file.key, &FileRow::plain(file.size, file.mtime_ns, &file.version))
    }

    fn add_link(&mut self, link: &PageLink) -> io::Result<()> {
        let path = listing::link_path(self.scheme, &link.key);
        if is_reserved(path) {
            self.reserved += 1;
            return Ok(());
        }
        let refused = match name::check(path, self.rules) {
            Ok(()) if self.rows.push_link(path, &link.target, link.mtime_ns)? => return Ok(()),
            Ok(()) => TOO_MANY,
            Err(reason) => reason.as_str(),
        };
        self.skipped.push(link.key.clone(), refused);
        Ok(())
    }

    fn add_folder(&mut self, path: &[u8], key: &[u8]) -> io::Result<()> {
        if is_reserved(key) {
            return Ok(());
        }
        match name::check(path, self.rules) {
            Ok(()) => self.rows.push_folder(path),
            Err(reason) => {
                self.skipped.push(key.to_vec(), reason.as_str());
                Ok(())
            }
        }
    }
}

/// True for keys below `.larder/`, where Larder stores a dataset's manifest and its other objects.
pub(crate) fn is_reserved(key: &[u8]) -> bool {
    key.strip_prefix(RESERVED).is_some_and(|rest| rest.starts_with(b"/"))
}

/// The whole state of a run. It moves to a blocking thread and back for each page.
struct Ledger {
    contents: Contents,
    walk: Walk,
    journal: Journal,
    /// The journal's share of the disk.
    journal_held: Held,
    dir: PathBuf,
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

    /// Discards a listing that contradicts itself.
    async fn forget(self) {
        if let Some(mut ledger) = self.ledger {
            // If the journal cannot be emptied, the next run finds the same contradiction and retries.
            let _ = off_runtime(move || ledger.journal.finish()).await;
        }
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

    async fn take(&mut self, mut page: PageRecord) -> Result<(), ImportError> {
        if let Some(mut ledger) = self.ledger.take() {
            let (taken, ledger) = off_runtime(move || {
                let first = ledger.walk.is_first(&page);
                // An inconsistent page must not reach the journal, where it would make every later run fail too.
                let disk = |source| ImportError::Disk { dir: ledger.dir.clone(), source };
                let taken = ledger.walk.accept(&mut page).map_err(ImportError::from).and_then(|()| {
                    let record = page.encode();
                    ledger.journal_held.take(Journal::record_bytes(&record)).map_err(disk)?;
                    ledger.journal.append(&record)?;
                    ledger.contents.add(&page, first).map_err(disk)
                });
                (taken, ledger)
            })
            .await;
            self.ledger = Some(ledger);
            taken?;
        }
        self.report();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
