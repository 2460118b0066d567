//! How a comparison reports its progress.

/// Receives the progress of a run.
pub trait Progress {
    /// The run has this many steps.
    fn steps(&self, count: u64);

    /// A step is starting.
    fn doing(&self, what: &str);

    /// A step was measured; `line` gives the result.
    fn measured(&self, line: &str);
}
