//! The ioctls by which a program says what it is going to read. Every file and folder of a mount takes them.
//!
//! ```text
//! OPEN    _IOW('L', 16, [u8; 64])       AT     _IOW('L', 20, [u8; 64])     CLOSE  _IOW('L', 21, [u8; 64])
//!   0  [16]  id, chosen at random         0  [16]  id                        0  [16]  id
//!  16  [32]  snapshot; zeros: any        16  u64   passed
//!  48  u64   count; 0: not known
//!
//! ROWS    _IOW('L', 17, [u8; 16000])    PATHS  _IOW('L', 18, …)            RANGES _IOW('L', 19, …)
//!   0  [16]  id                           … the same                         … the same
//!  16  u64   position of the first
//!  24  u64   passed
//!  32  u32   number of items
//!  36  u32   1: they replace all from `position` on
//!  40        u32 rows                     40  paths, each with a NUL         40  (u64 offset, u32 row, u32 length)s
//!
//! OWNED   _IOWR('L', 22, [u8; 2000])
//!   0  u32   first row            answer: a bit for each row, the lowest first: this node is to keep its file
//!   4  u32   number of rows, at most 16,000
//! ```
//! Numbers are little-endian. `count` is the number of items of the whole plan. All items before the position `passed`
//! were read, or never will be. Paths are below the folder that takes the ioctl. A length of 0 reaches to the end of
//! the file.
//!
//! OPEN, ROWS, PATHS, RANGES and AT return how many more items are wanted now. Each of them can be repeated: it may be
//! played again to the next process that serves the mount. Errors: ENOENT (no such plan: open it and put its items
//! again), ESTALE (rows of another snapshot), EINVAL (a value that is not possible), ENOSPC (more plans, or more items
//! of this plan, than are accepted), ENOTDIR (paths below a file).
//!
//! This module depends on nothing else, so that it can be fuzzed alone.

use std::ops::Range;

/// Bytes of an ioctl with items. The kernel passes at most 16,383.
pub const PART_BYTES: usize = 16_000;

/// Bytes of the other ioctls.
pub const SHORT_BYTES: usize = 64;

/// Opens a plan.
pub const OPEN_IOCTL: u32 = write_ioctl(16, SHORT_BYTES);
/// Puts rows of the manifest into a plan.
pub const ROWS_IOCTL: u32 = write_ioctl(17, PART_BYTES);
/// Puts files into a plan by their paths.
pub const PATHS_IOCTL: u32 = write_ioctl(18, PART_BYTES);
/// Puts ranges of files into a plan.
pub const RANGES_IOCTL: u32 = write_ioctl(19, PART_BYTES);
/// Says how far a reader is.
pub const AT_IOCTL: u32 = write_ioctl(20, SHORT_BYTES);
/// Asks which files the node is to keep.
pub const OWNED_IOCTL: u32 = 1 << 31 | write_ioctl(22, OWNED_BYTES);
/// Ends a plan.
pub const CLOSE_IOCTL: u32 = write_ioctl(21, SHORT_BYTES);

/// Bytes of [`OWNED_IOCTL`].
const OWNED_BYTES: usize = 2000;

const HEAD_BYTES: usize = 40;
const ROW_BYTES: usize = 4;
const RANGE_BYTES: usize = 16;
const REPLACES: u32 = 1;

/// The most bytes of items in an ioctl.
pub const ITEMS_BYTES: usize = PART_BYTES - HEAD_BYTES;

/// `_IOW('L', number, [u8; bytes])`.
const fn write_ioctl(number: u32, bytes: usize) -> u32 {
    1 << 30 | (bytes as u32) << 16 | (b'L' as u32) << 8 | number
}

/// The id of a plan. Its caller chooses it at random, so no other one finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlanId(pub [u8; 16]);

/// One of the ioctls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Opens a plan, or renews it.
    Open(Open),
    /// Puts items into a plan.
    Put(Put, Items<'a>),
    /// Says how far the reader is.
    At {
        /// The plan.
        id: PlanId,
        /// All items before this position were read, or never will be.
        passed: u64,
    },
    /// Ends a plan.
    Close {
        /// The plan.
        id: PlanId,
    },
}

/// A plan that is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// The plan.
    pub id: PlanId,
    /// The snapshot of the rows. None: it has paths, or its caller takes the risk.
    pub snapshot: Option<[u8; 32]>,
    /// The number of items of the whole plan. None: not known.
    pub count: Option<u64>,
}

/// Where items belong in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// The plan.
    pub id: PlanId,
    /// The position of the first item.
    pub position: u64,
    /// All items before this position were read, or never will be.
    pub passed: u64,
    /// They replace all from `position` on. Otherwise only those after the last one are new.
    pub replaces: bool,
}

/// The items of an ioctl, in the order in which they will be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Items<'a> {
    /// Files, by their rows in the manifest.
    Rows(Vec<u32>),
    /// Files, by their paths.
    Paths(Vec<&'a [u8]>),
    /// Parts of files.
    Ranges(Vec<FileRange>),
}

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// The file's row in the manifest.
    pub row: u32,
    /// In bytes.
    pub offset: u64,
    /// In bytes. 0: to the end of the file.
    pub len: u32,
}

/// An ioctl with impossible values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl<'a> Command<'a> {
    /// Reads an ioctl. None: it is another one.
    pub fn decode(ioctl: u32, data: &'a [u8]) -> Option<Result<Self, Malformed>> {
        let decoded = match ioctl {
            OPEN_IOCTL => Open::decode(data).map(Self::Open),
            ROWS_IOCTL | PATHS_IOCTL | RANGES_IOCTL => Put::decode(data)
                .and_then(|(put, n)| Some(Self::Put(put, Items::decode(ioctl, n, &data[HEAD_BYTES..])?))),
            AT_IOCTL => {
                sized(data, SHORT_BYTES).and_then(|data| Some(Self::At { id: id_at(data)?, passed: u64_at(data, 16)? }))
            }
            CLOSE_IOCTL => sized(data, SHORT_BYTES).and_then(|data| Some(Self::Close { id: id_at(data)? })),
            _ => return None,
        };
        Some(decoded.ok_or(Malformed))
    }

    /// The plan.
    pub fn id(&self) -> PlanId {
        match self {
            Self::Open(Open { id, .. }) | Self::Put(Put { id, .. }, _) | Self::At { id, .. } | Self::Close { id } => {
                *id
            }
        }
    }
}

impl Open {
    fn decode(data: &[u8]) -> Option<Self> {
        let data = sized(data, SHORT_BYTES)?;
        let snapshot: [u8; 32] = *data.get(16..)?.first_chunk()?;
        let count = u64_at(data, 48)?;
        Some(Self {
            id: id_at(data)?,
            snapshot: Some(snapshot).filter(|snapshot| *snapshot != [0; 32]),
            count: Some(count).filter(|&count| count > 0),
        })
    }

    /// The bytes of the ioctl.
    pub fn encode(&self) -> [u8; SHORT_BYTES] {
        let mut data = [0; SHORT_BYTES];
        data[..16].copy_from_slice(&self.id.0);
        data[16..48].copy_from_slice(&self.snapshot.unwrap_or_default());
        data[48..56].copy_from_slice(&self.count.unwrap_or_default().to_le_bytes());
        data
    }
}

impl Put {
    /// The head of an ioctl, and the number of its items.
    fn decode(data: &[u8]) -> Option<(Self, usize)> {
        let data = sized(data, PART_BYTES)?;
        let (position, passed) = (u64_at(data, 16)?, u64_at(data, 24)?);
        let (n, flags) = (u32_at(data, 32)?, u32_at(data, 36)?);
        // The position after the last item is a number, too.
        position.checked_add(u64::from(n))?;
        let put = Self { id: id_at(data)?, position, passed, replaces: flags & REPLACES != 0 };
        (flags & !REPLACES == 0).then_some((put, n as usize))
    }

    /// The bytes of an ioctl with paths, which have [`ITEMS_BYTES`] at most, with a NUL behind each.
    pub fn encode_paths(&self, paths: &[u8]) -> Box<[u8; PART_BYTES]> {
        let mut data = Box::new([0; PART_BYTES]);
        let n = paths.iter().filter(|&&byte| byte == 0).count() as u32;
        data[..16].copy_from_slice(&self.id.0);
        data[16..24].copy_from_slice(&self.position.to_le_bytes());
        data[24..32].copy_from_slice(&self.passed.to_le_bytes());
        data[32..36].copy_from_slice(&n.to_le_bytes());
        data[36..40].copy_from_slice(&u32::from(self.replaces).to_le_bytes());
        data[HEAD_BYTES..HEAD_BYTES + paths.len()].copy_from_slice(paths);
        data
    }
}

impl<'a> Items<'a> {
    fn decode(ioctl: u32, n: usize, data: &'a [u8]) -> Option<Self> {
        Some(match ioctl {
            ROWS_IOCTL => {
                let rows = data.get(..n.checked_mul(ROW_BYTES)?)?.chunks_exact(ROW_BYTES);
                Self::Rows(rows.map(|row| u32_at(row, 0)).collect::<Option<_>>()?)
            }
            RANGES_IOCTL => {
                let ranges = data.get(..n.checked_mul(RANGE_BYTES)?)?.chunks_exact(RANGE_BYTES);
                let range =
                    |at: &[u8]| Some(FileRange { offset: u64_at(at, 0)?, row: u32_at(at, 8)?, len: u32_at(at, 12)? });
                Self::Ranges(ranges.map(range).collect::<Option<_>>()?)
            }
            _ => {
                let paths = data.split(|&byte| byte == 0);
                // Behind the last NUL is no path.
                if n >= paths.clone().count() {
                    return None;
                }
                Self::Paths(paths.take(n).collect())
            }
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Rows(rows) => rows.len(),
            Self::Paths(paths) => paths.len(),
            Self::Ranges(ranges) => ranges.len(),
        }
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The rows of [`OWNED_IOCTL`].
pub fn decode_owned(data: &[u8]) -> Option<Range<u32>> {
    let data = sized(data, OWNED_BYTES)?;
    let (first, count) = (u32_at(data, 0)?, u32_at(data, 4)?);
    let end = first.checked_add(count)?;
    (count as usize <= 8 * OWNED_BYTES).then_some(first..end)
}

/// The bytes of [`Command::At`].
pub fn encode_at(id: PlanId, passed: u64) -> [u8; SHORT_BYTES] {
    let mut data = [0; SHORT_BYTES];
    data[..16].copy_from_slice(&id.0);
    data[16..24].copy_from_slice(&passed.to_le_bytes());
    data
}

fn sized(data: &[u8], bytes: usize) -> Option<&[u8]> {
    (data.len() == bytes).then_some(data)
}

fn id_at(data: &[u8]) -> Option<PlanId> {
    data.first_chunk().copied().map(PlanId)
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    data.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: PlanId = PlanId([7; 16]);

    fn part(n: u32, flags: u32, items: &[u8]) -> Vec<u8> {
        let mut data = vec![0; PART_BYTES];
        data[..16].fill(7);
        data[16..24].copy_from_slice(&100_u64.to_le_bytes());
        data[24..32].copy_from_slice(&90_u64.to_le_bytes());
        data[32..36].copy_from_slice(&n.to_le_bytes());
        data[36..40].copy_from_slice(&flags.to_le_bytes());
        data[40..40 + items.len()].copy_from_slice(items);
        data
    }

    fn put(replaces: bool) -> Put {
        Put { id: ID, position: 100, passed: 90, replaces }
    }

    #[test]
    fn the_numbers_are_those_that_programs_are_compiled_with() {
        assert_eq!(
            [OPEN_IOCTL, ROWS_IOCTL, PATHS_IOCTL, RANGES_IOCTL, AT_IOCTL, CLOSE_IOCTL],
            [0x4040_4c10, 0x7e80_4c11, 0x7e80_4c12, 0x7e80_4c13, 0x4040_4c14, 0x4040_4c15]
        );
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        for (snapshot, count) in [(None, None), (Some([3; 32]), Some(9))] {
            let open = Open { id: ID, snapshot, count };
            assert_eq!(Command::decode(OPEN_IOCTL, &open.encode()), Some(Ok(Command::Open(open))));
        }
        let paths = put(true).encode_paths(b"a/b\0\0c\0");
        let items = Items::Paths(vec![&b"a/b"[..], b"", b"c"]);
        assert_eq!(Command::decode(PATHS_IOCTL, &paths[..]), Some(Ok(Command::Put(put(true), items))));
        assert_eq!(Command::decode(AT_IOCTL, &encode_at(ID, 5)), Some(Ok(Command::At { id: ID, passed: 5 })));
        assert_eq!(Command::decode(CLOSE_IOCTL, &encode_at(ID, 5)), Some(Ok(Command::Close { id: ID })));
    }

    #[test]
    fn rows_and_ranges_are_found() {
        let rows = part(2, 0, &[1, 0, 0, 0, 0, 1, 0, 0, 9]);
        let expected = Command::Put(put(false), Items::Rows(vec![1, 256]));
        assert_eq!(Command::decode(ROWS_IOCTL, &rows), Some(Ok(expected)));
        let range = [&4096_u64.to_le_bytes()[..], &7_u32.to_le_bytes(), &50_u32.to_le_bytes()].concat();
        let range_of = FileRange { row: 7, offset: 4096, len: 50 };
        let expected = Command::Put(put(true), Items::Ranges(vec![range_of]));
        assert_eq!(Command::decode(RANGES_IOCTL, &part(1, 1, &range)), Some(Ok(expected)));
    }

    #[test]
    fn a_full_ioctl_is_read_and_a_count_that_lies_is_refused() {
        for (ioctl, most) in [(ROWS_IOCTL, 3_990), (RANGES_IOCTL, 997)] {
            let decode = |n| Command::decode(ioctl, &part(n, 0, &[])).unwrap().is_ok();
            assert!(decode(most) && !decode(most + 1) && !decode(u32::MAX), "{ioctl:x}");
        }
        let paths = |n, items: &[u8]| Command::decode(PATHS_IOCTL, &part(n, 0, items)).unwrap().is_ok();
        assert!(paths(2, b"a\0b\0"));
        let full = [b'a'; ITEMS_BYTES];
        assert!(!paths(1, &full), "a path without its end");
        assert!(!paths(u32::MAX, b"a\0"));
    }

    #[test]
    fn rows_that_are_asked_for_fit_into_the_answer() {
        let asked = |first: u32, count: u32| {
            let mut data = vec![0; OWNED_BYTES];
            data[..4].copy_from_slice(&first.to_le_bytes());
            data[4..8].copy_from_slice(&count.to_le_bytes());
            decode_owned(&data)
        };
        assert_eq!((asked(5, 16_000), asked(5, 16_001), asked(u32::MAX, 1)), (Some(5..16_005), None, None));
        assert_eq!(decode_owned(&[0; 8]), None);
        assert_eq!(OWNED_IOCTL, 0xc7d0_4c16);
    }

    #[test]
    fn other_sizes_flags_and_positions_are_refused_and_other_ioctls_are_not_ours() {
        for ioctl in [OPEN_IOCTL, AT_IOCTL, CLOSE_IOCTL] {
            assert_eq!(Command::decode(ioctl, &[0; SHORT_BYTES - 1]), Some(Err(Malformed)));
        }
        for ioctl in [ROWS_IOCTL, PATHS_IOCTL, RANGES_IOCTL] {
            assert_eq!(Command::decode(ioctl, &[0; PART_BYTES - 1]), Some(Err(Malformed)));
            assert_eq!(Command::decode(ioctl, &part(0, 2, &[])), Some(Err(Malformed)));
            let mut far = part(1, 0, &[0; 16]);
            far[16..24].fill(0xff);
            assert_eq!(Command::decode(ioctl, &far), Some(Err(Malformed)));
        }
        assert_eq!(Command::decode(0x4c01, &[]), None);
    }
}
