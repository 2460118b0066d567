//! The program's arguments in CDI files and containers.

use crate::line::{Line, MAX_FLAG};
use crate::settings::Settings;

/// The program's name, in the image and on hosts.
pub const PROGRAM: &str = "larder-rdma-limit";

impl Line {
    /// The program's arguments for this limit, its own name first.
    pub fn to_args(&self) -> Vec<String> {
        vec![PROGRAM.to_owned(), MAX_FLAG.to_owned(), self.to_string()]
    }

    /// The limit that the program enforces when it runs with these arguments, its own name first.
    pub fn from_args(args: &[String]) -> Option<Self> {
        let flags = args.iter().skip(1).cloned();
        Settings::parse(flags).ok().map(|settings| settings.max)
    }
}
