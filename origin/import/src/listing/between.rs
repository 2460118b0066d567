//! Guesses keys between two others.
//!
//! A key is treated as a fraction whose digits are the characters seen so far, in the order of their bytes (UTF-8 sorts
//! like its code points). A guess affects only how evenly the work is divided, never which keys are listed.

use std::collections::BTreeSet;

/// The number of characters that are compared, after the common prefix of both keys.
const DIGITS: usize = 12;
/// The most characters that are learned. Keys in scripts with more characters are divided less evenly.
const CHARS_MAX: usize = 2048;

/// The characters that occur in keys.
#[derive(Debug, Default)]
pub(super) struct Alphabet {
    seen: BTreeSet<char>,
    /// The same characters, sorted.
    chars: Vec<char>,
}

impl Alphabet {
    /// Adds the characters of a key.
    pub(super) fn learn(&mut self, key: &[u8]) {
        let before = self.seen.len();
        for char in String::from_utf8_lossy(key).chars() {
            if !char.is_control() && self.seen.len() < CHARS_MAX {
                self.seen.insert(char);
            }
        }
        if self.seen.len() > before {
            self.chars = self.seen.iter().copied().collect();
        }
    }

    fn base(&self) -> u64 {
        // Digit 0 is the end of a key, and the largest digit is beyond every key.
        self.chars.len() as u64 + 2
    }

    fn digit(&self, char: char) -> u64 {
        match self.chars.binary_search(&char) {
            Ok(at) => at as u64 + 1,
            Err(at) => at as u64,
        }
    }

    fn digits(&self, key: &str, skip: usize) -> [u64; DIGITS] {
        let mut digits = [0; DIGITS];
        for (digit, char) in digits.iter_mut().zip(key.chars().skip(skip)) {
            *digit = self.digit(char);
        }
        digits
    }

    fn both(&self, after: &str, until: Option<&str>) -> (usize, [u64; DIGITS], [u64; DIGITS]) {
        let shared = until.map_or(0, |until| after.chars().zip(until.chars()).take_while(|(a, b)| a == b).count());
        let mut after_all = [0; DIGITS];
        after_all[0] = self.base() - 1;
        (shared, self.digits(after, shared), until.map_or(after_all, |until| self.digits(until, shared)))
    }

    /// The binary logarithm of the distance from `after` to `until` (`None` is the end of all keys). The distance of
    /// all keys is 0. The distance of keys that cannot be told apart is negative infinity.
    pub(super) fn log_distance(&self, after: &[u8], until: Option<&[u8]>) -> f64 {
        let (after, until) = (String::from_utf8_lossy(after), until.map(String::from_utf8_lossy));
        let (shared, low, high) = self.both(&after, until.as_deref());
        let base = self.base() as f64;
        let (mut distance, mut unit) = (0.0, 1.0);
        for (low, high) in low.into_iter().zip(high) {
            unit /= base;
            distance += (high as f64 - low as f64) * unit;
        }
        if distance > 0.0 { distance.log2() - shared as f64 * base.log2() } else { f64::NEG_INFINITY }
    }

    /// A short key about halfway between `after` and `until`. `None` if there is none between them.
    pub(super) fn between(&self, after: &[u8], until: Option<&[u8]>) -> Option<Vec<u8>> {
        let after = std::str::from_utf8(after).ok()?;
        let until = until.map(std::str::from_utf8).transpose().ok()?;
        let (shared, low, high) = self.both(after, until);
        let base = self.base();
        let (mut sum, mut carry) = ([0; DIGITS], 0);
        for at in (0..DIGITS).rev() {
            let digit = low[at] + high[at] + carry;
            (sum[at], carry) = (digit % base, digit / base);
        }
        let mut guess: String = after.chars().take(shared).collect();
        let mut rest = carry;
        let mut beyond = false;
        for digit in sum {
            let digit = rest * base + digit;
            rest = digit % 2;
            // No character stands for a position after all characters; repeating the last character comes closest.
            beyond |= digit / 2 == base - 1;
            let char = if beyond { self.chars.last() } else { self.chars.get((digit / 2).wrapping_sub(1) as usize) };
            // Digit 0 ends the key.
            let Some(char) = char else { break };
            guess.push(*char);
            if guess.as_str() > after && until.is_none_or(|until| guess.as_str() < until) {
                return Some(guess.into_bytes());
            }
        }
        None
    }
}
