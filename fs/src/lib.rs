//! The FUSE front of Larder: serves the datasets of a node's cache to readers.
//!
//! Its parts, from the kernel inwards: [`mount`] makes and ends a mount; `handshake` negotiates the protocol; `pool`
//! has the threads that take requests, for all mounts together; `slots` is the memory that they read them into; `wire`
//! decodes requests and encodes replies; `fuse` answers them, and decides nothing; `reading` answers reads, immediately
//! or later; `passthrough` lets the kernel answer them; `filesystem` answers names, attributes and folders from the
//! manifest, and passes reads to [`larder_cachenode::Dataset`]; `about` generates the files below `.larder`; `pages`
//! asks the kernel what its page cache has; [`errno`] is the only place where an error becomes an errno. Around them:
//! [`connection`] serves a mount that another process made; `requests` stores its unanswered requests where they
//! outlive the process; `replay` answers the requests that an earlier process left there; `limits` names the limits of
//! the system; `starved` notices that threads have no CPU; [`daemon`] combines everything for many mounts at once, and
//! both `larderd` and `larder mount` run it.
//!
//! Invariant: a FUSE thread never waits for the network.

mod about;
pub mod connection;
pub mod daemon;
pub mod errno;
mod filesystem;
mod fuse;
mod handshake;
mod inode;
mod interrupt;
mod limits;
pub mod mount;
mod pages;
mod passthrough;
mod pool;
pub mod process;
mod reading;
mod replay;
mod requests;
mod slots;
mod starved;
mod wire;

pub use limits::pids_max_file;
pub use mount::{MountConfig, MountError, Mounted};
pub use pool::{Pool, default_threads};
