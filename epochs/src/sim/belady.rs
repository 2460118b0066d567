//! Bélády: keeps the files that are used soonest, given the order of this epoch and of the next epoch. With files of
//! one size, no policy with the same knowledge can hit more often; with files of several sizes Bélády comes close to
//! the optimum.
//!
//! A missed file is kept if it is used sooner than every file that would have to be evicted for it.
//!
//! On one node, or with an owner for each block, knowing the order gains nothing over NR. A shuffled epoch reads each
//! file once, so a file that is hit was in the cache before the epoch began, and the cache held at most cache / dataset
//! of them. NR reaches that bound, and no cache that is filled by reads can exceed it, whatever its policy knows.
//! (Prefetching in that order hides the origin's latency, but requests the same number of bytes.) If each node reads
//! its own shard, which changes each epoch, knowing the next shard does help: four nodes with 6.25 % each hit 24.9 %. A
//! file with no known use only fills room that no other file needs.
//!
//! Invariant: a cached file is in exactly one of `now` (still to be read in this epoch), `next` (read in the next
//! epoch) and `unknown`.

use super::bits::{Bits, MaxSet};
use super::files::Files;

/// The orders of this epoch and the next, and each file's position in the next.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) now: Vec<u32>,
    pub(super) next: Vec<u32>,
    place_in_next: Vec<u32>,
}

impl Plan {
    /// Advances to the next epoch. `fill` writes the order of the epoch after it.
    pub(super) fn advance(&mut self, fill: impl FnOnce(&mut Vec<u32>)) {
        std::mem::swap(&mut self.now, &mut self.next);
        fill(&mut self.next);
        self.place_in_next.resize(self.next.len(), 0);
        for (place, &file) in (0_u32..).zip(&self.next) {
            self.place_in_next[file as usize] = place;
        }
    }

    pub(super) fn place_in_next(&self, file: u32) -> u32 {
        self.place_in_next[file as usize]
    }
}

/// A file's next use, from the soonest to the latest: in this epoch, in the next, at an unknown time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Now(u32),
    Next(u32),
    Unknown,
}

/// One node's cache. It holds whole files.
#[derive(Debug)]
pub(super) struct Belady {
    capacity_bytes: u64,
    used_bytes: u64,
    cached: Bits,
    now: MaxSet,
    next: MaxSet,
    unknown: Vec<u32>,
    victims: Vec<(u32, Use)>,
}

impl Belady {
    pub(super) fn new(capacity_bytes: u64, files: u32) -> Self {
        Self {
            capacity_bytes,
            used_bytes: 0,
            cached: Bits::new(files),
            now: MaxSet::new(files),
            next: MaxSet::new(files),
            unknown: Vec::new(),
            victims: Vec::new(),
        }
    }

    /// Starts an epoch: the next files become the current files, and `plan` gives the new next files. `is_mine` returns
    /// whether this node serves the file at a position of the next epoch.
    pub(super) fn start_epoch(&mut self, plan: &Plan, is_mine: impl Fn(u32) -> bool) {
        // All of this epoch's files were read, so `now` is empty and can become the new `next`.
        std::mem::swap(&mut self.now, &mut self.next);
        let next = &mut self.next;
        self.unknown.retain(|&file| {
            let place = plan.place_in_next(file);
            let known = is_mine(place);
            if known {
                next.insert(place);
            }
            !known
        });
    }

    /// Reads the file at the position `place` of this epoch. Returns whether it was cached. `is_mine` is as for
    /// [`start_epoch`](Self::start_epoch).
    pub(super) fn read(&mut self, place: u32, plan: &Plan, files: &Files, is_mine: impl Fn(u32) -> bool) -> bool {
        let file = plan.now[place as usize];
        let again = plan.place_in_next(file);
        let next_use = if is_mine(again) { Use::Next(again) } else { Use::Unknown };
        let hit = self.cached.contains(file);
        if hit {
            self.now.remove(place);
            self.add(file, next_use);
        } else if self.make_room(files.size(file), next_use, plan, files) {
            self.cached.insert(file);
            self.used_bytes += files.size(file);
            self.add(file, next_use);
        }
        hit
    }

    fn add(&mut self, file: u32, next_use: Use) {
        match next_use {
            Use::Now(place) => self.now.insert(place),
            Use::Next(place) => self.next.insert(place),
            Use::Unknown => self.unknown.push(file),
        }
    }

    /// Removes the file that is used latest from its set.
    fn pop_latest(&mut self, plan: &Plan) -> Option<(u32, Use)> {
        if let Some(file) = self.unknown.pop() {
            return Some((file, Use::Unknown));
        }
        if let Some(place) = self.next.max() {
            self.next.remove(place);
            return Some((plan.next[place as usize], Use::Next(place)));
        }
        let place = self.now.max()?;
        self.now.remove(place);
        Some((plan.now[place as usize], Use::Now(place)))
    }

    /// Evicts files that are used later, if that makes enough room; otherwise evicts nothing.
    fn make_room(&mut self, size: u64, next_use: Use, plan: &Plan, files: &Files) -> bool {
        let mut victims = std::mem::take(&mut self.victims);
        let mut used_bytes = self.used_bytes;
        let mut fits = size > 0 && size <= self.capacity_bytes;
        while fits && used_bytes + size > self.capacity_bytes {
            match self.pop_latest(plan) {
                Some((victim, use_)) => {
                    fits = use_ > next_use;
                    used_bytes -= files.size(victim);
                    victims.push((victim, use_));
                }
                None => fits = false,
            }
        }
        for (victim, use_) in victims.drain(..) {
            if fits {
                self.cached.remove(victim);
            } else {
                self.add(victim, use_);
            }
        }
        if fits {
            self.used_bytes = used_bytes;
        }
        self.victims = victims;
        fits
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::order::shuffled;
    use crate::sim::files::Sizes;

    /// The most hits that any cache of `slots` files can have, by exhaustion: after each read, every set that can be
    /// reached.
    fn most_hits(reads: &[u32], slots: u32) -> u32 {
        let mut best = HashMap::from([(0_u32, 0_u32)]);
        for &file in reads {
            let mut after: HashMap<u32, u32> = HashMap::new();
            let mut reach = |set: u32, hits: u32| {
                let most = after.entry(set).or_default();
                *most = hits.max(*most);
            };
            for (&set, &hits) in &best {
                if set >> file & 1 == 1 {
                    reach(set, hits + 1);
                    continue;
                }
                reach(set, hits);
                let with = set | 1 << file;
                if with.count_ones() <= slots {
                    reach(with, hits);
                } else {
                    (0..32).filter(|old| set >> old & 1 == 1).for_each(|old| reach(with & !(1 << old), hits));
                }
            }
            best = after;
        }
        best.into_values().max().unwrap_or(0)
    }

    fn hits(files: u32, slots: u32, epochs: u32, seed: u64) -> (u32, Vec<u32>) {
        let dataset = Files::new(files, Sizes::Equal(10), 0).unwrap();
        let mut belady = Belady::new(u64::from(slots) * 10, files);
        let mut plan = Plan::default();
        let order = |epoch: u32| shuffled(files, seed + u64::from(epoch));
        plan.advance(|next| *next = order(0));
        let (mut hits, mut reads) = (0, Vec::new());
        for epoch in 0..epochs {
            plan.advance(|next| *next = order(epoch + 1));
            belady.start_epoch(&plan, |_| true);
            for place in 0..files {
                reads.push(plan.now[place as usize]);
                hits += u32::from(belady.read(place, &plan, &dataset, |_| true));
            }
            assert!(belady.used_bytes <= u64::from(slots) * 10);
        }
        (hits, reads)
    }

    #[test]
    fn no_cache_of_the_same_size_hits_more_often() {
        for files in 2..9 {
            for slots in 1..files {
                for seed in 0..5 {
                    let (hits, reads) = hits(files, slots, 4, seed * 100);
                    assert_eq!(hits, most_hits(&reads, slots), "{files} files, {slots} slots, seed {seed}");
                }
            }
        }
    }

    #[test]
    fn a_file_that_would_evict_one_needed_sooner_is_not_kept() {
        // The capacity is 10; a has 6, b has 4 and c has 8. Keeping c would evict both, and b is used before c.
        let files = Files::of_sizes(vec![6, 4, 8]);
        let mut belady = Belady::new(10, 3);
        let mut plan = Plan::default();
        plan.advance(|next| *next = vec![0, 1, 2]);
        plan.advance(|next| *next = vec![1, 2, 0]);
        belady.start_epoch(&plan, |_| true);
        (0..3).for_each(|place| assert!(!belady.read(place, &plan, &files, |_| true)));
        assert_eq!(belady.used_bytes, 10);
        plan.advance(|next| *next = vec![0, 1, 2]);
        belady.start_epoch(&plan, |_| true);
        let hits: Vec<bool> = (0..3).map(|place| belady.read(place, &plan, &files, |_| true)).collect();
        assert_eq!(hits, [true, false, true], "b, c, a");
    }

    #[test]
    fn files_that_another_node_reads_next_are_evicted_first() {
        let files = Files::of_sizes(vec![5, 5, 5]);
        let mut belady = Belady::new(10, 3);
        let mut plan = Plan::default();
        plan.advance(|next| *next = vec![0, 1, 2]);
        plan.advance(|next| *next = vec![2, 1, 0]);
        // This node reads the first two positions of the next epoch, which are files 2 and 1.
        let is_mine = |place: u32| place < 2;
        belady.start_epoch(&plan, is_mine);
        (0..3).for_each(|place| assert!(!belady.read(place, &plan, &files, is_mine)));
        plan.advance(|next| *next = vec![0, 1, 2]);
        belady.start_epoch(&plan, |_| true);
        assert!(belady.read(0, &plan, &files, |_| true) && belady.read(1, &plan, &files, |_| true));
    }
}
