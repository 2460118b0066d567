//! Resolves a URL or the path of a manifest file to a manifest on this machine and its origin.
//!
//! For a URL, the first of these is used: a manifest published beside the data (`larder pack` and `larder import --to` put it
//! there), a manifest that this machine imported earlier, a new import.
//!
//! A manifest on this machine does not prove that the caller may read the data: [`check_access`] checks the credentials.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use larder_dataset::{FileIndex, ManifestError};
use larder_import::{
    ImportError, ImportOptions, Imported, MANIFEST_KEY, Progress, PublishError, fetch_manifest, import, object_range,
    write_manifest,
};
use larder_origin::{Origin, OriginConfig, OriginError, OriginUrl, Scheme};
use sha2::{Digest, Sha256};

use crate::home::Home;
use crate::manifest_file::{ManifestFileError, MappedManifest, open_manifest};

/// A dataset that can be read.
#[derive(Debug)]
pub struct ResolvedSource {
    /// Where its manifest is on this machine.
    pub path: PathBuf,
    /// The manifest, mapped.
    pub manifest: Arc<MappedManifest>,
    /// Its origin.
    pub origin: Arc<dyn Origin>,
    /// Keys that the import just now had to skip, each with the reason.
    pub skipped: Vec<larder_import::SkippedKey>,
}

/// The reason that a dataset cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The URL or path is wrong; the text says what to write instead.
    #[error("{what}")]
    Invalid {
        /// What is wrong, and what to do.
        what: String,
    },
    /// The origin has nothing under that name.
    #[error("{what}")]
    Missing {
        /// What is missing.
        what: String,
    },
    /// The origin refuses or fails.
    #[error(transparent)]
    Origin(#[from] OriginError),
    /// The manifest beside the data cannot be fetched.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The origin cannot be listed.
    #[error("import {url}")]
    Import {
        /// The origin.
        url: String,
        /// The cause.
        source: ImportError,
    },
    /// A manifest file cannot be used.
    #[error(transparent)]
    ManifestFile(#[from] ManifestFileError),
    /// A manifest is not consistent.
    #[error("manifest {path}: {source}")]
    Manifest {
        /// The file.
        path: PathBuf,
        /// The flaw.
        source: ManifestError,
    },
    /// A folder of Larder's cannot be used.
    #[error(transparent)]
    Home(#[from] io::Error),
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

/// Finds the dataset that `text` names. Imports it if necessary, and reports that to `progress`. Cancel-safe: the next call
/// resumes the import. Must be called within a runtime. Errors say what to do.
pub async fn resolve(
    text: &str,
    config: &OriginConfig,
    home: &Home,
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
    let path = local_manifest(text, config, home)?;
    let published = path.with_extension("published");
    if let Some((folder, key)) = manifest_url(text) {
        let folder: OriginUrl = folder.parse()?;
        if !fetch(&*larder_origin::open(&folder, config)?, key.as_bytes(), &published).await? {
            return Err(SourceError::Missing { what: format!("there is no manifest at {text}") });
        }
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
    if path.exists() {
        return open_source(path, config);
    }
    let imported = import_url(&url, origin, None, false, config, home, progress).await?;
    write_manifest(&path, &imported.built)?;
    let mut source = open_source(path, config)?;
    source.skipped = imported.skipped;
    // A journal that is dropped lets the next import resume. This import is complete.
    let _ = imported.journal.discard();
    Ok(source)
}

fn invalid(what: String) -> SourceError {
    SourceError::Invalid { what }
}

/// Imports a dataset: lists its origin.
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
    let mut options = ImportOptions::new(name, home.sub_folder("imports")?);
    options.place = config.place(&url.to_string());
    options.restart = restart;
    import(origin, options, progress).await.map_err(|source| SourceError::Import { url: url.to_string(), source })
}

/// Opens a manifest file and, with `config`, the origin that it names. Sends no request to the origin.
pub fn open_source(path: PathBuf, config: &OriginConfig) -> Result<ResolvedSource, SourceError> {
    let manifest = Arc::new(open_manifest(&path)?);
    let described = manifest.name_and_origin();
    let (_, url) = described.map_err(|source| SourceError::Manifest { path: path.clone(), source })?;
    let origin = larder_origin::open(&url.parse()?, config)?;
    Ok(ResolvedSource { path, manifest, origin, skipped: Vec::new() })
}

/// Checks that the credentials of `source` may read its data, by a HEAD request for one object. Only a clear refusal is an
/// error: an object that is gone or was replaced concerns its readers only. So the credentials must not decide which server or
/// account is asked: [`OriginConfig::place`] tells apart the datasets of different ones. Errors: `Origin`.
pub async fn check_access(source: &ResolvedSource) -> Result<(), SourceError> {
    /// A single object may be forbidden; one of the first few must be readable.
    const TRIES: u32 = 3;
    let manifest = |cause| SourceError::Manifest { path: source.path.clone(), source: cause };
    let mut refused = None;
    for index in 0..source.manifest.totals().files.min(TRIES) {
        let file = source.manifest.file(FileIndex(index)).map_err(manifest)?;
        let object = object_range(&source.manifest, &file, 0..0).map_err(manifest)?;
        match source.origin.head(&object.key).await {
            Ok(_) | Err(OriginError::NotFound { .. }) => return Ok(()),
            Err(error @ OriginError::Denied { .. }) => refused = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    refused.map_or(Ok(()), |error| Err(error.into()))
}

/// Fetches a published manifest, unless the local copy has the same version. False if none is published. An origin that
/// denies access to objects that do not exist (S3 without the right to list) counts as having none.
async fn fetch(origin: &dyn Origin, key: &[u8], to: &Path) -> Result<bool, SourceError> {
    let here = to.with_extension("version");
    match origin.head(key).await {
        Ok(there) => {
            let version = format!("{:?}", there.version);
            if to.exists() && std::fs::read_to_string(&here).is_ok_and(|here| here == version) {
                return Ok(true);
            }
        }
        Err(OriginError::NotFound { .. } | OriginError::Denied { .. }) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    // If this is interrupted, the next call fetches the manifest again.
    let _ = std::fs::remove_file(&here);
    let fetched = fetch_manifest(origin, key, to).await?;
    let _ = std::fs::write(&here, format!("{:?}", fetched.version));
    Ok(true)
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

    #[test]
    fn accounts_of_one_container_have_manifests_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        let of = |url: &str, account: &str| {
            let env = [("AZURE_STORAGE_ACCOUNT_NAME", account)].into_iter().collect();
            local_manifest(url, &OriginConfig { env, ..OriginConfig::default() }, &home).unwrap()
        };
        assert_ne!(of("az://container/set", "ours"), of("az://container/set", "theirs"));
        assert_eq!(of("az://container/set", "ours"), of("az://container/set/", "ours"));
        assert_eq!(of("s3://bucket/set", "ours"), of("s3://bucket/set", "theirs"));
    }
}
