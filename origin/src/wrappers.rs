//! Wrappers around any origin. One is for production; the others are for tests, so that production code needs no test
//! switches.
//!
//! The invariant: apart from the effect that its name states, a wrapper answers like the inner origin.

pub(crate) mod counting;
pub(crate) mod faulty;
pub(crate) mod limited;
pub(crate) mod slow;
#[cfg(test)]
mod tests;
