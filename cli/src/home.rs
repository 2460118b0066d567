//! Where Larder keeps what it may lose: manifests it has listed, journals of unfinished work, stores, logs.

use std::path::PathBuf;

use anyhow::Context;

/// `$LARDER_HOME`, else `$XDG_CACHE_HOME/larder`, else `~/.cache/larder`.
pub(crate) fn folder() -> anyhow::Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("LARDER_HOME")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("larder")))
        .or_else(|| Some(set("HOME")?.join(".cache/larder")))
        .context("neither LARDER_HOME nor HOME is set: set LARDER_HOME to a folder that Larder may write to")
}

/// A sub-folder of it, made if need be.
pub(crate) fn sub_folder(name: &str) -> anyhow::Result<PathBuf> {
    let path = folder()?.join(name);
    std::fs::create_dir_all(&path).with_context(|| format!("make folder {}", path.display()))?;
    Ok(path)
}
