//! The line with which a background process reports its outcome to the command that started it.

use std::fmt;

/// Precedes the error of a process that found the cache in use.
const BUSY: &str = "busy: ";

/// The outcome of a background process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Announcement {
    /// The process serves the mount.
    Ready,
    /// Another process owns the cache.
    Busy(String),
    /// The process failed.
    Failed(String),
}

impl Announcement {
    /// Parses a line; `None` if it is empty, because the process ended without one.
    pub(super) fn parse(line: &str) -> Option<Self> {
        match line.trim() {
            "" => None,
            "ready" => Some(Self::Ready),
            line => Some(match line.strip_prefix(BUSY) {
                Some(error) => Self::Busy(error.trim().to_owned()),
                None => Self::Failed(line.to_owned()),
            }),
        }
    }
}

impl fmt::Display for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("ready"),
            Self::Busy(error) => write!(f, "{BUSY}{}", error.replace('\n', " ")),
            Self::Failed(error) => f.write_str(&error.replace('\n', " ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_round_trips_as_one_line() {
        for announced in [
            Announcement::Ready,
            Announcement::Busy("the store is in use".to_owned()),
            Announcement::Failed("open the cache: no space left".to_owned()),
        ] {
            assert_eq!(Announcement::parse(&format!("{announced}\n")), Some(announced));
        }
        assert_eq!(Announcement::Failed("a\nb".to_owned()).to_string(), "a b");
        assert_eq!(Announcement::parse(""), None);
    }
}
