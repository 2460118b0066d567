//! How results and progress look: bars on a terminal, plain lines in a pipe, JSON on request.
//!
//! Invariant: everything that the command prints goes through this file. A reader that closes its end of a pipe, as
//! `head` does, ends the command without a word ([`ReaderGone`]).

use std::fmt;
use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use larder_import::Progress;
use serde::Serialize;

use larder_dataset::Chain;
use larder_dataset::size::show_bytes;

/// Minimum interval between two lines in a pipe.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// A bar on standard error; hidden if that is not a terminal.
pub(crate) fn bar(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// The reader of standard output has closed it. There is nobody to tell.
#[derive(Debug, thiserror::Error)]
#[error("the reader of the output is gone")]
pub(crate) struct ReaderGone;

/// Prints a line of a result. Errors: [`ReaderGone`], or the output cannot be written.
pub(crate) fn line(line: fmt::Arguments<'_>) -> anyhow::Result<()> {
    text(&format_args!("{line}\n"))
}

/// Prints a result that ends its lines itself. Errors as for [`line()`].
pub(crate) fn text(text: &impl fmt::Display) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        written => written.context("write the output"),
    }
}

/// Prints a line to standard error, for a person. If nobody can read it, so be it.
pub(crate) fn note(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// "1 key", "2 keys".
pub(crate) fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Prints an error and its causes, each once.
pub(crate) fn error(error: &anyhow::Error) {
    note(format_args!("error: {}", Chain(&**error)));
}

/// Prints a result as JSON. Errors as for [`line()`].
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(format_args!("{}", serde_json::to_string_pretty(value)?))
}

/// Progress of a listing, a packing or a check.
pub(crate) struct ProgressView {
    bar: ProgressBar,
    last_line: Mutex<Instant>,
    moved: AtomicBool,
}

impl ProgressView {
    /// A bar of this length; 0 if the amount of work is unknown.
    pub(crate) fn new(length: u64, doing: &'static str) -> Self {
        let template = if length == 0 {
            "{spinner} {msg} [{elapsed}]"
        } else {
            "{prefix} {bar:30} {percent} % {msg} [{elapsed}, {eta} left]"
        };
        let bar = bar(length, template);
        bar.set_prefix(doing);
        Self { bar, last_line: Mutex::new(Instant::now()), moved: AtomicBool::new(false) }
    }

    /// Whether any progress was reported.
    pub(crate) fn has_moved(&self) -> bool {
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

    pub(crate) fn finish(&self) {
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

    fn verified(&self, files: u64, files_total: u64, bytes: u64) {
        self.show(files, format!("checked {files} of {files_total} files, {} read", show_bytes(bytes)));
    }
}
