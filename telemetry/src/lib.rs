//! How Larder's programs run, log and report metrics.
//!
//! Its parts: [`program()`] runs each daemon; [`init_logs`] sets up the log; [`METRICS`] is the one place that names a
//! metric and the source of `docs/METRICS.md`; [`admin`] serves the metrics.
//!
//! Invariant: no metric is named elsewhere, and no label or field carries a secret.

#![warn(missing_docs)]

pub mod admin;
mod histogram;
mod logs;
mod metrics;
mod program;

pub use histogram::Histogram;
pub use logs::{LOG_VARIABLE, init_logs};
pub use metrics::{Kind, METRICS, Metric, metrics_page};
pub use program::program;
