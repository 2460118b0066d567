//! The sizes of a dataset's blocks, as a histogram of bytes.

use larder_dataset::BLOCK_BYTES;

/// The number of classes into which an octave of sizes is divided, as a power of two.
const CLASS_BITS: u32 = 6;

const CLASSES: usize = class_of(BLOCK_BYTES as u32) + 1;

/// How many bytes the blocks of each size have together. Sizes that differ by less than a 64th are one class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    bytes: Box<[u64]>,
}

/// The class of a block of `len` bytes. Larger blocks are in higher classes.
pub(super) const fn class_of(len: u32) -> usize {
    if len == 0 {
        return 0;
    }
    let shift = len.ilog2().saturating_sub(CLASS_BITS);
    ((shift as usize) << CLASS_BITS) + (len >> shift) as usize
}

impl Default for Sizes {
    fn default() -> Self {
        Self { bytes: vec![0; CLASSES].into_boxed_slice() }
    }
}

impl Sizes {
    /// Adds a block of `len` bytes, at most 4 MiB.
    pub fn add(&mut self, len: u32) {
        self.bytes[class_of(len).min(CLASSES - 1)] += u64::from(len);
    }

    /// Removes a block of `len` bytes that was added.
    pub(super) fn remove(&mut self, len: u32) {
        let bytes = &mut self.bytes[class_of(len).min(CLASSES - 1)];
        *bytes = bytes.saturating_sub(u64::from(len));
    }

    /// The sizes of a dataset of which these are a sample, and `by` times as many.
    #[must_use]
    pub fn scaled(mut self, by: f64) -> Self {
        self.bytes.iter_mut().for_each(|bytes| *bytes = (*bytes as f64 * by) as u64);
        self
    }

    /// Bytes of the blocks of a class.
    pub(super) fn in_class(&self, class: usize) -> u64 {
        self.bytes.get(class).copied().unwrap_or_default()
    }

    /// The first class of which not all blocks fit into `capacity_bytes` beside those of all lower classes, and the
    /// bytes that are left for it. None if all blocks fit.
    pub(super) fn limit(&self, capacity_bytes: u64) -> Option<(usize, u64)> {
        let mut left = capacity_bytes;
        for (class, &bytes) in self.bytes.iter().enumerate() {
            left = match left.checked_sub(bytes) {
                Some(left) => left,
                None => return Some((class, left)),
            };
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_rise_with_the_size_and_are_narrower_than_a_64th_of_it() {
        let mut first = 0;
        for len in 1..=BLOCK_BYTES as u32 {
            let (class, before) = (class_of(len), class_of(len - 1));
            assert!(class == before || class == before + 1, "{len}");
            if class != before {
                first = len;
            }
            assert!(len - first <= first / 64, "{len} and {first}");
        }
        assert_eq!(class_of(BLOCK_BYTES as u32) + 1, Sizes::default().bytes.len());
    }

    #[test]
    fn the_limit_is_where_the_capacity_ends() {
        let mut sizes = Sizes::default();
        [10, 10, 30, 4 << 20].into_iter().for_each(|len| sizes.add(len));
        assert_eq!(sizes.limit(0), Some((10, 0)));
        assert_eq!(sizes.limit(19), Some((10, 19)));
        assert_eq!(sizes.limit(20), Some((30, 0)));
        assert_eq!(sizes.limit(50), Some((class_of(4 << 20), 0)));
        assert_eq!(sizes.limit(50 + (4 << 20)), None);
        assert_eq!(sizes.clone().scaled(2.0).limit(20), Some((10, 20)));
        assert_eq!(Sizes::default().limit(0), None, "nothing is known");
    }
}
