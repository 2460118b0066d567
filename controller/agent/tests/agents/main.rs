//! Agents and launchers as processes, over real sockets.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod commands;
mod hostile;
mod machine;
mod mpi;
mod split;
mod waiting;
