//! Warming: fills the store ahead of the readers, until it holds every block or the reservation is full.
//!
//! A plain warming follows the manifest: first the files of its own order, if it has one, then the others by row. A
//! warming by a list follows the list, whose files `listed` finds. Either starts the fetches in its order, so that this
//! order decides what is kept where not all blocks are. Of files without an order, the policy may leave out the larger
//! ones.
//!
//! An ioctl on a mount's `.larder/stats.json` starts a plain warming, another one hands over a part of a list
//! ([`list_part`]), and the same file reports the progress. It needs no socket.

pub mod list_part;
mod listed;

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_dataset::{BlockPart, FileIndex};
use larder_origin::CONCURRENCY;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::fetch::{Fetcher, Warmed};
use crate::manifest_file::MappedManifest;
use crate::stats::WarmState;
use list_part::WarmListPart;
use listed::Listed;

/// The ioctl that starts warming: `_IO('L', 1)`.
pub const WARM_IOCTL: u32 = (b'L' as u32) << 8 | 1;

/// Blocks that a warming asks for at once: as many as an origin may get requests. The limit of the origin and the
/// memory of warm-ups decide how many of them are in flight; readers come first.
const BLOCKS_AT_ONCE: usize = CONCURRENCY;

/// Blocks about which the store has not decided yet whether it keeps them. More would make the order of a list less
/// exact.
const UNDECIDED: usize = 16;

/// Files between two pauses in which other tasks run, while nothing is fetched.
const FILES_AT_ONCE: u32 = 1024;

/// Parts of a list that wait to be warmed: 1 MB. The sender keeps the rest.
const PARTS_MOST: usize = 64;

/// Why a part of a list is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListRefused {
    /// Another warming is running.
    #[error("another warming is running")]
    Busy,
    /// Enough of the list waits already: send it again later.
    #[error("no further part of the list can be accepted now")]
    Later,
    /// The warming has ended, because the cache can keep nothing more.
    #[error("the cache is full or fails")]
    Full,
    /// It is not the first part, and its list is not known.
    #[error("no such list: the mount was restarted")]
    Unknown,
}

/// Runs at most one warming at a time.
#[derive(Debug)]
pub(crate) struct Warmer {
    manifest: Arc<MappedManifest>,
    fetcher: Arc<Fetcher>,
    current: Arc<Mutex<Current>>,
    stop: CancellationToken,
}

/// The current or last warming.
#[derive(Debug, Default)]
struct Current {
    state: Option<WarmState>,
    list: Option<List>,
    /// Where the manifest's own order is, if there is such a file.
    order: PathBuf,
}

/// The list of the current or last warming that had one.
#[derive(Debug)]
struct List {
    number: u64,
    /// `None` once its last part was taken.
    lines: Option<mpsc::Sender<Vec<u8>>>,
}

/// The files to warm.
#[derive(Debug)]
enum What {
    /// All files, those of the order first.
    All {
        order: Option<File>,
    },
    Listed(mpsc::Receiver<Vec<u8>>),
}

impl Current {
    fn is_running(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.running)
    }
}

impl Warmer {
    pub(crate) fn new(manifest: Arc<MappedManifest>, fetcher: Arc<Fetcher>) -> Self {
        Self { manifest, fetcher, current: Arc::default(), stop: CancellationToken::new() }
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A plain warming begins with the files of the list at `order`, if there is such a file.
    pub(crate) fn set_order(&self, order: PathBuf) {
        self.current().order = order;
    }

    /// How far the current or last warming is; `None` if there was none.
    pub(crate) fn state(&self) -> Option<WarmState> {
        self.current().state.clone()
    }

    /// Starts warming, unless it is running already.
    pub(crate) fn start(&self) {
        let mut current = self.current();
        if !current.is_running() {
            current.list = None;
            let blocks_total = u64::from(self.manifest.totals().blocks);
            current.state = Some(WarmState { running: true, blocks_total, ..WarmState::default() });
            self.spawn(What::All { order: File::open(&current.order).ok() });
        }
    }

    /// Takes a part of a list, of which the first starts warming. Does not wait.
    pub(crate) fn take(&self, part: WarmListPart) -> Result<(), ListRefused> {
        let mut current = self.current();
        if part.first {
            if current.is_running() {
                return Err(ListRefused::Busy);
            }
            let (lines, waiting) = mpsc::channel(PARTS_MOST);
            current.list = Some(List { number: part.list, lines: Some(lines) });
            current.state = Some(WarmState { running: true, ..WarmState::default() });
            self.spawn(What::Listed(waiting));
        }
        let list = current.list.as_mut().filter(|list| list.number == part.list).ok_or(ListRefused::Unknown)?;
        let lines = list.lines.as_ref().ok_or(ListRefused::Unknown)?;
        lines.try_send(part.lines).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => ListRefused::Later,
            mpsc::error::TrySendError::Closed(_) => ListRefused::Full,
        })?;
        if part.last {
            list.lines = None;
        }
        Ok(())
    }

    fn spawn(&self, what: What) {
        let (manifest, fetcher) = (Arc::clone(&self.manifest), Arc::clone(&self.fetcher));
        let finish = Finish(Arc::clone(&self.current));
        let stop = self.stop.clone();
        let warming = async move {
            fetcher.try_disk_again();
            let mut filling = Filling::new(&manifest, &fetcher, &finish);
            match what {
                What::All { order } => {
                    let ordered = order.map(|order| Listed::of_file(Arc::clone(&manifest), order));
                    filling.all(ordered).await;
                }
                What::Listed(lines) => {
                    filling.listed(Listed::start(Arc::clone(&manifest), lines), &mut |_| true, true).await;
                }
            }
            filling.end().await;
        };
        self.fetcher.runtime().spawn(async move { stop.run_until_cancelled(warming).await });
    }

    /// Ends the running warming and prevents another from starting.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }
}

/// Marks the warming as ended, even when its task is dropped or panics.
struct Finish(Arc<Mutex<Current>>);

impl Finish {
    fn update(&self, change: impl FnOnce(&mut WarmState)) {
        if let Some(state) = self.0.lock().unwrap_or_else(PoisonError::into_inner).state.as_mut() {
            change(state);
        }
    }
}

impl Drop for Finish {
    fn drop(&mut self) {
        self.update(|state| state.running = false);
    }
}

/// Fetches the blocks of files, in the order in which the files come.
struct Filling<'a> {
    manifest: &'a MappedManifest,
    fetcher: &'a Arc<Fetcher>,
    finish: &'a Finish,
    running: JoinSet<Warmed>,
    /// A permit for each block about which the store may still have to decide.
    turns: Arc<Semaphore>,
    /// A GET brings no neighbours along, which would take the room of files that come before them.
    alone: bool,
    /// Nothing more is fetched: the reservation is full, or the cache's disk fails.
    is_over: bool,
}

impl<'a> Filling<'a> {
    fn new(manifest: &'a MappedManifest, fetcher: &'a Arc<Fetcher>, finish: &'a Finish) -> Self {
        let (running, turns) = (JoinSet::new(), Arc::new(Semaphore::new(UNDECIDED)));
        Self { manifest, fetcher, finish, running, turns, alone: false, is_over: false }
    }

    /// Every file of the manifest, each once, and those that are `ordered` first. When nothing more can be kept, the
    /// rest is looked up and not fetched, so that it is known what is in the store.
    async fn all(&mut self, ordered: Option<Listed>) {
        let files = self.manifest.totals().files;
        // A bit for each file. Without an order no file is met twice.
        let mut met = vec![0_u64; if ordered.is_some() { (files as usize).div_ceil(64) } else { 0 }];
        if let Some(ordered) = ordered {
            let mut is_new = |FileIndex(index): FileIndex| {
                let (word, bit) = (&mut met[index as usize / 64], 1 << (index % 64));
                let is_new = *word & bit == 0;
                *word |= bit;
                is_new
            };
            self.listed(ordered, &mut is_new, false).await;
            // The files that come first have their room before the rest asks for any.
            self.finish_running().await;
        }
        self.alone = false;
        for index in 0..files {
            if index % FILES_AT_ONCE == 0 {
                tokio::task::yield_now().await;
            }
            if met.get(index as usize / 64).is_none_or(|word| word & 1 << (index % 64) == 0) {
                self.file(FileIndex(index), false).await;
            }
        }
    }

    /// The files of a list that are `wanted`, as they are found; `counts`: nobody has counted their blocks yet.
    async fn listed(&mut self, mut listed: Listed, wanted: &mut (dyn FnMut(FileIndex) -> bool + Send), counts: bool) {
        self.alone = !self.fetcher.keeps_all();
        while let Some(found) = listed.next().await {
            match found {
                listed::Found::File(index) => {
                    if counts {
                        self.finish.update(|state| state.files_listed += 1);
                    }
                    if wanted(index) {
                        self.file(index, counts).await;
                    }
                }
                listed::Found::Nothing { line } => self.finish.update(|state| state.note_unknown(&line)),
                listed::Found::Unreadable => self.finish.update(|state| state.blocks_failed += 1),
            }
            if self.is_over {
                return;
            }
        }
    }

    /// Starts to fetch the blocks of a file; `counts`: they are not among the blocks to warm yet.
    async fn file(&mut self, index: FileIndex, counts: bool) {
        let Ok(file) = self.manifest.file(index) else {
            return self.finish.update(|state| state.blocks_failed += 1);
        };
        let parts = file.parts(0, file.size);
        if counts {
            let blocks = file.parts(0, file.size).count() as u64;
            self.finish.update(|state| state.blocks_total += blocks);
        }
        for part in parts {
            // A block that is not kept ends the warming at once.
            while let Some(ended) = self.running.try_join_next() {
                self.note_ended(Some(ended));
            }
            // A disk that failed is tried with one block.
            while self.running.len() >= if self.fetcher.is_degraded() { 1 } else { BLOCKS_AT_ONCE } {
                let ended = self.running.join_next().await;
                self.note_ended(ended);
            }
            let whole = BlockPart { start: 0, len: part.block_len, ..part };
            if self.is_over {
                self.note(self.fetcher.warmed(index, &whole));
                continue;
            }
            // It is never closed.
            let turn = Arc::clone(&self.turns).acquire_owned().await.ok();
            let (fetcher, alone) = (Arc::clone(self.fetcher), self.alone);
            self.running.spawn(async move { fetcher.warm(index, whole, alone, turn).await });
        }
    }

    async fn finish_running(&mut self) {
        while let Some(ended) = self.running.join_next().await {
            self.note_ended(Some(ended));
        }
    }

    async fn end(mut self) {
        self.finish_running().await;
        self.finish.update(|state| {
            let WarmState { blocks_kept, blocks_unkept, blocks_failed, unkept_because, .. } = state;
            info!(blocks_kept, blocks_unkept, blocks_failed, unkept_because, "warming ended");
        });
    }

    fn note_ended(&mut self, ended: Option<Result<Warmed, JoinError>>) {
        // A task that panicked fetched nothing.
        self.note(ended.and_then(Result::ok).unwrap_or(Warmed::Failed));
    }

    /// Records the outcome of one block.
    fn note(&mut self, warmed: Warmed) {
        // Smaller blocks than one that is left out may follow, but the order of a list comes before the size.
        let is_full = warmed == Warmed::NoRoom || (warmed == Warmed::LeftOut && self.alone);
        self.is_over |= is_full || matches!(warmed, Warmed::Unkept(_));
        self.finish.update(|state| {
            state.blocks_done += 1;
            match warmed {
                Warmed::Kept => state.blocks_kept += 1,
                Warmed::NotOurs => state.blocks_elsewhere += 1,
                Warmed::Failed => state.blocks_failed += 1,
                Warmed::NoRoom | Warmed::LeftOut => {
                    state.blocks_unkept += 1;
                    state.full = true;
                }
                Warmed::Unkept(why) => {
                    state.blocks_unkept += 1;
                    state.unkept_because = Some(why.to_owned());
                }
            }
        });
    }
}
