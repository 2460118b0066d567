//! `larder bench`

mod epochs;
mod sim;

use std::process::ExitCode;

use anyhow::bail;

use crate::args::bench::{BenchArgs, BenchCommand};

pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    match &args.benchmark {
        BenchCommand::Epochs(args) => epochs::run(args),
        BenchCommand::Sim(args) => sim::run(args),
        BenchCommand::Other(words) => {
            let name = words.first().map(|name| name.to_string_lossy()).unwrap_or_default();
            bail!(
                "there is no larder bench {name}: larder-bench has the benchmarks of Larder itself and of its peers \
                 (larder-bench --help; cargo build --release -p larder-bench builds it)"
            )
        }
    }
}
