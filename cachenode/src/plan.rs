//! Plans: programs say what they are going to read, and the node fetches it ahead of them.
//!
//! The cast: [`command`] are the ioctls; `schedule` has the plans and decides which block is next; `planned` holds the
//! blocks until they are read; `pages` knows what need not be fetched, because the kernel has it. A `Planner` brings
//! them together: one task, which runs while there is a plan.
//!
//! A plan is a hint. A wrong or late one, or one that nobody follows, costs at most the memory of all plans and the
//! bytes that it has fetched, never an error, another byte, or a block of the cache: planned blocks evict none. Readers
//! that wait for the origin go before all plans. Plans take no memory that others wait for: they may hold as much as is
//! left to all others, as every account of the process does (`memory`).
//!
//! A dataset whose programs say nothing is followed if its readers repeat an epoch (`follow`): that is a plan, too.
//!
//! Invariant: readers wait for no lock that is held while the manifest is read, unless an epoch begins or ceases to be
//! followed.

pub mod command;
mod follow;
mod pages;
mod schedule;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use larder_dataset::{BLOCK_BYTES, BlockIndex, BlockPart, DirIndex, Entry, FileIndex};
use larder_origin::Caller;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::counters::add;
use crate::fetch::Fetcher;
use crate::manifest_file::MappedManifest;
use crate::memory::Account;
use crate::planned::Coming;
use command::{Command, FileRange, Items, PlanId, Put};
use follow::{Epoch, Follower};
use pages::SeenBlocks;
use schedule::{Item, Look, NO_FILE, Next, Order, Owner, Schedule};

pub use pages::PageCache;
pub use schedule::PlanRefused;

/// The interval of looks at the leases, and for memory that others have given back.
const TICK: Duration = Duration::from_millis(250);

/// Fetches that begin in one step. Ioctls wait for a step.
const FETCHES_AT_ONCE: usize = 64;

/// How long the kernel may take to say what it has cached.
const PAGES_PATIENCE: Duration = Duration::from_secs(1);

/// The owner of the plan by which an epoch is followed. A program that claims to be this one misleads only this plan.
const FOLLOWED: Owner = Owner { user: u32::MAX - 1, id: PlanId([0; 16]) };

/// Blocks that are put into that plan in one step.
const FED_AT_ONCE: usize = 1024;

/// Where a command comes from.
#[derive(Clone, Copy, Debug)]
pub struct PlanSource<'a> {
    /// The user; `u32::MAX` if the kernel does not say it.
    pub user: u32,
    /// The folder that took the command. None: a file did.
    pub folder: Option<DirIndex>,
    /// The page cache of the mount.
    pub pages: &'a Arc<dyn PageCache>,
}

/// Carries out the plans of a dataset.
#[derive(Debug)]
pub(crate) struct Planner(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    manifest: Arc<MappedManifest>,
    fetcher: Arc<Fetcher>,
    seen: SeenBlocks,
    follower: Mutex<Follower>,
    /// The page cache of the dataset's newest mount.
    watched: Mutex<Option<Weak<dyn PageCache>>>,
    /// Memory for the blocks of all plans.
    memory: Account,
    state: Mutex<State>,
    stop: CancellationToken,
}

#[derive(Debug)]
struct State {
    schedule: Schedule,
    /// When it was last tidied.
    tidied: Instant,
    is_running: bool,
    followed: Option<Followed>,
    /// How often the last plan of programs has ended.
    epochs: u64,
}

/// An epoch that is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Followed {
    /// The position of the next block to put.
    next: usize,
    /// How many reads there were when this was last looked at. Without any more, the plan ends by its lease.
    reads: u64,
}

/// The task's next action after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Again,
    Wait,
    Over,
}

impl Planner {
    pub(crate) fn new(manifest: Arc<MappedManifest>, fetcher: Arc<Fetcher>) -> Self {
        let seen = SeenBlocks::new(manifest.totals().blocks);
        let config = fetcher.config();
        let memory = config.other_account(config.plan_bytes);
        let (schedule, tidied) = (Schedule::default(), Instant::now());
        let state = State { schedule, tidied, is_running: false, followed: None, epochs: 0 };
        let (state, stop) = (Mutex::new(state), CancellationToken::new());
        let (follower, watched) = (Mutex::default(), Mutex::default());
        Self(Arc::new(Shared { manifest, fetcher, seen, follower, watched, memory, state, stop }))
    }

    /// Notes that a block is read: the page cache may have it from now on.
    pub(crate) fn seen(&self, block: BlockIndex) {
        self.0.seen.mark(block);
    }

    /// Notes that a reader had to wait for a block, or had it out of a plan. Follows the epoch while it is like the last
    /// one.
    pub(crate) fn read(&self, block: BlockIndex) {
        let shared = &self.0;
        let mut follower = shared.follower();
        let epoch = follower.read(block.0, shared.manifest.totals().blocks);
        let (at, count) = (follower.at(), follower.len());
        drop(follower);
        match epoch {
            Epoch::GoesOn => {}
            Epoch::Matches => shared.follow(at, count),
            Epoch::Differs => shared.leave(),
        }
    }

    /// Has the page cache of a mount asked before an epoch is followed. Without one, none is.
    pub(crate) fn watch(&self, pages: Weak<dyn PageCache>) {
        *self.0.watched.lock().unwrap_or_else(PoisonError::into_inner) = Some(pages);
    }

    /// Notes that an earlier process has served the mount.
    pub(crate) fn assume_seen(&self) {
        self.0.seen.mark_all();
    }

    /// The numbers of plans and of their bytes, by the names of `telemetry`'s table.
    pub(crate) fn gauges(&self) -> [(&'static str, u64); 2] {
        let plans = self.0.state().schedule.len() as u64;
        [("fs_plans", plans), ("fs_plan_bytes", self.0.fetcher.planned().totals().0)]
    }

    /// How many plans programs have open, and how often the last one has ended: the epochs of programs with plans.
    pub(crate) fn epochs(&self) -> (usize, u64) {
        let state = self.0.state();
        (state.of_programs(), state.epochs)
    }

    /// Carries out a command. Returns how many more items its plan wants. May read the manifest from the disk.
    pub(crate) fn command(&self, command: &Command<'_>, source: &PlanSource<'_>) -> Result<u32, PlanRefused> {
        let shared = &self.0;
        let (owner, now) = (Owner { user: source.user, id: command.id() }, Instant::now());
        let planned = shared.fetcher.planned();
        let wanted = match command {
            Command::Open(open) => {
                if open.snapshot.is_some_and(|snapshot| snapshot != shared.manifest.snapshot().0) {
                    return Err(PlanRefused::OtherSnapshot);
                }
                let mut state = shared.state();
                let wanted = state.schedule.open(owner, open.count, Some(Arc::downgrade(source.pages)), now)?;
                shared.start(&mut state);
                wanted
            }
            Command::Put(put, items) => {
                // Without the lock, since this reads the manifest.
                let items = shared.items(items, source.folder)?;
                shared.state().schedule.put(owner, *put, &items, now, planned)?
            }
            Command::At { passed, .. } => shared.state().schedule.at(owner, *passed, now, planned)?,
            Command::Close { .. } => {
                let mut state = shared.state();
                state.schedule.close(owner, planned)?;
                state.epochs += u64::from(state.of_programs() == 0);
                0
            }
        };
        planned.wake();
        Ok(wanted)
    }

    /// Ends all plans. None begins after that.
    pub(crate) fn stop(&self) {
        self.0.stop.cancel();
    }
}

impl State {
    /// The number of plans without the one by which an epoch is followed.
    fn of_programs(&self) -> usize {
        self.schedule.len() - usize::from(self.schedule.has(FOLLOWED))
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follower(&self) -> MutexGuard<'_, Follower> {
        self.follower.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the last epoch, which has `count` blocks, from a position on.
    fn follow(self: &Arc<Self>, at: usize, count: usize) {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Of a mount that has ended, nothing can be asked.
        let Some(pages) = watched.filter(|pages| pages.strong_count() > 0) else { return };
        let mut state = self.state();
        // Programs that say what they read know better.
        if state.schedule.len() == 0
            && state.schedule.open(FOLLOWED, Some(count as u64), Some(pages), Instant::now()).is_ok()
        {
            state.followed = Some(Followed { next: at, reads: 0 });
            self.start(&mut state);
        }
    }

    /// Ends the plan by which an epoch is followed.
    fn leave(&self) {
        let mut state = self.state();
        if state.followed.take().is_some() {
            // It may have ended by itself.
            let _ = state.schedule.close(FOLLOWED, self.fetcher.planned());
        }
    }

    /// The plan by which an epoch was followed has ended, since its readers paused. It may be followed again.
    fn lapse(&self, mut state: MutexGuard<'_, State>) {
        let was_followed = state.followed.take().is_some();
        drop(state);
        if was_followed {
            self.follower().lapse();
        }
    }

    /// Puts the next blocks into the plan by which an epoch is followed, if it wants them.
    fn feed(&self) {
        let planned = self.fetcher.planned();
        let follower = self.follower();
        let (passed, reads) = (follower.passed() as u64, follower.reads());
        drop(follower);
        let mut state = self.state();
        let Some(followed) = state.followed.as_mut().filter(|followed| followed.reads < reads) else { return };
        followed.reads = reads;
        let from = followed.next;
        let Ok(wanted) = state.schedule.at(FOLLOWED, passed, Instant::now(), planned) else {
            return self.lapse(state);
        };
        drop(state);
        if wanted == 0 {
            return;
        }
        let blocks = self.follower().ahead(from, FED_AT_ONCE.min(wanted as usize)).to_vec();
        // Without a lock, since this reads the manifest.
        let items: Vec<Item> = blocks.into_iter().map(|block| self.item_of(BlockIndex(block))).collect();
        let State { schedule, followed, .. } = &mut *self.state();
        let put = Put { id: FOLLOWED.id, position: from as u64, passed, replaces: false };
        // Another epoch may have begun meanwhile.
        if let Some(followed) = followed.as_mut().filter(|followed| followed.next == from)
            && schedule.put(FOLLOWED, put, &items, Instant::now(), planned).is_ok()
        {
            followed.next += items.len();
        }
    }

    /// A block as an item.
    fn item_of(&self, block: BlockIndex) -> Item {
        let file = self.manifest.file_of_block(block);
        let found = file.and_then(|index| Ok((index, self.manifest.file(index)?.first_block)));
        let Ok((FileIndex(row), first)) = found else { return Item { offset: 0, row: NO_FILE, len: 0 } };
        Item { offset: u64::from(block.0 - first.0) * BLOCK_BYTES, row, len: BLOCK_BYTES as u32 }
    }

    /// The files of items.
    fn items(&self, items: &Items<'_>, folder: Option<DirIndex>) -> Result<Vec<Item>, PlanRefused> {
        let files = self.manifest.totals().files;
        let item = |FileRange { row, offset, len }| {
            (row < files).then_some(Item { row, offset, len }).ok_or(PlanRefused::Invalid)
        };
        match items {
            Items::Rows(rows) => rows.iter().map(|&row| item(FileRange { row, offset: 0, len: 0 })).collect(),
            Items::Ranges(ranges) => ranges.iter().map(|&range| item(range)).collect(),
            Items::Paths(paths) => {
                let mut path = Vec::new();
                let folder = folder.ok_or(PlanRefused::NotAFolder)?;
                self.manifest.dir_path(folder, &mut path).map_err(|_| PlanRefused::Invalid)?;
                if !path.is_empty() {
                    path.push(b'/');
                }
                let folder_bytes = path.len();
                let row = |name: &&[u8]| {
                    path.truncate(folder_bytes);
                    // `find` prints them with a "./" in front.
                    path.extend_from_slice(name.strip_prefix(b"./").unwrap_or(name));
                    match self.manifest.follow(&path) {
                        Ok(Some(Entry::File(FileIndex(row)))) => row,
                        _ => NO_FILE,
                    }
                };
                Ok(paths.iter().map(row).map(|row| Item { row, offset: 0, len: 0 }).collect())
            }
        }
    }

    /// Starts the task, unless it is running.
    fn start(self: &Arc<Self>, state: &mut State) {
        if !state.is_running && !self.stop.is_cancelled() {
            state.is_running = true;
            self.fetcher.runtime().spawn(Arc::clone(self).run());
        }
    }

    async fn run(self: Arc<Self>) {
        while !self.stop.is_cancelled() {
            self.feed();
            match self.step() {
                Step::Over => return,
                Step::Again => tokio::task::yield_now().await,
                Step::Wait => tokio::select! {
                    () = self.fetcher.planned().changed() => {}
                    () = sleep(TICK) => {}
                    () = self.stop.cancelled() => {}
                },
            }
        }
        let mut state = self.state();
        state.schedule.close_all(self.fetcher.planned());
        state.is_running = false;
    }

    /// Begins some fetches.
    fn step(self: &Arc<Self>) -> Step {
        let (mut state, planned) = (self.state(), self.fetcher.planned());
        let now = Instant::now();
        if now.duration_since(state.tidied) >= TICK {
            let before = state.of_programs();
            state.schedule.tidy(now, planned);
            state.epochs += u64::from(before > 0 && state.of_programs() == 0);
            state.tidied = now;
        }
        if state.schedule.len() == 0 {
            state.is_running = false;
            self.lapse(state);
            return Step::Over;
        }
        for _ in 0..FETCHES_AT_ONCE {
            match state.schedule.next(&**self, planned, self.fetcher.config().plan_bytes) {
                Next::Wait => return Step::Wait,
                Next::Look => return Step::Again,
                Next::Fetch(order) if self.begin(&mut state, order) => {}
                Next::Fetch(_) => return Step::Wait,
            }
        }
        Step::Again
    }

    /// Begins to fetch a block. False: there is no memory for it now.
    fn begin(self: &Arc<Self>, state: &mut State, order: Order) -> bool {
        let planned = self.fetcher.planned();
        let acquire = || self.memory.try_acquire((order.part.block_len >> 10) + 1);
        let memory = acquire().or_else(|| state.schedule.make_way(order.plan, planned).then(acquire).flatten());
        let Some(memory) = memory else {
            state.schedule.go_back(&order);
            return false;
        };
        if let Some(coming) = planned.add(order.plan, order.place, &order.part, memory) {
            let may_be_cached = self.seen.contains(order.part.block);
            let pages = if may_be_cached { state.schedule.pages(order.plan) } else { None };
            // A plan takes turns with the readers, and with other plans, as a reader does.
            let caller = Caller::new(Arc::as_ptr(self).addr() as u64, order.plan as u32);
            let fetch = Arc::clone(self).fetch(order, pages, coming);
            self.fetcher.runtime().spawn(caller.run(fetch));
        }
        true
    }

    async fn fetch(self: Arc<Self>, order: Order, pages: Option<Arc<dyn PageCache>>, coming: Coming) {
        let Order { file, part, .. } = order;
        if let Some(pages) = pages {
            let answer = timeout(PAGES_PATIENCE, pages.ask(file, part.file_offset + u64::from(part.start))).await;
            if matches!(answer, Ok(Ok(true))) {
                add(&self.fetcher.counters().plan_blocks_in_page_cache, 1);
                return;
            }
        }
        self.fetcher.fetch_planned(file, part).await;
        // Not before: if the fetch has failed, this gives the block up.
        drop(coming);
    }
}

impl Look for Shared {
    fn part(&self, item: Item, nth: u32) -> Option<(FileIndex, BlockPart)> {
        let Item { offset, row, len } = item;
        if row >= self.manifest.totals().files {
            return None;
        }
        let end = if len == 0 { u64::MAX } else { offset.saturating_add(len.into()) };
        let start = match nth {
            0 => offset,
            _ => (offset / BLOCK_BYTES + u64::from(nth)).saturating_mul(BLOCK_BYTES),
        };
        let file = FileIndex(row);
        let part = self.manifest.file_blocks(file).ok()?.parts(start, end.checked_sub(start)?).next()?;
        Some((file, part))
    }

    fn is_here(&self, part: &BlockPart) -> bool {
        self.fetcher.is_here(part)
    }

    fn is_piece(&self, file: FileIndex, part: &BlockPart) -> bool {
        self.fetcher.is_read_here_and_there(file, part)
    }
}
