//! Wrappers around any origin: one for production, the others so that production code needs no test switches.
//!
//! The invariant: apart from the effect it is named after, a wrapper answers as the inner origin does.

pub(crate) mod counting;
pub(crate) mod faulty;
pub(crate) mod limited;
pub(crate) mod slow;
#[cfg(test)]
mod tests;
