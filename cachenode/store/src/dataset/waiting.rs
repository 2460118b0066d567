//! Calls that wait for the end of a rebuild.

use std::fmt;

/// Calls that wait for the end of the rebuild.
#[derive(Default)]
pub(super) struct Waiting(pub(super) Vec<Box<dyn FnOnce() + Send>>);

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Waiting").field(&self.0.len()).finish()
    }
}
