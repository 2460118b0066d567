//! The progress of a benchmark.

use indicatif::ProgressBar;
use larder_bench::side_by_side::Progress;

use larder::output;

/// A bar on a terminal; otherwise a line for each step.
pub(super) struct Steps(ProgressBar);

impl Steps {
    pub(super) fn new(unit: &str) -> Self {
        Self(output::bar(1, &format!("{{msg:36}} {{bar:30}} {{pos}}/{{len}} {unit} [{{elapsed}}, {{eta}} left]")))
    }

    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl Progress for Steps {
    fn steps(&self, count: u64) {
        self.0.set_length(count);
    }

    fn doing(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    fn measured(&self, line: &str) {
        self.0.inc(1);
        if self.0.is_hidden() {
            output::note(format_args!("{line}"));
        } else {
            self.0.println(line);
        }
    }
}
