//! Readers of a model over a world in which each fetch ends at once, with a reference that knows what readers have taken
//! by looking at every part of every tensor.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::ahead::AHEAD_BLOCKS;
use crate::memory::MemoryBudget;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The kernel requests so much around a place of a mapped file.
const AROUND: u64 = 512 * KIB;

const FIRST: BlockIndex = BlockIndex(100);
const FILE: FileIndex = FileIndex(7);
const ROLES: [(&str, u64); 6] =
    [("norm", 8 * KIB), ("q", 6 * MIB), ("k", 1536 * KIB), ("o", 6 * MIB), ("up", 16 * MIB), ("down", 16 * MIB)];

type Named = (String, Range<u64>);

/// The tensors of a model in the order of the file.
fn model(layers: u64) -> Vec<(String, u64, u64)> {
    let layer = |layer: u64| ROLES.map(|(role, bytes)| (format!("layers.{layer}.{role}"), bytes));
    let inside = (0..layers).flat_map(layer);
    let all = [("embed".to_owned(), 8 * MIB)].into_iter().chain(inside).chain([("head".to_owned(), 8 * MIB)]);
    let mut end = 0;
    all.map(|(name, bytes)| {
        let begin = end;
        end += bytes;
        (name, begin, end)
    })
    .collect()
}

/// The parts that readers have taken of the tensors of each role, and of the one that is being read.
#[derive(Default)]
struct Reference {
    taken: BTreeMap<String, BTreeSet<u64>>,
    current: Option<(String, BTreeSet<u64>)>,
}

fn role_of(name: &str) -> String {
    name.split('.').filter(|word| word.parse::<u64>().is_err()).collect()
}

/// The bytes of a part of a tensor: those at which it begins, and those at which the next one does.
fn bytes_of_part(tensor: &Range<u64>, part: u64) -> Range<u64> {
    let at = |part: u64| tensor.start + (part * (tensor.end - tensor.start)).div_ceil(PARTS);
    at(part)..at(part + 1)
}

fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

impl Reference {
    fn read(&mut self, tensors: &[Named], range: &Range<u64>) {
        for (name, tensor) in tensors.iter().filter(|(_, tensor)| meet(tensor, range)) {
            let read = (0..PARTS).filter(|&part| meet(&bytes_of_part(tensor, part), range));
            if self.current.as_ref().is_none_or(|(current, _)| current != name)
                && let Some((left, parts)) = self.current.replace((name.clone(), BTreeSet::new()))
            {
                self.taken.entry(role_of(&left)).or_default().extend(parts);
            }
            self.current.as_mut().unwrap().1.extend(read);
        }
    }

    /// Checks that a range is fetched for what readers take of the tensors that are near it.
    fn assert_wanted(&self, tensors: &[Named], part: &BlockPart) {
        let wanted = |name: &str, tensor: &Range<u64>| -> Vec<Range<u64>> {
            let parts = self.taken.get(&role_of(name)).into_iter().flatten();
            parts.map(|&part| bytes_of_part(tensor, part)).collect()
        };
        let (range, slack) = (range_of(part), GAP_BYTES + u64::from(ROUND_BYTES));
        let near = range.start.saturating_sub(slack)..range.end + slack;
        let near: Vec<Range<u64>> = tensors
            .iter()
            .filter(|(_, tensor)| meet(tensor, &near))
            .flat_map(|(name, tensor)| wanted(name, tensor))
            .filter(|wanted| meet(wanted, &near))
            .collect();
        if part.len == part.block_len {
            let overlap = |wanted: &Range<u64>| wanted.end.min(range.end).saturating_sub(wanted.start.max(range.start));
            // Each may have a gap behind it.
            let sum: u64 = near.iter().map(|wanted| overlap(wanted) + GAP_BYTES).sum();
            assert!(4 * sum >= 3 * u64::from(part.block_len), "{part:?}: {sum} bytes are wanted");
            return;
        }
        for page in range.clone().step_by(ROUND_BYTES as usize) {
            let page = page.saturating_sub(slack)..page + slack;
            assert!(near.iter().any(|wanted| meet(wanted, &page)), "{part:?}: {page:?} is not wanted");
        }
    }
}

struct World {
    tensors: Tensors,
    named: Vec<Named>,
    size: u64,
    /// The store keeps ranges of blocks.
    keeps: bool,
    /// The pages that are here.
    here: HashSet<u64>,
    reference: Reference,
    read_bytes: u64,
    fetched_bytes: u64,
    ahead_bytes: u64,
    misses: u64,
}

fn no_tensors() -> Tensors {
    Tensors::new(Arc::new(MemoryBudget::default()).account(0, 1 << 20))
}

impl World {
    fn new(model: &[(String, u64, u64)]) -> Self {
        let header = safetensors_of(model);
        let data = header.len() as u64;
        let size = data + model.last().unwrap().2;
        let Header::Tensors(tensors) = decode(&header, size, 0) else { panic!("no header") };
        let named = model.iter().map(|(name, begin, end)| (name.clone(), data + begin..data + end)).collect();
        let world = Self {
            tensors: no_tensors(),
            named,
            size,
            keeps: true,
            here: HashSet::new(),
            reference: Reference::default(),
            read_bytes: 0,
            fetched_bytes: 0,
            ahead_bytes: 0,
            misses: 0,
        };
        assert!(world.tensors.begin_look(FIRST) && !world.tensors.begin_look(FIRST));
        world.tensors.found(FILE, FIRST, size, tensors);
        world
    }

    fn tensor(&self, name: &str) -> Range<u64> {
        self.named.iter().find(|(other, _)| other == name).unwrap().1.clone()
    }

    fn pages(part: &BlockPart) -> Range<u64> {
        let range = range_of(part);
        range.start / u64::from(ROUND_BYTES)..range.end.div_ceil(ROUND_BYTES.into())
    }

    fn has(&self, part: &BlockPart) -> bool {
        Self::pages(part).all(|page| self.here.contains(&page))
    }

    fn fetch(&mut self, part: &BlockPart) {
        self.here.extend(Self::pages(part));
        self.fetched_bytes += u64::from(part.len);
    }

    fn fetch_ahead(&mut self, at: &BlockPart) {
        let Ahead { parts, bytes_most } = self.tensors.ahead(at, self.keeps).unwrap();
        let mut bytes = 0;
        for part in parts.iter().take(AHEAD_BLOCKS) {
            self.reference.assert_wanted(&self.named, part);
            assert!(range_of(part).end <= self.size, "{part:?}");
            if self.has(part) {
                continue;
            }
            if bytes + u64::from(part.len) > bytes_most {
                break;
            }
            bytes += u64::from(part.len);
            self.fetch(part);
        }
        self.tensors.fetched(at, bytes);
        self.ahead_bytes += bytes;
        assert!(self.ahead_bytes <= AHEAD_BYTES_LEAST + 2 * self.read_bytes, "{} ahead", self.ahead_bytes);
    }

    fn read_part(&mut self, part: &BlockPart) {
        self.read_bytes += u64::from(part.len);
        self.reference.read(&self.named, &range_of(part));
        if self.tensors.read(part).is_some() {
            self.fetch_ahead(part);
        }
        if self.has(part) {
            return;
        }
        self.misses += 1;
        if self.tensors.missed(part) == Follows::FromNow && self.tensors.read(part).is_some() {
            self.fetch_ahead(part);
        }
        let whole = BlockPart { start: 0, len: part.block_len, ..*part };
        let demand = self.tensors.demand(part, self.keeps);
        let fetched = match demand {
            Demand::Unknown | Demand::Block => whole,
            Demand::Part(piece) => piece,
        };
        if demand != Demand::Unknown {
            let more = u64::from(fetched.len - part.len);
            self.tensors.fetched(part, more);
            self.ahead_bytes += more;
            assert!(self.ahead_bytes <= AHEAD_BYTES_LEAST + 2 * self.read_bytes, "{} ahead", self.ahead_bytes);
        }
        assert!(fetched.start <= part.start && part.start + part.len <= fetched.start + fetched.len, "{fetched:?}");
        self.fetch(&fetched);
    }

    /// Reads a range as the kernel requests it.
    fn read(&mut self, range: Range<u64>) {
        for at in range.clone().step_by(MIB as usize) {
            for part in parts(FIRST, self.size, at, MIB.min(range.end - at)) {
                self.read_part(&part);
            }
        }
    }

    /// Reads an eighth of each tensor through a mapping, and small tensors as a whole.
    fn read_eighths(&mut self, rank: u64) {
        for (_, tensor) in self.named.clone() {
            let len = tensor.end - tensor.start;
            let eighth = tensor.start + len * rank / 8..tensor.start + len * (rank + 1) / 8;
            let wanted = if len < MIB { tensor } else { eighth };
            self.read(wanted.start.saturating_sub(AROUND)..(wanted.end + AROUND).min(self.size));
        }
    }
}

// SEMANTICS: C31
#[test]
fn all_tensors_in_the_order_of_their_names_are_here_before_they_are_read_but_for_the_first_layer() {
    let mut world = World::new(&model(12));
    let mut named = world.named.clone();
    named.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut missed = Vec::new();
    for (name, tensor) in named {
        let before = world.misses;
        world.read(tensor);
        let is_known = name.starts_with("layers.") && !name.starts_with("layers.0.");
        if is_known && world.misses > before {
            missed.push(name);
        }
    }
    assert!(missed.len() <= 3, "the order jumps three times: {missed:?}");
    assert!(world.fetched_bytes <= world.size + world.size / 20, "{}", world.fetched_bytes);
}

// SEMANTICS: C31
#[test]
fn a_rank_that_reads_an_eighth_of_each_tensor_fetches_little_more_than_the_kernel_reads_for_it() {
    for rank in 0..8 {
        let mut world = World::new(&model(12));
        world.read_eighths(rank);
        let (fetched, read) = (world.fetched_bytes, world.read_bytes);
        assert!(fetched <= read * 3 / 2, "rank {rank}: {fetched} for {read}");
        assert!(fetched <= world.size * 2 / 5, "rank {rank}: {fetched} of {}", world.size);
        // Of the first layer, of what is in no layer, and a few.
        assert!(world.misses <= 24, "rank {rank}: {}", world.misses);
    }
}

// SEMANTICS: C31
#[test]
fn eight_ranks_that_read_at_the_same_time_take_all_of_each_tensor() {
    let mut world = World::new(&model(12));
    for (_, tensor) in world.named.clone() {
        let len = tensor.end - tensor.start;
        for step in (0..len / 8).step_by(MIB as usize) {
            for rank in 0..8 {
                let start = tensor.start + len * rank / 8;
                world.read(start + step..(start + step + MIB).min(start + len / 8));
            }
        }
    }
    assert!(world.misses <= 30, "{}", world.misses);
    assert!(world.fetched_bytes <= world.size + world.size / 20, "{}", world.fetched_bytes);
}

// SEMANTICS: C31
#[test]
fn a_reader_of_the_header_fetches_nothing_ahead_and_one_of_small_parts_twice_what_it_reads_at_most() {
    let mut world = World::new(&model(12));
    world.read(0..100 * KIB);
    assert_eq!(world.ahead_bytes, 0);
    // The first tensor of a layer does not say what will be read of the others.
    world.read(world.tensor("layers.0.q"));
    assert_eq!(world.ahead_bytes, 0);
    let mut world = World::new(&model(12));
    for nth in 0..2000 {
        let at = nth * 7_919 % (world.size / 4096) * 4096;
        world.read(at..(at + 4096).min(world.size));
    }
    assert!(world.ahead_bytes <= AHEAD_BYTES_LEAST + 2 * 2000 * 4096, "{}", world.ahead_bytes);
    // The bytes that may be fetched beside those that they asked for are used up: their misses fetch as others do.
    let most = world.tensors.lock().files.iter().flatten().next().unwrap().bytes_most();
    assert!(most < BLOCK_BYTES, "{most}");
}

// SEMANTICS: C31
#[test]
fn without_a_store_that_keeps_it_less_is_fetched_ahead_and_no_more_than_was_asked_for() {
    let mut world = World::new(&model(12));
    world.keeps = false;
    world.read_eighths(3);
    assert!(world.fetched_bytes <= world.size * 2 / 5, "{}", world.fetched_bytes);
    let mut world = World::new(&model(12));
    world.keeps = false;
    for (_, tensor) in world.named.clone() {
        world.read(tensor);
        let part = parts(FIRST, world.size, world.size / 2, 1).next().unwrap();
        let ahead: u64 = world.tensors.ahead(&part, false).unwrap().parts.iter().map(|part| u64::from(part.len)).sum();
        assert!(ahead <= AHEAD_BYTES_LEAST + BLOCK_BYTES, "{ahead}");
    }
}

// SEMANTICS: C31
#[tokio::test(start_paused = true)]
async fn the_next_job_is_not_taken_for_the_last_one() {
    let mut world = World::new(&model(12));
    let q = world.tensor("layers.1.q");
    world.read(world.tensor("layers.0.q"));
    world.read(world.tensor("layers.0.k"));
    let demand = |world: &World| {
        let part = parts(FIRST, world.size, q.start + 3 * MIB, 4 * KIB).next().unwrap();
        world.tensors.demand(&part, true)
    };
    assert_eq!(demand(&world), Demand::Block);
    tokio::time::advance(FORGET).await;
    assert_eq!(demand(&world), Demand::Block, "not yet");
    tokio::time::advance(FORGET).await;
    assert_eq!(demand(&world), Demand::Unknown);
    // Other roles become known, and this one stays forgotten.
    world.read(world.tensor("layers.0.o"));
    world.read(world.tensor("layers.0.up"));
    assert_eq!(demand(&world), Demand::Unknown);
}

// SEMANTICS: C31
#[test]
fn a_model_in_several_files_is_known_by_the_first_of_them() {
    let mut world = World::new(&model(2));
    for (_, tensor) in world.named.clone() {
        world.read(tensor);
    }
    let header = safetensors_of(&model(3));
    let (size, first) = (header.len() as u64 + model(3).last().unwrap().2, BlockIndex(5000));
    let Header::Tensors(tensors) = decode(&header, size, 0) else { panic!("no header") };
    let at = tensors[2].begin;
    world.tensors.found(FILE, first, size, tensors);
    let part = parts(first, size, at, MIB).next().unwrap();
    assert_eq!(world.tensors.read(&part), Some(FILE));
    assert!(!world.tensors.ahead(&part, true).unwrap().parts.is_empty());
    assert_eq!(world.tensors.demand(&part, true), Demand::Block);
}

#[test]
fn reads_of_files_that_are_not_followed_take_no_lock() {
    let mut world = World::new(&model(2));
    let part = |first: BlockIndex| parts(first, world.size, 0, MIB).next().unwrap();
    let (ours, other) = (part(FIRST), part(BlockIndex(FIRST.0 + 1000)));
    let locked = world.tensors.lock();
    assert_eq!((world.tensors.read(&other), world.tensors.demand(&other, true)), (None, Demand::Unknown));
    drop(locked);
    assert_eq!(world.tensors.read(&ours), Some(FILE));
    // Once all of it was here for a while, until something is missed.
    world.here.extend(0..=world.size / u64::from(ROUND_BYTES));
    for (_, tensor) in world.named.clone() {
        world.read(tensor);
    }
    let locked = world.tensors.lock();
    assert_eq!(world.tensors.read(&ours), None);
    drop(locked);
    assert_eq!(world.tensors.missed(&ours), Follows::FromNow);
    assert_eq!(world.tensors.missed(&ours), Follows::Same);
    assert_eq!(world.tensors.read(&ours), Some(FILE));
}

#[test]
fn files_are_looked_at_once_and_the_oldest_are_forgotten() {
    let tensors = no_tensors();
    let part = |first: u32| parts(BlockIndex(first), 100 * MIB, 0, MIB).next().unwrap();
    assert_eq!(tensors.missed(&part(0)), Follows::Unknown);
    assert!(tensors.begin_look(BlockIndex(0)) && !tensors.begin_look(BlockIndex(0)));
    assert_eq!(tensors.missed(&part(0)), Follows::Same);
    tensors.failed(BlockIndex(0));
    assert_eq!(tensors.missed(&part(0)), Follows::Unknown);
    assert!((0..=LOOKED_AT_MOST as u32).all(|nth| tensors.begin_look(BlockIndex(nth * 25))));
    assert_eq!((tensors.missed(&part(0)), tensors.missed(&part(25))), (Follows::Unknown, Follows::Same));
    let one = |first: u64| vec![Tensor { begin: first, end: first + 1, role: Role::of(0, b"a") }];
    for nth in 0..=FILES as u32 {
        tensors.found(FILE, BlockIndex(nth * 25), 100 * MIB, one(u64::from(nth)));
    }
    assert_eq!(tensors.read(&part(0)), None);
    assert!((1..=FILES as u32).all(|nth| tensors.read(&part(nth * 25)).is_some()));
}

#[test]
fn a_file_without_memory_for_its_tensors_is_not_followed() {
    let tensors = Tensors::new(Arc::new(MemoryBudget::default()).account(0, 2));
    let many = |count: u64| -> Vec<Tensor> {
        (0..count).map(|at| Tensor { begin: at, end: at + 1, role: Role::of(0, b"a") }).collect()
    };
    let part = parts(FIRST, 100 * MIB, 0, MIB).next().unwrap();
    tensors.found(FILE, FIRST, 100 * MIB, many(200));
    assert_eq!(tensors.read(&part), None);
    tensors.found(FILE, FIRST, 100 * MIB, many(2));
    assert_eq!(tensors.read(&part), Some(FILE));
    assert!(tensors.memory_for(16 << 20).is_none());
}

/// A reader of a generated case: where in the file it is, how much it reads, and how often in a row.
#[derive(Clone, Debug)]
struct Reading {
    at: prop::sample::Index,
    bytes: u64,
    times: u64,
}

proptest! {
    // In the debug profile each case takes a while.
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// The world checks each fetch against the reference.
    // SEMANTICS: C31
    #[test]
    fn whatever_is_read_nothing_but_what_readers_take_is_fetched_ahead(
        sizes in proptest::collection::vec(1..3_000_000_u64, 2..5),
        layers in 1..12_usize,
        keeps in any::<bool>(),
        readings in proptest::collection::vec(
            (any::<prop::sample::Index>(), 1..2_000_000_u64, 1..6_u64)
                .prop_map(|(at, bytes, times)| Reading { at, bytes, times }),
            1..40,
        ),
    ) {
        let mut end = 0;
        let mut model = Vec::new();
        for layer in 0..layers {
            for (role, bytes) in sizes.iter().enumerate() {
                model.push((format!("h.{layer}.t{role}"), end, end + bytes));
                end += bytes;
            }
        }
        let mut world = World::new(&model);
        world.keeps = keeps;
        for Reading { at, bytes, times } in readings {
            let start = at.index(world.size as usize) as u64;
            for nth in 0..times {
                let at = (start + nth * bytes).min(world.size);
                world.read(at..(at + bytes).min(world.size));
            }
        }
    }
}
