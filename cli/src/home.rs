//! The home folder of the command: manifests it has listed, journals of unfinished work, the cache, logs.

use std::path::PathBuf;

use anyhow::Context;
use larder_cachenode::Home;

/// `$LARDER_HOME`, else `$XDG_CACHE_HOME/larder`, else `~/.cache/larder`.
pub(crate) fn home() -> anyhow::Result<Home> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("LARDER_HOME")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("larder")))
        .or_else(|| Some(set("HOME")?.join(".cache/larder")))
        .map(Home::new)
        .context("neither LARDER_HOME nor HOME is set: set LARDER_HOME to a writable folder")
}

/// A sub-folder of the home folder, created if missing.
pub(crate) fn sub_folder(name: &str) -> anyhow::Result<PathBuf> {
    Ok(home()?.sub_folder(name)?)
}
