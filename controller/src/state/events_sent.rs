//! Which events were written about a dataset: none is emitted twice while anything of the dataset exists.

use super::State;
use crate::work_queue::Work;
use larder_kube::key::Key;

impl State {
    /// Remembers the events that a piece of work has written. Events about other things follow from a status and are emitted with it.
    pub fn remember_events(&mut self, work: &Work, events: &[String]) {
        if let Work::Dataset(dataset) = work
            && !events.is_empty()
        {
            self.told.entry(dataset.clone()).or_default().extend(events.iter().cloned());
        }
    }

    /// There is neither such a Dataset nor a claim that asks for it.
    pub fn forget_events(&mut self, dataset: &Key) {
        self.told.remove(dataset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_datasets_are_remembered_until_there_is_nothing_of_them() {
        let mut state = State::default();
        let pets = Key::new("team-a", "pets");
        state.remember_events(&Work::Dataset(pets.clone()), &["pets.1".to_owned()]);
        assert!(state.world(&pets, 0, 0).told.contains("pets.1"));
        assert!(state.world(&Key::new("team-a", "cars"), 0, 0).told.is_empty());
        state.remember_events(&Work::Job(pets.clone()), &["train.1".to_owned()]);
        state.forget_events(&pets);
        assert!(state.told.is_empty(), "{:?}", state.told);
    }
}
