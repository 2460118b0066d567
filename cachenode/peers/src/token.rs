//! The secret that lets a node read a dataset from another node.
//!
//! Invariant: a token is never printed. Comparing two tokens takes the same time wherever they differ.

use std::fmt;
use std::sync::Arc;

use larder_cachenode_api::frame::TOKEN_BYTES_MOST;

/// The secret that lets a node read a dataset from another node. `Debug` hides it, and comparisons take constant time.
#[derive(Clone, Eq)]
pub struct Token(Arc<str>);

/// The text is empty, too long, or contains characters other than printable ASCII without spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token is 1 to {TOKEN_BYTES_MOST} printable ASCII characters without spaces")]
pub struct InvalidToken;

impl Token {
    /// Accepts printable ASCII characters without spaces.
    pub fn new(token: &str) -> Result<Self, InvalidToken> {
        let fits = (1..=TOKEN_BYTES_MOST).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic());
        if fits { Ok(Self(token.into())) } else { Err(InvalidToken) }
    }

    /// The secret as text, for the code that sends it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.0.as_bytes(), other.0.as_bytes());
        // Without black_box, the compiler could stop the loop at the first difference.
        let differing = ours.iter().zip(theirs).fold(0, |sum, (a, b)| std::hint::black_box(sum | (a ^ b)));
        ours.len() == theirs.len() && differing == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_printed_and_equals_only_itself() {
        let token = Token::new("s3cret").unwrap();
        assert_eq!(format!("{token:?}"), "Token(..)");
        assert_eq!(token, Token::new("s3cret").unwrap());
        for other in ["s3creT", "S3cret", "s3cre", "s3cret1"] {
            assert_ne!(token, Token::new(other).unwrap(), "{other}");
        }
        for bad in ["", "a b", "a\nb", "ä", &"x".repeat(TOKEN_BYTES_MOST + 1)] {
            assert_eq!(Token::new(bad), Err(InvalidToken));
        }
    }
}
