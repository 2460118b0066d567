//! The FUSE front of Larder: serves the datasets of a node's cache to readers.
//!
//! Its parts, from the kernel inwards: [`mount`] makes and ends a mount; `fuse` decodes requests and encodes replies,
//! and decides nothing; `reading` answers reads, immediately or later; `filesystem` answers names, attributes and
//! folders from the manifest, and passes reads to [`larder_cachenode::Dataset`]; `about` generates the files below
//! `.larder`; [`errno`] is the only place where an error becomes an errno. Around them: [`connection`] serves a mount
//! that another process made; `requests` stores its unanswered requests where they outlive the process, together with
//! the threads' `buffers`; `replay` answers the requests that an earlier process left there; `wire` implements the part
//! of the FUSE protocol that these need; [`daemon`] combines everything for many mounts at once, and both `larderd` and
//! `larder mount` run it.
//!
//! Invariant: a FUSE thread never waits for the network.

mod about;
mod buffers;
pub mod connection;
pub mod daemon;
pub mod errno;
mod filesystem;
mod fuse;
mod inode;
pub mod mount;
pub mod process;
mod reading;
mod replay;
mod requests;
mod wire;

pub use buffers::RequestBuffers;
pub use mount::{MountConfig, MountError, Mounted};
