//! The FUSE front of Larder: shows the datasets of a node's cache to readers.
//!
//! The cast, from the kernel inwards: [`mount`] makes a mount and ends it; `fuse` decodes requests and replies, and decides
//! nothing; `filesystem` answers names, attributes and folders out of the manifest, and hands reads to
//! [`larder_cachenode::Dataset`]; `about` makes the files below `.larder`; [`errno`] is the only place where an error becomes
//! an errno. Around them: [`connection`] serves a mount that another process made; [`daemon`] is all of it for many mounts
//! at once, which `larderd` and `larder mount` run.
//!
//! Invariant: a FUSE thread never waits for the network.

mod about;
pub mod connection;
pub mod daemon;
pub mod errno;
mod filesystem;
mod fuse;
mod inode;
pub mod mount;
pub mod process;

pub use mount::{MountConfig, MountError, Mounted};
