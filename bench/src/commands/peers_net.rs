//! `larder-bench peers-net`

use std::time::Duration;

use anyhow::Context;
use larder_bench::peers_net::{PeersNetConfig, run as run_peers_net, serve};
use larder_cachenode::process::raise_file_limit;

use super::measure::measure;
use crate::args::PeersNetArgs;
use larder::files::scratch_folder;

pub(crate) fn run(args: &PeersNetArgs) -> anyhow::Result<()> {
    raise_file_limit();
    if let Some(config) = &args.serve {
        return serve(config);
    }
    let config = PeersNetConfig {
        kinds: args.only.chosen(),
        record_bytes: args.record_size.clone(),
        readers: args.readers.clone(),
        lanes: args.lanes.map(|lanes| lanes as usize),
        time: Duration::from_secs(args.seconds.into()),
        rounds: args.rounds.rounds,
        folder: scratch_folder(args.folder.folder.as_deref(), "peers-net")?,
        serve: std::env::current_exe().context("locate this program")?,
    };
    measure(&args.output, "readings", |steps| run_peers_net(&config, steps), |outcome| outcome.table())?;
    Ok(())
}
