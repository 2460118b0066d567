//! The program's arguments, as CDI files and containers have them.

use crate::line::{Line, MAX_FLAG};
use crate::settings::Settings;

/// The program's name, in the image and on hosts.
pub const PROGRAM: &str = "larder-rdma-limit";

impl Line {
    /// The program's arguments for this limit, its own name first.
    pub fn to_args(&self) -> Vec<String> {
        vec![PROGRAM.to_owned(), MAX_FLAG.to_owned(), self.to_string()]
    }

    /// The limit that the program keeps when it is run with these arguments, its own name first.
    pub fn from_args(args: &[String]) -> Option<Self> {
        let flags = args.iter().skip(1).cloned();
        Settings::parse(flags).ok().map(|settings| settings.max)
    }
}
