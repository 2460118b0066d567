//! Every policy against a naive model, and the order of each.

use std::collections::HashSet;

use larder_dataset::{BLOCK_BYTES, BlockIndex};
use proptest::prelude::*;

use super::*;

const BLOCKS: u32 = 24;

/// The simplest possible policy, slow: a list of the cached blocks, the next victim first.
#[derive(Default)]
struct Naive {
    cached: Vec<(BlockIndex, u32)>,
}

impl Naive {
    fn used_bytes(&self) -> u64 {
        self.cached.iter().map(|&(_, len)| u64::from(len)).sum()
    }

    fn remove(&mut self, block: BlockIndex) -> Option<(BlockIndex, u32)> {
        let at = self.cached.iter().position(|&(cached, _)| cached == block)?;
        Some(self.cached.remove(at))
    }

    fn contains(&self, block: BlockIndex) -> bool {
        self.cached.iter().any(|&(cached, _)| cached == block)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Admit(u32, u32),
    Touch(u32),
    Forget(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..BLOCKS, 0..60_u32).prop_map(|(block, len)| Step::Admit(block, len)),
        2 => (0..BLOCKS).prop_map(Step::Touch),
        1 => (0..BLOCKS).prop_map(Step::Forget),
    ];
    prop::collection::vec(step, 0..200)
}

/// Runs the steps on a policy and on the naive model, and checks every promise of [`Policy`].
fn conformance(kind: PolicyKind, capacity: u64, restored: &[u32], steps: &[Step]) {
    let mut policy = build_policy(kind, capacity, BLOCKS, 7);
    let mut naive = Naive::default();
    for (block, &len) in restored.iter().enumerate() {
        policy.restore(BlockIndex(block as u32), len);
        naive.cached.push((BlockIndex(block as u32), len));
    }
    assert_eq!(policy.used_bytes(), naive.used_bytes());
    let mut evicted = Vec::new();
    policy.trim(&mut evicted);
    follow(kind, &mut naive, &evicted, if kind.evicts() { capacity } else { u64::MAX });
    assert_eq!(policy.capacity_bytes(), capacity);
    for step in steps {
        match *step {
            Step::Admit(block, len) => {
                let block = BlockIndex(block);
                if naive.contains(block) {
                    continue;
                }
                evicted.clear();
                let admitted = policy.admit(block, len, &mut evicted);
                let fits = naive.used_bytes() + u64::from(len) <= capacity;
                assert_eq!(admitted, len > 0 && if kind.evicts() { u64::from(len) <= capacity } else { fits });
                if admitted {
                    follow(kind, &mut naive, &evicted, capacity - u64::from(len));
                    naive.cached.push((block, len));
                    assert!(policy.used_bytes() <= capacity);
                } else {
                    assert_eq!(evicted, [], "a refusal changes nothing");
                }
            }
            Step::Touch(block) => {
                policy.touch(BlockIndex(block));
                if kind == PolicyKind::Lru
                    && let Some(touched) = naive.remove(BlockIndex(block))
                {
                    naive.cached.push(touched);
                }
            }
            Step::Forget(block) => {
                if let Some((block, len)) = naive.remove(BlockIndex(block)) {
                    policy.forget(block, len);
                }
            }
        }
        assert_eq!(policy.used_bytes(), naive.used_bytes());
    }
}

/// Removes the victims from the model. Each must have been cached, have the model's order if there is one, and have
/// been necessary.
fn follow(kind: PolicyKind, naive: &mut Naive, evicted: &[BlockIndex], room: u64) {
    for &victim in evicted {
        assert!(naive.used_bytes() > room, "{victim} left without need");
        if kind != PolicyKind::Random {
            assert_eq!(naive.cached[0].0, victim);
        }
        naive.remove(victim).expect("a victim was cached");
    }
    assert!(naive.used_bytes() <= room);
}

proptest! {
    #[test]
    fn every_policy_does_what_the_naive_one_does(
        capacity in 0..200_u64, restored in prop::collection::vec(1..60_u32, 0..12), steps in steps()
    ) {
        for kind in PolicyKind::ALL {
            conformance(kind, capacity, &restored, &steps);
        }
    }
}

/// A cache of `capacity` bytes under `smallest`, with its cached blocks, over blocks of these lengths.
struct Small {
    policy: Box<dyn Policy>,
    lens: Vec<u32>,
    cached: HashSet<u32>,
}

impl Small {
    fn new(lens: &[u32], capacity: u64) -> Self {
        let mut policy = build_policy(PolicyKind::Smallest, capacity, lens.len() as u32, 0);
        let mut sizes = Sizes::default();
        lens.iter().for_each(|&len| sizes.add(len));
        policy.set_sizes(&sizes);
        Self { policy, lens: lens.to_vec(), cached: HashSet::new() }
    }

    /// Asks for a block as the store does.
    fn ask(&mut self, block: u32, wish: Wish) {
        let (len, mut evicted) = (self.lens[block as usize], Vec::new());
        if !self.cached.contains(&block)
            && self.policy.wants(BlockIndex(block), len, wish)
            && self.policy.admit(BlockIndex(block), len, &mut evicted)
        {
            self.cached.insert(block);
        }
        assert_eq!(evicted, []);
    }

    fn read(&mut self, order: &[u32]) -> HashSet<u32> {
        order.iter().for_each(|&block| self.ask(block, Wish::Missed));
        self.cached.clone()
    }

    fn cached_bytes(&self) -> u64 {
        self.cached.iter().map(|&block| u64::from(self.lens[block as usize])).sum()
    }

    fn lens_of(&self, is_cached: bool) -> impl Iterator<Item = u32> {
        let blocks = (0..self.lens.len() as u32).filter(move |block| self.cached.contains(block) == is_cached);
        blocks.map(move |block| self.lens[block as usize])
    }

    /// The largest cached block is at most this much larger than the smallest other block: their class is one.
    fn assert_smallest_are_cached(&self) {
        if let Some((largest, other)) = self.lens_of(true).max().zip(self.lens_of(false).min()) {
            assert!(largest <= other + other / 63, "{largest} is cached, and {other} is not");
        }
    }
}

/// Lengths of blocks, and the blocks in two orders.
fn two_epochs() -> impl Strategy<Value = (Vec<u32>, Vec<u32>, Vec<u32>)> {
    let len = prop_oneof![1..=200_u32, 1000..=4000_u32, Just(BLOCK_BYTES as u32)];
    prop::collection::vec(len, 1..60).prop_flat_map(|lens| {
        let blocks: Vec<u32> = (0..lens.len() as u32).collect();
        (Just(lens), Just(blocks.clone()).prop_shuffle(), Just(blocks).prop_shuffle())
    })
}

proptest! {
    // SEMANTICS: C1
    #[test]
    fn smallest_keeps_the_smallest_blocks_in_any_order_and_as_many_bytes_as_fit(
        (lens, first, second) in two_epochs(), share in 0.0..1.2_f64
    ) {
        let all: u64 = lens.iter().copied().map(u64::from).sum();
        let capacity = (all as f64 * share) as u64;
        let mut cache = Small::new(&lens, capacity);
        let cached = cache.read(&first);
        cache.assert_smallest_are_cached();
        prop_assert!(cache.cached_bytes() <= capacity);
        prop_assert_eq!(cache.policy.used_bytes(), cache.cached_bytes());
        let after = cache.read(&second);
        prop_assert!(cached.is_subset(&after), "nothing is replaced");
        // What is not cached does not fit.
        let room = capacity - cache.cached_bytes();
        let others = (0..lens.len()).filter(|&block| !after.contains(&(block as u32)));
        prop_assert!(others.map(|block| lens[block]).all(|len| u64::from(len) > room));
    }

    #[test]
    fn a_reader_of_a_part_has_as_full_a_cache_as_under_nr_after_two_epochs(
        (lens, first, second) in two_epochs(), share in 0.0..1.2_f64, part in 0.0..1.0_f64
    ) {
        let read = |order: &[u32]| -> Vec<u32> {
            order.iter().copied().filter(|&block| f64::from(block) < part * lens.len() as f64).collect()
        };
        let capacity = (lens.iter().copied().map(u64::from).sum::<u64>() as f64 * share) as u64;
        let mut cache = Small::new(&lens, capacity);
        cache.read(&read(&first));
        let after = cache.read(&read(&second));
        let room = capacity - cache.cached_bytes();
        let mut others = read(&second).into_iter().filter(|block| !after.contains(block));
        prop_assert!(others.all(|block| u64::from(lens[block as usize]) > room));
    }

    #[test]
    fn a_new_capacity_moves_the_limit_and_replaces_nothing(
        (lens, first, second) in two_epochs(), shares in prop::array::uniform2(0.0..1.0_f64)
    ) {
        let all = lens.iter().copied().map(u64::from).sum::<u64>() as f64;
        let [before, after] = shares.map(|share| (all * share) as u64);
        let mut cache = Small::new(&lens, before);
        let cached = cache.read(&first);
        cache.policy.set_capacity(after);
        let now = cache.read(&second);
        prop_assert!(cached.is_subset(&now));
        prop_assert!(cache.cached_bytes() <= after.max(before));
        if after >= before {
            cache.assert_smallest_are_cached();
        }
    }
}

#[test]
fn smallest_fills_with_small_blocks_only_and_with_those_of_a_list_whatever_their_size() {
    let lens = [300, 100, 200, 400, 100];
    let mut cache = Small::new(&lens, 500);
    (0..5).for_each(|block| cache.ask(block, Wish::Fill));
    assert_eq!(cache.cached, HashSet::from([1, 2, 4]));
    (0..5).for_each(|block| cache.ask(block, Wish::Fill));
    assert_eq!(cache.cached.len(), 3, "to be left out once is no miss");

    let mut cache = Small::new(&lens, 500);
    [3, 0, 1].into_iter().for_each(|block| cache.ask(block, Wish::Listed));
    assert_eq!(cache.cached, HashSet::from([3, 1]));
}

#[test]
fn smallest_keeps_what_comes_first_until_the_sizes_are_known() {
    let mut policy = build_policy(PolicyKind::Smallest, 500, 5, 0);
    for block in 0..5 {
        assert!(policy.wants(BlockIndex(block), 400, Wish::Fill));
    }
    policy.restore(BlockIndex(0), 400);
    let mut sizes = Sizes::default();
    [400, 400, 100, 100, 100].into_iter().for_each(|len| sizes.add(len));
    policy.set_sizes(&sizes);
    assert!(policy.wants(BlockIndex(2), 100, Wish::Fill) && !policy.wants(BlockIndex(1), 400, Wish::Fill));
    policy.forget(BlockIndex(0), 400);
    assert_eq!(policy.used_bytes(), 0);
}

fn cached_after(kind: PolicyKind, seed: u64, epochs: u32) -> (u64, HashSet<BlockIndex>) {
    let mut policy = build_policy(kind, 250, 1000, seed);
    let (mut hits, mut cached, mut evicted) = (0, HashSet::new(), Vec::new());
    for _ in 0..epochs {
        for block in (0..1000).map(BlockIndex) {
            if cached.contains(&block) {
                hits += 1;
                policy.touch(block);
            } else if policy.admit(block, 1, &mut evicted) {
                evicted.drain(..).for_each(|victim| assert!(cached.remove(&victim)));
                cached.insert(block);
            }
        }
    }
    (hits, cached)
}

#[test]
fn nr_hits_exactly_what_it_holds_in_every_epoch_and_lru_and_fifo_nothing_of_a_scan() {
    assert_eq!(cached_after(PolicyKind::Nr, 0, 5).0, 4 * 250);
    assert_eq!(cached_after(PolicyKind::Lru, 0, 5).0, 0);
    assert_eq!(cached_after(PolicyKind::Fifo, 0, 5).0, 0);
}

#[test]
fn lru_keeps_a_block_in_use_and_fifo_does_not() {
    for (kind, victim) in [(PolicyKind::Lru, 1), (PolicyKind::Fifo, 0)] {
        let mut policy = build_policy(kind, 2, 3, 0);
        let mut evicted = Vec::new();
        assert!(policy.admit(BlockIndex(0), 1, &mut evicted) && policy.admit(BlockIndex(1), 1, &mut evicted));
        policy.touch(BlockIndex(0));
        assert!(policy.admit(BlockIndex(2), 1, &mut evicted));
        assert_eq!(evicted, [BlockIndex(victim)], "{kind}");
    }
}

#[test]
fn random_is_the_same_for_the_same_seed_and_spreads_its_victims() {
    assert_eq!(cached_after(PolicyKind::Random, 1, 3), cached_after(PolicyKind::Random, 1, 3));
    assert_ne!(cached_after(PolicyKind::Random, 1, 3), cached_after(PolicyKind::Random, 2, 3));
    let (_, cached) = cached_after(PolicyKind::Random, 1, 1);
    let old = cached.iter().filter(|block| block.0 < 500).count();
    // A scan of four times the capacity leaves e^-2 of its first half and some of the rest.
    assert!((10..120).contains(&old), "{old} of 250 are from the first half");
}

#[test]
fn names_read_back_and_an_unknown_one_says_which_there_are() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    let error = "LRU".parse::<PolicyKind>().unwrap_err();
    assert_eq!(error.to_string(), r#"no such policy: "LRU" (one of nr, smallest, lru, fifo, random)"#);
}

#[test]
fn nr_takes_no_memory_for_a_block() {
    assert_eq!(size_of::<Nr>(), 16);
}
