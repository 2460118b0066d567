//! The resources of a node: which of its devices each one offers, and by which IDs.
//!
//! The cast: [`assign`] gives the devices of a machine to the resources of a configuration, `rail` pairs GPUs with HCAs, and
//! [`check`] finds what is wrong with a configuration on this machine. All are pure: equal machines and equal configurations make
//! equal resources.
//!
//! Invariant: no device is in two resources, or in two units of one.

mod assign;
mod check;
mod device;
mod matching;
mod rail;
#[cfg(test)]
pub(crate) mod tests;
mod units;

pub use assign::{Assignment, assign};
pub use check::check;
pub use units::{DeviceKey, Excluded, Exclusion, Resource, Unit};
