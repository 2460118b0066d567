//! The statistics of a mount.

use std::path::Path;

use anyhow::Context;
use serde_json::Value;

/// `.larder/stats.json`, whose content may be 50 ms old.
pub(crate) fn read(mount: &Path) -> anyhow::Result<Value> {
    let path = mount.join(".larder/stats.json");
    let text = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_slice(&text).context("parse the stats of the mount")
}
