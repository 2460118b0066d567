//! What the command `larder` shares with `larder-bench`: how results look, the folders and files of a run, and how a
//! command ends.

pub mod exit;
pub mod files;
pub mod output;
