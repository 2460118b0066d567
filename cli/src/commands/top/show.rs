//! Shows texts: on the terminal as a screen, elsewhere one after the other.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use super::screen::{Order, Size};
use super::terminal::{Key, Terminal};
use crate::output;

/// Shows the texts that `look` returns. It looks again after `every`, until a key ends the screen.
pub(super) fn show<S: Fn(Order, Size) -> String>(
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
