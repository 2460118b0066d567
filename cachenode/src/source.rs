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

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use larder_dataset::{Chain, FileIndex, ManifestError, Refresh};
use larder_import::{ImportOptions, Imported, MANIFEST_KEY, ObjectRange, Progress, import, object_range};
use larder_origin::{Key, ObjectInfo, Origin, OriginConfig, OriginError, OriginUrl, Scheme, Version};
use sha2::{Digest, Sha256};

pub use error::{ReportedError, SourceError};
use published::{fetch, fetch_order};

use crate::home::Home;
use crate::kept_listing::{KeptListing, age_of, now_ns};
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

/// A request to list always continues an unfinished listing that began at most this long before it: then it is the
/// same request, repeated after a restart.
const JUST_BEGUN: Duration = Duration::from_secs(60);

/// How long somebody else may be listing an origin until those that wait for it serve the old listing; and how long
/// before a request a listing may have begun that somebody else ends meanwhile, and that the request uses.
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
    /// True if objects that are links are links, and not files.
    pub link_objects: bool,
    /// An unfinished listing that began before this, in nanoseconds since the epoch, is not continued; `None`: any is.
    pub since_ns: Option<i64>,
    /// Hears how far it is.
    pub progress: &'a dyn Progress,
}

/// Imports datasets for [`resolve`].
pub trait Importing: Sync {
    /// The right to import, held until the import has ended.
    type Allowance: Send;

    /// Waits until another import may begin. Cancel-safe.
    fn allow(&self) -> impl Future<Output = Self::Allowance> + Send;

    /// Lists an origin and keeps the listing. Returns how many keys were skipped, by reason. Cancel-safe: the next call
    /// continues.
    fn import(&self, import: Import<'_>) -> impl Future<Output = Result<BTreeMap<String, u64>, SourceError>> + Send;
}

/// Imports in this process.
#[derive(Clone, Copy, Debug)]
pub struct Here;

impl Importing for Here {
    type Allowance = ();

    async fn allow(&self) {}

    async fn import(&self, import: Import<'_>) -> Result<BTreeMap<String, u64>, SourceError> {
        let Import { url, origin, kept, config, home, link_objects, since_ns, progress } = import;
        let wanted = WantedListing { link_objects, since_ns, ..WantedListing::default() };
        let imported = import_url(url, origin, wanted, config, home, progress).await?;
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

/// The path of a URL's manifest on this machine: one for each place, and for each tenant that lists it.
pub fn local_manifest(url: &str, config: &OriginConfig, home: &Home) -> io::Result<PathBuf> {
    let hash = short_hash(&[url.trim_end_matches('/'), &config.listing_place(url)]);
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
    let requested_ns = now_ns();
    let since_ns = continued_since(refresh, requested_ns);
    let kept = KeptListing::at(local_manifest(text, config, home)?);
    let there_at_first = kept.stamp();
    let published = kept.path().with_extension(PUBLISHED);
    if let Some((folder, key)) = manifest_url(text) {
        let folder: OriginUrl = folder.parse()?;
        if !fetch(&*larder_origin::open(&folder, config)?, key.as_bytes(), &published, home).await? {
            return Err(SourceError::Missing { what: format!("there is no manifest at {text}") });
        }
        fetch_order(&*larder_origin::open(&folder, config)?, key.as_bytes(), &published, home).await;
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
    if fetch(&*origin, MANIFEST_KEY, &published, home).await? {
        fetch_order(&*origin, MANIFEST_KEY, &published, home).await;
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
    // A listing that has links has them after it is renewed, too.
    let link_objects = old.as_ref().is_some_and(|old| old.manifest.totals().links > 0);
    // Without an old one, there is nothing to do but to wait.
    let wait_most = if old.is_some() { LISTED_BY_OTHERS_MOST } else { Duration::MAX };
    let renew = async {
        let lock = async {
            // First: one that may not list yet must not keep others from it.
            let allowance = importing.allow().await;
            Ok::<_, io::Error>((kept.lock().await?, allowance))
        };
        let locked = tokio::time::timeout(wait_most, lock).await;
        let _one_lists = locked.unwrap_or_else(|_| Err(still_listed(wait_most)))?;
        if kept.stamp() != there_at_first {
            // Somebody else has listed it meanwhile. They may have continued a listing that is much older.
            let listed = open()?;
            let begun_ns = listed.manifest.created_ns();
            if since_ns.is_none_or(|since_ns| begun_ns >= since_ns.min(before(requested_ns, LISTED_BY_OTHERS_MOST))) {
                return Ok(listed);
            }
        }
        let import = Import { url: &url, origin, kept: &kept, config, home, link_objects, since_ns, progress };
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

/// The earliest start of an unfinished listing that a request of this time continues; `None`: any.
fn continued_since(refresh: Refresh, requested_ns: i64) -> Option<i64> {
    match refresh {
        Refresh::Never => None,
        Refresh::Always => Some(before(requested_ns, JUST_BEGUN)),
        Refresh::After(most) => Some(before(requested_ns, most)),
    }
}

/// So long before a time in nanoseconds.
fn before(time_ns: i64, duration: Duration) -> i64 {
    time_ns.saturating_sub(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

fn still_listed(after: Duration) -> io::Error {
    let what = format!("another process or look-up on this machine is still listing it after {after:?}");
    io::Error::new(io::ErrorKind::TimedOut, what)
}

fn invalid(what: String) -> SourceError {
    SourceError::Invalid { what }
}

/// The listing to make.
#[derive(Clone, Copy, Debug, Default)]
pub struct WantedListing<'a> {
    /// The name of the dataset; `None` for the last part of its URL.
    pub name: Option<&'a str>,
    /// True to discard what an unfinished import has listed.
    pub restart: bool,
    /// True if objects that are links are links, and not files.
    pub link_objects: bool,
    /// As in [`Import`].
    pub since_ns: Option<i64>,
}

/// Imports a dataset: lists its origin. Errors: `Missing` if nothing shows that the prefix exists.
pub async fn import_url(
    url: &OriginUrl,
    origin: Arc<dyn Origin>,
    WantedListing { name, restart, link_objects, since_ns }: WantedListing<'_>,
    config: &OriginConfig,
    home: &Home,
    progress: &dyn Progress,
) -> Result<Imported, SourceError> {
    let name = name.map_or_else(|| default_name(url), str::to_owned);
    let mut options = ImportOptions::new(name, home.sub_folder(IMPORTS)?);
    options.place = config.listing_place(&url.to_string());
    options.restart = restart;
    if let Some(since_ns) = since_ns {
        options.max_age_resume = options.max_age_resume.min(age_of(since_ns));
    }
    options.link_objects = link_objects;
    options.disk = home.listing_limit();
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

/// The manifest that a mirror has now: this machine's copy of it, if that is as new. `place` is where its server and
/// account are. `None` if it has none.
pub(crate) async fn fetch_mirror(
    mirror: &dyn Origin,
    place: &str,
    home: &Home,
) -> Result<Option<MappedManifest>, SourceError> {
    let hash = short_hash(&["mirror", &mirror.url().to_string(), place]);
    let copy = home.sub_folder("manifests")?.join(format!("{hash}.{PUBLISHED}"));
    if !fetch(mirror, MANIFEST_KEY, &copy, home).await? {
        return Ok(None);
    }
    Ok(Some(open_manifest(&copy)?))
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

/// Checks that the credentials of `source` may read its data, by HEAD requests for its objects. An object counts only if
/// it has the size and the version of the manifest: the bucket may be another one of the same name, and the cached bytes
/// another tenant's. Three such objects are proof, and of a small dataset half of those that were looked at: some may have
/// been replaced or removed since it was listed, but the few objects that a bucket may have in common with any other
/// prove nothing. They are looked for all over the dataset. Errors: `Origin`; `Missing` if too few objects are as they
/// were listed.
pub async fn check_access(source: &ResolvedSource) -> Result<(), SourceError> {
    /// A single object may be forbidden; one of the first few that are there must be readable.
    const REFUSALS: usize = 3;
    /// The number of objects that are proof.
    const PROOF: usize = 3;
    /// The most objects that are looked at.
    const TRIES: u32 = 16;
    // To read a folder, no credentials are needed.
    if source.origin.url().scheme() == Scheme::Folder {
        return Ok(());
    }
    let objects = listed_objects(source, TRIES)
        .map_err(|cause| SourceError::Manifest { path: source.path.clone(), source: cause })?;
    let tried = objects.len();
    let mut heads = stream::iter(objects)
        .map(|object| async move { (source.origin.head(&object.key).await, object) })
        .buffered(PROOF);
    let (mut same, mut refusals) = (0, Vec::new());
    while let Some((head, object)) = heads.next().await {
        match head {
            Ok(there) if object.is(&there) => same += 1,
            Ok(_) | Err(OriginError::NotFound { .. }) => {}
            Err(error @ OriginError::Denied { .. }) if refusals.len() + 1 < REFUSALS => refusals.push(error),
            Err(error) => return Err(error.into()),
        }
        if same == PROOF {
            return Ok(());
        }
    }
    if 2 * same >= tried {
        return Ok(());
    }
    if let Some(refused) = refusals.pop() {
        return Err(refused.into());
    }
    let url = source.origin.url();
    Err(SourceError::Missing {
        what: format!(
            "{same} of {tried} objects of {url} are as they were listed, so nothing proves that the credentials may \
            read the dataset: list it again with --refresh (attribute refresh), or with larder import if its manifest \
            is published"
        ),
    })
}

/// An object as the manifest describes it.
struct ListedObject {
    key: Vec<u8>,
    /// Of an object that is a file.
    size: Option<u64>,
    version: Option<Version>,
}

impl ListedObject {
    fn is(&self, there: &ObjectInfo) -> bool {
        self.size.is_none_or(|size| size == there.size)
            && self.version.as_ref().is_none_or(|version| *version == there.version)
    }
}

/// The first three objects of a dataset, and others all over it, at most `most` in all.
fn listed_objects(source: &ResolvedSource, most: u32) -> Result<Vec<ListedObject>, ManifestError> {
    const FIRST: u32 = 3;
    let files = source.manifest.totals().files;
    let spread = (FIRST..most).map(|n| (u64::from(files) * u64::from(n) / u64::from(most)) as u32);
    let mut objects: Vec<ListedObject> = Vec::new();
    for index in (0..FIRST).chain(spread).filter(|&index| index < files) {
        let file = source.manifest.file(FileIndex(index))?;
        let ObjectRange { key, version, .. } = object_range(&source.manifest, &file, 0..0)?;
        // Many files may be in one pack.
        if objects.iter().all(|object| object.key != key) {
            let size = (!source.manifest.is_packed()).then_some(file.size);
            objects.push(ListedObject { key, size, version });
        }
    }
    Ok(objects)
}

#[cfg(test)]
mod tests;
