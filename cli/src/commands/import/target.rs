//! The targets of a manifest of `larder import`, and its differences from the previous manifest at a target.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use larder_cachenode::kept_listing::KeptListing;
use larder_cachenode::manifest_file::{ORDER_SUFFIX, verify_file};
use larder_cachenode::source::{is_url, local_manifest, manifest_url};
use larder_cachenode::{Home, MappedManifest, open_manifest, put_order};
use larder_dataset::manifest::FileChange;
use larder_dataset::{Chain, ManifestError, SnapshotId};
use larder_import::{DiskLimit, DraftManifest, PublishError, fetch_manifest};
use larder_origin::{Origin, OriginError};
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::args::ImportArgs;
use crate::output;

/// A target of a manifest.
pub(super) enum Target {
    /// The folder in which `larder mount` finds it on this machine.
    Kept(KeptListing),
    /// A file that the user named.
    File(PathBuf),
    /// An object.
    Object { url: String, folder: Arc<dyn Origin>, key: Vec<u8> },
}

/// The changes of the files since the previous manifest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Changes {
    pub(super) added: u64,
    pub(super) changed: u64,
    pub(super) removed: u64,
    pub(super) unchanged: u64,
}

/// The outcome of storing a manifest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stored {
    /// `None` if there was no previous manifest of this origin.
    pub(super) changes: Option<Changes>,
    /// False if the same snapshot was already published.
    pub(super) published: bool,
}

impl Target {
    /// The targets that the flags name for the manifest of a snapshot: one file or any number of URLs.
    pub(super) fn all(args: &ImportArgs, snapshot: SnapshotId, home: &Home) -> anyhow::Result<Vec<Self>> {
        if args.to.is_empty() {
            let path = local_manifest(&args.src, &args.origin.config()?, home)?;
            return Ok(vec![Self::Kept(KeptListing::at(path))]);
        }
        if args.to.len() > 1 && !args.to.iter().all(|to| is_url(to)) {
            bail!("--to takes one file, or any number of URLs");
        }
        args.to.iter().map(|to| Self::at(&to.replace("{snapshot}", &snapshot.to_string()), args)).collect()
    }

    fn at(to: &str, args: &ImportArgs) -> anyhow::Result<Self> {
        if !is_url(to) {
            return Ok(Self::File(to.into()));
        }
        let (folder, key) = manifest_url(to).with_context(|| {
            format!("--to {to}: the URL must end in .manifest, or be the dataset's URL followed by /.larder/manifest")
        })?;
        let folder = args.origin.open(&folder.parse()?)?;
        Ok(Self::Object { url: to.to_owned(), folder, key: key.as_bytes().to_vec() })
    }

    /// Stores the manifest of `origin`; a file target moves the draft. A file is replaced even if nothing changed,
    /// because it contains the time of the listing. An unchanged object is not.
    pub(super) fn store(
        &self,
        draft: &mut Option<DraftManifest>,
        origin: &str,
        home: &Home,
        runtime: &Runtime,
    ) -> anyhow::Result<Stored> {
        let scratch = home.sub_folder("imports")?.join(format!("compared-{}.manifest", std::process::id()));
        let of_origin = |old: &MappedManifest| old.name_and_origin().is_ok_and(|(_, of)| of == origin);
        let old = self.previous(&scratch, runtime).filter(of_origin);
        let compared = |new: &MappedManifest| old.as_ref().map(|old| Changes::between(old, new)).transpose();
        let missing = "a file is the only place of a manifest";
        match self {
            Self::Kept(kept) => {
                kept.store(draft.take().context(missing)?)?;
                Ok(Stored { changes: compared(&open_manifest(kept.path())?)?, published: true })
            }
            Self::File(path) => {
                draft.take().context(missing)?.write(path).context("--to")?;
                Ok(Stored { changes: compared(&open_manifest(path)?)?, published: true })
            }
            Self::Object { folder, key, .. } => {
                let draft = draft.as_ref().context(missing)?;
                let new = open_manifest(draft.path())?;
                let changes = compared(&new)?;
                let is_there = |old: &MappedManifest| {
                    old.snapshot() == new.snapshot() && old.name_and_origin() == new.name_and_origin()
                };
                let published = !old.as_ref().is_some_and(is_there);
                if published {
                    runtime.block_on(draft.put(&**folder, key)).context("--to")?;
                }
                Ok(Stored { changes, published })
            }
        }
    }

    /// Stores the list of the files to warm first.
    pub(super) fn store_order(&self, list: &Path, runtime: &Runtime) -> anyhow::Result<()> {
        let store = || {
            let lines = std::fs::read(list)?;
            match self {
                Self::Kept(kept) => put_order(list, kept.path())?,
                Self::File(path) => put_order(list, path)?,
                Self::Object { folder, key, .. } => {
                    let key = [key.as_slice(), ORDER_SUFFIX.as_bytes()].concat();
                    runtime.block_on(folder.put(&key, lines.into()))?;
                }
            }
            anyhow::Ok(())
        };
        store().with_context(|| format!("keep the order {} (--order)", list.display()))
    }

    /// The existing manifest at the target, if it can be read.
    fn previous(&self, scratch: &Path, runtime: &Runtime) -> Option<MappedManifest> {
        let opened = match self {
            Self::Kept(kept) if kept.stamp().is_none() => return None,
            Self::Kept(kept) => open_manifest(kept.path()).map_err(anyhow::Error::from),
            Self::File(path) if !path.exists() => return None,
            Self::File(path) => open_manifest(path).map_err(anyhow::Error::from),
            Self::Object { folder, key, .. } => {
                match runtime.block_on(fetch_manifest(&**folder, key, scratch, &DiskLimit::default(), verify_file)) {
                    // For a missing object, S3 answers "denied" to credentials that may publish but not list.
                    Err(PublishError::Origin {
                        source: OriginError::NotFound { .. } | OriginError::Denied { .. },
                        ..
                    }) => return None,
                    Err(error) => Err(error.into()),
                    Ok(_) => open_and_remove(scratch),
                }
            }
        };
        opened
            .inspect_err(|error| {
                output::note(format_args!("the earlier manifest cannot be compared: {}", Chain(&**error)))
            })
            .ok()
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Kept(kept) => kept.path().display().fmt(f),
            Self::File(path) => path.display().fmt(f),
            Self::Object { url, .. } => f.write_str(url),
        }
    }
}

/// Opens a manifest that no other program needs. Removes its file; the bytes stay readable while they are mapped.
fn open_and_remove(path: &Path) -> anyhow::Result<MappedManifest> {
    let opened = open_manifest(path);
    std::fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
    Ok(opened?)
}

impl Changes {
    fn between(old: &MappedManifest, new: &MappedManifest) -> Result<Self, ManifestError> {
        let mut changes = Self::default();
        for change in new.compare(old) {
            *match change? {
                FileChange::Added(_) => &mut changes.added,
                FileChange::Changed { .. } => &mut changes.changed,
                FileChange::Removed(_) => &mut changes.removed,
                FileChange::Unchanged { .. } => &mut changes.unchanged,
            } += 1;
        }
        Ok(changes)
    }
}
