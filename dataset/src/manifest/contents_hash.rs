//! Computes the id of a snapshot.

use sha2::{Digest, Sha256};

use super::layout;
use crate::snapshot::SnapshotId;

/// The hash of the origin's URL, to which the sections are added that describe the snapshot's contents.
pub(super) fn snapshot_hash(origin: &str) -> Sha256 {
    let mut hash = Sha256::new();
    hash.update([layout::VERSION]);
    hash.update((origin.len() as u64).to_le_bytes());
    hash.update(origin.as_bytes());
    hash
}

/// Hashes the origin's URL and the sections that describe the snapshot's contents, which follow each other.
pub(super) fn snapshot_id(origin: &str, contents: &[u8]) -> SnapshotId {
    let mut hash = snapshot_hash(origin);
    hash.update(contents);
    SnapshotId(hash.finalize().into())
}
