//! The Events that were written about a dataset or the cache of a node. None is written twice while the dataset or a
//! claim to it exists, or while the cache lacks room.

use std::collections::BTreeSet;

use super::State;
use crate::work_queue::Work;
use larder_kube::key::Key;

impl State {
    /// Remembers the Events that a work item has written. Only datasets and the caches of nodes need this: other work
    /// writes an Event together with the status that causes it, so no later decision repeats the Event.
    pub fn remember_emitted(&mut self, work: &Work, events: &[String]) {
        let about = match work {
            Work::Dataset(dataset) => dataset.clone(),
            Work::Labels(node) => Key::cluster(node),
            _ => return,
        };
        if !events.is_empty() {
            self.emitted.entry(about).or_default().extend(events.iter().cloned());
        }
    }

    /// The Events that were written about a dataset or a node.
    pub fn emitted(&self, about: &Key) -> &BTreeSet<String> {
        self.emitted.get(about).unwrap_or(&self.none_emitted)
    }

    /// Forgets the Events about a dataset if neither the Dataset nor a claim to it exists, or those about the cache of a
    /// node that has room again.
    pub fn forget_emitted(&mut self, about: &Key) {
        self.emitted.remove(about);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Seconds;

    #[test]
    fn events_of_datasets_are_remembered_until_there_is_nothing_of_them() {
        let mut state = State::default();
        let pets = Key::new("team-a", "pets");
        state.remember_emitted(&Work::Dataset(pets.clone()), &["pets.1".to_owned()]);
        assert!(state.dataset_view(&pets, Seconds(0), 0).emitted.contains("pets.1"));
        assert!(state.dataset_view(&Key::new("team-a", "cars"), Seconds(0), 0).emitted.is_empty());
        state.remember_emitted(&Work::Job(pets.clone()), &["train.1".to_owned()]);
        state.forget_emitted(&pets);
        assert!(state.emitted.is_empty(), "{:?}", state.emitted);
    }
}
