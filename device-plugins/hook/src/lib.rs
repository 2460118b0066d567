//! `larder-rdma-limit`: limits the RDMA objects of a container before its process starts.
//!
//! It is an OCI hook (`createRuntime`), which the runtime runs as root on the host at every start of a container that has an
//! HCA, one run for each HCA. The cast: [`Settings`] are its flags, with the limit as a [`Line`]; a [`State`] is what the runtime
//! says of the container; [`Groups`] are the container's cgroups, one of which has the file that the line is written to.
//!
//! Invariant: it succeeds only if the kernel shows the limit after it was written. Any doubt is an error, and then the runtime
//! starts nothing.
//!
//! Invariant: no limit depends on a running process of Larder's: the runtime finds this hook in the CDI file (ADR 34).

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
