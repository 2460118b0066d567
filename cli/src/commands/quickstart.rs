//! `larder quickstart`

use std::process::ExitCode;

use anyhow::Context;
use larder_cachenode::Home;
use larder_epochs::quickstart::{QuickstartConfig, run as run_quickstart};

use crate::args::QuickstartArgs;
use crate::output;

pub(crate) fn run(args: &QuickstartArgs) -> anyhow::Result<ExitCode> {
    let (folder, temporary) = match &args.keep {
        Some(folder) => (folder.clone(), false),
        None => (Home::of_process()?.sub_folder("quickstart")?.join(std::process::id().to_string()), true),
    };
    std::fs::create_dir_all(&folder).with_context(|| format!("create the directory {} (--keep)", folder.display()))?;
    let folder = folder.canonicalize().with_context(|| format!("resolve the directory {}", folder.display()))?;
    let config = QuickstartConfig {
        files: args.files,
        mean_size: args.mean_size,
        epochs: args.epochs,
        readers: args.readers as usize,
        seed: args.seed,
        folder: folder.clone(),
    };
    let bar = output::bar(1, "{msg}");
    let outcome = run_quickstart(&config, &bar);
    bar.finish_and_clear();
    if temporary {
        // Unmount first, so that removing the folder never reaches through a mount.
        let _ = larder_fs::mount::unmount(&folder.join("mnt"), true);
        std::fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    let outcome = outcome?;
    output::text(&outcome.table())?;
    outcome.plot().write(&args.plot).context("draw the plot (--plot)")?;
    output::line(format_args!("plot                {}", args.plot.display()))?;
    if let Some(path) = &args.json {
        let json = serde_json::to_vec_pretty(&outcome)?;
        std::fs::write(path, json).with_context(|| format!("write {} (--json)", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
