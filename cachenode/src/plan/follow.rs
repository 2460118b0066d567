//! Follows readers that say nothing. An epoch that begins like the last one is likely to go on like it: a validation, a
//! sampler whose epoch is never set, a program that reads files in the same order again.
//!
//! Blocks that readers had to wait for, or had out of a plan, are remembered in their order. An epoch begins when
//! several in a row were read before. While it matches the last one, block by block and as far as readers of a few files
//! at a time allow, it is followed. A shuffled epoch matches nowhere.
//!
//! Invariants: pure; at most [`BLOCKS_MOST`] blocks of an epoch are remembered, and what is beyond is not followed.

/// The most blocks that are remembered of an epoch: 4 MiB of numbers.
const BLOCKS_MOST: usize = 1 << 20;

/// A block that was read among the last so many is read in several parts.
const RECENT: usize = 256;

/// So many blocks in a row that were read before begin an epoch. A few may be pages that the kernel has lost.
const REPEATED: usize = 8;

/// How far from its place in the last epoch a block may be read. In a short epoch, a part of it: where most blocks are
/// near, any order matches.
const APART: usize = 256;
const APART_PART: usize = 8;

/// So many blocks in a row must match. One that does not counts as much as [`MISMATCH`] that do.
const MATCHES: u32 = 32;
const MISMATCH: u32 = 4;

/// The meaning of a read for the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Epoch {
    /// Nothing new.
    GoesOn,
    /// It is followed from now on.
    Matches,
    /// It is not followed any more.
    Differs,
}

/// The last epoch, and the current one.
#[derive(Debug, Default)]
pub(super) struct Follower {
    last: Vec<u32>,
    current: Vec<u32>,
    /// A bit for each block of the current epoch. Empty before the first one.
    met: Vec<u64>,
    /// The blocks that were just read for the second time.
    repeated: Vec<u32>,
    /// Where the readers are in the last epoch.
    at: usize,
    score: u32,
    is_followed: bool,
    reads: u64,
}

impl Follower {
    /// Notes that a block is read, of a dataset of so many.
    pub(super) fn read(&mut self, block: u32, blocks: u32) -> Epoch {
        self.reads += 1;
        let recent = &self.current[self.current.len().saturating_sub(RECENT)..];
        if recent.contains(&block) || self.repeated.contains(&block) {
            return Epoch::GoesOn;
        }
        if !self.was_met(block) {
            self.repeated.clear();
            return self.note(block, blocks);
        }
        self.repeated.push(block);
        if self.repeated.len() < REPEATED {
            return Epoch::GoesOn;
        }
        let was_followed = std::mem::take(&mut self.is_followed);
        self.last = std::mem::take(&mut self.current);
        self.met.fill(0);
        (self.at, self.score) = (0, 0);
        for block in std::mem::take(&mut self.repeated) {
            self.note(block, blocks);
        }
        if was_followed { Epoch::Differs } else { Epoch::GoesOn }
    }

    /// The plan by which the epoch was followed has ended. It may be followed again.
    pub(super) fn lapse(&mut self) {
        (self.score, self.is_followed) = (0, false);
    }

    /// Where the readers are in the last epoch, at least.
    pub(super) fn passed(&self) -> usize {
        self.at.saturating_sub(self.apart())
    }

    /// How many reads there were.
    pub(super) fn reads(&self) -> u64 {
        self.reads
    }

    /// Where the readers are.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The number of blocks of the last epoch.
    pub(super) fn len(&self) -> usize {
        self.last.len()
    }

    /// At most `most` blocks of the last epoch, from a place on.
    pub(super) fn ahead(&self, from: usize, most: usize) -> &[u32] {
        let rest = self.last.get(from..).unwrap_or_default();
        &rest[..rest.len().min(most)]
    }

    fn note(&mut self, block: u32, blocks: u32) -> Epoch {
        if self.current.len() < BLOCKS_MOST {
            self.current.push(block);
            self.met.resize((blocks as usize).div_ceil(64), 0);
            if let Some(word) = self.met.get_mut(block as usize / 64) {
                *word |= 1 << (block % 64);
            }
        }
        let apart = self.apart();
        let near = self.at.saturating_sub(apart)..self.last.len().min(self.at + apart);
        match self.last.get(near.clone()).unwrap_or_default().iter().position(|&other| other == block) {
            Some(place) => {
                self.at = self.at.max(near.start + place + 1);
                self.score = (self.score + 1).min(MATCHES);
            }
            None => self.score = self.score.saturating_sub(MISMATCH),
        }
        let is_followed = self.score == MATCHES || (self.is_followed && self.score >= MATCHES / 2);
        let was_followed = std::mem::replace(&mut self.is_followed, is_followed);
        match (was_followed, is_followed) {
            (false, true) => Epoch::Matches,
            (true, false) => Epoch::Differs,
            _ => Epoch::GoesOn,
        }
    }

    fn apart(&self) -> usize {
        APART.min(self.last.len() / APART_PART)
    }

    fn was_met(&self, block: u32) -> bool {
        self.met.get(block as usize / 64).is_some_and(|word| word & 1 << (block % 64) != 0)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use rand::seq::SliceRandom;

    use super::*;

    const BLOCKS: u32 = 2_000;

    fn shuffled(seed: u64) -> Vec<u32> {
        let mut order: Vec<u32> = (0..BLOCKS).collect();
        order.shuffle(&mut StdRng::seed_from_u64(seed));
        order
    }

    /// Reads blocks in this order. Returns the places at which something was new.
    fn read(follower: &mut Follower, order: &[u32]) -> Vec<(usize, Epoch)> {
        let outcomes = order.iter().enumerate().map(|(at, &block)| (at, follower.read(block, BLOCKS)));
        outcomes.filter(|(_, epoch)| *epoch != Epoch::GoesOn).collect()
    }

    #[test]
    fn an_epoch_that_begins_like_the_last_one_is_followed_and_a_shuffled_one_is_not() {
        let mut follower = Follower::default();
        assert!(read(&mut follower, &shuffled(1)).is_empty());
        let begun = read(&mut follower, &shuffled(1)[..1_000]);
        assert_eq!(begun, [(MATCHES as usize - 1, Epoch::Matches)]);
        assert_eq!((follower.at(), follower.passed(), follower.len()), (1_000, 750, 2_000));
        assert_eq!(follower.ahead(1_000, 3), &shuffled(1)[1_000..1_003]);
        assert_eq!(follower.ahead(1_999, 3).len(), 1);
        assert!(follower.ahead(2_001, 3).is_empty());
        assert!(read(&mut follower, &shuffled(1)[1_000..]).is_empty());
        for seed in 2..20 {
            let expected: &[Epoch] = if seed == 2 { &[Epoch::Differs] } else { &[] };
            let found: Vec<Epoch> = read(&mut follower, &shuffled(seed)).into_iter().map(|(_, epoch)| epoch).collect();
            assert_eq!(found, expected, "seed {seed}");
        }
    }

    #[test]
    fn an_epoch_whose_plan_has_ended_is_followed_again() {
        let mut follower = Follower::default();
        let order = shuffled(1);
        read(&mut follower, &order);
        assert_eq!(read(&mut follower, &order[..500]).len(), 1);
        follower.lapse();
        let again = read(&mut follower, &order[500..]);
        assert_eq!(again, [(MATCHES as usize - 1, Epoch::Matches)]);
    }

    #[test]
    fn readers_of_some_files_at_a_time_and_in_parts_are_followed() {
        let mut follower = Follower::default();
        let mut order = shuffled(1);
        let mut random = StdRng::seed_from_u64(7);
        let mut jumbled = |order: &[u32]| -> Vec<u32> {
            let parts = order.chunks(64).flat_map(|chunk| {
                let mut chunk = chunk.to_vec();
                chunk.shuffle(&mut random);
                chunk
            });
            // Each is read in two parts.
            parts.flat_map(|block| [block, block]).collect()
        };
        assert!(read(&mut follower, &jumbled(&order)).is_empty());
        assert_eq!(read(&mut follower, &jumbled(&order)).len(), 1);
        // The second half is another one.
        order[1_000..].shuffle(&mut StdRng::seed_from_u64(9));
        let found: Vec<Epoch> = read(&mut follower, &jumbled(&order)).into_iter().map(|(_, epoch)| epoch).collect();
        assert_eq!(found, [Epoch::Differs, Epoch::Matches, Epoch::Differs]);
    }

    #[test]
    fn pages_that_the_kernel_has_lost_begin_no_epoch() {
        let mut follower = Follower::default();
        let order = shuffled(1);
        for (at, &block) in order.iter().enumerate() {
            follower.read(block, BLOCKS);
            if at > 1_000 && at % 2 == 0 {
                follower.read(order[at - 1_000], BLOCKS);
            }
        }
        assert_eq!((follower.current.len(), follower.len()), (2_000, 0));
    }
}
