//! The FUSE front of Larder: serves the datasets of a node's cache to readers.
//!
//! The cast, from the kernel inwards: [`mount`] makes a mount and ends it; `fuse` decodes requests and replies, and
//! decides nothing; `reading` answers reads at once or later; `filesystem` answers names, attributes and folders out of
//! the manifest, and hands reads to [`larder_cachenode::Dataset`]; `about` makes the files below `.larder`; [`errno`]
//! is the only place where an error becomes an errno. Around them: [`connection`] serves a mount that another process
//! made; `requests` holds what it has not answered where it outlives the process, with the threads' `buffers`, and
//! `replay` answers what an earlier process left there; `wire` is what that takes of the FUSE protocol; [`daemon`] is
//! all of it for many mounts at once, which `larderd` and `larder mount` run.
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
