//! `larder bench`

mod controller;
mod devices;
mod epochs;
mod extender;
mod files;
mod fio;
mod import;
mod jobs;
mod meta;
mod peers;
mod peers_net;
mod program;
mod sim;
mod steps;

use std::process::ExitCode;

use crate::args::bench::{BenchArgs, BenchCommand};

pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    match &args.benchmark {
        BenchCommand::Epochs(args) => epochs::run(args),
        BenchCommand::Peers(args) => peers::run(args),
        BenchCommand::Sim(args) => sim::run(args),
        BenchCommand::Meta(args) => meta::run(args),
        BenchCommand::Fio(args) => fio::run(args),
        BenchCommand::Import(args) => import::run(args),
        BenchCommand::PeersNet(args) => peers_net::run(args),
        BenchCommand::Controller(args) => controller::run(args),
        BenchCommand::Jobs(args) => jobs::run(args),
        BenchCommand::Extender(args) => extender::run(args),
        BenchCommand::Devices(args) => devices::run(args),
    }
}
