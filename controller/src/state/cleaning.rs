//! The snapshots whose bytes a node should drop, requested by all datasets together.

use std::collections::BTreeMap;

use larder_api::CleanedSnapshot;

use super::State;
use crate::objects::Key;
use crate::work_queue::Work;

/// The most entries of a NodeCache, as in its schema. Further entries wait until others are done.
const ENTRIES_MAX: usize = 1024;

impl State {
    /// Records which bytes of a Dataset should be dropped from which nodes.
    pub(super) fn ask_to_clean(
        &mut self,
        uid: &str,
        clean: BTreeMap<String, Vec<CleanedSnapshot>>,
        work: &mut Vec<Work>,
    ) {
        let before = self.cleaned.remove(uid).unwrap_or_default();
        let nodes = clean.iter().chain(&before).filter(|(node, _)| clean.get(*node) != before.get(*node));
        work.extend(nodes.map(|(node, _)| Work::Promises(node.clone())));
        if !clean.is_empty() {
            self.cleaned.insert(uid.to_owned(), clean);
        }
    }

    /// An entry does not name its Dataset, so written entries are kept until all Datasets have been decided about.
    pub(super) fn is_undecided(&self) -> bool {
        self.decided.len() < self.datasets.len()
    }

    /// Schedules the nodes that may have entries of no Dataset.
    pub(super) fn drop_old_entries(&self, work: &mut Vec<Work>) {
        let asked = self.caches.iter().filter(|cache| !cache.spec.clean.is_empty());
        work.extend(asked.map(|cache| Work::Promises(cache.meta.key.name.clone())));
    }

    /// The snapshots whose bytes a node should drop. If a snapshot has two times, the later one counts.
    pub fn clean(&self, node: &str) -> Vec<CleanedSnapshot> {
        let written = self.caches.get(&Key::cluster(node)).filter(|_| self.is_undecided());
        let written = written.into_iter().flat_map(|cache| &cache.spec.clean);
        let decided = self.cleaned.values().filter_map(|nodes| nodes.get(node)).flatten();
        let mut latest: BTreeMap<(&str, &str), &CleanedSnapshot> = BTreeMap::new();
        for entry in written.chain(decided) {
            let there = latest.entry((&entry.snapshot, &entry.owner)).or_insert(entry);
            if there.before.0 < entry.before.0 {
                *there = entry;
            }
        }
        latest.into_values().take(ENTRIES_MAX).cloned().collect()
    }
}
