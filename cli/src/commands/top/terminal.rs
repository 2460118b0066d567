//! The terminal while a screen is shown on it. Dropping [`Terminal`] gives it back as it was.

use std::io::{Write, stdin, stdout};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};

use super::screen::Size;
use crate::output;

/// Shows the alternate screen without a cursor, and the reverse.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
const LEAVE: &[u8] = b"\x1b[?25h\x1b[?1049l";

/// A key, by its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Sort,
    Other,
}

impl Key {
    fn of(byte: u8) -> Self {
        match byte {
            // Ctrl-C and Ctrl-D: the terminal sends no signals.
            b'q' | b'Q' | 3 | 4 => Self::Quit,
            b's' | b'S' => Self::Sort,
            _ => Self::Other,
        }
    }
}

pub(super) struct Terminal {
    /// The modes that it had.
    before: Termios,
    /// When the next look is due.
    due: Option<Instant>,
}

impl Terminal {
    /// Takes the terminal. Errors: standard input or output is none.
    pub(super) fn open() -> anyhow::Result<Self> {
        let before = tcgetattr(stdin()).context("read the modes of the terminal")?;
        end_on_signal(before.clone())?;
        let mut modes = before.clone();
        modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        tcsetattr(stdin(), OptionalActions::Now, &modes).context("set the modes of the terminal")?;
        let terminal = Self { before, due: None };
        output::bytes(ENTER)?;
        Ok(terminal)
    }

    pub(super) fn size(&self) -> Size {
        match tcgetwinsize(stdout()) {
            Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
                Size { rows: size.ws_row.into(), columns: size.ws_col.into() }
            }
            _ => Size { rows: 24, columns: 80 },
        }
    }

    /// Draws a text, as far as it fits the screen.
    pub(super) fn draw(&mut self, text: &str) -> anyhow::Result<()> {
        let lines: Vec<String> = text.lines().take(self.size().rows).map(|line| format!("{line}\x1b[K")).collect();
        output::bytes(format!("\x1b[H{}\x1b[J", lines.join("\r\n")).as_bytes())
    }

    /// The next key; `None` once this much time has passed since the last `None`.
    pub(super) fn key(&mut self, every: Duration) -> anyhow::Result<Option<Key>> {
        let due = *self.due.get_or_insert_with(|| Instant::now() + every);
        let left = due.saturating_duration_since(Instant::now());
        let within = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let input = stdin();
        match poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&within)) {
            Ok(0) => {
                self.due = None;
                Ok(None)
            }
            Err(rustix::io::Errno::INTR) => Ok(Some(Key::Other)),
            Err(error) => Err(error).context("wait for a key"),
            Ok(_) => {
                let mut byte = [0];
                // Without a buffer, in which `poll` would not see keys. The terminal is gone once it has no more bytes.
                let read = rustix::io::read(&input, &mut byte).context("read a key")?;
                Ok(Some(if read == 0 { Key::Quit } else { Key::of(byte[0]) }))
            }
        }
    }
}

/// Gives the terminal back and ends the process once a signal asks for that, whatever the process waits for then.
fn end_on_signal(before: Termios) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("listen for signals")?;
    let within_runtime = runtime.enter();
    let mut hangup = signal(SignalKind::hangup()).context("listen for SIGHUP")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    drop(within_runtime);
    let wait = move || {
        let kind = runtime.block_on(async {
            tokio::select! {
                _ = hangup.recv() => SignalKind::hangup(),
                _ = interrupt.recv() => SignalKind::interrupt(),
                _ = terminate.recv() => SignalKind::terminate(),
            }
        });
        let _ = tcsetattr(stdin(), OptionalActions::Now, &before);
        // Held until the end, so that nothing is drawn after it.
        let mut out = stdout().lock();
        let _ = out.write_all(LEAVE).and_then(|()| out.flush());
        // As a shell reports the end by a signal.
        std::process::exit(128 + kind.as_raw_value());
    };
    std::thread::Builder::new().spawn(wait).context("listen for signals")?;
    Ok(())
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = output::bytes(LEAVE);
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_usual_meanings() {
        assert_eq!([b'q', 3, b's', b'x', 27].map(Key::of), [Key::Quit, Key::Quit, Key::Sort, Key::Other, Key::Other]);
    }
}
