//! `larder top`

mod cluster;
mod screen;
mod show;
mod terminal;

use std::process::ExitCode;
use std::time::Duration;

use crate::args::TopArgs;
use crate::machine::Machine;
use screen::{Order, Size};
use show::show;

/// How often the figures are read.
const EVERY: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &TopArgs) -> anyhow::Result<ExitCode> {
    if args.cluster {
        return cluster::run(args);
    }
    let mut machine = Machine::default();
    let looks = |machine: &mut Machine| {
        let mounts = machine.look();
        move |order: Order, size: Size| screen::screen(&mounts, order, size)
    };
    if args.once {
        // Rates need two samples.
        machine.look();
        std::thread::sleep(EVERY);
    }
    show(args.once, EVERY, || Ok(looks(&mut machine)))
}
