//! The program `larder-controller` of benchmarks.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The program that `--controller` names, or the one beside this command.
pub(super) fn controller(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let program = match named {
        Some(program) => program.to_owned(),
        None => std::env::current_exe().context("find this program")?.with_file_name("larder-controller"),
    };
    if !program.is_file() {
        bail!("there is no {}: name larder-controller by --controller", program.display());
    }
    Ok(program)
}
