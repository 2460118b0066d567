//! The format of results and progress: bars on a terminal, plain lines in a pipe, JSON on request.
//!
//! Invariant: all output of the command goes through this file. If the reader closes its end of a pipe, as `head` does,
//! the command ends without a message ([`ReaderGone`]). Output may contain foreign text, so control characters other
//! than newline and tab are replaced; a terminal would interpret them.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
pub use larder_epochs::table::text_table as table;
use larder_import::Progress;
use serde::Serialize;

use larder_dataset::Chain;
use larder_dataset::size::{show_bytes, show_duration};

/// Minimum interval between two lines in a pipe.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// A bar on standard error; hidden if that is not a terminal.
pub fn bar(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// The reader of standard output has closed it, so no message can be printed there.
#[derive(Debug, thiserror::Error)]
#[error("the reader of the output is gone")]
pub struct ReaderGone;

/// Prints a line of a result. Errors: [`ReaderGone`], or the output cannot be written.
pub fn line(line: fmt::Arguments<'_>) -> anyhow::Result<()> {
    text(&format_args!("{line}\n"))
}

/// Prints a result that contains its own line ends. Errors as for [`line()`].
pub fn text(text: &impl fmt::Display) -> anyhow::Result<()> {
    bytes(plain(&text.to_string()).as_bytes())
}

/// Writes bytes unchanged. Errors as for [`line()`].
pub fn bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        written => written.context("write the output"),
    }
}

/// Whether a terminal interprets a character as a control, or the character changes the direction of text.
fn is_obeyed(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\t')) || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text with control characters replaced.
fn plain(text: &str) -> Cow<'_, str> {
    if text.contains(is_obeyed) { text.replace(is_obeyed, "?").into() } else { text.into() }
}

/// Foreign text as one line.
pub fn one_line(text: &str) -> String {
    let words: Vec<&str> =
        text.split(|c: char| c.is_whitespace() || is_obeyed(c)).filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

/// Foreign text as a cell of a table: one line of limited length.
pub fn cell(text: &str) -> String {
    const MOST: usize = 300;
    let line = one_line(text);
    match line.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

/// Prints a line to standard error for the user. A failure to print it is ignored.
pub fn note(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{}", plain(&line.to_string()));
}

/// "1 key", "2 keys".
pub fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Prints an error and its causes, each once.
pub fn error(error: &anyhow::Error) {
    note(format_args!("error: {}", Chain(&**error)));
}

/// Prints a result as JSON. Errors as for [`line()`].
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    json_text(&serde_json::to_string_pretty(value)?)
}

/// Prints a result as JSON on one line. Errors as for [`line()`].
pub fn json_line(value: &impl Serialize) -> anyhow::Result<()> {
    json_text(&serde_json::to_string(value)?)
}

/// Prints JSON. Only strings can contain control characters, and in strings they can be escaped as `\uXXXX`.
fn json_text(text: &str) -> anyhow::Result<()> {
    line(format_args!("{}", escaped(text)))
}

fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return text.into();
    }
    let one = |c: char| if is_obeyed(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    text.chars().map(one).collect()
}

/// Progress of a listing, a packing, a copy or a check.
pub struct ProgressView {
    bar: ProgressBar,
    last_line: Mutex<Instant>,
    moved: AtomicBool,
    /// When the first object was copied.
    copying: OnceLock<Instant>,
}

impl ProgressView {
    /// A bar of this length; 0 if the amount of work is unknown.
    pub fn new(length: u64, doing: &'static str) -> Self {
        let template = if length == 0 {
            "{spinner} {msg} [{elapsed}]"
        } else {
            "{prefix} {bar:30} {percent} % {msg} [{elapsed}, {eta} left]"
        };
        let bar = bar(length, template);
        bar.set_prefix(doing);
        Self { bar, last_line: Mutex::new(Instant::now()), moved: AtomicBool::new(false), copying: OnceLock::new() }
    }

    /// Whether any progress was reported.
    pub fn has_moved(&self) -> bool {
        self.moved.load(Ordering::Relaxed)
    }

    fn show(&self, position: u64, text: String) {
        // Progress of 0 is reported before the first answer.
        self.moved.store(position > 0, Ordering::Relaxed);
        if self.bar.is_hidden() {
            let mut last = self.last_line.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if last.elapsed() >= LINE_EVERY {
                *last = Instant::now();
                note(format_args!("{text}"));
            }
            return;
        }
        self.bar.set_position(position);
        self.bar.set_message(text);
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for ProgressView {
    fn listed(&self, files: u64, bytes: u64, prefixes_done: u64, prefixes_known: u64) {
        let text =
            format!("listed {files} files, {} ({prefixes_done} of {prefixes_known} prefixes)", show_bytes(bytes));
        self.show(files, text);
    }

    fn noted(&self, what: &str) {
        self.bar.suspend(|| note(format_args!("{what}")));
    }

    fn packed(&self, files: u64, files_total: u64, bytes: u64, bytes_total: u64) {
        let text =
            format!("packed {files} of {files_total} files, {} of {}", show_bytes(bytes), show_bytes(bytes_total));
        self.show(bytes, text);
    }

    fn copied(&self, objects: u64, objects_total: u64, bytes: u64, bytes_total: u64, bytes_before: u64) {
        let (done, all) = (bytes.saturating_sub(bytes_before), bytes_total.saturating_sub(bytes_before));
        self.bar.set_length(all.max(1));
        let mut text = format!(
            "copied {objects} of {objects_total} objects, {} of {}",
            show_bytes(bytes),
            show_bytes(bytes_total)
        );
        let since = self.copying.get_or_init(Instant::now).elapsed();
        // The bar shows the time that is left by itself.
        if self.bar.is_hidden() && done > 0 {
            let left = since.mul_f64((all - done.min(all)) as f64 / done as f64);
            text += &format!(", {} left", show_duration(Duration::from_secs(left.as_secs())));
        }
        self.show(done, text);
    }

    fn verified(&self, files: u64, files_total: u64, bytes: u64) {
        self.show(files, format!("checked {files} of {files_total} files, {} read", show_bytes(bytes)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_foreign_text_do_not_reach_the_terminal() {
        assert_eq!(plain("a\u{1b}[31mb\rc\u{9b}d\u{202e}e\tf\ng"), "a?[31mb?c?d?e\tf\ng");
        assert_eq!(cell("two\nlines\u{1b}]0;x\u{7}  end"), "two lines ]0;x end");
        assert_eq!(cell(&"ä".repeat(400)).chars().count(), 301);
        let value = serde_json::json!({"a": "\u{9b}\u{1b}\u{202e}"});
        let text = serde_json::to_string(&value).unwrap();
        let shown = escaped(&text);
        assert!(shown.is_ascii() && !shown.contains(char::is_control), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value, "and no byte of it is lost");
    }
}
