//! Measuring: epochs over a mount, and the quickstart that shows them under every policy.
//!
//! The cast: [`tree`] makes files of a training set's sizes; [`epochs`] reads a folder the way training does and checks
//! what it reads; [`quickstart`] puts an embedded S3, a mount and the readers together; [`plot`] draws.
//!
//! Invariant: a figure is counted or timed, never computed from what it should be.

pub mod epochs;
pub mod plot;
pub mod quickstart;
pub mod tree;
