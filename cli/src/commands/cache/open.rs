//! A cache: through the process that serves it, or opened by this one if none does.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use larder_cachenode::node::caches;
use larder_daemon_api::socket::SERVICE_RUN_DIR;
use larder_daemon_api::v1;
use larder_fs::daemon::cache_info;
use larder_store::{Store, StoreConfig, StoreCounters};

use crate::args::CachePlace;
use crate::commands::mount::{default_cache_dir, run_dir, serving};
use crate::daemon;

/// A cache. [`Self::close`] it: only then does a power loss lose none of the changes.
pub(super) enum Cache {
    Served(daemon::Client),
    Opened(Box<Store>),
}

impl Cache {
    /// The cache of `place`. Without one, it is the cache to which `larder mount` of this user would bring data. Errors:
    /// there is no cache, or a process without a socket there has it open.
    pub(super) async fn open(place: &CachePlace) -> anyhow::Result<Self> {
        let named = match &place.run_dir {
            Some(run_dir) => Some(run_dir.clone()),
            None => serving(place.cache_dir.as_deref(), SERVICE_RUN_DIR.as_ref()).await?,
        };
        if let Some(run_dir) = named
            && let Some(client) = daemon::of(&run_dir).await?
        {
            return Ok(Self::Served(client));
        }
        let dir = place.cache_dir.clone().map_or_else(default_cache_dir, Ok)?;
        // A process that serves it may have another working directory.
        let dir: PathBuf = std::path::absolute(&dir).with_context(|| format!("--cache-dir {}", dir.display()))?;
        // An empty directory would become a cache.
        if !dir.is_dir() || std::fs::read_dir(&dir).is_ok_and(|mut entries| entries.next().is_none()) {
            bail!("there is no cache at {}: name its directory with --cache-dir", dir.display());
        }
        if place.run_dir.is_none()
            && let Some(client) = daemon::of(&run_dir(&dir)?).await?
        {
            return Ok(Self::Served(client));
        }
        let store = Store::open(StoreConfig::new(&dir), Arc::new(StoreCounters::default()));
        let store =
            store.context("if a larderd has the cache open, name the directory of its socket with --run-dir")?;
        Ok(Self::Opened(Box::new(store)))
    }

    /// The datasets, by name.
    pub(super) async fn list(&mut self) -> anyhow::Result<Vec<v1::Cache>> {
        let mut all = match self {
            Self::Served(client) => client.caches().await?,
            Self::Opened(store) => caches::cached(store).iter().map(cache_info).collect(),
        };
        all.sort_by(|one, other| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
        Ok(all)
    }

    pub(super) async fn drop(&mut self, id: &str) -> anyhow::Result<()> {
        match self {
            Self::Served(client) => client.drop_cache(id).await,
            Self::Opened(store) => Ok(caches::drop_cached(store, &id.parse()?)?),
        }
    }

    pub(super) async fn pin(&mut self, id: &str, is_pinned: bool) -> anyhow::Result<()> {
        match self {
            Self::Served(client) => client.pin_cache(id, is_pinned).await,
            Self::Opened(store) => {
                let promises = caches::promises_with_pin(store, &id.parse()?, is_pinned)?;
                store.promise(promises).context("write the promises of the cache")
            }
        }
    }

    pub(super) fn close(self) -> anyhow::Result<()> {
        match self {
            Self::Served(_) => Ok(()),
            Self::Opened(store) => Ok(store.close()?),
        }
    }
}
