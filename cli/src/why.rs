//! Why a job waits for its data, judged from what its mount counts: one sentence with numbers, the cause, since when,
//! and what to do.
//!
//! The cast: [`rules`] judges, [`facts`](mod@facts) lists what the sentence follows from.

mod facts;
mod rules;
#[cfg(test)]
mod tests;

pub(crate) use facts::{Batches, facts, utilisation};
pub(crate) use rules::{Verdict, awaited, decisive, judge, longest, milliseconds, percent, seconds, time};
