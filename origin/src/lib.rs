//! The sources of datasets: object stores and folders, behind one trait.
//!
//! - [`Origin`] lists keys, reads ranges of one version of an object, and writes manifests and packs.
//! - [`open()`] opens the origin of an [`OriginUrl`] with an [`OriginConfig`]. All those of a process share
//!   [`SharedLimits`]: `rule` computes how many requests an origin may get, `limit` has that many places, and [`Rate`]
//!   caps the bytes per second. An [`Urgency`] says which calls let others go first.
//! - [`Counting`], [`Slow`], [`Faulty`] and [`Limited`] wrap any origin.
//! - [`Turns`] is the order in which callers that wait are served, and [`Caller`] is the reader for whom a task works. A
//!   [`Watch`] follows the calls of a task: what they wait for, and how their attempts end.
//! - [`conformance()`] contains the checks that every implementation must pass.
//!
//! The invariants: a read returns exactly the requested bytes of exactly the requested version, or an error. Every call
//! ends within a configured time. This crate knows nothing about manifests, blocks, or the names that a filesystem
//! allows: a listing returns every key unchanged, including hostile ones.

#![warn(missing_docs)]

mod azure;
mod bearer;
mod caller;
mod clients;
mod config;
mod conformance;
mod error;
mod folder;
mod gcs;
mod key;
mod key_server;
mod keys;
mod limit;
mod listing;
mod object;
mod open;
mod origin;
mod rate;
mod retry;
mod rule;
mod s3;
mod session;
mod shared_limits;
mod turns;
mod urgency;
mod url;
mod version;
mod watch;
mod wrappers;

pub use crate::caller::Caller;
pub use crate::clients::SharedClients;
pub use crate::config::{Env, OriginConfig};
pub use crate::conformance::conformance;
pub use crate::error::{BoxError, OriginError};
pub use crate::key::Key;
pub use crate::limit::LimitUsage;
pub use crate::listing::{Depth, ListedLink, ObjectInfo, Page, Skipped};
pub use crate::object::writer::UPLOAD_PART_BYTES;
pub use crate::open::open;
pub use crate::origin::{Md5Answer, Origin, PlaceReport, Sink};
pub use crate::rate::Rate;
pub use crate::session::Sessions;
pub use crate::shared_limits::{CONCURRENCY, RateCaps, SharedLimits};
pub use crate::turns::Turns;
pub use crate::urgency::Urgency;
pub use crate::url::{OriginUrl, Scheme};
pub use crate::version::Version;
pub use crate::watch::{Attempt, WaitsFor, Watch, watched};
pub use crate::wrappers::counting::{Counting, Counts};
pub use crate::wrappers::faulty::{Call, Faulty, InjectedFault, Operation};
pub use crate::wrappers::limited::Limited;
pub use crate::wrappers::slow::Slow;
