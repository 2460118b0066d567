//! `larder-rdma-limit`: limits the RDMA objects of a container before its process starts.
//!
//! It is an OCI hook (`createRuntime`). Whenever a container starts, the runtime runs the hook as root on the host,
//! once for each HCA of the container. The parts: [`Settings`] holds the flags, with the limit as a [`Line`]. [`State`]
//! is the runtime's description of the container. [`Groups`] holds the container's cgroups; one of them has the file
//! that the line is written to.
//!
//! Invariant: the hook succeeds only if the kernel shows the limit after it was written. In all other cases it fails,
//! and the runtime does not start the container.
//!
//! Invariant: no limit depends on a running process of Larder: the runtime finds this hook in the CDI file (ADR 34).

mod args;
mod cgroup;
mod line;
mod settings;
mod state;

pub use args::PROGRAM;
pub use cgroup::{Controller, Groups, UnsoundGroups};
pub use line::{Line, Max, UNLIMITED, UnsoundLine, parse_lines};
pub use settings::{HookError, Settings};
pub use state::{MAX_ANNOTATION, STATE_BYTES_MOST, State, UnsoundState};
