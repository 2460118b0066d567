//! The bytes that a manifest is read from.

use std::ops::Range;

/// The bytes of a manifest. They never change, but some of them may be lost: a disk can fail to read a page of a mapped
/// file. Lost bytes read as arbitrary values. A loss is counted before its effect is visible.
pub trait ManifestBytes: AsRef<[u8]> {
    /// The number of losses so far.
    fn losses(&self) -> u32 {
        0
    }

    /// Tries to recover lost bytes in these ranges. True if they may be readable again.
    fn read_again(&self, _ranges: &[Range<usize>]) -> bool {
        false
    }

    /// Hints that the bytes of this range will be read soon.
    fn will_read(&self, _range: Range<usize>) {}
}

impl ManifestBytes for Vec<u8> {}

impl ManifestBytes for [u8] {}

impl<T: ManifestBytes + ?Sized> ManifestBytes for &T {
    fn losses(&self) -> u32 {
        (**self).losses()
    }

    fn read_again(&self, ranges: &[Range<usize>]) -> bool {
        (**self).read_again(ranges)
    }

    fn will_read(&self, range: Range<usize>) {
        (**self).will_read(range);
    }
}
