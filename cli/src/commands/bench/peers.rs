//! `larder bench peers`

use std::process::ExitCode;

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use larder_bench::peers::{PeersConfig, Progress, run as run_peers};
use larder_fs::daemon::raise_file_limit;

use crate::args::bench::PeersArgs;
use crate::{home, output};

pub(crate) fn run(args: &PeersArgs) -> anyhow::Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        bail!("larder bench peers mounts filesystems and drops the kernel's caches: run it as root");
    }
    // A counter for each kind of request and each processor.
    raise_file_limit();
    let folder = match &args.folder {
        Some(folder) => folder.clone(),
        None => home::sub_folder("peers")?,
    };
    std::fs::create_dir_all(&folder).with_context(|| format!("make the folder {} (--folder)", folder.display()))?;
    for (flag, file) in [("--json", &args.json), ("--plot", &args.plot)] {
        // Found out now, not after an hour.
        let folder = file.as_ref().and_then(|file| file.parent()).filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            bail!("{flag}: there is no folder {}", folder.display());
        }
    }
    let mut readers = args.readers.clone();
    readers.sort_unstable();
    readers.dedup();
    let config = PeersConfig {
        files: args.files,
        mean_size: args.mean_size,
        readers,
        rounds: args.rounds,
        only: args.only.clone(),
        seed: args.seed,
        folder,
        binary: std::env::current_exe().context("find this program")?,
    };
    let view = View(output::bar(1, "{msg:34} {bar:30} {pos}/{len} epochs [{elapsed}, {eta} left]"));
    let outcome = run_peers(&config, &view);
    view.0.finish_and_clear();
    let outcome = outcome?;
    print!("{}", outcome.table());
    if let Some(path) = &args.json {
        let json = serde_json::to_vec_pretty(&outcome)?;
        std::fs::write(path, json).with_context(|| format!("write {} (--json)", path.display()))?;
    }
    if let Some(path) = &args.plot {
        outcome.bars().write(path).context("--plot")?;
        println!("plot           {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// A bar on a terminal, else a line for each epoch.
struct View(ProgressBar);

impl Progress for View {
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
