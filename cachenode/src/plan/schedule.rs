//! The plans of a dataset, and which block is fetched next. A state machine: it starts no fetch and knows no manifest.
//!
//! A plan has a window of items, of which the programs put more as it moves on. It comes to its items in order. A block
//! that is not here takes a part of the bytes that all plans have together, of which each plan has the same share, until
//! it was read. Of the plans that may fetch, the one with the fewest bytes on their way is next, so that one far ahead
//! delays no other.
//!
//! Invariants: the blocks of a plan have at most its share of the bytes, or are one block; a plan has at most
//! [`ITEMS_MOST`] items to come, and twice as many in all; a plan without a sign of its program ends after [`LEASE`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use larder_dataset::{BLOCK_BYTES, BlockPart, FileIndex};
use tokio::time::Instant;

use super::command::{PlanId, Put};
use super::pages::PageCache;
use crate::planned::{Found, Place, PlannedBlocks, Usage};

/// The most items that a plan has before it.
const ITEMS_MOST: usize = 1 << 16;

/// How long a plan lives without a sign of its program.
const LEASE: Duration = Duration::from_secs(60);

/// How long a plan is there after all of it was read.
const ENDED_STAYS: Duration = Duration::from_secs(10);

/// The most plans of a dataset, and of a user. Each rank of a node has one for training, and maybe one for validation.
const PLANS_MOST: usize = 64;
const PLANS_OF_USER_MOST: usize = 32;

/// The user of requests of which the kernel does not say it: those of a mount that can be mapped into user namespaces.
const UNKNOWN_USER: u32 = u32::MAX;

/// The most blocks of all plans on their way. More would only wait in the queue of the origin.
const COMING_MOST: usize = 256;

/// With this many small parts in a block, among this many next items, its readers would fetch all of it.
const PARTS_OF_WHOLE: usize = 6;
const PARTS_WITHIN: usize = 1024;

/// Blocks that are looked at in one call.
const STEPS_MOST: usize = 1024;

/// The item of a path that no file has.
pub(super) const NO_FILE: u32 = u32::MAX;

/// The owner of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    pub(super) user: u32,
    pub(super) id: PlanId,
}

/// A file, or a part of one, that a program is going to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) offset: u64,
    /// The file's row.
    pub(super) row: u32,
    /// 0: to the end of the file.
    pub(super) len: u32,
}

/// Why an ioctl about a plan is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanRefused {
    /// No such plan is open: its lease is over, or the process was restarted.
    #[error("no such plan")]
    Unknown,
    /// It has rows of another snapshot.
    #[error("the rows are of another snapshot")]
    OtherSnapshot,
    /// A value is impossible.
    #[error("invalid")]
    Invalid,
    /// There are as many plans, or as many items, as are accepted.
    #[error("too many plans or items")]
    TooMany,
    /// Paths were put into a plan through a file.
    #[error("not a folder")]
    NotAFolder,
}

/// The facts of the dataset that a schedule needs.
pub(super) trait Look {
    /// The part of a block, by its number in an item. None: the item has no further block.
    fn part(&self, item: Item, nth: u32) -> Option<(FileIndex, BlockPart)>;

    /// True if a reader would find a part of a block here, or the block on its way.
    fn is_here(&self, part: &BlockPart) -> bool;

    /// True if a reader would fetch only a piece of the block.
    fn is_piece(&self, file: FileIndex, part: &BlockPart) -> bool;
}

/// A block to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) plan: u64,
    pub(super) place: Place,
    pub(super) file: FileIndex,
    pub(super) part: BlockPart,
}

/// The next thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Fetch a block.
    Fetch(Order),
    /// Call again: many blocks were looked at.
    Look,
    /// Wait for a change.
    Wait,
}

/// The plans of a dataset.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// By number.
    plans: BTreeMap<u64, Plan>,
    numbers: BTreeMap<Owner, u64>,
    /// How many there ever were.
    opened: u64,
}

#[derive(Debug)]
struct Plan {
    owner: Owner,
    /// The page cache of the mount that took it, which may end before the plan.
    pages: Option<Weak<dyn PageCache>>,
    /// The number of its items, if it is known.
    count: Option<u64>,
    /// The items from the position `first` on.
    items: VecDeque<Item>,
    first: u64,
    /// Where it is.
    next: Place,
    /// When its program last gave a sign.
    renewed: Instant,
    /// Since when all of it was read.
    ended: Option<Instant>,
}

const fn start_of(position: u64) -> Place {
    Place { position, nth: 0 }
}

impl Plan {
    /// The position after its last item.
    fn end(&self) -> u64 {
        self.first + self.items.len() as u64
    }

    /// How many more items it takes.
    fn room(&self) -> u64 {
        (ITEMS_MOST as u64).saturating_sub(self.end() - self.next.position)
    }

    /// How many more items its program should put.
    fn wanted(&self) -> u32 {
        let rest = self.count.map_or(u64::MAX, |count| count.saturating_sub(self.end()));
        self.room().min(rest) as u32
    }

    fn item(&self) -> Option<Item> {
        // At most twice ITEMS_MOST.
        self.items.get((self.next.position - self.first) as usize).copied()
    }

    /// True if so many of its next items are in a block that their readers would fetch all of it.
    fn wants_all_of(&self, row: u32, block_of_file: u64) -> bool {
        let next = self.items.range((self.next.position - self.first) as usize..).take(PARTS_WITHIN);
        let is_in_it = |item: &&Item| item.row == row && item.offset / BLOCK_BYTES == block_of_file;
        next.filter(is_in_it).nth(PARTS_OF_WHOLE - 1).is_some()
    }

    fn go_to(&mut self, place: Place) {
        self.next = place;
        self.ended = None;
    }

    /// Drops the items that it does not come to again.
    fn forget_before(&mut self, position: u64) {
        let position = position.min(self.next.position);
        let n = position.saturating_sub(self.first).min(self.items.len() as u64);
        self.items.drain(..n as usize);
        self.first += n;
    }
}

impl Schedule {
    /// How many plans there are.
    pub(super) fn len(&self) -> usize {
        self.plans.len()
    }

    /// True if this owner has a plan.
    pub(super) fn has(&self, owner: Owner) -> bool {
        self.numbers.contains_key(&owner)
    }

    /// Opens a plan, or renews it. Returns how many items it wants.
    pub(super) fn open(
        &mut self,
        owner: Owner,
        count: Option<u64>,
        pages: Option<Weak<dyn PageCache>>,
        now: Instant,
    ) -> Result<u32, PlanRefused> {
        if let Some(plan) = self.numbers.get(&owner).and_then(|number| self.plans.get_mut(number)) {
            (plan.count, plan.renewed) = (count, now);
            return Ok(plan.wanted());
        }
        let of_user = self.numbers.keys().filter(|other| other.user == owner.user).count();
        let is_one_too_many = owner.user != UNKNOWN_USER && of_user >= PLANS_OF_USER_MOST;
        if self.plans.len() >= PLANS_MOST || is_one_too_many {
            return Err(PlanRefused::TooMany);
        }
        // From 1 on.
        self.opened += 1;
        let (items, first, next) = (VecDeque::new(), 0, start_of(0));
        let plan = Plan { owner, pages, count, items, first, next, renewed: now, ended: None };
        let wanted = plan.wanted();
        self.plans.insert(self.opened, plan);
        self.numbers.insert(owner, self.opened);
        Ok(wanted)
    }

    /// Puts items into a plan. Returns how many more it wants.
    pub(super) fn put(
        &mut self,
        owner: Owner,
        put: Put,
        items: &[Item],
        now: Instant,
        planned: &PlannedBlocks,
    ) -> Result<u32, PlanRefused> {
        let (number, plan) = self.plan(owner)?;
        let Put { position, passed, replaces, .. } = put;
        let end = position.checked_add(items.len() as u64).ok_or(PlanRefused::Invalid)?;
        if plan.count.is_some_and(|count| end > count) {
            return Err(PlanRefused::Invalid);
        }
        let old_end = if replaces { plan.end().min(position) } else { plan.end() };
        // Behind a gap, the plan begins anew.
        let is_apart = position > old_end || (replaces && position < plan.first);
        let next = if is_apart { position } else { plan.next.position.min(old_end) };
        if end.max(old_end).saturating_sub(next) > ITEMS_MOST as u64 {
            return Err(PlanRefused::TooMany);
        }
        plan.renewed = now;
        if replaces {
            plan.items.truncate(old_end.saturating_sub(plan.first) as usize);
            planned.cut(number, position);
        }
        if is_apart {
            plan.items.clear();
            plan.first = position;
        }
        if is_apart || (replaces && position <= plan.next.position) {
            plan.go_to(start_of(next));
        }
        let known = plan.end().saturating_sub(position).min(items.len() as u64);
        if known < items.len() as u64 {
            plan.items.extend(&items[known as usize..]);
            plan.ended = None;
        }
        Self::pass(number, plan, passed, planned);
        Ok(plan.wanted())
    }

    /// Notes how far the reader of a plan is. Returns how many more items it wants.
    pub(super) fn at(
        &mut self,
        owner: Owner,
        passed: u64,
        now: Instant,
        planned: &PlannedBlocks,
    ) -> Result<u32, PlanRefused> {
        let (number, plan) = self.plan(owner)?;
        plan.renewed = now;
        Self::pass(number, plan, passed, planned);
        Ok(plan.wanted())
    }

    /// Ends a plan.
    pub(super) fn close(&mut self, owner: Owner, planned: &PlannedBlocks) -> Result<(), PlanRefused> {
        let (number, _) = self.plan(owner)?;
        self.remove(number, planned);
        Ok(())
    }

    /// Ends all plans.
    pub(super) fn close_all(&mut self, planned: &PlannedBlocks) {
        while let Some((&number, _)) = self.plans.first_key_value() {
            self.remove(number, planned);
        }
    }

    /// Ends the plans whose programs are gone, or that were read, and drops what readers have left behind.
    pub(super) fn tidy(&mut self, now: Instant, planned: &PlannedBlocks) {
        let mut over = Vec::new();
        for (&number, plan) in &mut self.plans {
            planned.drop_passed(number);
            let first = planned.first_position(number);
            plan.forget_before(first.unwrap_or(u64::MAX));
            let is_read = plan.count == Some(plan.next.position) && planned.usage(number).bytes == 0;
            plan.ended = if is_read { plan.ended.or(Some(now)) } else { None };
            let has_ended = plan.ended.is_some_and(|since| now.duration_since(since) >= ENDED_STAYS);
            if has_ended || now.duration_since(plan.renewed) >= LEASE {
                over.push(number);
            }
        }
        over.into_iter().for_each(|number| self.remove(number, planned));
    }

    /// The next block to fetch, if all plans together may have `bytes_most`.
    pub(super) fn next(&mut self, look: &impl Look, planned: &PlannedBlocks, bytes_most: u64) -> Next {
        let share = self.share(bytes_most, planned);
        self.shrink(share, planned);
        if planned.totals().1 >= COMING_MOST {
            return Next::Wait;
        }
        let mut turns: Vec<(u64, u64)> =
            self.plans.keys().map(|&number| (planned.usage(number).coming_bytes, number)).collect();
        turns.sort_unstable();
        for (_, number) in turns {
            let Some(plan) = self.plans.get_mut(&number) else { continue };
            match Self::next_of(number, plan, look, planned, share) {
                Next::Wait => {}
                next => return next,
            }
        }
        Next::Wait
    }

    /// The page cache of the mount that took a plan.
    pub(super) fn pages(&self, plan: u64) -> Option<Arc<dyn PageCache>> {
        self.plans.get(&plan)?.pages.as_ref()?.upgrade()
    }

    /// Comes to a block again that could not be fetched yet.
    pub(super) fn go_back(&mut self, order: &Order) {
        if let Some(plan) = self.plans.get_mut(&order.plan).filter(|plan| order.place < plan.next) {
            plan.go_to(order.place);
        }
    }

    /// Has the others give way to a plan for which there is no memory, if it has less than half of its share of what all
    /// plans have. False: it waits until something was read.
    pub(super) fn make_way(&mut self, plan: u64, planned: &PlannedBlocks) -> bool {
        let share = self.share(planned.totals().0, planned);
        let gives_way = 2 * planned.usage(plan).bytes <= share;
        if gives_way {
            self.shrink(share, planned);
        }
        gives_way
    }

    /// The part of these bytes for each plan that has something or wants something.
    fn share(&self, bytes: u64, planned: &PlannedBlocks) -> u64 {
        let is_active = |number: u64, plan: &Plan| plan.item().is_some() || planned.usage(number).bytes > 0;
        let plans = self.plans.iter().filter(|&(&number, plan)| is_active(number, plan)).count() as u64;
        bytes / plans.max(1)
    }

    /// Has plans that have more than their share, because others have begun, drop their farthest blocks.
    fn shrink(&mut self, share: u64, planned: &PlannedBlocks) {
        for (&number, plan) in &mut self.plans {
            // A plan may have one block that is larger than its share.
            while let Usage { blocks: 2.., bytes, .. } = planned.usage(number)
                && bytes > share
                && let Some(place) = planned.drop_farthest(number)
            {
                if place < plan.next && place.position >= plan.first {
                    plan.go_to(place);
                }
            }
        }
    }

    fn next_of(number: u64, plan: &mut Plan, look: &impl Look, planned: &PlannedBlocks, share: u64) -> Next {
        for _ in 0..STEPS_MOST {
            let Some(item) = plan.item() else { return Next::Wait };
            let place = plan.next;
            let Some((file, part)) = look.part(item, place.nth) else {
                plan.next = start_of(place.position + 1);
                continue;
            };
            let used = planned.usage(number).bytes;
            let has_room = used == 0 || used + u64::from(part.block_len) <= share;
            let is_left_to_readers =
                || look.is_piece(file, &part) && !plan.wants_all_of(item.row, part.file_offset / BLOCK_BYTES);
            let found = match planned.look_up(number, place, &part, has_room) {
                Found::Nothing if look.is_here(&part) || is_left_to_readers() => Found::Here,
                found => found,
            };
            let is_too_far = place.position - plan.first >= ITEMS_MOST as u64;
            if is_too_far || (found != Found::Here && !has_room) {
                return Next::Wait;
            }
            plan.next.nth += 1;
            if found == Found::Here {
                continue;
            }
            return Next::Fetch(Order { plan: number, place, file, part });
        }
        Next::Look
    }

    fn plan(&mut self, owner: Owner) -> Result<(u64, &mut Plan), PlanRefused> {
        let number = *self.numbers.get(&owner).ok_or(PlanRefused::Unknown)?;
        Ok((number, self.plans.get_mut(&number).ok_or(PlanRefused::Unknown)?))
    }

    fn pass(number: u64, plan: &mut Plan, passed: u64, planned: &PlannedBlocks) {
        let passed = passed.min(plan.end());
        planned.pass(number, passed);
        if plan.next.position < passed {
            plan.go_to(start_of(passed));
        }
        plan.forget_before(planned.first_position(number).unwrap_or(u64::MAX));
    }

    fn remove(&mut self, number: u64, planned: &PlannedBlocks) {
        if let Some(plan) = self.plans.remove(&number) {
            self.numbers.remove(&plan.owner);
        }
        planned.forget(number);
    }
}

#[cfg(test)]
mod tests;
