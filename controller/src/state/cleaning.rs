//! The snapshots whose bytes are to go from a node, asked for by all datasets together.

use std::collections::BTreeMap;

use larder_api::CleanedSnapshot;

use super::State;
use crate::objects::Key;
use crate::work_queue::Work;

/// Most entries of a NodeCache, as its schema has it; what is more waits until others are done.
const ENTRIES_MAX: usize = 1024;

impl State {
    /// Remembers which bytes of a Dataset are to go from which nodes.
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

    /// An entry does not say whose it is. So those that were written stay until all Datasets were decided about.
    pub(super) fn is_undecided(&self) -> bool {
        self.decided.len() < self.datasets.len()
    }

    /// Adds the nodes that may have entries of nobody.
    pub(super) fn drop_old_entries(&self, work: &mut Vec<Work>) {
        let asked = self.caches.iter().filter(|cache| !cache.spec.clean.is_empty());
        work.extend(asked.map(|cache| Work::Promises(cache.meta.key.name.clone())));
    }

    /// The snapshots whose bytes are to go from a node. Of two times for one snapshot the later counts.
    pub fn clean(&self, node: &str) -> Vec<CleanedSnapshot> {
        let written = self.caches.get(&Key::cluster(node)).filter(|_| self.is_undecided());
        let written = written.into_iter().flat_map(|cache| &cache.spec.clean);
        let decided = self.cleaned.values().filter_map(|nodes| nodes.get(node)).flatten();
        let mut latest: BTreeMap<&str, &CleanedSnapshot> = BTreeMap::new();
        for entry in written.chain(decided) {
            let there = latest.entry(&entry.snapshot).or_insert(entry);
            if there.before.0 < entry.before.0 {
                *there = entry;
            }
        }
        latest.into_values().take(ENTRIES_MAX).cloned().collect()
    }
}
