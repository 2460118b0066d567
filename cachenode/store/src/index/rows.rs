//! The rows of the index.
//!
//! ```text
//!  family    key                                      value (numbers little-endian, first byte = version 1)
//!  default   "state"                                  1 | closed cleanly 0/1 | boot id, text, at most 64 bytes
//!  default   "doubt" snapshot[32]                     1; there while slots of the dataset may be lost
//!  datasets  snapshot[32]                             1 | policy | number u32 | reservation u64 | last use u64 | name, at most 1 KiB
//!  blocks    number u32 BE | block u32 BE             segment u32 BE | offset in 4 KiB u32 BE
//! ```
//! Earlier versions also had a column family `epochs` with a history that was never read. It is dropped when the index
//! is opened.
//!
//! Invariant: a row of another version or of the wrong length is treated as absent.

use larder_dataset::{BlockIndex, CacheId, PolicyKind};

use crate::slots::Place;

pub(super) const DATASETS: &str = "datasets";
pub(super) const BLOCKS: &str = "blocks";
pub(super) const STATE_KEY: &[u8] = b"state";
pub(super) const DOUBT_PREFIX: &[u8] = b"doubt";
/// The value of a doubt's row.
pub(super) const DOUBT: [u8; 1] = [VERSION];

const VERSION: u8 = 1;
const NAME_BYTES: usize = 1024;

/// A dataset's row in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatasetRow {
    pub(crate) number: u32,
    pub(crate) policy: PolicyKind,
    pub(crate) reservation_bytes: u64,
    pub(crate) last_use_unix_s: u64,
    pub(crate) name: String,
}

pub(super) fn encode_state(closed: bool, boot_id: &str) -> Vec<u8> {
    [&[VERSION, u8::from(closed)], boot_id.as_bytes()].concat()
}

/// Decodes whether the store was closed cleanly, and the boot id of its last run.
pub(super) fn decode_state(bytes: &[u8]) -> Option<(bool, &[u8])> {
    match bytes {
        [VERSION, closed, boot_id @ ..] => Some((*closed == 1, boot_id)),
        _ => None,
    }
}

/// The key of the row that says that slots of a dataset are doubtful.
pub(super) fn doubt_key(id: &CacheId) -> Vec<u8> {
    [DOUBT_PREFIX, &id.0].concat()
}

pub(super) fn decode_doubt_key(key: &[u8]) -> Option<CacheId> {
    key.strip_prefix(DOUBT_PREFIX)?.try_into().ok().map(CacheId)
}

pub(super) fn encode_dataset(row: &DatasetRow) -> Vec<u8> {
    let mut bytes = vec![VERSION, policy_byte(row.policy)];
    bytes.extend(row.number.to_le_bytes());
    bytes.extend(row.reservation_bytes.to_le_bytes());
    bytes.extend(row.last_use_unix_s.to_le_bytes());
    bytes.extend(row.name.bytes().take(NAME_BYTES));
    bytes
}

pub(super) fn decode_dataset(bytes: &[u8]) -> Option<DatasetRow> {
    if bytes.first() != Some(&VERSION) {
        return None;
    }
    Some(DatasetRow {
        number: u32::from_le_bytes(bytes.get(2..6)?.try_into().ok()?),
        policy: policy_of(*bytes.get(1)?)?,
        reservation_bytes: u64_le(bytes, 6)?,
        last_use_unix_s: u64_le(bytes, 14)?,
        name: String::from_utf8_lossy(bytes.get(22..)?).into_owned(),
    })
}

/// The byte that stores a policy on disk.
pub(crate) const fn policy_byte(policy: PolicyKind) -> u8 {
    match policy {
        PolicyKind::Nr => 0,
        PolicyKind::Lru => 1,
        PolicyKind::Fifo => 2,
        PolicyKind::Random => 3,
        PolicyKind::Smallest => 4,
    }
}

pub(crate) const fn policy_of(byte: u8) -> Option<PolicyKind> {
    match byte {
        0 => Some(PolicyKind::Nr),
        1 => Some(PolicyKind::Lru),
        2 => Some(PolicyKind::Fifo),
        3 => Some(PolicyKind::Random),
        4 => Some(PolicyKind::Smallest),
        _ => None,
    }
}

/// The key of a block of the dataset with this number.
pub(super) fn block_key(dataset: u32, block: BlockIndex) -> [u8; 8] {
    pair(dataset, block.0)
}

/// The value of a block's row: where its record is.
pub(super) fn block_value(place: Place) -> [u8; 8] {
    pair(place.segment, place.page)
}

pub(super) fn decode_block(key: &[u8], value: &[u8]) -> Option<(BlockIndex, Place)> {
    let (key, place) = (u64_be(key)?, u64_be(value)?);
    // The casts keep the lower halves on purpose.
    Some((BlockIndex(key as u32), Place { segment: (place >> 32) as u32, page: place as u32 }))
}

fn pair(high: u32, low: u32) -> [u8; 8] {
    (u64::from(high) << 32 | u64::from(low)).to_be_bytes()
}

fn u64_be(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_be_bytes)
}

fn u64_le(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_still_written_and_read_as_version_1() {
        assert_eq!(encode_state(true, "boot"), b"\x01\x01boot");
        assert_eq!(decode_state(b"\x01\x00boot"), Some((false, &b"boot"[..])));
        assert_eq!(decode_state(b"\x02\x01boot"), None);
        let id = CacheId([b'x'; 32]);
        assert_eq!(doubt_key(&id), [&b"doubt"[..], &[b'x'; 32]].concat());
        assert_eq!((decode_doubt_key(&doubt_key(&id)), decode_doubt_key(STATE_KEY)), (Some(id), None));
        let row = DatasetRow {
            number: 0x0102_0304,
            policy: PolicyKind::Random,
            reservation_bytes: 5,
            last_use_unix_s: 6,
            name: "text".into(),
        };
        let golden = b"\x01\x03\x04\x03\x02\x01\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0text";
        assert_eq!(encode_dataset(&row), golden);
        assert_eq!(decode_dataset(golden), Some(row));
        let (block, place) = (BlockIndex(2), Place { segment: 3, page: 4 });
        assert_eq!((block_key(1, block), block_value(place)), (*b"\0\0\0\x01\0\0\0\x02", *b"\0\0\0\x03\0\0\0\x04"));
        assert_eq!(decode_block(b"\0\0\0\x01\0\0\0\x02", b"\0\0\0\x03\0\0\0\x04"), Some((block, place)));
    }

    #[test]
    fn any_bytes_decode_without_panic_and_another_version_is_nothing() {
        let golden = b"\x01\x03\x04\x03\x02\x01\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0text";
        for cut in 0..22 {
            assert_eq!(decode_dataset(&golden[..cut]), None);
            assert_eq!(decode_block(&golden[..cut], &golden[..cut]).is_some(), cut == 8);
        }
        assert_eq!(decode_dataset(b"\x02\x03\x04\x03\x02\x01\x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0"), None);
    }
}
