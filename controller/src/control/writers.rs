//! The work whose writes are in flight, shared out among namespaces: the writes of one namespace may be slow, for
//! example because a webhook for its pods does not answer, and must not keep all others waiting.

use std::collections::{BTreeMap, BTreeSet};

use crate::work_queue::Work;

/// Work of a namespace begins while the namespace has fewer than this many times as many writers as are free. One
/// namespace alone thus gets three quarters of all writers, the next one three quarters of the rest.
const SHARE: usize = 3;

#[derive(Debug)]
pub(super) struct Writers {
    most: usize,
    /// The work in flight and its namespace; empty for none.
    in_flight: BTreeMap<Work, String>,
    /// By namespace, due work that waits for writers.
    waiting: BTreeMap<String, BTreeSet<Work>>,
}

impl Writers {
    pub(super) fn new(most: usize) -> Self {
        Self { most, in_flight: BTreeMap::new(), waiting: BTreeMap::new() }
    }

    /// Returns the work if it may begin. If its namespace has too many writers, the work waits until [`Self::end`].
    pub(super) fn admit(&mut self, work: Work, namespace: Option<&str>) -> Option<Work> {
        let Some(namespace) = namespace.filter(|namespace| self.room(namespace) == 0) else { return Some(work) };
        self.waiting.entry(namespace.to_owned()).or_default().insert(work);
        None
    }

    /// Records that the work's writes are in flight.
    pub(super) fn begin(&mut self, work: &Work, namespace: Option<String>) {
        self.in_flight.insert(work.clone(), namespace.unwrap_or_default());
    }

    /// Records that the work's writes have completed. Returns the work that may begin now.
    pub(super) fn end(&mut self, work: &Work) -> Vec<Work> {
        self.in_flight.remove(work);
        let rooms: Vec<(String, usize)> =
            self.waiting.keys().map(|namespace| (namespace.clone(), self.room(namespace))).collect();
        let mut next = Vec::new();
        for (namespace, room) in rooms {
            if let Some(waiting) = self.waiting.get_mut(&namespace) {
                next.extend((0..room).map_while(|_| waiting.pop_first()));
            }
        }
        self.waiting.retain(|_, waiting| !waiting.is_empty());
        next
    }

    /// The number of further writers that a namespace may have. It is never 0 for a namespace without any.
    fn room(&self, namespace: &str) -> usize {
        let free = self.most.saturating_sub(self.in_flight.len());
        let own = self.in_flight.values().filter(|there| *there == namespace).count();
        if own == 0 { free.max(1) } else { (SHARE * free).saturating_sub(own).min(free) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Key;

    fn job(namespace: &str, at: usize) -> Work {
        Work::Job(Key::new(namespace, &format!("j{at:02}")))
    }

    /// Begins as much of the work of a namespace as it may.
    fn begin(writers: &mut Writers, namespace: &str) -> usize {
        let mut begun = 0;
        for at in 0..40 {
            if let Some(work) = writers.admit(job(namespace, at), Some(namespace)) {
                writers.begin(&work, Some(namespace.to_owned()));
                begun += 1;
            }
        }
        begun
    }

    // SEMANTICS: J16
    #[test]
    fn a_namespace_whose_writes_hang_leaves_writers_to_others() {
        let mut writers = Writers::new(32);
        assert_eq!(begin(&mut writers, "hangs"), 24);
        assert_eq!(begin(&mut writers, "other"), 6);
        assert!(writers.admit(job("third", 0), Some("third")).is_some());
        assert!(writers.admit(Work::Registry, None).is_some());
        // What waits begins once there is room, the rest later.
        let next = writers.end(&job("other", 0));
        assert!(next.contains(&job("other", 6)) && !next.contains(&job("hangs", 24)), "{next:?}");
        let mut begun = 0;
        let mut flying: Vec<Work> = (0..24).map(|at| job("hangs", at)).collect();
        while let Some(done) = flying.pop() {
            let is_of_hangs = |work: &Work| matches!(work, Work::Job(key) if key.namespace == "hangs");
            for work in writers.end(&done).into_iter().filter(is_of_hangs) {
                if let Some(work) = writers.admit(work, Some("hangs")) {
                    writers.begin(&work, Some("hangs".to_owned()));
                    flying.push(work);
                    begun += 1;
                }
            }
        }
        assert_eq!(begun, 16, "all of it");
    }
}
