//! The command `larder`. Every sub-command is a file in `commands`; flags are parsed once, here.
//!
//! Exit codes: 0 success, 1 failure, 2 wrong usage, 141 if the reader of the output is gone, as for a program that
//! SIGPIPE ends. Errors go to standard error and say what to do; results go to standard output, as a table or as JSON
//! (`--json`). No output contains a secret.

mod args;
mod cluster;
mod commands;
mod daemon;
mod extender;
mod help_page;
mod http;
mod ioctl;
mod mount_stats;
mod output;
mod queues;
mod source;

use std::process::ExitCode;

use args::{Cli, Command};
use clap::Parser;

/// 128 and the number of SIGPIPE.
const READER_GONE: u8 = 141;

fn main() -> ExitCode {
    if let Some(code) = larder_cachenode::importer_process::run_if_asked() {
        return code;
    }
    let cli = Cli::parse();
    // What the client of clusters logs, a command says itself.
    if let Err(error) = larder_telemetry::init_logs(if cli.verbose { "info" } else { "warn,kube_client=off" }) {
        output::note(format_args!("error: {error}"));
        return ExitCode::from(2);
    }
    match run(cli.command) {
        Ok(code) => code,
        Err(error) if error.is::<output::ReaderGone>() => ExitCode::from(READER_GONE),
        Err(error) => {
            output::error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Quickstart(args) => commands::quickstart::run(&args),
        Command::Import(args) => commands::import::run(&args),
        Command::Pack(args) => commands::pack::run(&args),
        Command::Mount(args) => commands::mount::run(&args),
        Command::Umount(args) => commands::umount::run(&args),
        Command::Warm(args) => commands::warm::run(&args),
        Command::Verify(args) => commands::verify::run(&args),
        Command::Stats(args) => commands::stats::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Devices(args) => commands::devices::run(&args),
        Command::Job(args) => commands::job::run(&args),
        Command::Queue(args) => commands::queue::run(&args),
        Command::Explain(args) => commands::explain::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::HelpPage => {
            output::text(&help_page::help_page())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
