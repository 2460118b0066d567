//! The programs that benchmarks run.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use larder_bench::node::NodePrograms;

use crate::args::NodeArgs;

/// The command `larder` beside this one.
pub(super) fn larder() -> anyhow::Result<PathBuf> {
    let larder = std::env::current_exe().context("locate this program")?.with_file_name("larder");
    if !larder.is_file() {
        bail!("{} does not exist: build it with cargo build --release -p larder", larder.display());
    }
    Ok(larder)
}

/// The program that `--controller` names, or the one beside this command.
pub(super) fn controller(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    find("--controller", "larder-controller", named)
}

/// The programs of a node.
pub(super) fn node(args: &NodeArgs) -> anyhow::Result<NodePrograms> {
    Ok(NodePrograms {
        larderd: find("--larderd", "larderd", args.larderd.as_deref())?,
        csi: find("--csi", "larder-csi", args.csi.as_deref())?,
        larder: larder()?,
    })
}

/// The program that the flag names, or the one of this name beside this command.
pub(super) fn find(flag: &str, name: &str, named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let program = match named {
        Some(program) => program.to_owned(),
        None => std::env::current_exe().context("locate this program")?.with_file_name(name),
    };
    if !program.is_file() {
        bail!("{} does not exist: set {flag} to the path of {name}", program.display());
    }
    Ok(program)
}
