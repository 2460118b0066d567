//! Decides how much of the cache a dataset gets.
//!
//! Where nodes share a dataset, what it can use on this node is what this node owns of it.
//!
//! The cast: [`Budget`] is the whole cache; a [`Claim`] is what an opening asks of it; [`Share`] is what it gets; [`Extent`] converts
//! between a dataset's bytes, which policies count, and the bytes that they take on the disk, which the budget counts.
//!
//! Invariants: what an open dataset was promised stays promised (but that of a shared dataset without a stated size follows the
//! list of nodes, see `follow_owned`), and so does what was promised to a dataset that a connection
//! shows: a restart may have made it forget that it is open, until the keeper has offered the connection again. If a smaller
//! budget cannot hold all promises, each dataset uses the same part of its own. A closed dataset keeps its blocks until their room
//! is needed; the one that was unused for longest is released first.

#[cfg(test)]
mod tests;

use std::path::Path;

use larder_dataset::{BLOCK_BYTES, DatasetSpec, PolicyKind};
use larder_store::{DatasetInfo, Reservation, Store, disk_bytes};
use tracing::{info, warn};

use super::error::NodeError;
use crate::dataset::Dataset;
use crate::manifest_file::MappedManifest;

/// A cache without a configured size leaves this share of the free disk space unused: a fifth.
const LEAVE_FREE: u64 = 5;

/// The cache as a whole.
pub(super) struct Budget<'a> {
    pub(super) store: &'a Store,
    pub(super) cache_dir: &'a Path,
    /// Bytes on the disk for all datasets; `None`: determined by the disk.
    pub(super) total_bytes: Option<u64>,
}

/// What an opening asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim<'a> {
    pub(super) manifest: &'a MappedManifest,
    pub(super) spec: &'a DatasetSpec,
    /// Bytes that this node owns, if nodes share the dataset and the nodes are known.
    pub(super) owned_bytes: Option<u64>,
    /// Fail rather than get less than requested or other settings.
    pub(super) exactly: bool,
}

/// What a dataset gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// What it is promised.
    pub(super) promised: Reservation,
    /// Bytes of it that may be cached: all that is promised, or less while the budget cannot hold all promises.
    pub(super) bytes: u64,
    pub(super) policy: PolicyKind,
}

/// How much of a dataset this node can use.
#[derive(Clone, Copy, Debug)]
struct Extent {
    bytes: u64,
    disk_bytes: u64,
}

impl Extent {
    /// The whole dataset.
    fn of(manifest: &MappedManifest) -> Self {
        let totals = manifest.totals();
        Self { bytes: totals.bytes, disk_bytes: disk_bytes(totals.bytes, totals.blocks.into()) }
    }

    /// What a part of the dataset takes on the disk.
    fn on_disk(&self, bytes: u64) -> u64 {
        scaled(bytes, self.disk_bytes, self.bytes)
    }

    /// The part of the dataset that takes this much on the disk.
    fn in_dataset(&self, disk_bytes: u64) -> u64 {
        scaled(disk_bytes, self.bytes, self.disk_bytes)
    }

    fn reservation(&self, bytes: u64, wanted_bytes: u64) -> Reservation {
        Reservation { bytes, disk_bytes: self.on_disk(bytes), wanted_bytes }
    }
}

/// `value * by / over`, rounded down; 0 if `over` is.
fn scaled(value: u64, by: u64, over: u64) -> u64 {
    let scaled = (u128::from(value) * u128::from(by)).checked_div(over.into()).unwrap_or(0);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

impl Budget<'_> {
    /// The share of a dataset that is about to be opened. Closed datasets that are in its way are released. Blocks on the disk.
    /// Errors: `NoRoom` and `InUse`, for a claim that must be met exactly.
    pub(super) fn reserve(&self, claim: Claim<'_>) -> Result<Share, NodeError> {
        let snapshot = claim.manifest.snapshot();
        let datasets = self.store.datasets()?;
        let own = datasets.iter().find(|info| info.snapshot == snapshot);
        if let Some(usage) = own.and_then(|info| info.open) {
            let promised = own.and_then(|info| info.reservation).unwrap_or_default();
            let share = Share { promised, bytes: usage.capacity_bytes, policy: usage.policy };
            claim.check(&share)?;
            return Ok(share);
        }
        if !self.store.has_folder() {
            // Nothing is cached, so there is nothing to share.
            let (bytes, policy) = (claim.wanted(), claim.spec.policy.unwrap_or_default());
            return Ok(Share { promised: Reservation::exactly(bytes), bytes, policy });
        }
        let budget = self.bytes(&datasets)?;
        let others = || datasets.iter().filter(|info| info.snapshot != snapshot);
        let promised = others().filter(|info| is_promised(info)).map(promised_bytes).fold(0, u64::saturating_add);
        let free = budget.saturating_sub(promised);
        let kept = own.filter(|info| is_promised(info)).and_then(|info| Some((info.policy, info.reservation?)));
        let mut share = match kept {
            Some((policy, kept)) => {
                let share = Share { promised: kept, bytes: kept.bytes, policy };
                claim.check(&share)?;
                Share { promised: claim.grow(kept, free), ..share }
            }
            None => {
                let policy = claim.spec.policy.unwrap_or_default();
                let mut promised = claim.first(free, self.total_bytes)?;
                if let Some((own, before)) = own.and_then(|info| Some((info, info.reservation?)))
                    && !policy.evicts()
                {
                    // The blocks of a larger reservation stay.
                    promised.disk_bytes = promised.disk_bytes.max(own.disk_bytes.min(before.disk_bytes));
                }
                Share { promised, bytes: 0, policy }
            }
        };
        let needed = promised.saturating_add(share.promised.disk_bytes);
        share.bytes = match self.total_bytes {
            Some(_) if needed > budget => scaled(share.promised.bytes, budget, needed),
            _ => share.promised.bytes,
        };
        if share.bytes < share.promised.wanted_bytes {
            warn!(
                dataset = %snapshot,
                wanted_bytes = share.promised.wanted_bytes,
                reserved_bytes = share.bytes,
                promised_to_others = promised,
                budget,
                "the cache has no room for all that the dataset wants and keeps a part of it (--cache-size, --cache-dir)"
            );
        }
        // The disk may hold less than the budget: other data fill it, too.
        let room = budget.min(self.disk_room(&datasets).unwrap_or(u64::MAX));
        self.release_for(needed, room, others().filter(|info| !is_promised(info)).collect());
        Ok(share)
    }

    /// Makes the reservation of an open dataset what this node owns of it since the list of nodes changed, as far as there is
    /// room; never less than what is cached. Blocks on the disk.
    pub(super) fn follow_owned(&self, dataset: &Dataset, owned_bytes: u64) -> Result<(), NodeError> {
        let snapshot = dataset.manifest().snapshot();
        let datasets = self.store.datasets()?;
        let (usage, extent) = (dataset.cache_usage(), Extent::of(dataset.manifest()));
        let budget = self.bytes(&datasets)?;
        let others = || datasets.iter().filter(|info| info.snapshot != snapshot);
        let promised = others().filter(|info| is_promised(info)).map(promised_bytes).fold(0, u64::saturating_add);
        let room = extent.in_dataset(budget.saturating_sub(promised));
        let bytes = owned_bytes.min(room).max(usage.used_bytes);
        if (bytes, owned_bytes) == (usage.capacity_bytes, usage.wanted_bytes) {
            return Ok(());
        }
        let reservation = extent.reservation(bytes, owned_bytes);
        let needed = promised.saturating_add(reservation.disk_bytes);
        let room = budget.min(self.disk_room(&datasets).unwrap_or(u64::MAX));
        self.release_for(needed, room, others().filter(|info| !is_promised(info)).collect());
        info!(
            dataset = dataset.name(),
            owned_bytes,
            reserved_bytes = bytes,
            "the reservation follows the list of nodes"
        );
        dataset.resize(bytes, reservation);
        Ok(())
    }

    /// Releases closed datasets until `needed` and what the remaining ones take fit into `room`.
    fn release_for(&self, needed: u64, room: u64, mut closed: Vec<&DatasetInfo>) {
        closed.sort_by_key(|info| info.last_use_unix_s);
        let mut held: u64 = closed.iter().map(|info| info.disk_bytes).sum();
        for info in closed {
            if needed.saturating_add(held) <= room {
                break;
            }
            info!(dataset = info.name, snapshot = %info.snapshot, "closed dataset released from the cache to make room");
            if let Err(error) = self.store.release(&info.snapshot) {
                warn!(%error, "cannot release a closed dataset");
                continue;
            }
            held -= info.disk_bytes;
        }
    }

    fn bytes(&self, datasets: &[DatasetInfo]) -> Result<u64, NodeError> {
        if let Some(bytes) = self.total_bytes {
            return Ok(bytes);
        }
        let disk = rustix::fs::statvfs(self.cache_dir).map_err(std::io::Error::from)?;
        let held = disk_bytes_of(datasets);
        let free = disk.f_bavail * disk.f_frsize + held;
        Ok((free - free / LEAVE_FREE).min(self.disk_room(datasets)?))
    }

    /// Bytes that all datasets together can take on this disk.
    fn disk_room(&self, datasets: &[DatasetInfo]) -> std::io::Result<u64> {
        Ok(self.store.spare_bytes()?.saturating_add(disk_bytes_of(datasets)))
    }
}

/// Bytes that datasets take on the disk now.
fn disk_bytes_of(datasets: &[DatasetInfo]) -> u64 {
    datasets.iter().map(|info| info.disk_bytes).sum()
}

/// True if the dataset is open, or must be because the keeper holds a connection that shows it.
fn is_promised(info: &DatasetInfo) -> bool {
    info.open.is_some() || info.connections.as_ref().is_some_and(|connections| !connections.is_empty())
}

/// Bytes on the disk that it was promised; if that was lost, what it takes.
fn promised_bytes(info: &DatasetInfo) -> u64 {
    info.reservation.map_or(info.disk_bytes, |reservation| reservation.disk_bytes)
}

impl Claim<'_> {
    /// Bytes of the dataset that are wanted. More than all of them are as good as all.
    fn wanted(&self) -> u64 {
        let all = Extent::of(self.manifest).bytes;
        self.spec.cache_bytes.or(self.owned_bytes).map_or(all, |bytes| bytes.min(all))
    }

    /// The first promise to a dataset, where `free` bytes of the disk are promised to none.
    fn first(&self, free: u64, budget: Option<u64>) -> Result<Reservation, NodeError> {
        let (extent, wanted) = (Extent::of(self.manifest), self.wanted());
        match budget {
            Some(budget) if self.exactly && self.spec.cache_bytes.is_some() && extent.on_disk(wanted) > free => {
                Err(NodeError::NoRoom { wanted: extent.on_disk(wanted), free, budget })
            }
            // Who asks for a size on a disk without a budget has looked at the disk.
            None if self.exactly && self.spec.cache_bytes.is_some() => Ok(extent.reservation(wanted, wanted)),
            _ => Ok(extent.reservation(wanted.min(extent.in_dataset(free)), wanted)),
        }
    }

    /// The promise to a dataset that was promised `kept` and got less than it wanted: more, if there is room by now for all that
    /// it wanted or for another block at least.
    fn grow(&self, kept: Reservation, free: u64) -> Reservation {
        let extent = Extent::of(self.manifest);
        let owned = self.owned_bytes.filter(|_| self.spec.cache_bytes.is_none());
        let wanted = owned.unwrap_or(kept.wanted_bytes);
        if kept.wanted_bytes == 0 {
            // Of an earlier version, or found in the index alone.
            return extent.reservation(kept.bytes, self.wanted().max(kept.bytes));
        }
        let bytes = wanted.min(extent.in_dataset(free));
        let is_worth_it = bytes > kept.bytes && (bytes == wanted || bytes - kept.bytes >= BLOCK_BYTES);
        if is_worth_it { extent.reservation(bytes, wanted) } else { Reservation { wanted_bytes: wanted, ..kept } }
    }

    /// The dataset has a share already, which stays. Errors: `InUse` if another one was requested and must be met exactly.
    fn check(&self, has: &Share) -> Result<(), NodeError> {
        let wants_size =
            self.spec.cache_bytes.is_some() && ![has.promised.wanted_bytes, has.bytes].contains(&self.wanted());
        let wants_policy = self.spec.policy.is_some_and(|policy| policy != has.policy);
        for (differs, what, has) in [
            (wants_size, "cache size", format!("{} bytes", has.bytes)),
            (wants_policy, "policy", has.policy.to_string()),
        ] {
            if differs && self.exactly {
                return Err(NodeError::InUse { what, has });
            }
            if differs {
                let wanted = format_args!("{:?}, {:?}", self.spec.cache_bytes, self.spec.policy);
                warn!(source = self.spec.source, what, has, %wanted, "a volume states another setting than the open dataset, which keeps its own");
            }
        }
        Ok(())
    }
}
