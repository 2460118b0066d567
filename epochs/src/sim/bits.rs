//! Sets of small numbers, with one bit per number.

/// A set with a membership test only.
#[derive(Debug)]
pub(super) struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// An empty set of numbers below `count`.
    pub(super) fn new(count: u32) -> Self {
        Self { words: vec![0; (count as usize).div_ceil(64)] }
    }

    pub(super) fn contains(&self, number: u32) -> bool {
        self.words[number as usize / 64] >> (number % 64) & 1 == 1
    }

    pub(super) fn insert(&mut self, number: u32) {
        self.words[number as usize / 64] |= 1 << (number % 64);
    }

    pub(super) fn remove(&mut self, number: u32) {
        self.words[number as usize / 64] &= !(1 << (number % 64));
    }
}

/// A set that finds its largest number: a tree of words, in which each bit says whether the word below it is not empty.
///
/// Invariant: a bit of a level is set exactly if its word in the level below is not 0. The last level is one word.
#[derive(Debug)]
pub(super) struct MaxSet {
    levels: Vec<Vec<u64>>,
}

impl MaxSet {
    /// An empty set of numbers below `count`. It takes 1/62 byte per number in addition to the number's bit.
    pub(super) fn new(count: u32) -> Self {
        let mut levels = Vec::new();
        let mut words = (count as usize).div_ceil(64).max(1);
        loop {
            levels.push(vec![0; words]);
            if words == 1 {
                return Self { levels };
            }
            words = words.div_ceil(64);
        }
    }

    pub(super) fn insert(&mut self, number: u32) {
        let mut at = number as usize;
        for level in &mut self.levels {
            level[at / 64] |= 1 << (at % 64);
            at /= 64;
        }
    }

    pub(super) fn remove(&mut self, number: u32) {
        let mut at = number as usize;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            *word &= !(1 << (at % 64));
            if *word != 0 {
                return;
            }
            at /= 64;
        }
    }

    /// The largest number; `None` if the set is empty.
    pub(super) fn max(&self) -> Option<u32> {
        let mut at = 0;
        for level in self.levels.iter().rev() {
            let word = level[at];
            // Only the top word can be 0: the search descends only into words that contain a number.
            at = at * 64 + word.checked_ilog2()? as usize;
        }
        u32::try_from(at).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn bit_sets_behave_like_ordered_sets() {
        for count in [1, 63, 64, 65, 4096, 4097, 300_000] {
            let mut random = StdRng::seed_from_u64(u64::from(count));
            let (mut bits, mut largest, mut model) = (Bits::new(count), MaxSet::new(count), BTreeSet::new());
            for _ in 0..2000 {
                let number = random.random_range(0..count);
                if random.random() {
                    bits.insert(number);
                    largest.insert(number);
                    model.insert(number);
                } else {
                    let number = if random.random() { number } else { model.last().copied().unwrap_or(0) };
                    bits.remove(number);
                    largest.remove(number);
                    model.remove(&number);
                }
                assert_eq!(largest.max(), model.last().copied());
                let asked = random.random_range(0..count);
                assert_eq!(bits.contains(asked), model.contains(&asked));
            }
        }
    }
}
