//! The stats that a mount publishes in `.larder/stats.json`.

use std::path::Path;

use anyhow::Context;
use larder_cachenode::Stats;

/// Reads the stats of the mount at `dir`.
pub(crate) fn read(dir: &Path) -> anyhow::Result<Stats> {
    let path = dir.join(".larder/stats.json");
    let text = std::fs::read(&path)
        .with_context(|| format!("read {}: is {} the root of a Larder mount?", path.display(), dir.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("parse {}", path.display()))
}
