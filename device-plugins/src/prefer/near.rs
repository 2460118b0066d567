//! Exclusive IDs: the nearest to each other.
//!
//! A set is as good as the sum of the nearness of its pairs. Of equally good sets, the better one has less nearness to what is left:
//! then that is nearer to itself. Up to [`SETS_MOST`] sets all are tried, which covers any choice of 16; beyond that a good set
//! is grown and improved.

use std::cmp::Reverse;

use super::pool::Pool;

/// 8 of 16 are 12,870 sets.
const SETS_MOST: u128 = 13_000;

/// How good a set is: more is better.
type Score = (u64, Reverse<u64>);

/// The units of `more` IDs, as far as there are so many.
pub(super) fn choose(pool: &Pool, more: usize) -> Vec<usize> {
    let field = Field::new(pool);
    let more = more.min(field.free.len());
    if sets(field.free.len(), more) <= SETS_MOST { field.best(more) } else { field.good(more) }
}

/// How many sets of `size` there are of `of`, or more than [`SETS_MOST`].
fn sets(of: usize, size: usize) -> u128 {
    let size = size.min(of - size);
    (1..=size).fold(1, |sets, nth| if sets > SETS_MOST { sets } else { sets * (of - size + nth) as u128 / nth as u128 })
}

/// The free units and how near they are, by their places in `free`.
struct Field {
    /// The units in the pool.
    free: Vec<usize>,
    nearness: Vec<Vec<u64>>,
    /// To what is chosen already.
    to_chosen: Vec<u64>,
    /// To all others that are free.
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

    /// The score of a set with one more, which is then no longer among what is left.
    fn with(&self, (inside, Reverse(outside)): Score, set: &[usize], unit: usize) -> Score {
        let near: u64 = set.iter().map(|other| self.nearness[unit][*other]).sum();
        (inside + self.to_chosen[unit] + near, Reverse(outside + self.to_free[unit] - 2 * near))
    }

    /// Tries all sets in order, and keeps the first of the best.
    fn best(&self, size: usize) -> Vec<usize> {
        let mut search = Search { field: self, size, set: Vec::new(), best: None };
        search.go(0, (0, Reverse(0)));
        let best = search.best.map(|(_, set)| set).unwrap_or_default();
        best.into_iter().map(|nth| self.free[nth]).collect()
    }

    /// Grows a set around each unit, and then exchanges units as long as that helps.
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

    /// A better set with another unit for one of these.
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
    /// Tries all sets that go on from this one with units from `from` on.
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
