//! The command `larder`. Every sub-command is a file in `commands`; flags are parsed once, here.
//!
//! Results go to standard output, as a table or as JSON (`--json`); [`larder::exit`] has the exit codes. No output
//! contains a secret.

mod args;
mod cluster;
mod commands;
mod daemon;
mod extender;
mod help_page;
mod http;
mod ioctl;
mod machine;
mod mount_stats;
#[cfg(test)]
mod packaged;
mod pod_mounts;
mod queues;
mod report;
mod source;
mod why;

use std::process::ExitCode;

use args::{Cli, Command};
use larder::{exit, files, output};

fn main() -> ExitCode {
    if let Some(code) = larder_cachenode::importer_process::run_if_asked() {
        return code;
    }
    larder_telemetry::keep_memory_private();
    let cli = Cli::of_process();
    // The commands report errors of the Kubernetes client themselves, so its log is off.
    match exit::init_logs(if cli.verbose { "info" } else { "warn,kube_client=off" }) {
        Ok(()) => exit::code(run(cli.command)),
        Err(code) => code,
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Quickstart(args) => commands::quickstart::run(&args),
        Command::Import(args) => commands::import::run(&args),
        Command::Pack(args) => commands::pack::run(&args),
        Command::Sync(args) => commands::sync::run(&args),
        Command::Mount(args) => commands::mount::run(&args),
        Command::Umount(args) => commands::umount::run(&args),
        Command::Warm(args) => commands::warm::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Verify(args) => commands::verify::run(&args),
        Command::Stats(args) => commands::stats::run(&args),
        Command::Top(args) => commands::top::run(&args),
        Command::Ui(args) => commands::ui::run(&args),
        Command::Cache(args) => commands::cache::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Devices(args) => commands::devices::run(&args),
        Command::Job(args) => commands::job::run(&args),
        Command::Queue(args) => commands::queue::run(&args),
        Command::Cluster(args) => commands::clusters::run(&args),
        Command::Explain(args) => commands::explain::run(&args),
        Command::Example(args) => commands::example::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Version(args) => commands::version::run(&args),
        Command::HelpPage => {
            output::text(&help_page::help_page())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
