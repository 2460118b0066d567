use std::cell::RefCell;
use std::collections::BTreeSet;

use bytes::Bytes;
use larder_dataset::BlockIndex;
use proptest::prelude::*;

use super::*;
use crate::memory::{MemoryBudget, Permit};
use crate::planned::Coming;

const LEN: u32 = 100;

/// A dataset of files of one block each, with the numbers of their rows; every tenth has two blocks, of which the second
/// is `1_000_000` beyond.
#[derive(Debug, Default)]
struct Files {
    here: RefCell<BTreeSet<BlockIndex>>,
}

impl Look for Files {
    fn part(&self, item: Item, nth: u32) -> Option<(FileIndex, BlockPart)> {
        let blocks = if item.row.is_multiple_of(10) { 2 } else { 1 };
        let block = BlockIndex(item.row + nth * 1_000_000);
        let len = if item.len == 0 { LEN } else { item.len };
        let part = BlockPart { block, file_offset: 0, block_len: LEN, start: 0, len };
        (item.row != NO_FILE && nth < blocks).then_some((FileIndex(item.row), part))
    }

    fn is_here(&self, part: &BlockPart) -> bool {
        self.here.borrow().contains(&part.block)
    }

    fn is_piece(&self, _: FileIndex, part: &BlockPart) -> bool {
        part.len < LEN / 4
    }
}

struct World {
    schedule: Schedule,
    planned: Arc<PlannedBlocks>,
    files: Files,
    coming: Vec<(Order, Coming)>,
    now: Instant,
}

fn memory() -> Permit {
    Arc::<MemoryBudget>::default().account(0, u64::MAX).take(1)
}

fn owner(user: u32, id: u8) -> Owner {
    Owner { user, id: PlanId([id; 16]) }
}

fn items(rows: impl IntoIterator<Item = u32>) -> Vec<Item> {
    rows.into_iter().map(|row| Item { offset: 0, row, len: 0 }).collect()
}

fn put(position: u64) -> Put {
    Put { id: PlanId([0; 16]), position, passed: 0, replaces: false }
}

impl World {
    fn new() -> Self {
        let planned = Arc::new(PlannedBlocks::new(Arc::default()));
        let (schedule, files) = (Schedule::default(), Files::default());
        Self { schedule, planned, files, coming: Vec::new(), now: Instant::now() }
    }

    fn open(&mut self, id: u8) -> Owner {
        let owner = owner(1, id);
        self.schedule.open(owner, None, None, self.now).unwrap();
        owner
    }

    fn put(&mut self, owner: Owner, put: Put, rows: impl IntoIterator<Item = u32>) -> Result<u32, PlanRefused> {
        self.schedule.put(owner, put, &items(rows), self.now, &self.planned)
    }

    /// Begins all fetches for which there is room, and returns the blocks in their order.
    fn fetch(&mut self, bytes_most: u64) -> Vec<u32> {
        let mut begun = Vec::new();
        loop {
            match self.schedule.next(&self.files, &self.planned, bytes_most) {
                Next::Wait => return begun,
                Next::Look => {}
                Next::Fetch(order) => {
                    begun.push(order.part.block.0);
                    let coming = self.planned.add(order.plan, order.place, &order.part, memory()).unwrap();
                    self.coming.push((order, coming));
                }
            }
        }
    }

    /// Ends all fetches.
    fn arrive(&mut self) {
        for (order, coming) in self.coming.drain(..) {
            self.planned.fill(order.part.block, &Bytes::from(vec![0; LEN as usize]), false);
            drop(coming);
        }
    }

    fn read(&self, block: u32) -> bool {
        let part = BlockPart { block: BlockIndex(block), file_offset: 0, block_len: LEN, start: 0, len: LEN };
        self.planned.mark_read(&part).is_some()
    }

    fn pass_time(&mut self, time: Duration) {
        self.now += time;
        self.schedule.tidy(self.now, &self.planned);
    }
}

#[test]
fn a_plan_is_fetched_in_its_order_as_far_as_its_bytes_reach_and_on_as_it_is_read() {
    let mut world = World::new();
    let plan = world.open(1);
    assert_eq!(world.put(plan, put(0), [7, 5, NO_FILE, 20, 3, 1]), Ok(65_530));
    world.files.here.get_mut().insert(BlockIndex(5));
    assert_eq!(world.fetch(399), [7, 20, 1_000_020], "what is here needs no room");
    assert!(world.fetch(399).is_empty(), "no room for the next");
    world.arrive();
    assert!(world.read(20));
    assert_eq!(world.fetch(399), [3]);
    assert!(world.read(7) && world.read(1_000_020));
    assert_eq!(world.fetch(399), [1]);
}

#[test]
fn two_plans_have_half_each_and_the_one_with_fewer_bytes_on_their_way_is_next() {
    let mut world = World::new();
    let far = world.open(1);
    world.put(far, put(0), 1_001..1_010).unwrap();
    assert_eq!(world.fetch(600), [1_001, 1_002, 1_003, 1_004, 1_005, 1_006]);
    world.arrive();
    let near = world.open(2);
    world.put(near, put(0), 1..10).unwrap();
    // The first plan drops its farthest blocks.
    assert_eq!(world.fetch(600), [1, 2, 3]);
    assert!(world.read(1_003) && !world.read(1_004));
    assert_eq!(world.fetch(600), [1_004], "it comes to what it has dropped again");
    let third = world.open(3);
    world.put(third, put(0), 11..19).unwrap();
    world.arrive();
    for block in [1, 2, 1_001, 1_002] {
        assert!(world.read(block));
    }
    assert_eq!(world.fetch(600), [1_005, 4, 11, 12]);
}

#[test]
fn a_plan_without_memory_gets_that_of_others_up_to_half_of_its_share() {
    let mut world = World::new();
    let (first, second) = (world.open(1), world.open(2));
    world.put(first, put(0), 1_001..1_010).unwrap();
    assert_eq!(world.fetch(1_800).len(), 9);
    world.arrive();
    // As if these 900 bytes were all that the process leaves to plans.
    world.put(second, put(0), [1, 2, 3, 4]).unwrap();
    assert!(!world.schedule.make_way(1, &world.planned), "it has more");
    assert!(world.schedule.make_way(2, &world.planned));
    assert_eq!((world.planned.usage(1).blocks, world.planned.usage(2).blocks), (4, 0));
    assert_eq!(world.fetch(600), [1, 2, 3]);
    world.arrive();
    assert!(!world.schedule.make_way(2, &world.planned), "it has more than half");
}

#[test]
fn a_block_of_which_readers_fetch_pieces_is_left_to_them_unless_the_plan_often_returns_to_it() {
    let mut world = World::new();
    let plan = world.open(1);
    let part = |row: &u32| Item { offset: 10, row: *row, len: 5 };
    let parts: Vec<Item> = [3, 1, 3, 1, 2, 1, 3, 1, 1, 3, 3, 1, 4].iter().map(part).collect();
    world.schedule.put(plan, put(0), &parts, world.now, &world.planned).unwrap();
    assert_eq!(world.fetch(1_000), [1], "six parts");
}

#[test]
fn a_block_larger_than_a_share_is_fetched_alone() {
    let mut world = World::new();
    let plan = world.open(1);
    world.put(plan, put(0), [1, 2]).unwrap();
    assert_eq!(world.fetch(50), [1]);
    world.arrive();
    assert!(world.fetch(50).is_empty());
    assert!(world.read(1));
    assert_eq!(world.fetch(50), [2]);
}

#[test]
fn only_so_many_blocks_are_on_their_way() {
    let mut world = World::new();
    let plan = world.open(1);
    world.put(plan, put(0), (1..1_000).filter(|row| row % 10 > 0)).unwrap();
    assert_eq!(world.fetch(u64::MAX).len(), COMING_MOST);
    world.arrive();
    assert_eq!(world.fetch(u64::MAX).len(), COMING_MOST);
}

#[test]
fn every_command_can_be_repeated() {
    let mut world = World::new();
    let plan = owner(1, 1);
    for _ in 0..2 {
        assert_eq!(world.schedule.open(plan, Some(8), None, world.now), Ok(8));
    }
    for _ in 0..2 {
        assert_eq!(world.put(plan, put(0), [1, 2, 3]), Ok(5));
    }
    assert_eq!(world.put(plan, put(2), [3, 4]), Ok(4), "one of them is new");
    assert_eq!(world.fetch(1_000), [1, 2, 3, 4]);
    assert_eq!(world.put(plan, put(0), [1, 2, 3]), Ok(4));
    assert!(world.fetch(1_000).is_empty());
    for _ in 0..2 {
        let replaced = Put { replaces: true, ..put(3) };
        assert_eq!(world.put(plan, replaced, [5, 4]), Ok(3));
    }
    assert_eq!(world.fetch(1_000), [5], "the fourth is on its way for its new place");
    assert_eq!(world.schedule.at(plan, 2, world.now, &world.planned), Ok(3));
    assert_eq!(world.schedule.close(plan, &world.planned), Ok(()));
    assert_eq!(world.schedule.close(plan, &world.planned), Err(PlanRefused::Unknown));
    assert_eq!(world.schedule.len(), 0);
}

#[test]
fn what_its_program_has_passed_is_dropped_and_not_come_to() {
    let mut world = World::new();
    let plan = world.open(1);
    world.put(plan, put(0), 1..=6).unwrap();
    assert_eq!(world.fetch(200), [1, 2]);
    world.arrive();
    world.schedule.at(plan, 4, world.now, &world.planned).unwrap();
    assert_eq!(world.fetch(200), [5, 6]);
    assert!(!world.read(1) && !world.read(2));
    // Behind a gap, the plan begins anew.
    world.put(plan, Put { passed: 100, ..put(100) }, [8]).unwrap();
    world.arrive();
    assert_eq!(world.fetch(300), [8]);
}

#[test]
fn impossible_and_unbounded_values_are_refused_and_change_nothing() {
    let mut world = World::new();
    assert_eq!(world.put(owner(1, 1), put(0), [1]), Err(PlanRefused::Unknown));
    let plan = owner(1, 1);
    world.schedule.open(plan, Some(10), None, world.now).unwrap();
    assert_eq!(world.put(plan, put(9), [1, 2]), Err(PlanRefused::Invalid));
    assert_eq!(world.put(plan, put(u64::MAX), [1]), Err(PlanRefused::Invalid));
    assert_eq!(world.put(owner(2, 1), put(0), [1]), Err(PlanRefused::Unknown), "of another user");
    let plan = world.open(2);
    assert_eq!(world.put(plan, put(0), 0..65_536), Ok(0));
    assert_eq!(world.put(plan, put(65_536), [1]), Err(PlanRefused::TooMany));
    assert_eq!(world.put(plan, Put { replaces: true, ..put(10) }, [1]), Ok(65_525));
    assert_eq!(world.put(plan, put(u64::MAX - 1), [1]), Ok(65_535), "far ahead is only a position");
    assert_eq!(world.fetch(1_000), [1]);
}

#[test]
fn a_user_and_a_dataset_have_so_many_plans() {
    let mut world = World::new();
    for id in 0..32 {
        assert!(world.schedule.open(owner(1, id), None, None, world.now).is_ok());
    }
    assert_eq!(world.schedule.open(owner(1, 32), None, None, world.now), Err(PlanRefused::TooMany));
    assert!(world.schedule.open(owner(1, 31), None, None, world.now).is_ok(), "it is open");
    for id in 32..64 {
        assert!(world.schedule.open(owner(UNKNOWN_USER, id), None, None, world.now).is_ok());
    }
    assert_eq!(world.schedule.open(owner(UNKNOWN_USER, 64), None, None, world.now), Err(PlanRefused::TooMany));
}

#[test]
fn a_plan_ends_with_its_lease_or_soon_after_all_of_it_was_read() {
    let mut world = World::new();
    let silent = world.open(1);
    world.put(silent, put(0), [1, 2]).unwrap();
    let read = owner(1, 2);
    world.schedule.open(read, Some(1), None, world.now).unwrap();
    world.put(read, put(0), [3]).unwrap();
    world.fetch(1_000);
    world.arrive();
    world.pass_time(ENDED_STAYS);
    assert!(world.read(3));
    world.pass_time(Duration::ZERO);
    world.pass_time(ENDED_STAYS - Duration::from_secs(1));
    assert_eq!(world.schedule.len(), 2);
    world.pass_time(Duration::from_secs(1));
    assert_eq!(world.put(read, put(0), [3]), Err(PlanRefused::Unknown));
    world.schedule.at(silent, 0, world.now, &world.planned).unwrap();
    world.pass_time(LEASE - Duration::from_secs(1));
    assert_eq!((world.schedule.len(), world.planned.usage(1).blocks), (1, 2));
    world.pass_time(Duration::from_secs(1));
    assert_eq!((world.schedule.len(), world.planned.totals()), (0, (0, 0)));
}

#[derive(Clone, Debug)]
enum Step {
    Put { plan: u8, position: u64, rows: Vec<u32>, passed: u64, replaces: bool },
    At { plan: u8, passed: u64 },
    Open { plan: u8 },
    Close { plan: u8 },
    Fetch,
    GoBack,
    Arrive,
    Fail,
    Read { block: u32 },
    PassTime { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let (plan, position) = (1..4_u8, 0..60_u64);
    let rows = prop::collection::vec(0..40_u32, 0..20);
    let put = (plan.clone(), position.clone(), rows, position.clone(), prop::bool::weighted(0.2));
    let put = put.prop_map(|(plan, position, rows, passed, replaces)| {
        let passed = passed / 4;
        Step::Put { plan, position, rows, passed, replaces }
    });
    prop_oneof![
        4 => put,
        1 => (plan.clone(), position).prop_map(|(plan, passed)| Step::At { plan, passed: passed / 2 }),
        1 => plan.clone().prop_map(|plan| Step::Open { plan }),
        1 => plan.prop_map(|plan| Step::Close { plan }),
        6 => Just(Step::Fetch),
        1 => Just(Step::GoBack),
        3 => Just(Step::Arrive),
        1 => Just(Step::Fail),
        8 => (0..40_u32).prop_map(|block| Step::Read { block }),
        1 => (0..30_u64).prop_map(|seconds| Step::PassTime { seconds }),
    ]
}

proptest! {
    /// Whatever programs do: no panic, no more bytes than all plans may have, and every count is that of what is there.
    #[test]
    fn plans_keep_their_bounds_whatever_programs_do(steps in prop::collection::vec(step(), 0..120)) {
        const BYTES_MOST: u64 = 1_000;
        let mut world = World::new();
        for id in 1..4 {
            world.open(id);
        }
        for step in steps {
            match step {
                Step::Put { plan, position, rows, passed, replaces } => {
                    let _ = world.put(owner(1, plan), Put { passed, replaces, ..put(position) }, rows);
                }
                Step::At { plan, passed } => {
                    let _ = world.schedule.at(owner(1, plan), passed, world.now, &world.planned);
                }
                Step::Open { plan } => {
                    let _ = world.schedule.open(owner(1, plan), None, None, world.now);
                }
                Step::Close { plan } => {
                    let _ = world.schedule.close(owner(1, plan), &world.planned);
                }
                Step::Fetch => {
                    let begun = world.fetch(BYTES_MOST);
                    prop_assert!(begun.len() as u64 * u64::from(LEN) <= BYTES_MOST);
                }
                Step::GoBack => {
                    if let Next::Fetch(order) = world.schedule.next(&world.files, &world.planned, BYTES_MOST) {
                        world.schedule.go_back(&order);
                        prop_assert_eq!(world.schedule.plans[&order.plan].next, order.place);
                    }
                }
                Step::Arrive => world.arrive(),
                Step::Fail => drop(world.coming.pop()),
                Step::Read { block } => {
                    world.read(block);
                }
                Step::PassTime { seconds } => world.pass_time(Duration::from_secs(seconds)),
            }
            let usages: Vec<Usage> = world.schedule.plans.keys().map(|&plan| world.planned.usage(plan)).collect();
            let (bytes, coming) = world.planned.totals();
            prop_assert!(usages.iter().all(|usage| usage.bytes <= BYTES_MOST && usage.coming_bytes <= usage.bytes));
            prop_assert!(usages.iter().map(|usage| usage.bytes).sum::<u64>() <= bytes);
            prop_assert!(coming <= world.coming.len());
            for plan in world.schedule.plans.values() {
                prop_assert!(plan.first <= plan.next.position && plan.next.position <= plan.end());
            }
        }
        world.arrive();
        world.schedule.close_all(&world.planned);
        prop_assert_eq!(world.planned.totals(), (0, 0));
    }

    /// A plan that is followed fetches each of its files once, in order, however its items and the reads come.
    #[test]
    fn a_plan_that_is_followed_fetches_each_file_once(
        rows in Just((0..200_u32).collect::<Vec<_>>()).prop_shuffle(),
        parts in prop::collection::vec(1..30_usize, 1..40),
        window in 3..12_u64,
    ) {
        let mut world = World::new();
        let plan = world.open(1);
        let (mut begun, mut read, mut at) = (Vec::new(), 0, 0);
        let mut parts = parts.into_iter().cycle();
        while read < rows.len() {
            if at < rows.len() {
                let end = rows.len().min(at + parts.next().unwrap());
                let passed = read as u64 / 2;
                world.put(plan, Put { passed, ..put(at as u64) }, rows[at..end].iter().copied()).unwrap();
                at = end;
            }
            begun.extend(world.fetch(window * u64::from(LEN)));
            world.arrive();
            // The readers have some of the files at a time, and begin with the last.
            for &row in rows[read..at.min(read + 2)].iter().rev() {
                world.read(row);
                world.read(row + 1_000_000);
                read += 1;
            }
        }
        let mut sorted = begun.clone();
        sorted.sort_unstable();
        sorted.dedup();
        prop_assert_eq!(sorted.len(), begun.len(), "a file was fetched twice");
        let firsts: Vec<u32> = begun.into_iter().filter(|&block| block < 1_000_000).collect();
        let planned: Vec<u32> = rows.iter().copied().filter(|row| firsts.contains(row)).collect();
        prop_assert_eq!(firsts, planned);
    }
}
