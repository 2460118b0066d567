//! Shared by the benchmarks of several filesystems: choosing them, measuring them in turns, and reporting on them.
//!
//! The cast: `selection` picks the systems; `rounds` takes them in turns; `scratch` is the folder they work in;
//! `report` names systems and their states; `progress` tells the caller how far a run is.

mod progress;
mod report;
mod rounds;
mod scratch;
mod selection;

pub use progress::Progress;
pub(crate) use report::footer;
pub use report::{LeftOut, State, SystemInfo};
pub(crate) use rounds::Rounds;
pub(crate) use scratch::Scratch;
pub(crate) use selection::chosen;
