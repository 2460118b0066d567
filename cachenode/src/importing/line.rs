//! The line of imports that wait for a slot: which is next, and which gives its slot away.
//!
//! Invariants: the next slot goes to the owner that has the fewest, and among these to the one that has waited or was
//! served longest ago, so no owner waits for another's whole backlog. A slot is given away only to an owner that then
//! has no more slots than the one that gives. Pure: it knows neither the time nor the processes.

use std::collections::HashMap;

/// An import that waits or runs.
#[derive(Clone, Debug)]
struct Entry {
    id: u64,
    owner: String,
    /// True if it was asked to give its slot away.
    gives_way: bool,
}

/// Imports, some with a slot, the others waiting.
#[derive(Clone, Debug)]
pub(super) struct Line {
    slots: usize,
    running: Vec<Entry>,
    /// In the order in which they came.
    waiting: Vec<Entry>,
    /// When the owners that wait were last given a slot.
    served: HashMap<String, u64>,
    /// Numbers imports and services, in one order.
    now: u64,
}

impl Line {
    pub(super) fn new(slots: usize) -> Self {
        Self { slots, running: Vec::new(), waiting: Vec::new(), served: HashMap::new(), now: 0 }
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// An import of this owner waits from now on, under the name that is returned.
    pub(super) fn join(&mut self, owner: &str) -> u64 {
        let id = self.tick();
        self.waiting.push(Entry { id, owner: owner.to_owned(), gives_way: false });
        id
    }

    /// An import has ended or waits no more.
    pub(super) fn leave(&mut self, id: u64) {
        self.waiting.retain(|entry| entry.id != id);
        self.running.retain(|entry| entry.id != id);
    }

    /// Gives a free slot to the next import. `None` if no slot is free or none waits.
    pub(super) fn admit(&mut self) -> Option<u64> {
        if self.running.len() >= self.slots {
            return None;
        }
        let entry = self.waiting.remove(self.next()?);
        let now = self.tick();
        self.served.insert(entry.owner.clone(), now);
        // Of an owner that comes again later, the time at which it does so counts.
        let waits: Vec<&str> = self.waiting.iter().map(|waiting| waiting.owner.as_str()).collect();
        self.served.retain(|owner, _| waits.contains(&owner.as_str()));
        let id = entry.id;
        self.running.push(entry);
        Some(id)
    }

    /// True if an import whose turn is over is to give its slot away. It is asked once; it then leaves, and joins
    /// again.
    pub(super) fn gives_way(&mut self, id: u64) -> bool {
        // Those that were asked already make room for the first in the line.
        let mut later = self.clone();
        later.running.retain(|entry| !entry.gives_way);
        while later.admit().is_some() {}
        let Some(at) = later.running.iter().position(|entry| entry.id == id) else { return false };
        let own = later.running.remove(at);
        let Some(next) = later.next() else { return false };
        if later.running_of(&later.waiting[next].owner) > later.running_of(&own.owner) {
            return false;
        }
        self.running.iter_mut().filter(|entry| entry.id == id).for_each(|entry| entry.gives_way = true);
        true
    }

    /// The position of the import that is next.
    fn next(&self) -> Option<usize> {
        let mut since: HashMap<&str, u64> = HashMap::new();
        for entry in &self.waiting {
            let served = self.served.get(&entry.owner).copied().unwrap_or(0);
            since.entry(&entry.owner).or_insert(served.max(entry.id));
        }
        let rank = |entry: &Entry| (self.running_of(&entry.owner), since.get(entry.owner.as_str()).copied());
        // The first of several with the same rank: they have one owner.
        (0..self.waiting.len()).min_by_key(|&at| rank(&self.waiting[at]))
    }

    fn running_of(&self, owner: &str) -> usize {
        self.running.iter().filter(|entry| entry.owner == owner).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of these owners.
    fn line(owners: &[&str]) -> Line {
        let mut line = Line::new(2);
        for owner in owners {
            line.join(owner);
        }
        line
    }

    /// The owners of the imports that run, in the order in which they were given their slots.
    fn running(line: &Line) -> Vec<&str> {
        line.running.iter().map(|entry| entry.owner.as_str()).collect()
    }

    fn admit_all(line: &mut Line) {
        while line.admit().is_some() {}
    }

    /// The first that runs ends, and the next gets its slot.
    fn end_first(line: &mut Line) {
        line.leave(line.running[0].id);
        admit_all(line);
    }

    #[test]
    fn slots_go_to_owners_in_turn_and_within_an_owner_in_order() {
        let mut line = line(&["a", "a", "a", "b", "c", "b"]);
        admit_all(&mut line);
        assert_eq!(running(&line), ["a", "b"]);
        end_first(&mut line);
        assert_eq!(running(&line), ["b", "c"], "a was served last");
        end_first(&mut line);
        assert_eq!(running(&line), ["c", "a"]);
        let of_a = line.running[1].id;
        assert_eq!(
            of_a,
            line.waiting.iter().filter(|entry| entry.owner == "a").map(|entry| entry.id).min().unwrap() - 1
        );
        end_first(&mut line);
        assert_eq!(running(&line), ["a", "b"]);
        end_first(&mut line);
        assert_eq!(running(&line), ["b", "a"]);
        end_first(&mut line);
        assert_eq!((running(&line), line.waiting.len()), (vec!["a"], 0));
        assert!(line.served.is_empty());
    }

    #[test]
    fn an_owner_that_comes_later_does_not_pass_one_that_waits() {
        let mut line = line(&["a", "b", "a"]);
        admit_all(&mut line);
        for n in 0..20 {
            line.join(&format!("new-{n}"));
        }
        end_first(&mut line);
        assert_eq!(running(&line), ["b", "a"]);
    }

    #[test]
    fn an_owner_that_has_a_slot_waits_for_one_that_has_none() {
        let mut line = line(&["a", "b", "a"]);
        admit_all(&mut line);
        line.join("c");
        // The slot of b becomes free. a has waited for longer than c.
        line.leave(line.running[1].id);
        admit_all(&mut line);
        assert_eq!(running(&line), ["a", "c"]);
    }

    #[test]
    fn one_slot_is_given_away_for_each_that_waits_and_only_where_it_makes_turns_fairer() {
        // One owner has both slots, and another comes.
        let mut line = line(&["a", "a"]);
        admit_all(&mut line);
        let [first, second] = [line.running[0].id, line.running[1].id];
        assert!(!line.gives_way(first), "nobody waits");
        line.join("b");
        assert!(line.gives_way(second));
        assert!(!line.gives_way(first), "one is enough");
        assert!(!line.gives_way(second), "it is asked once");
        line.leave(second);
        line.join("a");
        admit_all(&mut line);
        assert_eq!(running(&line), ["a", "b"]);
        // Both owners have one now: only the own one of the owner that waits gives way.
        let of_b = line.running[1].id;
        assert!(!line.gives_way(of_b));
        assert!(line.gives_way(first));
        // One that is gone is asked for nothing.
        line.leave(first);
        assert!(!line.gives_way(first));
    }

    /// The owners' imports never end by themselves.
    fn assert_fair(backlogs: &[usize]) {
        let mut line = Line::new(2);
        for (owner, backlog) in backlogs.iter().enumerate() {
            for _ in 0..*backlog {
                line.join(&owner.to_string());
            }
        }
        let mut waited = vec![0; backlogs.len()];
        for _ in 0..60 {
            admit_all(&mut line);
            assert!(line.running.len() <= 2);
            for (owner, turns) in waited.iter_mut().enumerate() {
                *turns = if running(&line).contains(&owner.to_string().as_str()) { 0 } else { *turns + 1 };
                assert!(*turns < backlogs.len(), "{backlogs:?}: owner {owner} has waited for {turns} turns");
            }
            // All turns are over.
            let over: Vec<(u64, String)> = line.running.iter().map(|it| (it.id, it.owner.clone())).collect();
            for (id, owner) in over {
                if line.gives_way(id) {
                    line.leave(id);
                    line.join(&owner);
                }
            }
        }
    }

    #[test]
    fn every_owner_gets_a_slot_within_as_many_turns_as_there_are_owners() {
        for owners in 1..=5 {
            for mut code in 0..3_usize.pow(owners) {
                let backlogs = std::iter::repeat_with(|| {
                    let digit = code % 3;
                    code /= 3;
                    [1, 2, 7][digit]
                });
                assert_fair(&backlogs.take(owners as usize).collect::<Vec<_>>());
            }
        }
    }
}
