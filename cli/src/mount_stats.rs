//! The stats that a mount publishes in `.larder/stats.json`.

use std::io;
use std::path::Path;

use anyhow::Context;
use larder_cachenode::Stats;

/// Reads the stats of the mount at `dir`.
pub(crate) fn read(dir: &Path) -> anyhow::Result<Stats> {
    let path = dir.join(".larder/stats.json");
    let text = std::fs::read(&path).map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::NotConnected => {
                format!(
                    "the process that served {0} is gone: mount the dataset again, or run `larder umount {0}`",
                    dir.display()
                )
            }
            _ => format!("read {}: is {} the root of a Larder mount?", path.display(), dir.display()),
        };
        anyhow::Error::new(error).context(why)
    })?;
    serde_json::from_slice(&text).with_context(|| format!("parse {}", path.display()))
}
