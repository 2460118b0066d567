//! An error and its sources on one line.

use std::error::Error;
use std::fmt;

/// Displays an error and its sources. A source is left out if the line already ends with its text.
pub struct Chain<'a>(pub &'a dyn Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let said = error.to_string();
            if !text.ends_with(&said) {
                text = format!("{text}: {said}");
            }
            cause = error.source();
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer: {source}")]
    struct Quoting {
        source: std::fmt::Error,
    }

    #[derive(Debug, thiserror::Error)]
    #[error("outermost")]
    struct Plain {
        source: Quoting,
    }

    #[test]
    fn a_cause_is_told_once() {
        let error = Plain { source: Quoting { source: std::fmt::Error } };
        assert_eq!(Chain(&error).to_string(), format!("outermost: outer: {}", std::fmt::Error));
    }
}
