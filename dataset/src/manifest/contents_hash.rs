//! Computes the id of a snapshot.

use sha2::{Digest, Sha256};

use crate::snapshot::SnapshotId;

/// Starts the hash of a snapshot with the manifest's version and the origin's URL. The sections that describe its
/// contents are added to it.
pub(super) fn snapshot_hash(version: u8, origin: &str) -> Sha256 {
    let mut hash = Sha256::new();
    hash.update([version]);
    hash.update((origin.len() as u64).to_le_bytes());
    hash.update(origin.as_bytes());
    hash
}

/// Hashes the version, the origin's URL and the consecutive sections that describe the snapshot's contents.
pub(super) fn snapshot_id(version: u8, origin: &str, contents: &[u8]) -> SnapshotId {
    let mut hash = snapshot_hash(version, origin);
    hash.update(contents);
    SnapshotId(hash.finalize().into())
}
