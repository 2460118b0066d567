//! Consecutive pages of a listing that contain no key.
//!
//! Stores send such pages for deleted keys, and at the boundaries of their partitions. Each page has a deadline of its
//! own, so only a limit on their number ends a listing that never reaches a key.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use crate::error::OriginError;

/// The most consecutive empty pages. This many cover a hundred million deleted keys.
const MOST: usize = 100_000;

#[derive(Debug, thiserror::Error)]
enum Endless {
    #[error("the listing makes no progress")]
    Loop,
    #[error("the listing has {MOST} pages in a row without a key")]
    Long,
}

/// The empty pages so far, as hashes of their continuation tokens.
#[derive(Debug, Default)]
pub(crate) struct EmptyPages {
    hasher: RandomState,
    tokens: HashSet<u64>,
}

impl EmptyPages {
    /// Counts a page with this continuation token. Errors: the token occurred before, or there are too many pages.
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
