//! Aliases: for each block whose record was written for another snapshot, the block that the record names.
//!
//! ```text
//!  word of a block: 0 = none, else  bits 32..64 = first 4 bytes of the other snapshot's id | bits 0..32 = its block + 1
//! ```
//! The file's layout is described in `table`. It is created when the first block is adopted. It is sparse: only pages
//! that hold aliases occupy disk space.
//!
//! Invariant: an alias states that two blocks of two snapshots have the same bytes. Both manifests prove it, so the
//! alias stays true whatever happens to slots and records. A damaged or missing alias leads to a record that fails
//! verification.

use std::io;
use std::path::Path;

use larder_dataset::{BlockIndex, CacheId};

use crate::record::KEY_BYTES;
use crate::table::{Kind, Table};

const KIND: Kind = Kind { magic: *b"LRDRALIA", words: 1, allocate: false };

/// The aliases of a snapshot's blocks. Any number of threads may look up.
#[derive(Debug)]
pub(crate) struct Aliases(Table);

impl Aliases {
    /// Opens the file at `path`. Creates it if it is missing, damaged or belongs to another snapshot.
    pub(crate) fn open(path: &Path, id: &CacheId, blocks: u32) -> io::Result<Self> {
        Table::open(path, KIND, id, blocks).map(|(table, _)| Self(table))
    }

    /// Opens the file at `path` if it exists and belongs to this snapshot.
    pub(crate) fn open_existing(path: &Path, id: &CacheId, blocks: u32) -> io::Result<Option<Self>> {
        match Table::open_existing(path, KIND, id, blocks) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => Ok(opened?.map(Self)),
        }
    }

    /// Returns the block with the same bytes in the snapshot whose key is `key`.
    pub(crate) fn get(&self, block: BlockIndex, key: &[u8; KEY_BYTES]) -> Option<BlockIndex> {
        let word = self.0.get(block.0.into());
        // The cast keeps the lower 32 bits: the other block's index plus 1, or 0 for no alias.
        let other = (word as u32).checked_sub(1)?;
        (word >> 32 == tag(key)).then_some(BlockIndex(other))
    }

    pub(crate) fn set(&self, block: BlockIndex, key: &[u8; KEY_BYTES], other: BlockIndex) -> io::Result<()> {
        // `None` here means block u32::MAX, which cannot exist: a snapshot has at most u32::MAX blocks.
        let other = other.0.checked_add(1).ok_or(io::ErrorKind::InvalidInput)?;
        self.0.set(block.0.into(), &[tag(key) << 32 | u64::from(other)])
    }

    /// Makes all aliases set so far survive a power loss.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

fn tag(key: &[u8; KEY_BYTES]) -> u64 {
    u64::from(u32::from_le_bytes([key[0], key[1], key[2], key[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_is_of_one_snapshot_and_outlives_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("aliases");
        let id = CacheId([0x5a; 32]);
        assert!(Aliases::open_existing(&path, &id, 1000).unwrap().is_none());
        let aliases = Aliases::open(&path, &id, 1000).unwrap();
        let (one, other) = ([1; KEY_BYTES], [2; KEY_BYTES]);
        aliases.set(BlockIndex(7), &one, BlockIndex(0)).unwrap();
        aliases.set(BlockIndex(8), &other, BlockIndex(u32::MAX - 1)).unwrap();
        aliases.set(BlockIndex(9), &other, BlockIndex(u32::MAX)).unwrap_err();
        aliases.set(BlockIndex(1000), &one, BlockIndex(0)).unwrap_err();
        drop(aliases);
        let aliases = Aliases::open_existing(&path, &id, 1000).unwrap().unwrap();
        let get = |block, key| aliases.get(BlockIndex(block), key);
        assert_eq!((get(7, &one), get(7, &other)), (Some(BlockIndex(0)), None));
        assert_eq!((get(8, &other), get(8, &one)), (Some(BlockIndex(u32::MAX - 1)), None));
        assert_eq!((get(9, &other), get(1000, &one), get(0, &[0; KEY_BYTES])), (None, None, None));
        assert!(Aliases::open_existing(&path, &CacheId([1; 32]), 1000).unwrap().is_none());
    }
}
