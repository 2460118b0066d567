//! `larder bench`

mod epochs;
mod sim;

use std::process::ExitCode;

use crate::args::bench::{BenchArgs, BenchCommand};
use crate::{exit, output};

pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    match &args.benchmark {
        BenchCommand::Epochs(args) => epochs::run(args),
        BenchCommand::Sim(args) => sim::run(args),
        BenchCommand::Other(words) => {
            let name = words.first().map(|name| name.to_string_lossy()).unwrap_or_default();
            output::note(format_args!(
                "error: the benchmark {name} is not part of larder: larder-bench has all benchmarks except epochs and \
                 sim. Build it with `cargo build --release -p larder-bench`, and see `larder-bench --help`"
            ));
            Ok(ExitCode::from(exit::WRONG_USAGE))
        }
    }
}
