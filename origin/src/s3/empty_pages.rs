//! Pages of a listing without a key that follow each other.
//!
//! Stores send them for keys that were deleted, and where their partitions meet. Each has a deadline of its own, so only
//! their number ends a listing that never gets to a key.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use crate::error::OriginError;

/// So many pages are for a hundred million deleted keys.
const MOST: usize = 100_000;

#[derive(Debug, thiserror::Error)]
enum Endless {
    #[error("the listing makes no progress")]
    Loop,
    #[error("the listing has {MOST} pages in a row without a key")]
    Long,
}

/// The pages without a key so far, by hashes of the tokens that lead on from them.
#[derive(Debug, Default)]
pub(crate) struct EmptyPages {
    hasher: RandomState,
    tokens: HashSet<u64>,
}

impl EmptyPages {
    /// Counts a page that this token leads on from. Errors: the token was there before, or there are too many pages.
    pub(crate) fn count(&mut self, token: &str) -> Result<(), OriginError> {
        let endless = |why: Endless| Err(OriginError::Unavailable { source: Box::new(why) });
        if !self.tokens.insert(self.hasher.hash_one(token)) {
            return endless(Endless::Loop);
        }
        if self.tokens.len() > MOST { endless(Endless::Long) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: I7
    #[test]
    fn tokens_that_loop_and_new_ones_without_end_are_errors() {
        let mut pages = EmptyPages::default();
        for page in 0..MOST {
            pages.count(&page.to_string()).expect("a new token");
        }
        let looping = format!("{:?}", pages.count("77").expect_err("a token of before"));
        assert!(looping.contains("Loop"), "{looping}");
        let endless = format!("{:?}", pages.count("another").expect_err("one too many"));
        assert!(endless.contains("Long"), "{endless}");
    }
}
