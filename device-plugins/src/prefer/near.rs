//! Chooses the exclusive IDs that are nearest to each other.
//!
//! The score of a set is the sum of the nearness of its pairs. Among sets with equal scores, the set that is less near
//! to the remaining units wins, since the remaining units are then nearer to each other. Up to [`SETS_MOST`] sets,
//! every set is tried, which covers any choice of 16. Beyond that, a set is grown greedily and then improved by
//! exchanges.

use std::cmp::Reverse;

use super::pool::Pool;

/// The most sets that are tried one by one: choosing 8 of 16 gives 12,870 sets.
const SETS_MOST: u128 = 13_000;

/// The score of a set: higher is better. First the nearness inside the set, then the nearness to the remaining units,
/// reversed.
type Score = (u64, Reverse<u64>);

/// The units of `more` IDs, or of all free IDs if there are fewer.
pub(super) fn choose(pool: &Pool, more: usize) -> Vec<usize> {
    let field = Field::new(pool);
    let more = more.min(field.free.len());
    if sets(field.free.len(), more) <= SETS_MOST { field.best(more) } else { field.good(more) }
}

/// The number of subsets of `size` among `of` units. The count stops once it exceeds [`SETS_MOST`].
fn sets(of: usize, size: usize) -> u128 {
    let size = size.min(of - size);
    (1..=size).fold(1, |sets, nth| if sets > SETS_MOST { sets } else { sets * (of - size + nth) as u128 / nth as u128 })
}

/// The free units and their nearness, indexed as in `free`.
struct Field {
    /// Indexes of the free units in the pool.
    free: Vec<usize>,
    nearness: Vec<Vec<u64>>,
    /// The nearness of each free unit to the units that are already chosen.
    to_chosen: Vec<u64>,
    /// The nearness of each free unit to all other free units.
    to_free: Vec<u64>,
}

impl Field {
    fn new(pool: &Pool) -> Self {
        let (free, chosen): (Vec<usize>, Vec<usize>) =
            (0..pool.units.len()).partition(|nth| pool.units[*nth].free() > 0);
        let nearness: Vec<Vec<u64>> = free
            .iter()
            .map(|a| free.iter().map(|b| if a == b { 0 } else { pool.units[*a].nearness(&pool.units[*b]) }).collect())
            .collect();
        let to_chosen =
            free.iter().map(|a| chosen.iter().map(|b| pool.units[*a].nearness(&pool.units[*b])).sum()).collect();
        let to_free = nearness.iter().map(|row| row.iter().sum()).collect();
        Self { free, nearness, to_chosen, to_free }
    }

    fn score(&self, set: &[usize]) -> Score {
        set.iter().enumerate().fold((0, Reverse(0)), |score, (nth, unit)| self.with(score, &set[..nth], *unit))
    }

    /// The score of a set after `unit` was added to it and left the remaining units.
    fn with(&self, (inside, Reverse(outside)): Score, set: &[usize], unit: usize) -> Score {
        let near: u64 = set.iter().map(|other| self.nearness[unit][*other]).sum();
        // `near` is subtracted twice: `to_free` counts it once in this unit, and once in the units of the set, which
        // were among the remaining units before.
        (inside + self.to_chosen[unit] + near, Reverse(outside + self.to_free[unit] - 2 * near))
    }

    /// Tries all sets in order, and keeps the first one with the best score.
    fn best(&self, size: usize) -> Vec<usize> {
        let mut search = Search { field: self, size, set: Vec::new(), best: None };
        search.go(0, (0, Reverse(0)));
        let best = search.best.map(|(_, set)| set).unwrap_or_default();
        best.into_iter().map(|nth| self.free[nth]).collect()
    }

    /// Grows a set around each unit, takes the best, and then exchanges units while the score improves.
    fn good(&self, size: usize) -> Vec<usize> {
        let all = 0..self.free.len();
        let grown = all.clone().map(|first| {
            let mut set = vec![first];
            while set.len() < size {
                let left = all.clone().filter(|unit| !set.contains(unit));
                let score = self.score(&set);
                let next = left.max_by_key(|unit| (self.with(score, &set, *unit), Reverse(*unit)));
                set.extend(next);
            }
            set
        });
        let best = grown.max_by_key(|set| self.score(set));
        let mut set = best.unwrap_or_default();
        while let Some(better) = self.exchange(&set) {
            set = better;
        }
        set.sort_unstable();
        set.into_iter().map(|nth| self.free[nth]).collect()
    }

    /// A set with a better score that differs in one unit.
    fn exchange(&self, set: &[usize]) -> Option<Vec<usize>> {
        let score = self.score(set);
        for nth in 0..set.len() {
            let mut rest = set.to_vec();
            rest.remove(nth);
            let without = self.score(&rest);
            let better = (0..self.free.len())
                .filter(|unit| !set.contains(unit))
                .find(|unit| self.with(without, &rest, *unit) > score);
            if let Some(unit) = better {
                rest.push(unit);
                return Some(rest);
            }
        }
        None
    }
}

struct Search<'f> {
    field: &'f Field,
    size: usize,
    set: Vec<usize>,
    best: Option<(Score, Vec<usize>)>,
}

impl Search<'_> {
    /// Tries all sets that extend this one with units from index `from` on.
    fn go(&mut self, from: usize, score: Score) {
        let missing = self.size - self.set.len();
        if missing == 0 {
            if self.best.as_ref().is_none_or(|(best, _)| score > *best) {
                self.best = Some((score, self.set.clone()));
            }
            return;
        }
        for unit in from..=self.field.free.len() - missing {
            let score = self.field.with(score, &self.set, unit);
            self.set.push(unit);
            self.go(unit + 1, score);
            self.set.pop();
        }
    }
}
