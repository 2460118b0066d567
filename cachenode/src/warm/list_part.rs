//! A part of a list of files to warm, as an ioctl on a mount's `.larder/stats.json` hands it over.
//!
//! ```text
//!   0  u64  number of the list, chosen by the sender
//!   8  u32  1 for its first part, plus 2 for its last
//!  12  u32  bytes of lines
//!  16       whole lines, each with its line end
//! ```
//! Numbers are little-endian.

/// The ioctl that takes a part of a list: `_IOW('L', 2, [u8; 16000])`. The kernel passes at most 16,383 bytes. Errors:
/// EBUSY, if another `larder warm` is running; EAGAIN, if no further part of the list can be accepted now; ENOSPC, if the
/// cache is full; ENOENT, if this is not the first part and the list is unknown.
pub const WARM_LIST_IOCTL: u32 = 1 << 30 | (PART_BYTES as u32) << 16 | (b'L' as u32) << 8 | 2;

/// Bytes of a part.
pub const PART_BYTES: usize = 16_000;
const HEAD_BYTES: usize = 16;

/// The most bytes of lines in a part, of which a path has 4,095 at most.
pub const LINES_MOST: usize = PART_BYTES - HEAD_BYTES;

const FIRST: u32 = 1;
const LAST: u32 = 2;

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmListPart {
    /// The number of the list.
    pub list: u64,
    /// True for its first part.
    pub first: bool,
    /// True for its last part.
    pub last: bool,
    /// Whole lines.
    pub lines: Vec<u8>,
}

impl WarmListPart {
    /// The part as it is handed over. `lines` has [`LINES_MOST`] bytes at most.
    pub fn encode(&self) -> [u8; PART_BYTES] {
        let mut part = [0; PART_BYTES];
        let flags = if self.first { FIRST } else { 0 } | if self.last { LAST } else { 0 };
        part[..8].copy_from_slice(&self.list.to_le_bytes());
        part[8..12].copy_from_slice(&flags.to_le_bytes());
        part[12..16].copy_from_slice(&(self.lines.len() as u32).to_le_bytes());
        part[HEAD_BYTES..HEAD_BYTES + self.lines.len()].copy_from_slice(&self.lines);
        part
    }

    /// Reads a part; `None` if it is none.
    pub fn decode(part: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u32::from_le_bytes(*part.get(at..)?.first_chunk()?));
        let list = u64::from_le_bytes(*part.first_chunk()?);
        let (flags, len) = (number(8)?, number(12)? as usize);
        let lines = part.get(HEAD_BYTES..HEAD_BYTES.checked_add(len)?)?.to_vec();
        Some(Self { list, first: flags & FIRST != 0, last: flags & LAST != 0, lines })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_as_it_was_written_and_a_broken_one_is_none() {
        let full = WarmListPart { list: 7, first: true, last: false, lines: vec![b'a'; LINES_MOST] };
        let empty = WarmListPart { list: u64::MAX, first: false, last: true, lines: Vec::new() };
        for part in [full, empty] {
            assert_eq!(WarmListPart::decode(&part.encode()), Some(part));
        }
        let mut long = [0; PART_BYTES];
        long[12..16].fill(0xff);
        for broken in [&long[..], &[0; 15], &[]] {
            assert_eq!(WarmListPart::decode(broken), None);
        }
    }
}
