//! The peers that share another snapshot of a dataset's origin: they and this node have no block in common, and each
//! fetches all of the dataset.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use larder_peers::OtherSnapshot;
use tracing::warn;

use crate::kept_listing::age_of;

/// The hexadecimal digits that name a snapshot to people.
const SHOWN_DIGITS: usize = 12;

/// The other snapshots that peers share instead of one, by the peers' names.
#[derive(Debug, Default)]
pub(crate) struct OtherSnapshots(Mutex<BTreeMap<String, OtherSnapshot>>);

impl OtherSnapshots {
    /// Applies the answers of the peers that refuse the snapshot, and logs changes. `name` is the dataset's.
    pub(crate) fn apply(&self, name: &str, others: BTreeMap<String, OtherSnapshot>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (peer, other) in &others {
            if known.get(peer).is_none_or(|known| known.snapshot != other.snapshot) {
                let listed_seconds_ago = age_of(other.listed_ns).as_secs();
                warn!(
                    dataset = name,
                    peer,
                    own = %other.asked,
                    theirs = %other.snapshot,
                    listed_seconds_ago,
                    "another node serves a different snapshot of this origin, so the two share no blocks: `larder stats \
                     DIR` prints the command that publishes one listing for all nodes"
                );
            }
        }
        *known = others;
    }

    /// Which peers share other snapshots of the origin, and `renewal`, which is what to do about it; none if none is
    /// known to.
    pub(crate) fn advice(&self, renewal: &str) -> Option<String> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_empty() {
            return None;
        }
        let mut text =
            "other nodes serve different snapshots of this origin and share no blocks with this node: ".to_owned();
        for (at, (peer, other)) in known.iter().enumerate() {
            let snapshot = other.snapshot.to_string();
            let shown = snapshot.get(..SHOWN_DIGITS).unwrap_or_default();
            let minutes = age_of(other.listed_ns).as_secs() / 60;
            // Writing to a String cannot fail.
            let _ = write!(text, "{}{peer} has {shown} (listed {minutes} min ago)", if at > 0 { ", " } else { "" });
        }
        Some(text + "; " + renewal)
    }
}

#[cfg(test)]
mod tests {
    use larder_dataset::{CacheId, SnapshotId};

    use super::*;

    #[test]
    fn peers_that_share_another_snapshot_are_named_with_what_to_do() {
        let others = OtherSnapshots::default();
        assert_eq!(others.advice("mount it"), None);
        let other = OtherSnapshot { asked: CacheId([1; 32]), snapshot: SnapshotId([0xab; 32]), listed_ns: 0 };
        others.apply("data", [("b".to_owned(), other), ("c".to_owned(), other)].into());
        let advice = others.advice("mount it").unwrap();
        assert!(advice.contains("b has abababababab (listed") && advice.contains(", c has"), "{advice}");
        assert!(advice.ends_with("; mount it"), "{advice}");
        others.apply("data", BTreeMap::new());
        assert_eq!(others.advice("mount it"), None);
    }
}
