//! `larder top`

mod cluster;
mod screen;
mod terminal;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use crate::args::TopArgs;
use crate::machine::Machine;
use crate::output;
use screen::{Order, Size};
use terminal::{Key, Terminal};

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

/// Shows what `look` returns, again and again: on the terminal as a screen, elsewhere as texts one after the other.
fn show<S: Fn(Order, Size) -> String>(
    is_once: bool,
    every: Duration,
    mut look: impl FnMut() -> anyhow::Result<S>,
) -> anyhow::Result<ExitCode> {
    if is_once || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        loop {
            output::text(&look()?(Order::default(), Size::ENDLESS))?;
            if is_once {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(every);
        }
    }
    let mut terminal = Terminal::open()?;
    let mut order = Order::default();
    loop {
        let shown = look()?;
        // The next look is due after this time, whatever keys are pressed meanwhile.
        terminal.draw(&shown(order, terminal.size()))?;
        loop {
            match terminal.key(every)? {
                Some(Key::Quit) => return Ok(ExitCode::SUCCESS),
                Some(Key::Sort) => order = order.next(),
                Some(Key::Other) => {}
                None => break,
            }
            terminal.draw(&shown(order, terminal.size()))?;
        }
    }
}
