//! The commands that use a Kubernetes cluster, against a scripted API server: the requests that they send, and their
//! output.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod browser;
mod datasets;
mod forward;
mod jobs;
mod logs;
mod look;
mod pods;
mod queues;
mod server;
mod ui;
mod version;
