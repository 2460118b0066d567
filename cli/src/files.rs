//! The privileges and folders that the benchmarks need, and the files for their figures.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use larder_cachenode::Home;
use serde::Serialize;

/// The folder of `--folder`, created if missing. Default: the folder `name` in Larder's home.
pub fn scratch_folder(given: Option<&Path>, name: &str) -> anyhow::Result<PathBuf> {
    let folder = match given {
        Some(folder) => folder.to_owned(),
        None => Home::of_process()?.sub_folder(name)?,
    };
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("create the directory {} (--folder)", folder.display()))?;
    Ok(folder)
}

/// Checks that the folder of a flag's file exists, before a long run.
pub fn check_folder(flag: &str, path: Option<&Path>) -> anyhow::Result<()> {
    let folder = path.and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
    match folder {
        Some(folder) if !folder.is_dir() => {
            bail!("{flag}: the directory {} does not exist: create it first", folder.display())
        }
        _ => Ok(()),
    }
}

/// Writes the figures to the file of `--json`, if there is one.
pub fn write_json(path: Option<&Path>, value: &impl Serialize) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, serde_json::to_vec_pretty(value)?)
        .with_context(|| format!("write {} (--json)", path.display()))
}

/// Fails unless this process is root.
pub fn require_root(benchmark: &str) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("larder-bench {benchmark} mounts filesystems and drops the kernel's caches: run it as root");
    }
    Ok(())
}
