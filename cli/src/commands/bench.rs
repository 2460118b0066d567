//! `larder bench`

mod epochs;
mod fio;
mod meta;
mod peers;
mod peers_net;
mod sim;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use larder_bench::peers::Progress;
use serde::Serialize;

use crate::args::bench::{BenchArgs, BenchCommand};
use crate::{home, output};

pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    match &args.what {
        BenchCommand::Epochs(args) => epochs::run(args),
        BenchCommand::Peers(args) => peers::run(args),
        BenchCommand::Sim(args) => sim::run(args),
        BenchCommand::Meta(args) => meta::run(args),
        BenchCommand::Fio(args) => fio::run(args),
        BenchCommand::PeersNet(args) => peers_net::run(args),
    }
}

/// The folder given by `--folder`, made if need be, or one of this name in Larder's home.
fn scratch_folder(given: Option<&Path>, name: &str) -> anyhow::Result<PathBuf> {
    let folder = match given {
        Some(folder) => folder.to_owned(),
        None => home::sub_folder(name)?,
    };
    std::fs::create_dir_all(&folder).with_context(|| format!("make the folder {} (--folder)", folder.display()))?;
    Ok(folder)
}

/// Finds out before a long run whether the file of this flag can be written.
fn check_folder(flag: &str, path: Option<&Path>) -> anyhow::Result<()> {
    let folder = path.and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
    match folder {
        Some(folder) if !folder.is_dir() => bail!("{flag}: there is no folder {}", folder.display()),
        _ => Ok(()),
    }
}

fn write_json(path: Option<&Path>, value: &impl Serialize) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, serde_json::to_vec_pretty(value)?)
        .with_context(|| format!("write {} (--json)", path.display()))
}

/// A bar on a terminal, else a line for each step.
struct Steps(ProgressBar);

impl Steps {
    fn new(template: &str) -> Self {
        Self(output::bar(1, template))
    }

    fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl Progress for Steps {
    fn epochs(&self, count: u64) {
        self.0.set_length(count);
    }

    fn doing(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    fn measured(&self, line: &str) {
        self.0.inc(1);
        if self.0.is_hidden() {
            eprintln!("{line}");
        } else {
            self.0.println(line);
        }
    }
}
