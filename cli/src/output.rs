//! How results and progress look: bars on a terminal, plain lines in a pipe, JSON on request.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use larder_import::Progress;
use serde::Serialize;

use larder_dataset::size::show_bytes;

/// Minimum interval between two lines in a pipe.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// A bar on standard error; hidden if that is not a terminal.
pub(crate) fn bar(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// Prints a result as JSON.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Progress of a listing, a packing or a check.
pub(crate) struct ProgressView {
    bar: ProgressBar,
    last_line: Mutex<Instant>,
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
        Self { bar, last_line: Mutex::new(Instant::now()) }
    }

    fn show(&self, position: u64, text: String) {
        if self.bar.is_hidden() {
            let mut last = self.last_line.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if last.elapsed() >= LINE_EVERY {
                *last = Instant::now();
                eprintln!("{text}");
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

    fn packed(&self, files: u64, files_total: u64, bytes: u64, bytes_total: u64) {
        let text =
            format!("packed {files} of {files_total} files, {} of {}", show_bytes(bytes), show_bytes(bytes_total));
        self.show(bytes, text);
    }

    fn verified(&self, files: u64, files_total: u64, bytes: u64) {
        self.show(files, format!("checked {files} of {files_total} files, {} read", show_bytes(bytes)));
    }
}
