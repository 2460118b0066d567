//! `larder job`

mod cancel;
mod convert;
mod diff;
mod elsewhere;
mod events;
mod follow;
mod list;
mod logs;
mod manifest;
mod quick;
mod submit;
mod top;

use std::process::ExitCode;

use crate::args::JobArgs;
use crate::args::job::JobCommand;
use crate::source;

pub(crate) fn run(args: &JobArgs) -> anyhow::Result<ExitCode> {
    let runtime = source::runtime()?;
    match &args.what {
        JobCommand::Submit(args) => runtime.block_on(submit::run(args)),
        JobCommand::Diff(args) => runtime.block_on(diff::run(args)),
        JobCommand::List(args) => runtime.block_on(list::run(args)),
        JobCommand::Top(args) => runtime.block_on(top::run(args)),
        JobCommand::Events(args) => runtime.block_on(events::run(args)),
        JobCommand::Logs(args) => runtime.block_on(logs::run(args)),
        JobCommand::Cancel(args) => runtime.block_on(cancel::run(args)),
        JobCommand::Resume(args) => runtime.block_on(cancel::resume(args)),
        JobCommand::Convert(args) => convert::run(args),
    }
}
