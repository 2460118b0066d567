//! `larder bench`

mod epochs;

use std::process::ExitCode;

use crate::args::bench::{BenchArgs, BenchCommand};

pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    match &args.what {
        BenchCommand::Epochs(args) => epochs::run(args),
    }
}
