//! Formats an error and its sources on one line.

use std::error::Error;
use std::fmt;

/// Displays an error and its sources. Omits a source whose text is already in the line.
pub struct Chain<'a>(pub &'a dyn Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let said = error.to_string();
            if !text.contains(&said) {
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

    #[derive(Debug, thiserror::Error)]
    #[error("first ({source}), then what to do")]
    struct Advising {
        source: Plain,
    }

    #[test]
    fn a_cause_is_told_once() {
        let error = Plain { source: Quoting { source: std::fmt::Error } };
        assert_eq!(Chain(&error).to_string(), format!("outermost: outer: {}", std::fmt::Error));
        // A source may be quoted in the middle of a message.
        let said = Chain(&Advising { source: error }).to_string();
        assert_eq!(said, format!("first (outermost), then what to do: outer: {}", std::fmt::Error));
        let error = Advising { source: Plain { source: Quoting { source: std::fmt::Error } } };
        assert_eq!(Chain(&error).to_string().matches("outermost").count(), 1);
    }
}
