//! Progress reports of long work.
//!
//! The caller implements [`Progress`] to draw a bar or to print lines, or passes [`Silent`]; this crate never prints.
//! Invariant: numbers only grow within one run. An implementation must return immediately, since it is called by the
//! loop that does the work.

/// Receives the progress of a listing, a packing, a copy or a check. Every method has an empty default.
pub trait Progress: Send + Sync {
    /// `files` files with `bytes` in total were listed. `prefixes_done` of the `prefixes_known` so far are complete.
    fn listed(&self, files: u64, bytes: u64, prefixes_done: u64, prefixes_known: u64) {
        let _ = (files, bytes, prefixes_done, prefixes_known);
    }

    /// A message for the user.
    fn noted(&self, what: &str) {
        let _ = what;
    }

    /// `files` of `files_total` and `bytes` of `bytes_total` are in finished packs.
    fn packed(&self, files: u64, files_total: u64, bytes: u64, bytes_total: u64) {
        let _ = (files, files_total, bytes, bytes_total);
    }

    /// `objects` of `objects_total` and `bytes` of `bytes_total` are in the mirror. `bytes_before` of them were there
    /// when the run began.
    fn copied(&self, objects: u64, objects_total: u64, bytes: u64, bytes_total: u64, bytes_before: u64) {
        let _ = (objects, objects_total, bytes, bytes_total, bytes_before);
    }

    /// `files` of `files_total` were checked, and `bytes` were read to do that.
    fn verified(&self, files: u64, files_total: u64, bytes: u64) {
        let _ = (files, files_total, bytes);
    }
}

/// Ignores all progress reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {}
