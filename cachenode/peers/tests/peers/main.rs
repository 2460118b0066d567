//! Nodes that serve and read each other's blocks over real sockets. Only the contents of the blocks are simulated.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod arriving;
mod certificates;
mod crowd;
mod delays;
mod faults;
mod hedges;
mod node;
mod room;
mod scripted;
mod serving;
