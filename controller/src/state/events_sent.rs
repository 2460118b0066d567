//! The Events that were written about a dataset, none of which is written twice while the dataset or a claim to it exists.

use super::State;
use crate::work_queue::Work;
use larder_kube::key::Key;

impl State {
    /// Remembers the Events that a piece of work has written. Other work than that of datasets writes an Event with the
    /// status from which it follows, which no later decision does again.
    pub fn remember_emitted(&mut self, work: &Work, events: &[String]) {
        if let Work::Dataset(dataset) = work
            && !events.is_empty()
        {
            self.emitted.entry(dataset.clone()).or_default().extend(events.iter().cloned());
        }
    }

    /// Forgets the Events about a dataset: there is neither such a Dataset nor a claim that asks for it.
    pub fn forget_emitted(&mut self, dataset: &Key) {
        self.emitted.remove(dataset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_datasets_are_remembered_until_there_is_nothing_of_them() {
        let mut state = State::default();
        let pets = Key::new("team-a", "pets");
        state.remember_emitted(&Work::Dataset(pets.clone()), &["pets.1".to_owned()]);
        assert!(state.dataset_view(&pets, 0, 0).emitted.contains("pets.1"));
        assert!(state.dataset_view(&Key::new("team-a", "cars"), 0, 0).emitted.is_empty());
        state.remember_emitted(&Work::Job(pets.clone()), &["train.1".to_owned()]);
        state.forget_emitted(&pets);
        assert!(state.emitted.is_empty(), "{:?}", state.emitted);
    }
}
