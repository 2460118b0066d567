//! The promises of a store. A promise keeps space for one owner's cache of a snapshot, and no other dataset may use
//! that space. It counts whether or not the snapshot is open or any of its blocks are cached.
//!
//! ```text
//!  the file `promises`, see `standing`, with the magic LARDERPM
//!  a promise: snapshot 32, wanted u64, kept u64, length u16 and text of the holder, the same of the name and the owner
//! ```
//! Version 1 has no owners.
//!
//! Invariant: a promise counts only once it is synced.

use larder_dataset::{CacheId, CacheKey, SnapshotId};

use crate::info::DatasetInfo;
use crate::standing::{Entry, Standing, put_text, take, take_text};

/// Had no owners.
const VERSION_1: u8 = 1;

/// Space in the cache that is reserved for one snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The snapshot that the space is for.
    pub snapshot: SnapshotId,
    /// The tenant whose cache of the snapshot the space is for; empty: the administrator's.
    pub owner: String,
    /// The party that the promise is made to. One snapshot may have promises to several holders; the largest of them
    /// counts.
    pub holder: String,
    /// The dataset's name, for logs and listings.
    pub name: String,
    /// Disk bytes that were requested.
    pub wanted_disk_bytes: u64,
    /// The part of `wanted_disk_bytes` for which there was space.
    pub disk_bytes: u64,
}

impl Promise {
    /// True if the space is for the cache with this key.
    pub fn is_for(&self, key: &CacheKey) -> bool {
        self.snapshot == key.snapshot() && self.owner == key.owner()
    }

    /// The cache that has the promise, if these are the datasets under it.
    pub fn cache_among(&self, datasets: &[DatasetInfo]) -> Option<CacheId> {
        let promised = datasets.iter().filter(|info| self.is_for(&info.key));
        promised.min_by_key(|info| info.open.is_none()).map(DatasetInfo::cache)
    }
}

/// The promises of a store: in memory, and in the file `promises` of its folder.
pub(crate) type Promises = Standing<Promise>;

impl Entry for Promise {
    const MAGIC: [u8; 8] = *b"LARDERPM";
    const VERSION: u8 = 2;
    const NAME: &'static str = "promises";

    fn encode(&self, file: &mut Vec<u8>) {
        file.extend(self.snapshot.0);
        file.extend(self.wanted_disk_bytes.to_le_bytes());
        file.extend(self.disk_bytes.to_le_bytes());
        [&self.holder, &self.name, &self.owner].into_iter().for_each(|text| put_text(file, text));
    }

    fn decode(version: u8, rest: &mut &[u8]) -> Option<Self> {
        let has_owners = match version {
            Self::VERSION => true,
            VERSION_1 => false,
            _ => return None,
        };
        Some(Self {
            snapshot: SnapshotId(*take(rest)?),
            wanted_disk_bytes: u64::from_le_bytes(*take(rest)?),
            disk_bytes: u64::from_le_bytes(*take(rest)?),
            holder: take_text(rest)?,
            name: take_text(rest)?,
            owner: if has_owners { take_text(rest)? } else { String::new() },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standing::{assert_no_damage_decodes, decode, encode};

    fn promise(number: u8) -> Promise {
        Promise {
            snapshot: SnapshotId([number; 32]),
            owner: "tenant".into(),
            holder: format!("uid-{number}"),
            name: "team-a/pets".into(),
            wanted_disk_bytes: 1 << 40,
            disk_bytes: number.into(),
        }
    }

    #[test]
    fn the_file_is_still_written_as_version_2_and_version_1_is_read() {
        let sealed = |version: u8, owner: &[u8]| {
            let mut golden = b"LARDERPM".to_vec();
            golden.extend([version, 1, 0, 0, 0]);
            golden.extend([1; 32]);
            golden.extend(b"\0\0\0\0\0\x01\0\0\x01\0\0\0\0\0\0\0\x05\0uid-1\x0b\0team-a/pets");
            golden.extend(owner);
            golden.extend(larder_dataset::crc32c(&golden).to_le_bytes());
            golden
        };
        assert_eq!(encode(&[promise(1)]), sealed(2, b"\x06\0tenant"));
        assert_eq!(decode(&sealed(2, b"\x06\0tenant")), Some(vec![promise(1)]));
        assert_eq!(decode(&sealed(1, b"")), Some(vec![Promise { owner: String::new(), ..promise(1) }]));
        assert_eq!(decode::<Promise>(&sealed(3, b"\x06\0tenant")), None);
    }

    #[test]
    fn damaged_bytes_decode_to_nothing_and_never_panic() {
        assert_no_damage_decodes(&[promise(1), promise(2)]);
    }

    #[test]
    fn promises_that_cannot_be_written_are_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("promises");
        let promises = Promises::load(file.clone());
        promises.put(vec![promise(1)]).unwrap();
        // A folder blocks the path of the temporary file, so the write fails.
        std::fs::create_dir(folder.path().join("promises.new")).unwrap();
        promises.put(vec![promise(2)]).unwrap_err();
        assert_eq!((promises.all(), Promises::load(file).all()), (vec![promise(1)], vec![promise(1)]));
        Promises::default().put(vec![promise(1)]).unwrap_err();
    }
}
