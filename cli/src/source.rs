//! From what the user names (a URL or a manifest file) to a manifest on this machine and its origin.
//!
//! A URL is looked up in this order: a manifest published beside the data (`larder pack` and `larder import --to` put it
//! there), one that this machine has imported, and else it is imported now.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use larder_fs::{MappedManifest, open_manifest};
use larder_import::{ImportOptions, Imported, MANIFEST_KEY, PublishError, fetch_manifest, write_manifest};
use larder_origin::{Env, Origin, OriginConfig, OriginError, OriginUrl, Scheme};
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;

use crate::args::OriginArgs;
use crate::home;
use crate::output::ProgressView;

/// A dataset that is ready to be read.
pub(crate) struct Source {
    /// Where its manifest is on this machine.
    pub(crate) path: PathBuf,
    /// The manifest, mapped.
    pub(crate) manifest: Arc<MappedManifest>,
    /// Its origin.
    pub(crate) origin: Arc<dyn Origin>,
}

impl OriginArgs {
    /// The flags together with the environment.
    pub(crate) fn config(&self) -> OriginConfig {
        OriginConfig {
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            anonymous: self.anonymous,
            attempt_timeout: self.attempt_timeout,
            deadline: self.read_deadline,
            concurrency: self.origin_concurrency as usize,
            env: Env::of_process(),
            ..OriginConfig::default()
        }
    }

    /// Opens an origin. Nothing is asked of it yet.
    pub(crate) fn open(&self, url: &OriginUrl) -> anyhow::Result<Arc<dyn Origin>> {
        Ok(larder_origin::open(url, &self.config())?)
    }
}

/// A runtime for a command that mostly waits for the network.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")
}

/// True if `text` is a URL and not a path.
pub(crate) fn is_url(text: &str) -> bool {
    text.contains("://")
}

/// Finds the dataset that `text` names, importing it if need be.
pub(crate) fn resolve(text: &str, origin: &OriginArgs, runtime: &Runtime) -> anyhow::Result<Source> {
    let _in_runtime = runtime.enter();
    if !is_url(text) {
        let path = Path::new(text);
        if path.is_dir() {
            let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
            bail!("{text} is a folder: write file://{} to use it as an origin", absolute.display());
        }
        return open(path.to_owned(), origin);
    }
    let path = local_manifest(text, origin)?;
    if let Some((folder, key)) = manifest_url(text) {
        fetch(&*origin.open(&folder.parse()?)?, key.as_bytes(), &path, runtime)?
            .with_context(|| format!("there is no manifest at {text}"))?;
        let source = open(path, origin)?;
        if source.origin.url().scheme() == Scheme::Folder {
            bail!("the manifest at {text} points to a folder of the machine that made it: import that folder here");
        }
        return Ok(source);
    }
    let url: OriginUrl = text.parse()?;
    let remote = origin.open(&url)?;
    if fetch(&*remote, MANIFEST_KEY, &path, runtime)?.is_some() {
        let source = open(path, origin)?;
        let (_, described) = source.manifest.name_and_origin()?;
        // Whoever may write beside the data must not be able to send us elsewhere.
        if described != url.to_string() {
            bail!("the manifest beside {url} describes {described}: mount that, or name a manifest file");
        }
        return Ok(source);
    }
    if !path.exists() {
        eprintln!("{url} was not imported yet: listing it now");
        let imported = import(&url, &remote, None, false, origin, runtime)?;
        report_skipped(&imported);
        write_manifest(&path, &imported.built)?;
        imported.journal.discard()?;
    }
    open(path, origin)
}

fn open(path: PathBuf, origin: &OriginArgs) -> anyhow::Result<Source> {
    let manifest = Arc::new(open_manifest(&path)?);
    let described = manifest.name_and_origin();
    let (_, url) = described.with_context(|| format!("open manifest {}", path.display()))?;
    let origin = origin.open(&url.parse()?)?;
    Ok(Source { path, manifest, origin })
}

/// Brings a published manifest here. `None` if there is none. An origin that lets us read objects but denies what is not
/// there (S3 without the right to list) counts as none.
fn fetch(origin: &dyn Origin, key: &[u8], to: &Path, runtime: &Runtime) -> anyhow::Result<Option<()>> {
    match runtime.block_on(fetch_manifest(origin, key, to)) {
        Ok(_) => Ok(Some(())),
        Err(PublishError::Origin { source: OriginError::NotFound { .. } | OriginError::Denied { .. }, .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// If a URL names a manifest itself: the folder it is in, and its key there.
pub(crate) fn manifest_url(text: &str) -> Option<(&str, &str)> {
    let (folder, key) = text.rsplit_once('/')?;
    (key.ends_with(".manifest") || folder.ends_with("/.larder") && key == "manifest").then_some((folder, key))
}

/// Where this machine keeps the manifest of a URL.
pub(crate) fn local_manifest(url: &str, origin: &OriginArgs) -> anyhow::Result<PathBuf> {
    let mut hash = Sha256::new();
    hash.update(url.trim_end_matches('/').as_bytes());
    hash.update([0]);
    hash.update(origin.endpoint.as_deref().unwrap_or_default().as_bytes());
    let name: String = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    Ok(home::sub_folder("manifests")?.join(format!("{name}.manifest")))
}

/// Lists an origin, with a progress bar.
pub(crate) fn import(
    url: &OriginUrl,
    origin: &Arc<dyn Origin>,
    name: Option<&str>,
    restart: bool,
    args: &OriginArgs,
    runtime: &Runtime,
) -> anyhow::Result<Imported> {
    let name = name.map_or_else(|| default_name(url), str::to_owned);
    let mut options = ImportOptions::new(name, home::sub_folder("imports")?);
    options.endpoint.clone_from(&args.endpoint);
    options.restart = restart;
    let progress = ProgressView::new(0, "listing");
    let imported = runtime.block_on(larder_import::import(Arc::clone(origin), options, &progress));
    progress.finish();
    let imported = imported.with_context(|| format!("import {url}"))?;
    if imported.resumed_files > 0 {
        eprintln!("went on with an unfinished import: {} files were listed already", imported.resumed_files);
    }
    Ok(imported)
}

fn default_name(url: &OriginUrl) -> String {
    let text = url.to_string();
    let last = text.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    if last.is_empty() { "dataset".to_owned() } else { last.to_owned() }
}

/// Tells which keys cannot be files: all reasons with their counts, and the first keys of each.
pub(crate) fn report_skipped(imported: &Imported) {
    let mut reasons: std::collections::BTreeMap<&str, Vec<&[u8]>> = std::collections::BTreeMap::new();
    for skipped in &imported.skipped {
        reasons.entry(&skipped.reason).or_default().push(&skipped.key);
    }
    for (reason, keys) in reasons {
        eprintln!("skipped {} keys: {reason}", keys.len());
        for key in keys.iter().take(5) {
            eprintln!("    {}", key.escape_ascii());
        }
        if keys.len() > 5 {
            eprintln!("    ... (all with --json)");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_names_a_manifest_is_told_from_a_dataset() {
        assert_eq!(manifest_url("s3://b/p/.larder/manifest"), Some(("s3://b/p/.larder", "manifest")));
        assert_eq!(manifest_url("s3://b/p/x.manifest"), Some(("s3://b/p", "x.manifest")));
        assert_eq!(manifest_url("s3://b/p/manifest"), None);
        assert_eq!(manifest_url("s3://b/p"), None);
    }
}
