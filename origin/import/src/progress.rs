//! Progress reports of long work.
//!
//! The caller implements [`Progress`] to draw a bar or to print lines, or passes [`Silent`]; nothing in this crate
//! prints. Invariant: numbers only grow within one run. An implementation must return at once, since the loop that
//! feeds the work calls it.

/// Receives the progress of a listing, a packing or a check. Every method has an empty default.
pub trait Progress: Send + Sync {
    /// `files` with `bytes` in total are listed; `prefixes_done` of the `prefixes_known` so far are complete.
    fn listed(&self, files: u64, bytes: u64, prefixes_done: u64, prefixes_known: u64) {
        let _ = (files, bytes, prefixes_done, prefixes_known);
    }

    /// Something that the user should know, in words.
    fn noted(&self, what: &str) {
        let _ = what;
    }

    /// `files` of `files_total` and `bytes` of `bytes_total` are in finished packs.
    fn packed(&self, files: u64, files_total: u64, bytes: u64, bytes_total: u64) {
        let _ = (files, files_total, bytes, bytes_total);
    }

    /// `files` of `files_total` are checked, and `bytes` were read for that.
    fn verified(&self, files: u64, files_total: u64, bytes: u64) {
        let _ = (files, files_total, bytes);
    }
}

/// Ignores all progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {}
