//! The results of the controller's own deletions. The watches report the same changes, earlier or later.

use super::State;
use crate::work_queue::Work;
use crate::write::Deletion;
use larder_kube::key::{Key, Meta};
use larder_kube::kinds::Kind;

impl State {
    /// Records that the watch of a kind has reported everything up to this version.
    pub(super) fn saw(&mut self, kind: Kind, version: u64) {
        let seen = self.seen.entry(kind).or_default();
        *seen = version.max(*seen);
    }

    /// True if the watch has already reported a written object and its deletion. Versions increase over all objects of
    /// a kind.
    pub(super) fn is_old_news(&self, kind: Kind, meta: &Meta) -> bool {
        !self.has(kind, &meta.key) && self.seen.get(&kind).is_some_and(|seen| *seen >= meta.version)
    }

    /// Records that the controller has deleted the object with this uid. Otherwise it would delete the object again and
    /// again until the watch reports the deletion.
    pub fn deleted(&mut self, kind: Kind, key: &Key, uid: &str, deletion: Deletion) -> Vec<Work> {
        let mut work = Vec::new();
        if self.meta(kind, key).is_some_and(|there| there.uid == uid) {
            match deletion {
                Deletion::NotFound => self.remove(kind, key, &mut work),
                Deletion::Accepted => self.leaves(kind, key, uid, &mut work),
            }
        }
        work
    }
}
