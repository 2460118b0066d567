//! The keys that cannot be files. All are counted, and the first ones are kept.

use std::collections::BTreeMap;

/// The most keys that are kept, and the most bytes that they may take.
const KEYS_MAX: usize = 100_000;
const BYTES_MAX: usize = 16 << 20;

/// A key that was listed but is not in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedKey {
    /// The key below the origin.
    pub key: Vec<u8>,
    /// Why the key is not in the tree, as text.
    pub reason: String,
}

/// Collects skipped keys in bounded memory.
#[derive(Debug, Default)]
pub(crate) struct Skipped {
    first: Vec<SkippedKey>,
    bytes: usize,
    counts: BTreeMap<String, u64>,
}

impl Skipped {
    pub(crate) fn push(&mut self, key: Vec<u8>, reason: &str) {
        match self.counts.get_mut(reason) {
            Some(count) => *count += 1,
            None => {
                self.counts.insert(reason.to_owned(), 1);
            }
        }
        if self.first.len() < KEYS_MAX && self.bytes < BYTES_MAX {
            self.bytes += key.len() + reason.len();
            self.first.push(SkippedKey { key, reason: reason.to_owned() });
        }
    }

    /// Returns the first keys, sorted, and the number of all keys by reason.
    pub(crate) fn finish(mut self) -> (Vec<SkippedKey>, BTreeMap<String, u64>) {
        self.first.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        (self.first, self.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_are_counted_and_no_more_are_kept_than_memory_allows() {
        let mut skipped = Skipped::default();
        for n in 0..200_000_u32 {
            skipped.push(n.to_be_bytes().repeat(100), if n % 2 == 0 { "even" } else { "odd" });
        }
        let (first, counts) = skipped.finish();
        assert!(first.len() < 50_000 && first.len() > 10_000, "{}", first.len());
        assert_eq!(counts.values().sum::<u64>(), 200_000);
    }
}
