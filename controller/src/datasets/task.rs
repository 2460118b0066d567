//! The task of an import job.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Use an existing manifest, or list the origin and publish a manifest.
    First,
    /// Check for a new snapshot: list the origin, or reread the manifest if another owner maintains it.
    Again {
        /// Another owner maintains the manifest.
        found: bool,
    },
    /// Make a stored manifest the current one.
    Publish(String),
}
