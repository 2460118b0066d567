//! The program `larder-bench`: one command for each benchmark. Results go to standard output, as tables; `--json`
//! writes every figure to a file.

mod args;
mod commands;

use std::process::ExitCode;

use args::{Cli, Command};
use clap::Parser;
use larder::exit;

fn main() -> ExitCode {
    if let Some(code) = larder_cachenode::importer_process::run_if_asked() {
        return code;
    }
    let cli = Cli::parse();
    match exit::init_logs("warn,kube_client=off") {
        Ok(()) => exit::code(run(cli.command).map(|()| ExitCode::SUCCESS)),
        Err(code) => code,
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Peers(args) => commands::peers::run(&args),
        Command::Meta(args) => commands::meta::run(&args),
        Command::Fio(args) => commands::fio::run(&args),
        Command::Loader(args) => commands::loader::run(&args),
        Command::Mlperf(args) => commands::mlperf::run(&args),
        Command::Import(args) => commands::import::run(&args),
        Command::PeersNet(args) => commands::peers_net::run(&args),
        Command::Spread(args) => commands::spread::run(&args),
        Command::FarOrigin(args) => commands::far_origin::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Sync(args) => commands::sync::run(&args),
        Command::Outage(args) => commands::outage::run(&args),
        Command::Restart(args) => commands::restart::run(&args),
        Command::Memory(args) => commands::memory::run(&args),
        Command::Controller(args) => commands::controller::run(&args),
        Command::Jobs(args) => commands::jobs::run(&args),
        Command::Extender(args) => commands::extender::run(&args),
        Command::Devices(args) => commands::devices::run(&args),
    }
}
