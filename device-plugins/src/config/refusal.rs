//! Why a configuration is refused.

use std::fmt;

/// An error in a configuration, and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The line of the file, from 1 on.
    pub line: usize,
    /// What is wrong and what to do.
    pub why: String,
}

impl Refusal {
    /// The error that also names the file.
    pub fn of(self, file: &str) -> ConfigError {
        ConfigError::Refused { file: file.to_owned(), refusal: self }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

/// No configuration could be read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("read {file}: {source}")]
    Read { file: String, source: std::io::Error },
    /// The file is not a valid configuration.
    #[error("{file}, {refusal}")]
    Refused { file: String, refusal: Refusal },
}
