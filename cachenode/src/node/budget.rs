//! Decides how much of the cache a dataset gets.
//!
//! Where nodes share a dataset, what it can use on this node is what this node owns of it.
//!
//! The cast: [`Budget`] is the whole cache; a [`Claim`] is what an opening asks of it; [`Share`] is what it gets;
//! [`Extent`] converts between a dataset's bytes, which policies count, and the bytes that they take on the disk, which
//! the budget counts; `change` changes the promise to an open dataset; `promises` keeps room for datasets that may not
//! be open; `quotas` limits what a namespace reserves; `limit` says what leaves no more room.
//!
//! Invariants: what an open dataset was promised stays promised (but that of a shared dataset without a stated size
//! follows the list of nodes), and so does what was promised to a dataset that a connection shows or that has a
//! [`Promise`](larder_store::Promise): a restart may have made it forget that it is open, until the keeper has offered
//! the connection again. If a smaller budget cannot hold all promises, each dataset uses the same part of its own. A
//! closed dataset keeps its blocks until their room is needed; the one that was unused for longest is released first.
//! A reservation is in its dataset's folder before a connection is served, and stays while the keeper may hold that
//! connection (ADR 11).

mod change;
mod limit;
mod promises;
mod quotas;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use larder_dataset::{BLOCK_BYTES, CacheId, CacheKey, DatasetSpec, PolicyKind};
use larder_store::{DatasetInfo, FileId, Reservation, Store, disk_bytes};
use tracing::{info, warn};

use super::error::{NodeError, shown_size};
use crate::manifest_file::MappedManifest;
use limit::Limit;

/// A cache without a configured size leaves this share of the free disk space unused: a fifth.
const LEAVE_FREE: u64 = 5;

/// The cache as a whole.
pub(super) struct Budget<'a> {
    pub(super) store: &'a Store,
    /// Bytes on the disks for all datasets; `None`: determined by the disks.
    pub(super) total_bytes: Option<u64>,
    /// The part of each disk that stays free.
    pub(super) keep_free_percent: u8,
}

/// The room that an opening asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim<'a> {
    pub(super) key: &'a CacheKey,
    pub(super) manifest: &'a MappedManifest,
    pub(super) spec: &'a DatasetSpec,
    /// The namespace that pays for it; empty if none does.
    pub(super) payer: &'a str,
    /// Bytes that this node owns, if nodes share the dataset and the nodes are known.
    pub(super) owned_bytes: Option<u64>,
    /// Fail rather than get less than requested or other settings.
    pub(super) exactly: bool,
    /// The caches whose blocks it will adopt.
    pub(super) adopts: &'a [CacheId],
}

/// The room that a dataset gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// The promise to it.
    pub(super) promised: Reservation,
    /// Bytes of it that may be cached: all that is promised, or less while the budget cannot hold all promises.
    pub(super) bytes: u64,
    pub(super) policy: PolicyKind,
    /// The namespace that pays for it; empty if none does.
    pub(super) payer: String,
    /// Why that is less than it wants, and what to do, if it is.
    pub(super) shortage: Option<String>,
    /// True if the cache is open for another mount.
    pub(super) is_open: bool,
    /// True if the dataset had all of its promise before, so that the shares of others count it already.
    pub(super) is_kept: bool,
    /// Those of the caches whose blocks it will adopt that have room of their own beside it.
    pub(super) promised_earlier: Vec<CacheId>,
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

    /// Bytes on the disk of a part of the dataset.
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
    /// The share of a dataset that is about to be opened. Closed datasets that are in its way are released. Blocks on
    /// the disk. Errors: `NoRoom` and `InUse`, for a claim that must be met exactly.
    pub(super) fn reserve(&self, claim: Claim<'_>) -> Result<Share, NodeError> {
        let (snapshot, cache) = (claim.key.snapshot(), claim.key.id());
        let datasets = self.store.datasets_under(&self.store.promises(), Some(claim.key));
        let own = datasets.iter().find(|info| info.cache() == cache);
        // It pays until the last mount has ended.
        let paid_by = own.filter(|info| is_shown(info) && !info.payer.is_empty()).map(|info| &*info.payer);
        let payer = paid_by.unwrap_or(claim.payer).to_owned();
        let adopts = |info: &&DatasetInfo| claim.adopts.contains(&info.cache());
        let promised_earlier: Vec<CacheId> =
            datasets.iter().filter(adopts).filter(|info| is_promised(info)).map(DatasetInfo::cache).collect();
        if let Some(usage) = own.and_then(|info| info.open) {
            let promised = own.and_then(|info| info.reservation).unwrap_or_default();
            let (bytes, policy) = (usage.capacity_bytes, usage.policy);
            let (is_open, is_kept) = (true, true);
            let share = Share { promised, bytes, policy, payer, shortage: None, is_open, is_kept, promised_earlier };
            if claim.exactly {
                claim.check(&share)?;
            }
            return Ok(Share { shortage: self.shortage(&share, self.bytes(&datasets).ok()), ..share });
        }
        if !self.store.has_folder() {
            // Nothing is cached, so there is nothing to share.
            let (bytes, policy) = (claim.wanted(), claim.spec.policy.unwrap_or_default());
            let (promised, is_open, is_kept) = (Reservation::exactly(bytes), false, false);
            return Ok(Share { promised, bytes, policy, payer, shortage: None, is_open, is_kept, promised_earlier });
        }
        let measured = self.bytes(&datasets).inspect_err(|error| {
            warn!(
                dataset = %snapshot, %error,
                "cannot read the free space of the cache's disk (--cache-dir): the dataset keeps its reservation, and \
                 it does not grow"
            );
        });
        let budget = measured.as_ref().map_or(0, |(bytes, _)| *bytes);
        let others = || datasets.iter().filter(|info| info.cache() != cache);
        let counted = Promises::of(others());
        let promised = Promises::beside(own, others());
        let free = budget.saturating_sub(promised);
        let quota = self.left_by_quotas(&payer, own, others()).filter(|(left, _)| *left < free);
        let (free, limit) = quota.map_or((free, None), |(left, limit)| (left, Some(limit)));
        let measured = measured.map(|(budget, of_all)| (budget, limit.unwrap_or(of_all)));
        let kept = own.filter(|info| is_shown(info)).and_then(|info| Some((info.policy, info.reservation?)));
        let mut share = match kept {
            Some((policy, kept)) => {
                let (promised, bytes, is_open) = (kept, kept.bytes, false);
                let share =
                    Share { promised, bytes, policy, payer, shortage: None, is_open, is_kept: true, promised_earlier };
                claim.check(&share)?;
                let promised = claim.grow(kept, free);
                Share { promised, is_kept: promised.disk_bytes == kept.disk_bytes, ..share }
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
                let (is_open, is_kept) = (false, false);
                Share { promised, bytes: 0, policy, payer, shortage: None, is_open, is_kept, promised_earlier }
            }
        };
        let needed = promised.saturating_add(share.promised.disk_bytes);
        share.bytes = match self.total_bytes {
            Some(_) if needed > budget => scaled(share.promised.bytes, budget, needed),
            _ => share.promised.bytes,
        };
        share.shortage = self.shortage(&share, measured.as_ref().ok().copied());
        if let Some(shortage) = &share.shortage {
            warn!(
                dataset = %snapshot,
                wanted_bytes = share.promised.wanted_bytes,
                reserved_bytes = share.bytes,
                promised_to_others = promised,
                budget,
                shortage,
                "the cache has less room for the dataset than it wants"
            );
        }
        if measured.is_ok() {
            // The disk may hold less than the budget: other data fill it, too.
            let room = budget.min(self.disk_room(&datasets).unwrap_or(u64::MAX));
            // Blocks that a closed dataset has in common with this one will be shared, which `tidy` finds out.
            let closed = others().filter(|info| !is_promised(info) && !adopts(info));
            self.release_for(needed, room, closed.collect(), &counted);
        }
        Ok(share)
    }

    /// Releases closed datasets that there is no room for. Blocks on the disk. Called when a dataset has adopted
    /// blocks: only then it is known what it shares.
    pub(super) fn tidy(&self) -> std::io::Result<()> {
        let datasets = self.store.datasets();
        let counted = Promises::of(datasets.iter());
        let (room, _) = self.bytes(&datasets)?;
        let closed = datasets.iter().filter(|info| !is_promised(info));
        self.release_for(counted.bytes, room, closed.collect(), &counted);
        Ok(())
    }

    /// Why a share is less than its dataset wants, if it is.
    fn shortage(&self, share: &Share, measured: Option<(u64, Limit)>) -> Option<String> {
        let (_, limit) = measured.filter(|_| share.bytes < share.promised.wanted_bytes)?;
        Some(limit.to_string())
    }

    /// Releases closed datasets until `needed` and what the remaining ones take beside the promises fit into `room`.
    /// Returns the number of those released. Those whose blocks are being adopted neither leave nor count: what
    /// others share of them is known when that ends.
    fn release_for(&self, needed: u64, room: u64, mut closed: Vec<&DatasetInfo>, promises: &Promises) -> usize {
        closed.retain(|info| !info.is_ancestor);
        closed.sort_by_key(|info| info.last_use_unix_s);
        let mut released = 0;
        for at in 0..closed.len() {
            let held = on_disk(&closed[at..], &mut promises.files.clone());
            if needed.saturating_add(held) <= room {
                break;
            }
            let info = closed[at];
            info!(
                dataset = info.name, snapshot = %info.key.snapshot(),
                "closed dataset released from the cache to make room"
            );
            match self.store.release(&info.cache()) {
                Ok(_) => released += 1,
                Err(error) => warn!(%error, "cannot release a closed dataset"),
            }
        }
        released
    }

    /// Bytes on the disk for all datasets, and what limits them.
    fn bytes(&self, datasets: &[DatasetInfo]) -> std::io::Result<(u64, Limit)> {
        if let Some(bytes) = self.total_bytes {
            return Ok((bytes, Limit::CacheSize));
        }
        let free = self.store.free_bytes()?.saturating_add(self.held(datasets));
        let (of_free, beside_kept) = (free - free / LEAVE_FREE, self.disk_room(datasets)?);
        Ok(match beside_kept < of_free {
            true => (beside_kept, Limit::KeepFree { percent: self.keep_free_percent }),
            false => (of_free, Limit::Disk),
        })
    }

    /// Bytes on the disk that can be promised, and what limits them. A configured size promises no more than the disk
    /// can hold.
    fn promisable(&self, datasets: &[DatasetInfo]) -> std::io::Result<(u64, Limit)> {
        let (budget, limit) = self.bytes(datasets)?;
        let disk = self.disk_room(datasets)?.saturating_add(datasets.iter().map(overestimate).sum());
        Ok(match (disk < budget, self.keep_free_percent) {
            (false, _) => (budget, limit),
            (true, 0) => (disk, Limit::DiskFull),
            (true, percent) => (disk, Limit::KeepFree { percent }),
        })
    }

    /// Bytes that all datasets together can take on the disks.
    fn disk_room(&self, datasets: &[DatasetInfo]) -> std::io::Result<u64> {
        Ok(self.store.spare_bytes()?.saturating_add(self.held(datasets)))
    }

    /// Bytes that datasets take on the disk now, those included that were released and are being deleted.
    fn held(&self, datasets: &[DatasetInfo]) -> u64 {
        disk_bytes_of(datasets).saturating_add(self.store.dropped_bytes())
    }
}

/// How much less a promised dataset takes on the disk than what was promised for the part that is cached. Promises
/// assume the largest overhead of each block, so room that they no longer need still counts as theirs.
fn overestimate(info: &DatasetInfo) -> u64 {
    let wanted = info.open.map(|usage| usage.wanted_bytes).or(info.reservation.map(|it| it.wanted_bytes));
    let cached = scaled(promised_bytes(info), info.used_bytes.min(wanted.unwrap_or(0)), wanted.unwrap_or(0));
    cached.saturating_sub(info.disk_bytes)
}

/// Bytes that datasets take on the disk now.
fn disk_bytes_of(datasets: &[DatasetInfo]) -> u64 {
    on_disk(&datasets.iter().collect::<Vec<_>>(), &mut HashSet::new())
}

/// Bytes that datasets take on the disk beside the files that were `seen`. A file that several of them have counts
/// once.
fn on_disk(datasets: &[&DatasetInfo], seen: &mut HashSet<FileId>) -> u64 {
    let unseen = |info: &&DatasetInfo| {
        let known = info.shared.iter().filter(|file| !seen.insert(file.id));
        info.disk_bytes.saturating_sub(known.map(|file| file.bytes).sum())
    };
    datasets.iter().map(unseen).sum()
}

/// The promises to datasets, and the files that they share.
struct Promises {
    /// Bytes that they may take on the disk together. Blocks that one has adopted from another count once.
    bytes: u64,
    /// The files that several datasets have.
    files: HashSet<FileId>,
}

impl Promises {
    /// Of those of the datasets that have one.
    fn of<'a>(datasets: impl Iterator<Item = &'a DatasetInfo>) -> Self {
        Self::of_all(datasets.filter(|info| is_promised(info)).collect(), promised_bytes)
    }

    /// The same, without what open datasets have not filled yet of the room that they got beyond a promise.
    fn filled<'a>(datasets: impl Iterator<Item = &'a DatasetInfo>) -> Self {
        let filled = |info: &DatasetInfo| info.promised_disk_bytes.max(promised_bytes(info).min(info.disk_bytes));
        Self::of_all(datasets.filter(|info| is_promised(info)).collect(), filled)
    }

    /// The promises to `others`, less the blocks that a dataset has in common with them, whichever of them took those
    /// over: all promises without the dataset's own.
    fn beside<'a>(own: Option<&'a DatasetInfo>, others: impl Iterator<Item = &'a DatasetInfo>) -> u64 {
        let all = others.filter(|info| is_promised(info)).chain(own).collect();
        Self::of_all(all, promised_bytes).bytes.saturating_sub(own.map_or(0, promised_bytes))
    }

    /// `bytes`: those of one dataset, before what it shares is taken off.
    fn of_all(mut promised: Vec<&DatasetInfo>, bytes: impl Fn(&DatasetInfo) -> u64) -> Self {
        // Those that have adopted least come first: the others have it from them.
        promised.sort_by_key(|info| info.adopted_disk_bytes);
        let mut all = Self { bytes: 0, files: HashSet::new() };
        for info in &promised {
            let more = bytes(info).saturating_sub(all.shared_with(info));
            all.bytes = all.bytes.saturating_add(more);
            all.files.extend(info.shared.iter().map(|file| file.id));
        }
        all
    }

    /// Bytes that a dataset has adopted and shares with these.
    fn shared_with(&self, info: &DatasetInfo) -> u64 {
        let shared = info.shared.iter().filter(|file| self.files.contains(&file.id));
        shared.map(|file| file.bytes).sum::<u64>().min(info.adopted_disk_bytes)
    }
}

/// True if nobody else gets the dataset's room. Of one that had a promise when another began to adopt its blocks,
/// nobody does until that has ended: what was adopted has its room there.
fn is_promised(info: &DatasetInfo) -> bool {
    is_shown(info) || info.promised_disk_bytes > 0 || info.keeps_promise
}

/// True if the dataset is open, or must be because the keeper holds a connection that shows it.
pub(super) fn is_shown(info: &DatasetInfo) -> bool {
    info.open.is_some() || info.connections.as_ref().is_some_and(|connections| !connections.is_empty())
}

/// Bytes on the disk that it was promised; if that was lost, what it takes. Of a closed dataset a promise counts, and
/// what it has cached beyond that. A killed process may have adopted more than it lived to write down.
fn promised_bytes(info: &DatasetInfo) -> u64 {
    let reserved = info.reservation.map_or(info.disk_bytes, |reservation| reservation.disk_bytes);
    let has = if is_shown(info) { reserved.max(info.adopted_disk_bytes) } else { reserved.min(info.disk_bytes) };
    info.promised_disk_bytes.max(has)
}

impl Claim<'_> {
    /// Bytes of the dataset that are wanted. More than all of them are as good as all.
    pub(super) fn wanted(&self) -> u64 {
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
            // An explicit size on a disk without a budget is granted: its user has looked at the disk.
            None if self.exactly && self.spec.cache_bytes.is_some() => Ok(extent.reservation(wanted, wanted)),
            _ => Ok(extent.reservation(wanted.min(extent.in_dataset(free)), wanted)),
        }
    }

    /// The promise to a dataset that was promised `kept` and got less than it wanted: more, if there is room by now for
    /// all that it wanted or for another block at least. The wanted size stays: another user of the cache, which is
    /// offered later, may be the one that wanted it. If there is none, the reservation follows what this node owns once
    /// that is known.
    fn grow(&self, kept: Reservation, free: u64) -> Reservation {
        let extent = Extent::of(self.manifest);
        let owned = self.owned_bytes.filter(|_| self.spec.cache_bytes.is_none());
        if kept.wanted_bytes == 0 {
            // Of an earlier version, or found in the index alone.
            return extent.reservation(kept.bytes, self.wanted().max(kept.bytes));
        }
        let wanted = owned.unwrap_or(0).max(kept.wanted_bytes);
        let bytes = owned.unwrap_or(wanted).min(extent.in_dataset(free));
        let is_worth_it = bytes > kept.bytes && (bytes == owned.unwrap_or(wanted) || bytes - kept.bytes >= BLOCK_BYTES);
        if is_worth_it { extent.reservation(bytes, wanted) } else { Reservation { wanted_bytes: wanted, ..kept } }
    }

    /// The dataset has a share already, which stays. Errors: `InUse` if another one was requested and must be met
    /// exactly.
    fn check(&self, has: &Share) -> Result<(), NodeError> {
        let all = Extent::of(self.manifest).bytes;
        // An earlier version stored sizes larger than the dataset.
        let sizes = [has.promised.wanted_bytes, has.bytes].map(|bytes| bytes.min(all));
        let wants_size = self.spec.cache_bytes.is_some() && !sizes.contains(&self.wanted());
        let wants_policy = self.spec.policy.is_some_and(|policy| policy != has.policy);
        for (differs, what, has) in
            [(wants_size, "cache size", shown_size(has.bytes)), (wants_policy, "policy", has.policy.to_string())]
        {
            if differs && self.exactly {
                return Err(NodeError::InUse { what, has });
            }
            if differs {
                let wanted = format_args!("{:?}, {:?}", self.spec.cache_bytes, self.spec.policy);
                warn!(
                    source = self.spec.source, what, has, %wanted,
                    "a volume requests another setting than the dataset is open with: the dataset keeps its own"
                );
            }
        }
        Ok(())
    }
}
