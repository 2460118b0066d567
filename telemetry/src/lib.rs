//! How Larder's programs run, log and report metrics.
//!
//! Its parts: [`program()`] runs each daemon; [`keep_memory_private`] protects its keys, and [`is_same_secret`] compares them; [`init_logs`] sets up the log;
//! `traces` sends spans of [`TRACE_TARGET`] to a collector; [`METRICS`] is the one place that names a metric and the
//! source of `docs/METRICS.md`; [`admin`] serves the metrics and probes; [`server`] is the HTTP server, and
//! [`Heartbeat`] shows whether a program's main loop runs.
//!
//! Invariant: no metric is named elsewhere, and no label or field carries a secret.

#![warn(missing_docs)]

pub mod admin;
mod heartbeat;
mod histogram;
mod logs;
mod metrics;
mod process;
mod program;
mod sample;
mod secrecy;
pub mod server;
mod traces;

pub use heartbeat::Heartbeat;
pub use histogram::{Durations, Histogram};
pub use logs::{LOG_VARIABLE, init_logs};
pub use metrics::{Kind, METRICS, Metric, metrics_page};
pub use program::program;
pub use sample::{Labels, Sample, Sums, Value};
pub use secrecy::{is_same_secret, keep_memory_private};
pub use traces::{TRACE_TARGET, trace_past};
