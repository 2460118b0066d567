//! Code that the command `larder` shares with `larder-bench`: the format of results, the folders and files of a run,
//! and the exit codes.

pub mod exit;
pub mod files;
pub mod output;
