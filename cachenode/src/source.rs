//! Resolves a URL or the path of a manifest file to a manifest on this machine and its origin.
//!
//! For a URL, the first of these is used: a manifest published beside the data (`larder pack` and `larder import --to`
//! put it there), a manifest that this machine imported earlier and that is not too old ([`Refresh`]), a new import. A
//! published manifest is what all nodes agree on, so no node lists the origin for itself where there is one. If a
//! listing cannot be renewed, the old one is used.
//!
//! A manifest on this machine does not prove that the caller may read the data: [`check_access`] checks the
//! credentials.

mod error;
mod published;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use larder_dataset::{Chain, FileIndex, Refresh};
use larder_import::{ImportOptions, Imported, MANIFEST_KEY, Progress, import, object_range};
use larder_origin::{Key, Origin, OriginConfig, OriginError, OriginUrl, Scheme};
use sha2::{Digest, Sha256};

pub use error::{ReportedError, SourceError};
use published::{fetch, fetch_order};

use crate::home::Home;
use crate::kept_listing::{KeptListing, now_ns};
use crate::manifest_file::{MappedManifest, open_manifest};

/// A dataset that can be read.
#[derive(Clone, Debug)]
pub struct ResolvedSource {
    /// Where its manifest is on this machine.
    pub path: PathBuf,
    /// The manifest, mapped.
    pub manifest: Arc<MappedManifest>,
    /// Its origin.
    pub origin: Arc<dyn Origin>,
    /// How many keys the import just now had to skip, by reason.
    pub skipped: BTreeMap<String, u64>,
    /// Why the listing could not be renewed when it was last tried.
    pub refresh_failed: Option<String>,
    /// True if its origin was listed meanwhile, by whomever.
    pub listed: bool,
}

impl ResolvedSource {
    /// True if the manifest was fetched, and not made here.
    pub fn is_published(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == PUBLISHED)
    }
}

/// How long somebody else may be listing an origin until those that wait for it serve the old listing.
const LISTED_BY_OTHERS_MOST: Duration = Duration::from_secs(3600);

/// The folder of unfinished imports in a home.
pub(crate) const IMPORTS: &str = "imports";

/// How the name of a manifest ends that was fetched.
pub(crate) const PUBLISHED: &str = "published";

/// The origin to import, and where its listing is kept.
pub struct Import<'a> {
    /// The origin.
    pub url: &'a OriginUrl,
    /// The same, open.
    pub origin: Arc<dyn Origin>,
    /// Where its listing is kept.
    pub kept: &'a KeptListing,
    /// How it is reached.
    pub config: &'a OriginConfig,
    /// Where the journal is.
    pub home: &'a Home,
    /// Hears how far it is.
    pub progress: &'a dyn Progress,
}

/// Imports datasets for [`resolve`].
pub trait Importing: Sync {
    /// Lists an origin and keeps the listing. Returns how many keys were skipped, by reason. Cancel-safe: the next call
    /// continues.
    fn import(&self, import: Import<'_>) -> impl Future<Output = Result<BTreeMap<String, u64>, SourceError>> + Send;
}

/// Imports in this process.
#[derive(Clone, Copy, Debug)]
pub struct Here;

impl Importing for Here {
    async fn import(&self, import: Import<'_>) -> Result<BTreeMap<String, u64>, SourceError> {
        let Import { url, origin, kept, config, home, progress } = import;
        let imported = import_url(url, origin, None, false, config, home, progress).await?;
        kept.store(imported.manifest)?;
        Ok(imported.skipped_counts)
    }
}

/// True if `text` is a URL and not a path.
pub fn is_url(text: &str) -> bool {
    text.contains("://")
}

/// If a URL names a manifest itself: its folder, and its key in that folder.
pub fn manifest_url(text: &str) -> Option<(&str, &str)> {
    let (folder, key) = text.rsplit_once('/')?;
    (key.ends_with(".manifest") || folder.ends_with("/.larder") && key == "manifest").then_some((folder, key))
}

/// The path of a URL's manifest on this machine.
pub fn local_manifest(url: &str, config: &OriginConfig, home: &Home) -> io::Result<PathBuf> {
    let hash = short_hash(&[url.trim_end_matches('/'), &config.place(url)]);
    Ok(home.sub_folder("manifests")?.join(format!("{hash}.manifest")))
}

/// A hash of some texts, as 32 hex digits.
pub fn short_hash(texts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for (index, text) in texts.iter().enumerate() {
        if index > 0 {
            hash.update([0]);
        }
        hash.update(text.as_bytes());
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// The default name of a dataset: the last part of its URL.
pub fn default_name(url: &OriginUrl) -> String {
    let text = url.to_string();
    let last = text.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    if last.is_empty() { "dataset".to_owned() } else { last.to_owned() }
}

/// Finds the dataset that `text` names. Has `importing` list its origin if there is no listing, or if `refresh` wants a
/// newer one, and reports that to `progress`. Callers that want one origin listed at the same time list it once.
/// Cancel-safe: the next call resumes the import. Must be called within a runtime. Errors say what to do.
pub async fn resolve(
    text: &str,
    config: &OriginConfig,
    home: &Home,
    refresh: Refresh,
    importing: &impl Importing,
    progress: &dyn Progress,
) -> Result<ResolvedSource, SourceError> {
    if !is_url(text) {
        let path = Path::new(text);
        if path.is_dir() {
            let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
            return Err(invalid(format!(
                "{text} is a folder: write file://{} to use it as an origin",
                absolute.display()
            )));
        }
        return open_source(path.to_owned(), config);
    }
    let kept = KeptListing::at(local_manifest(text, config, home)?);
    let there_at_first = kept.stamp();
    let published = kept.path().with_extension(PUBLISHED);
    if let Some((folder, key)) = manifest_url(text) {
        let folder: OriginUrl = folder.parse()?;
        if !fetch(&*larder_origin::open(&folder, config)?, key.as_bytes(), &published).await? {
            return Err(SourceError::Missing { what: format!("there is no manifest at {text}") });
        }
        fetch_order(&*larder_origin::open(&folder, config)?, key.as_bytes(), &published).await;
        let source = open_source(published, config)?;
        if source.origin.url().scheme() == Scheme::Folder {
            return Err(invalid(format!(
                "the manifest at {text} points to a folder of the machine that made it: import that folder here"
            )));
        }
        return Ok(source);
    }
    let url: OriginUrl = text.parse()?;
    let origin = larder_origin::open(&url, config)?;
    if fetch(&*origin, MANIFEST_KEY, &published).await? {
        fetch_order(&*origin, MANIFEST_KEY, &published).await;
        let source = open_source(published, config)?;
        let described = source.origin.url();
        // The right to write beside the data must not be a way to redirect the reads.
        if described.to_string() != url.to_string() {
            return Err(invalid(format!(
                "the manifest beside {url} describes {described}: mount that, or name a manifest file"
            )));
        }
        return Ok(source);
    }
    let open = || open_source(kept.path().to_owned(), config);
    let old = if there_at_first.is_some() { Some(open()?) } else { None };
    let old = match old {
        Some(old) if !refresh.is_due(old.manifest.created_ns(), now_ns()) => return Ok(old),
        old => old,
    };
    // Without an old one, there is nothing to do but to wait.
    let wait_most = if old.is_some() { LISTED_BY_OTHERS_MOST } else { Duration::MAX };
    let renew = async {
        let locked = tokio::time::timeout(wait_most, kept.lock()).await;
        let _one_lists = locked.unwrap_or_else(|_| Err(still_listed(wait_most)))?;
        if kept.stamp() != there_at_first {
            // Somebody else has listed it meanwhile.
            return open();
        }
        let import = Import { url: &url, origin, kept: &kept, config, home, progress };
        let skipped = importing.import(import).await?;
        Ok(ResolvedSource { skipped, ..open()? })
    };
    let listed = renew.await.map(|source| ResolvedSource { listed: true, ..source });
    match (listed, old) {
        (Err(error), Some(old)) => {
            let why = format!("the listing of {url} could not be renewed: {}", Chain(&error));
            kept.note_failure(Some(&why));
            Ok(ResolvedSource { refresh_failed: Some(why), ..old })
        }
        (listed, _) => listed,
    }
}

fn still_listed(after: Duration) -> io::Error {
    let what = format!("another process or look-up on this machine is still listing it after {after:?}");
    io::Error::new(io::ErrorKind::TimedOut, what)
}

fn invalid(what: String) -> SourceError {
    SourceError::Invalid { what }
}

/// Imports a dataset: lists its origin. Errors: `Missing` if nothing shows that the prefix exists.
pub async fn import_url(
    url: &OriginUrl,
    origin: Arc<dyn Origin>,
    name: Option<&str>,
    restart: bool,
    config: &OriginConfig,
    home: &Home,
    progress: &dyn Progress,
) -> Result<Imported, SourceError> {
    let name = name.map_or_else(|| default_name(url), str::to_owned);
    let mut options = ImportOptions::new(name, home.sub_folder(IMPORTS)?);
    options.place = config.place(&url.to_string());
    options.restart = restart;
    options.concurrency = options.concurrency.min(config.concurrency);
    let imported = import(origin, options, progress).await;
    let imported = imported.map_err(|source| SourceError::Import { url: url.to_string(), source })?;
    // An empty bucket is there, and so is a folder that could be listed. A prefix is there if a key begins with it.
    if imported.keys == 0 && url.scheme() != Scheme::Folder && !url.prefix().is_empty() {
        let prefix = Key::from(url.prefix());
        // The client of Azure does not list an object whose name is that of the prefix.
        let marker = if url.scheme() == Scheme::Azure { ".larder/empty" } else { "" };
        let what = format!(
            "there is nothing below {url}: check the bucket and the prefix for spelling; for a dataset that is empty \
             for now, put an empty object with the key {prefix}/{marker} there"
        );
        return Err(SourceError::Missing { what });
    }
    Ok(imported)
}

/// The command that lists `origin` and publishes the manifest beside its data.
pub fn publish_command(origin: &str, config: &OriginConfig) -> String {
    let beside = format!("{}/.larder/manifest", origin.trim_end_matches('/'));
    config.command(&["import", origin, "--to", &beside])
}

/// Opens a manifest file and, with `config`, the origin that it names. Sends no request to the origin.
pub fn open_source(path: PathBuf, config: &OriginConfig) -> Result<ResolvedSource, SourceError> {
    let manifest = Arc::new(open_manifest(&path)?);
    let described = manifest.name_and_origin();
    let (_, url) = described.map_err(|source| SourceError::Manifest { path: path.clone(), source })?;
    let origin = larder_origin::open(&url.parse()?, config)?;
    let refresh_failed = KeptListing::at(path.clone()).failure();
    Ok(ResolvedSource { path, manifest, origin, skipped: BTreeMap::new(), refresh_failed, listed: false })
}

/// Checks that the credentials of `source` may read its data, by HEAD requests for objects until one is answered. Only
/// a clear refusal is an error: an object that was replaced concerns its readers only. One that is gone proves nothing,
/// since the right to list is enough to learn that; so other objects are tried, all over the dataset. The credentials
/// must not decide which server or account is asked: [`OriginConfig::place`] tells apart the datasets of different
/// ones. Errors: `Origin`; `Missing` if no object was found.
pub async fn check_access(source: &ResolvedSource) -> Result<(), SourceError> {
    /// A single object may be forbidden; one of the first few that are there must be readable.
    const REFUSALS: usize = 3;
    /// So many are tried, and some more if they are gone.
    const TRIES: u32 = 16;
    let manifest = |cause| SourceError::Manifest { path: source.path.clone(), source: cause };
    let files = source.manifest.totals().files;
    let spread = (REFUSALS as u32..TRIES).map(|n| (u64::from(files) * u64::from(n) / u64::from(TRIES)) as u32);
    let mut tried = BTreeSet::new();
    let mut refusals = Vec::new();
    for index in (0..REFUSALS as u32).chain(spread).filter(|&index| index < files) {
        let file = source.manifest.file(FileIndex(index)).map_err(manifest)?;
        let object = object_range(&source.manifest, &file, 0..0).map_err(manifest)?;
        // Many files may be in one pack.
        if !tried.insert(object.key.clone()) {
            continue;
        }
        match source.origin.head(&object.key).await {
            Ok(_) => return Ok(()),
            Err(OriginError::NotFound { .. }) => {}
            Err(error @ OriginError::Denied { .. }) if refusals.len() + 1 < REFUSALS => refusals.push(error),
            Err(error) => return Err(error.into()),
        }
    }
    if let Some(refused) = refusals.pop() {
        return Err(refused.into());
    }
    // To read a folder, no credentials are needed, and without files there is nothing to read.
    if tried.is_empty() || source.origin.url().scheme() == Scheme::Folder {
        return Ok(());
    }
    let (url, tried) = (source.origin.url(), tried.len());
    Err(SourceError::Missing {
        what: format!(
            "none of {tried} objects of {url} still exists, so nothing proves that the credentials may read the \
            dataset: list it again with --refresh (attribute refresh), or with larder import if its manifest \
            is published"
        ),
    })
}

#[cfg(test)]
mod tests;
