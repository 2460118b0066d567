//! Simulated objects, computed from their numbers.

use std::io::Write;

/// Keys of the form `train/NNNNNN/NNNNNNNNN.JPEG`, in the order of their numbers, `per_folder` to a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeUpKeys {
    /// The number of objects, at most a thousand million.
    pub count: u64,
    /// The number of objects in a folder.
    pub per_folder: u64,
}

impl MadeUpKeys {
    /// Appends the key of object `n`.
    pub fn put_key(&self, n: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(b"train/");
        put_digits(n / self.per_folder, 6, out);
        out.push(b'/');
        put_digits(n, 9, out);
        out.extend_from_slice(b".JPEG");
    }

    /// The size of object `n` in bytes.
    pub fn size(&self, n: u64) -> u64 {
        10_000 + mixed(n) % 200_000
    }

    pub(super) fn have_prefix(&self, prefix: &[u8]) -> bool {
        b"train/".starts_with(prefix)
    }

    /// The number of the first object whose key is greater than `after`.
    pub(super) fn first_after(&self, after: &[u8]) -> u64 {
        let (mut low, mut high) = (0, self.count);
        let mut key = Vec::with_capacity(32);
        while low < high {
            let middle = low + (high - low) / 2;
            key.clear();
            self.put_key(middle, &mut key);
            (low, high) = if key.as_slice() <= after { (middle + 1, high) } else { (low, middle) };
        }
        low
    }

    /// Appends the object's entry in a listing. A different `seed` gives a different version.
    pub(super) fn put_entry(&self, n: u64, seed: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(b"<Contents><Key>");
        self.put_key(n, out);
        out.extend_from_slice(b"</Key><LastModified>2024-03-01T12:00:");
        put_digits(n % 60, 2, out);
        out.extend_from_slice(b".000Z</LastModified><ETag>&quot;");
        put_hex(mixed(n ^ seed << 40), out);
        put_hex(mixed(!n), out);
        out.extend_from_slice(b"&quot;</ETag><Size>");
        // Writing to a vector cannot fail.
        let _ = write!(out, "{}", self.size(n));
        out.extend_from_slice(b"</Size><StorageClass>STANDARD</StorageClass></Contents>");
    }
}

fn put_digits(number: u64, digits: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + digits, b'0');
    let mut rest = number;
    for digit in out[start..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

fn put_hex(number: u64, out: &mut Vec<u8>) {
    for shift in (0..16).rev() {
        out.push(b"0123456789abcdef"[(number >> (4 * shift) & 15) as usize]);
    }
}

/// SplitMix64.
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_ascend_and_are_found_by_what_is_before_them() {
        let keys = MadeUpKeys { count: 5_000, per_folder: 13 };
        let key = |n| {
            let mut key = Vec::new();
            keys.put_key(n, &mut key);
            key
        };
        assert_eq!(key(14), b"train/000001/000000014.JPEG");
        for n in 0..keys.count {
            assert_eq!(keys.first_after(&key(n)), n + 1);
            assert!(n == 0 || key(n - 1) < key(n));
        }
        assert_eq!((keys.first_after(b""), keys.first_after(b"u")), (0, 5_000));
    }
}
