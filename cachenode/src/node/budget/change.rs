//! Changes the promise to an open dataset.

use larder_dataset::BLOCK_BYTES;
use larder_store::{DatasetInfo, Reservation, Usage};
use tracing::info;

use super::{Budget, Extent, NodeError, Promises, is_promised, on_disk};
use crate::dataset::Dataset;

/// An open dataset's promise from now on.
struct Change {
    bytes: u64,
    wanted_bytes: u64,
}

/// The room for a dataset.
#[derive(Clone, Copy)]
struct Room {
    /// Bytes of the dataset.
    bytes: u64,
    /// True if its use would make another namespace pay, and a quota counts for one of the two.
    is_of_other: bool,
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
        self.change(dataset, "the reservation follows the list of nodes", Closed::MakeRoom, None, |usage, room| {
            let bytes = owned_bytes.min(room.bytes).max(usage.used_bytes);
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

    /// Gives an open dataset the bytes that a volume of this namespace wants, as far as there is room. If it gets more
    /// than it has, the namespace pays for it from now on. Under quotas it pays then for no more than it wants itself, and
    /// as long as another namespace pays, what it wants counts for nothing: a later change would take it from the
    /// other's quota. Closed datasets make room only if nobody wanted that much before. Blocks on the disk.
    pub(in super::super) fn widen(&self, dataset: &Dataset, wanted_bytes: u64, payer: &str) -> Result<(), NodeError> {
        let closed = if wanted_bytes > dataset.cache_usage().wanted_bytes { Closed::MakeRoom } else { Closed::Stay };
        let why = "the reservation grows: another volume wants more";
        // A request that names no namespace gets what the quota leaves to the one that pays now.
        let payer = Some(payer).filter(|payer| !payer.is_empty());
        self.change(dataset, why, closed, payer, |usage, room| {
            if wanted_bytes > usage.wanted_bytes {
                let bytes = wanted_bytes.min(room.bytes).max(usage.capacity_bytes);
                let is_paid = !room.is_of_other || bytes > usage.capacity_bytes;
                return is_paid.then_some(Change { bytes, wanted_bytes });
            }
            let wanted_bytes = if room.is_of_other { wanted_bytes } else { usage.wanted_bytes };
            Some(Change { bytes: grown(usage, wanted_bytes, room.bytes)?, wanted_bytes })
        })
    }

    fn grow_beside(&self, dataset: &Dataset, why: &'static str, closed: Closed) -> Result<(), NodeError> {
        self.change(dataset, why, closed, None, |usage, room| {
            let wanted_bytes = usage.wanted_bytes;
            Some(Change { bytes: grown(usage, wanted_bytes, room.bytes)?, wanted_bytes })
        })
    }

    /// Changes a reservation to what `choose` makes of the usage and of the room. If it grows, the namespace that pays
    /// from then on is `payer`, or else the one that does now.
    fn change(
        &self,
        dataset: &Dataset,
        why: &'static str,
        closed: Closed,
        payer: Option<&str>,
        choose: impl FnOnce(&Usage, Room) -> Option<Change>,
    ) -> Result<(), NodeError> {
        let cache = dataset.cache_id();
        let datasets = self.store.datasets();
        let extent = Extent::of(dataset.manifest());
        let (budget, limit) = self.bytes(&datasets)?;
        let own = datasets.iter().find(|info| info.cache() == cache);
        let others = || datasets.iter().filter(|info| info.cache() != cache);
        let promised = Promises::beside(own, others());
        let mut counted = Promises::of(others());
        // What it shares with closed ones is in its own reservation.
        counted.files.extend(own.into_iter().flat_map(|own| &own.shared).map(|file| file.id));
        let unpromised: Vec<&DatasetInfo> = others().filter(|info| !is_promised(info)).collect();
        let held = match closed {
            Closed::MakeRoom => 0,
            Closed::Stay => on_disk(&unpromised, &mut counted.files.clone()),
        };
        let free = budget.saturating_sub(promised).saturating_sub(held);
        let paid_by = own.map(|own| &*own.payer).unwrap_or_default();
        let pays = payer.unwrap_or(paid_by);
        let is_of_other = pays != paid_by && [pays, paid_by].iter().any(|namespace| self.has_quota(namespace));
        let quota = self.left_by_quotas(pays, own, others()).filter(|(left, _)| *left < free);
        let (free, limit) = quota.unwrap_or((free, limit));
        let usage = dataset.cache_usage();
        let Some(change) = choose(&usage, Room { bytes: extent.in_dataset(free), is_of_other }) else {
            if usage.capacity_bytes < usage.wanted_bytes && !is_of_other {
                dataset.set_shortage(Some(limit.to_string()));
            }
            return Ok(());
        };
        let reservation = match own.and_then(|own| own.reservation) {
            // It may be promised more than a smaller budget gives it now.
            Some(kept) if change.bytes == usage.capacity_bytes => {
                Reservation { wanted_bytes: change.wanted_bytes, ..kept }
            }
            _ => extent.reservation(change.bytes, change.wanted_bytes),
        };
        let needed = promised.saturating_add(reservation.disk_bytes);
        if closed == Closed::MakeRoom {
            let room = budget.min(self.disk_room(&datasets).unwrap_or(u64::MAX));
            self.release_for(needed, room, unpromised, &counted);
        }
        let Change { bytes: reserved_bytes, wanted_bytes } = change;
        info!(dataset = dataset.name(), reserved_bytes, wanted_bytes, "{why}");
        dataset.resize(reserved_bytes, reservation);
        if reserved_bytes > usage.capacity_bytes {
            dataset.set_payer(pays);
        }
        let is_short = reserved_bytes < wanted_bytes;
        dataset.set_shortage(is_short.then(|| limit.to_string()));
        Ok(())
    }
}

/// The bytes that a dataset gets of those that it wants, if `room` bytes are free: none if that is not more than it
/// has, or less than a block more and not all.
fn grown(usage: &Usage, wanted_bytes: u64, room: u64) -> Option<u64> {
    let bytes = wanted_bytes.min(room);
    let more = bytes.checked_sub(usage.capacity_bytes).filter(|more| *more > 0)?;
    (bytes == wanted_bytes || more >= BLOCK_BYTES).then_some(bytes)
}
