//! `larder-bench peers-net`

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use larder_bench::peers_net::{PeersNetConfig, ServerKind, run as run_peers_net, serve};
use larder_cachenode::process::raise_file_limit;

use crate::args::PeersNetArgs;
use larder::files::{check_folder, scratch_folder, write_json};
use larder::output;

pub(crate) fn run(args: &PeersNetArgs) -> anyhow::Result<ExitCode> {
    raise_file_limit();
    if let Some(config) = &args.serve {
        serve(config)?;
        return Ok(ExitCode::SUCCESS);
    }
    check_folder("--json", args.json.as_deref())?;
    let config = PeersNetConfig {
        kinds: if args.only.is_empty() { ServerKind::ALL.to_vec() } else { args.only.clone() },
        record_bytes: args.record_size.clone(),
        readers: args.readers.clone(),
        time: Duration::from_secs(args.seconds.into()),
        rounds: args.rounds,
        folder: scratch_folder(args.folder.as_deref(), "peers-net")?,
        serve: std::env::current_exe().context("find this program")?,
    };
    let outcome = run_peers_net(&config, |line| output::note(format_args!("{line}")))?;
    output::text(&outcome.table())?;
    write_json(args.json.as_deref(), &outcome)?;
    Ok(ExitCode::SUCCESS)
}
