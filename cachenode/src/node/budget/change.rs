//! Changes the promise to an open dataset.

use larder_dataset::BLOCK_BYTES;
use larder_store::{DatasetInfo, Usage};
use tracing::info;

use super::limit::Limit;
use super::{Budget, Extent, NodeError, Promises, is_promised, on_disk};
use crate::dataset::Dataset;

/// An open dataset's promise from now on.
struct Change {
    bytes: u64,
    wanted_bytes: u64,
}

/// The fate of blocks of closed datasets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Closed {
    /// They make room.
    MakeRoom,
    /// They stay: their pods often come back a moment later.
    Stay,
}

impl Budget<'_> {
    /// Makes the reservation of an open dataset what this node owns of it since the list of nodes changed, as far as
    /// there is room; never less than what is cached. Blocks on the disk.
    pub(in super::super) fn follow_owned(&self, dataset: &Dataset, owned_bytes: u64) -> Result<(), NodeError> {
        self.change(dataset, "the reservation follows the list of nodes", Closed::MakeRoom, |usage, room| {
            let bytes = owned_bytes.min(room).max(usage.used_bytes);
            let differs = (bytes, owned_bytes) != (usage.capacity_bytes, usage.wanted_bytes);
            differs.then_some(Change { bytes, wanted_bytes: owned_bytes })
        })
    }

    /// Gives an open dataset that has less than it wants more, if there is room beside all other datasets, closed ones
    /// included, for all of it or for another block at least. Blocks on the disk.
    pub(in super::super) fn grow(&self, dataset: &Dataset) -> Result<(), NodeError> {
        self.grow_beside(dataset, "the reservation grows: the cache has more room", Closed::Stay)
    }

    /// The same for one that has a promise: closed datasets make room for it.
    pub(in super::super) fn grow_promised(&self, dataset: &Dataset) -> Result<(), NodeError> {
        self.grow_beside(dataset, "the reservation grows: room was promised", Closed::MakeRoom)
    }

    /// The same for one that has adopted blocks of earlier snapshots, which may have been closed meanwhile: what an
    /// opening would give it now that it is known what it shares.
    pub(in super::super) fn grow_adopted(&self, dataset: &Dataset) -> Result<(), NodeError> {
        self.grow_beside(dataset, "the reservation grows: blocks were adopted", Closed::MakeRoom)
    }

    fn grow_beside(&self, dataset: &Dataset, why: &'static str, closed: Closed) -> Result<(), NodeError> {
        self.change(dataset, why, closed, |usage, room| {
            let wanted_bytes = usage.wanted_bytes;
            let bytes = wanted_bytes.min(room);
            let more = bytes.checked_sub(usage.capacity_bytes).filter(|more| *more > 0)?;
            (bytes == wanted_bytes || more >= BLOCK_BYTES).then_some(Change { bytes, wanted_bytes })
        })
    }

    /// Changes a reservation to what `choose` makes of the usage and of the bytes of the dataset for which there is
    /// room.
    fn change(
        &self,
        dataset: &Dataset,
        why: &'static str,
        closed: Closed,
        choose: impl FnOnce(&Usage, u64) -> Option<Change>,
    ) -> Result<(), NodeError> {
        let snapshot = dataset.manifest().snapshot();
        let datasets = self.store.datasets();
        let extent = Extent::of(dataset.manifest());
        let (budget, limit) = self.bytes(&datasets)?;
        let own = datasets.iter().find(|info| info.snapshot == snapshot);
        let others = || datasets.iter().filter(|info| info.snapshot != snapshot);
        let promised = Promises::beside(own, others());
        let mut counted = Promises::of(others());
        // What it shares with closed ones is in its own reservation.
        counted.files.extend(own.into_iter().flat_map(|own| &own.shared).map(|file| file.inode));
        let unpromised: Vec<&DatasetInfo> = others().filter(|info| !is_promised(info)).collect();
        let held = match closed {
            Closed::MakeRoom => 0,
            Closed::Stay => on_disk(&unpromised, &mut counted.files.clone()),
        };
        let room = extent.in_dataset(budget.saturating_sub(promised).saturating_sub(held));
        let Some(change) = choose(&dataset.cache_usage(), room) else { return Ok(()) };
        let reservation = extent.reservation(change.bytes, change.wanted_bytes);
        let needed = promised.saturating_add(reservation.disk_bytes);
        if closed == Closed::MakeRoom {
            let room = budget.min(self.disk_room(&datasets).unwrap_or(u64::MAX));
            self.release_for(needed, room, unpromised, &counted);
        }
        let Change { bytes: reserved_bytes, wanted_bytes } = change;
        info!(dataset = dataset.name(), reserved_bytes, wanted_bytes, "{why}");
        dataset.resize(reserved_bytes, reservation);
        let is_short = reserved_bytes < wanted_bytes;
        dataset.set_shortage(is_short.then(|| Limit::to_string(&limit)));
        Ok(())
    }
}
