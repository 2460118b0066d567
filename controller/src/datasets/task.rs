//! The purpose of an import job.

/// Work for an import job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Find the manifest, or list the origin and publish it.
    First,
    /// Look whether there is a new snapshot: list the origin, or if the manifest is somebody else's read that again.
    Again {
        /// It is somebody else's.
        found: bool,
    },
    /// Make a kept manifest the current one.
    Publish(String),
}
