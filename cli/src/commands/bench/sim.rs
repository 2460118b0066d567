//! `larder bench sim`

use std::process::ExitCode;

use anyhow::Context;
use larder_epochs::sim::{self, SimConfig, SimPlacement, Sizes};

use crate::args::bench::{PlacementFlag, SimArgs};
use crate::files::write_json;
use crate::output;

pub(crate) fn run(args: &SimArgs) -> anyhow::Result<ExitCode> {
    let config = SimConfig {
        files: args.files,
        sizes: if args.equal_sizes { Sizes::Equal(args.mean_size) } else { Sizes::Mean(args.mean_size) },
        caches: args.cache.clone(),
        epochs: args.epochs,
        nodes: args.nodes.clone(),
        placement: match args.placement {
            PlacementFlag::Local => SimPlacement::Local,
            PlacementFlag::Partitioned => SimPlacement::Partitioned,
        },
        policies: args.policies.clone(),
        seed: args.seed,
    };
    let bar = output::bar(0, "{msg:20} {bar:30} {human_pos}/{human_len} files read {per_sec} {eta}");
    let outcome = sim::run(&config, &bar)?;
    bar.finish_and_clear();
    output::text(&outcome.table())?;
    if let Some(path) = &args.plot {
        outcome.plot().write(path).context("--plot")?;
    }
    write_json(args.json.as_deref(), &outcome)?;
    Ok(ExitCode::SUCCESS)
}
