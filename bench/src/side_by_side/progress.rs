//! How a comparison reports its progress.

/// Receives the progress of a run.
pub trait Progress {
    /// Called once: the run has `count` steps.
    fn steps(&self, count: u64);

    /// A step starts.
    fn doing(&self, what: &str);

    /// A step was measured; `line` gives the result.
    fn measured(&self, line: &str);
}
