//! How long work tells how far it is.
//!
//! The cast: [`Progress`], which the caller implements to draw a bar or to print lines, and [`Silent`]. Nothing in this
//! crate prints. The invariant: numbers only grow within one run, and a call returns at once, for it is made from the
//! loop that feeds the work.

/// Hears how far a listing, a packing or a check is. Every method has an empty default.
pub trait Progress: Send + Sync {
    /// `files` of `bytes` in all are listed; `prefixes_done` of the `prefixes_known` so far are complete.
    fn listed(&self, files: u64, bytes: u64, prefixes_done: u64, prefixes_known: u64) {
        let _ = (files, bytes, prefixes_done, prefixes_known);
    }

    /// `files` of `files_total` and `bytes` of `bytes_total` lie in finished packs.
    fn packed(&self, files: u64, files_total: u64, bytes: u64, bytes_total: u64) {
        let _ = (files, files_total, bytes, bytes_total);
    }

    /// `files` of `files_total` are checked, for which `bytes` were read.
    fn verified(&self, files: u64, files_total: u64, bytes: u64) {
        let _ = (files, files_total, bytes);
    }
}

/// Tells nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {}
