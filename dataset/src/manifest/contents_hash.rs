//! Computes the id of a snapshot.

use sha2::{Digest, Sha256};

use super::layout;
use crate::snapshot::SnapshotId;

/// Hashes the origin's URL and the sections that describe the snapshot's contents.
pub(super) fn snapshot_id<'a>(origin: &str, sections: impl Iterator<Item = &'a [u8]>) -> SnapshotId {
    let mut hash = Sha256::new();
    hash.update([layout::VERSION]);
    hash.update((origin.len() as u64).to_le_bytes());
    hash.update(origin.as_bytes());
    for section in sections {
        hash.update(section);
    }
    SnapshotId(hash.finalize().into())
}
