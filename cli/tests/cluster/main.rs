//! The commands that use a Kubernetes cluster, against an API server that follows a script: what it is asked, and what the user
//! reads then.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod datasets;
mod forward;
mod jobs;
mod logs;
mod pods;
mod queues;
mod server;
