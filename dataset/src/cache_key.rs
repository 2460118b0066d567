//! The identity of cached blocks.
//!
//! The same snapshot may be read from several servers, and with the credentials of several tenants. Nothing proves that
//! these have the same bytes or that one tenant may read what another has fetched, so each has a cache of its own.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::snapshot::{InvalidSnapshotId, SnapshotId};

/// Separates these hashes from all others.
const DOMAIN: &[u8] = b"larder cache key 1";

/// Identifies a cache on all nodes; see [`CacheKey`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CacheId(pub [u8; 32]);

impl fmt::Display for CacheId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SnapshotId(self.0).fmt(f)
    }
}

impl fmt::Debug for CacheId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for CacheId {
    type Err = InvalidSnapshotId;

    fn from_str(text: &str) -> Result<Self, InvalidSnapshotId> {
        text.parse().map(|SnapshotId(id)| Self(id))
    }
}

impl TryFrom<String> for CacheId {
    type Error = InvalidSnapshotId;

    fn try_from(text: String) -> Result<Self, InvalidSnapshotId> {
        text.parse()
    }
}

impl From<CacheId> for String {
    fn from(id: CacheId) -> Self {
        id.to_string()
    }
}

impl From<SnapshotId> for CacheId {
    /// The id of the cache of a snapshot at the node's own place, without an owner.
    fn from(SnapshotId(id): SnapshotId) -> Self {
        Self(id)
    }
}

/// The snapshot whose blocks a cache holds, and for whom it holds them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CacheKey {
    snapshot: SnapshotId,
    place: String,
    owner: String,
    id: CacheId,
}

impl CacheKey {
    /// The key of a snapshot that is read from `place` (the server and account; empty: those of the node itself) with
    /// the credentials of `owner` (empty: those of the node or of its administrator).
    pub fn new(snapshot: SnapshotId, place: impl Into<String>, owner: impl Into<String>) -> Self {
        let (place, owner) = (place.into(), owner.into());
        let id = if place.is_empty() && owner.is_empty() {
            // The caches of earlier versions have these ids.
            snapshot.into()
        } else {
            let mut hash = Sha256::new();
            hash.update(DOMAIN);
            hash.update(snapshot.0);
            hash.update((place.len() as u64).to_le_bytes());
            hash.update(&place);
            hash.update(&owner);
            CacheId(hash.finalize().into())
        };
        Self { snapshot, place, owner, id }
    }

    /// The snapshot.
    pub const fn snapshot(&self) -> SnapshotId {
        self.snapshot
    }

    /// The server and account that the snapshot is read from; empty: those of the node itself.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The tenant whose credentials read it; empty: the node or its administrator.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The id of the cache.
    pub const fn id(&self) -> CacheId {
        self.id
    }
}

impl From<SnapshotId> for CacheKey {
    /// The key of a snapshot at the node's own place, without an owner.
    fn from(snapshot: SnapshotId) -> Self {
        Self::new(snapshot, "", "")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    // SEMANTICS: C19
    #[test]
    fn snapshot_place_and_owner_each_make_another_cache() {
        let keys = [
            CacheKey::new(SnapshotId([1; 32]), "", ""),
            CacheKey::new(SnapshotId([2; 32]), "", ""),
            CacheKey::new(SnapshotId([1; 32]), "http://a", ""),
            CacheKey::new(SnapshotId([1; 32]), "", "http://a"),
            CacheKey::new(SnapshotId([1; 32]), "http://a", "b"),
            CacheKey::new(SnapshotId([1; 32]), "http://", "ab"),
        ];
        assert_eq!(keys.iter().map(CacheKey::id).collect::<BTreeSet<_>>().len(), keys.len());
    }

    #[test]
    fn the_ids_of_earlier_versions_and_of_keys_stay_the_same() {
        let snapshot = SnapshotId([1; 32]);
        assert_eq!(CacheKey::from(snapshot).id(), CacheId([1; 32]));
        assert_eq!(
            CacheKey::new(snapshot, "http://a", "b").id().to_string(),
            "7267d63cdbe2448b52a81b32fac8f90a8fd6bf00a190bcfd80809c8496a77496"
        );
    }
}
