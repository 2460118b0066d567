//! Warming: fills the store ahead of the readers, in the manifest's order, until it holds every block or the reservation is
//! full.
//!
//! An ioctl on a mount's `.larder/stats.json` starts warming, and the same file reports its progress. It needs no socket.

use std::sync::{Arc, Mutex, PoisonError};

use larder_dataset::{BlockPart, FileIndex};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::fetch::{Fetcher, Warmed};
use crate::manifest_file::MappedManifest;
use crate::stats::WarmState;

/// The ioctl that starts warming: `_IO('L', 1)`.
pub const WARM_IOCTL: u32 = (b'L' as u32) << 8 | 1;

/// Fetches that warming keeps in flight: enough to hide the origin's latency, and only half of all fetches, which leaves the
/// other half to readers.
const FETCHES: usize = 32;

/// About how many blocks of a packed dataset one GET fetches.
const BLOCKS_PER_GET: usize = 16;

/// Runs at most one warming at a time.
#[derive(Debug)]
pub(crate) struct Warmer {
    manifest: Arc<MappedManifest>,
    fetcher: Arc<Fetcher>,
    state: Arc<Mutex<Option<WarmState>>>,
    stop: CancellationToken,
}

impl Warmer {
    pub(crate) fn new(manifest: Arc<MappedManifest>, fetcher: Arc<Fetcher>) -> Self {
        Self { manifest, fetcher, state: Arc::default(), stop: CancellationToken::new() }
    }

    /// How far the current or last warming is; `None` if there was none.
    pub(crate) fn state(&self) -> Option<WarmState> {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts warming, unless it is running already.
    pub(crate) fn start(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_some_and(|state| state.running) {
            return;
        }
        let blocks_total = u64::from(self.manifest.totals().blocks);
        *state = Some(WarmState { running: true, blocks_total, ..WarmState::default() });
        drop(state);
        let (manifest, fetcher) = (Arc::clone(&self.manifest), Arc::clone(&self.fetcher));
        let finish = Finish(Arc::clone(&self.state));
        let stop = self.stop.clone();
        let warming = async move { warm(&manifest, &fetcher, &finish).await };
        self.fetcher.runtime().spawn(async move { stop.run_until_cancelled(warming).await });
    }

    /// Ends the running warming and prevents another from starting.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }
}

/// Marks the warming as ended, even when its task is dropped or panics.
struct Finish(Arc<Mutex<Option<WarmState>>>);

impl Finish {
    fn update(&self, change: impl FnOnce(&mut WarmState)) {
        if let Some(state) = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            change(state);
        }
    }
}

impl Drop for Finish {
    fn drop(&mut self) {
        self.update(|state| state.running = false);
    }
}

async fn warm(manifest: &MappedManifest, fetcher: &Arc<Fetcher>, finish: &Finish) {
    let concurrency = if manifest.is_packed() { FETCHES * BLOCKS_PER_GET } else { FETCHES };
    let mut running = JoinSet::new();
    let mut full = false;
    'files: for index in (0..manifest.totals().files).map(FileIndex) {
        let Ok(file) = manifest.file(index) else { continue };
        for part in file.parts(0, file.size) {
            while running.len() >= concurrency {
                full |= note(running.join_next().await, finish);
            }
            if full {
                break 'files;
            }
            let fetcher = Arc::clone(fetcher);
            running.spawn(async move { warm_block(&fetcher, index, part).await });
        }
    }
    while let Some(ended) = running.join_next().await {
        full |= note(Some(ended), finish);
    }
    finish.update(|state| state.full = full);
    info!(full, "warming ended");
}

async fn warm_block(fetcher: &Arc<Fetcher>, index: FileIndex, part: BlockPart) -> Warmed {
    let whole = BlockPart { start: 0, len: part.block_len, ..part };
    fetcher.warm(index, whole).await
}

/// Records the outcome of one block; true if the store had no room for it.
fn note(ended: Option<Result<Warmed, tokio::task::JoinError>>, finish: &Finish) -> bool {
    let mut full = false;
    finish.update(|state| {
        state.blocks_done += 1;
        match ended {
            Some(Ok(Warmed::Kept)) => state.blocks_kept += 1,
            Some(Ok(Warmed::NotOurs)) => {}
            Some(Ok(Warmed::NoRoom)) => full = true,
            Some(Ok(Warmed::Failed) | Err(_)) | None => state.blocks_failed += 1,
        }
    });
    full
}
