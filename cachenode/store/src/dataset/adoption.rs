//! Adoption: the cache takes over the blocks that have the same bytes in another snapshot of the origin. No byte is
//! copied: the segments of the other dataset are linked into this one's folder, and slots point to the records in them.
//! Adoption runs in the background, after the rebuild. While it runs, a block that is missed here is read from the
//! other cache.
//!
//! A snapshot with a reservation of its own adds space: its adopted blocks raise this dataset's capacity and
//! reservation, up to what the dataset wanted. A snapshot without a reservation, because it is closed, adds none: its
//! adopted blocks use the space that this dataset was given. Unused space in adopted segments is freed once no other
//! dataset shares them.
//!
//! Invariant: a slot is set only after the link to its segment and the block's alias exist. A block is pending from
//! when it takes room until it has its slot, so no other thread changes its slot in between. A killed process therefore
//! leaves a partial adoption that is correct, and the next process continues it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use larder_dataset::BlockIndex;
use tracing::{info, warn};

use super::ancestor::{Ancestor, Located};
use super::shared::{Pending, Shared};
use crate::aliases::Aliases;
use crate::folder::FileId;
use crate::measured::Stale;
use crate::record::{self, KEY_BYTES};
use crate::segment::Segment;
use crate::slots::Place;

/// The most blocks that are adopted at once.
const ADOPTED_AT_ONCE: usize = 512;

/// How often the progress of an adoption is stored. A killed process loses the accounting of what it adopted since the
/// last time, until its successor has adopted those blocks again.
const WRITTEN_EVERY: Duration = Duration::from_secs(5);

/// The number of segments whose unused space is found in one walk over the slot table.
const SEGMENTS_AT_ONCE: usize = 64;

/// An adoption in progress.
struct Adoption<'a> {
    shared: &'a Shared,
    aliases: &'a Aliases,
    /// This dataset's segment for each file of the other's. None if the file could not be linked.
    links: HashMap<FileId, Option<Arc<Segment>>>,
    /// The first block of the large file that was linked last.
    linked: Option<BlockIndex>,
    /// True if the other snapshot has a reservation of its own.
    is_promised: bool,
    /// Marked once a file of the other snapshot is shared.
    from: Stale,
    /// When the progress was last stored.
    written: Option<Instant>,
    blocks: u64,
    bytes: u64,
    /// True once there is no space for more, or the disk fails.
    ended: bool,
}

/// A block to adopt.
struct Candidate {
    block: BlockIndex,
    len: u32,
    /// The segment with its record. None: it is in a large file.
    segment: Option<Arc<Segment>>,
    place: Place,
}

impl Shared {
    /// Adopts all blocks that another snapshot's cache has and this one lacks. Returns false if it was stopped. The
    /// caller holds `adopted_room`. Must not run concurrently with a rebuild.
    pub(super) fn adopt(&self, ancestor: &Ancestor) -> bool {
        let (started, id) = (Instant::now(), self.config.key.id());
        let path = self.base.folder.as_ref().map(|folder| folder.dataset(&id).join("aliases"));
        let Some(path) = path.filter(|_| self.lock().policy.is_some()) else { return !self.is_stopped() };
        // After a restart, everything may have been adopted already.
        if self.blocks_cached.load(Ordering::Relaxed) >= u64::from(self.slots.blocks()) {
            return true;
        }
        let aliases = match self.space.aliases(|| Aliases::open(&path, &id, self.slots.blocks())) {
            Ok(aliases) => aliases,
            Err(error) => {
                warn!(
                    dataset = self.config.name, %error,
                    "the blocks of another snapshot cannot be adopted and are fetched"
                );
                return true;
            }
        };
        let own = Arc::clone(&self.space.segments());
        let links = own.iter().filter_map(|segment| Some((segment.id().ok()?, Some(Arc::clone(segment)))));
        let mut adoption = Adoption {
            shared: self,
            aliases,
            links: links.collect(),
            linked: None,
            is_promised: ancestor.earlier.is_promised(),
            from: self.base.measured.stale(&ancestor.earlier.cache()),
            written: None,
            blocks: 0,
            bytes: 0,
            ended: false,
        };
        adoption.run(ancestor);
        let Adoption { blocks, bytes, .. } = adoption;
        self.base.counters.adopted.add(blocks);
        self.base.counters.adopted_bytes.add(bytes);
        let (from, took_ms) = (ancestor.earlier.cache(), started.elapsed().as_millis() as u64);
        info!(dataset = self.config.name, %from, blocks, bytes, took_ms, "blocks of another snapshot adopted");
        !self.is_stopped()
    }

    /// Frees the space in adopted segments that no block of this dataset uses and no other dataset shares. The caller
    /// holds `adopted_room`.
    pub(super) fn free_unused(&self) {
        let all = Arc::clone(&self.space.segments());
        let is_ours = |segment: &&Arc<Segment>| segment.key.is_some() && !segment.is_shared().unwrap_or(true);
        let ours: Vec<&Arc<Segment>> = all.iter().filter(is_ours).collect();
        for group in ours.chunks(SEGMENTS_AT_ONCE) {
            let mut found: HashMap<u32, Vec<(u64, u64)>> = HashMap::new();
            found.extend(group.iter().map(|segment| (segment.number, Vec::new())));
            let mut len_of = self.config.block_lens.in_order();
            for (block, place) in self.cached() {
                let Some(records) = found.get_mut(&place.segment) else { continue };
                // Without the manifest, the lengths of blocks are unknown, and so is the unused space. Free nothing.
                let Some(len) = len_of(block) else { return };
                records.push((place.offset(), place.offset() + record::extent_bytes(len) as u64));
            }
            for segment in group {
                let mut records = found.remove(&segment.number).unwrap_or_default();
                records.sort_unstable();
                let end = segment.bytes().unwrap_or_default();
                let mut used = 0;
                for (from, to) in records.into_iter().chain([(end, end)]) {
                    if self.is_stopped() {
                        return;
                    }
                    if from > used && segment.can_free() {
                        let _ = segment.free(used, from - used);
                    }
                    used = used.max(to);
                }
            }
        }
        self.stale.mark();
    }
}

impl Adoption<'_> {
    fn run(&mut self, ancestor: &Ancestor) {
        let shared = self.shared;
        let mut len_of = shared.config.block_lens.in_order();
        let mut batch = Vec::new();
        ancestor.earlier.each_run(&|| shared.is_stopped(), &mut |run| {
            for nth in 0..run.count {
                let block = BlockIndex(run.first.0.saturating_add(nth));
                if block.0 >= shared.slots.blocks() || shared.slots.get(block).is_some() {
                    continue;
                }
                let earlier = BlockIndex(run.earlier.0.saturating_add(nth));
                if ancestor.is_in_file(earlier) {
                    batch.extend(self.prepare_pages(block, ancestor, earlier));
                } else {
                    let Some((located, len)) = ancestor.locate(earlier).zip(len_of(block)) else { continue };
                    batch.extend(self.prepare(block, len, &located));
                }
                // A file may have any number of blocks, so the batch is bounded here too.
                if batch.len() >= ADOPTED_AT_ONCE {
                    self.show(&mut batch);
                    if self.ended || shared.is_stopped() {
                        return false;
                    }
                }
            }
            !self.ended && !shared.is_stopped()
        });
        self.show(&mut batch);
        let mut state = shared.lock();
        for link in self.links.values().flatten().filter(|link| link.key.is_some() && link.live() == 0) {
            if shared.space.segments().get(link.number).is_some() {
                state.allocator.delete(&shared.space, Arc::clone(link));
            }
        }
        drop(state);
        shared.free_room(false);
    }

    /// Makes sure that a block's link and alias exist. None if they cannot be created; the block will be fetched
    /// instead.
    fn prepare(&mut self, block: BlockIndex, len: u32, found: &Located<'_>) -> Option<Candidate> {
        let segment = self.link(found.segment, found.key)?;
        match &segment.key {
            Some(key) if *key == found.key => self.aliases.set(block, key, found.block).ok()?,
            // The other dataset adopted this block from this dataset: it needs no alias.
            None if (found.key, found.block) == (self.shared.key, block) => {}
            _ => return None,
        }
        let place = Place { segment: segment.number, ..found.place };
        Some(Candidate { block, len, segment: Some(segment), place })
    }

    /// Makes sure that the large file of a block is a link to the other snapshot's, and shows the pages that that one
    /// has. None if the file cannot be linked, or has no page of the block.
    fn prepare_pages(&mut self, block: BlockIndex, ancestor: &Ancestor, earlier: BlockIndex) -> Option<Candidate> {
        let shared = self.shared;
        let span = shared.span_of(block)?;
        let earlier_span = ancestor.span_of(&span)?;
        let making = shared.large.wait_to_make();
        let file = shared.large.link(making, &span, &ancestor.large, &earlier_span).ok()??;
        if self.linked.replace(span.first) != Some(span.first) {
            [&shared.stale, &self.from].into_iter().for_each(Stale::mark);
        }
        let theirs = ancestor.large.find(&earlier_span).ok()??;
        file.pages.copy(block, &theirs.pages, earlier).ok()?;
        let place = Place::in_file(file.holds_all(block));
        let candidate = Candidate { block, len: span.len_of(block), segment: None, place };
        file.pages.holds_any(block).then_some(candidate)
    }

    fn link(&mut self, other: &Arc<Segment>, key: [u8; KEY_BYTES]) -> Option<Arc<Segment>> {
        let (shared, file) = (self.shared, other.id().ok()?);
        if let Some(link) = self.links.get(&file) {
            let segments = shared.space.segments();
            // The link is stale if its segment was deleted, which happens when the last of its blocks leaves.
            if link.as_ref().is_none_or(|link| segments.get(link.number).is_some()) {
                return link.clone();
            }
        }
        let linked = shared.new_segment(&other.disk, |folder, number| other.link(folder, number, key));
        let linked = linked.inspect(|link| {
            shared.lock().allocator.add(&shared.space, link);
            [&shared.stale, &self.from].into_iter().for_each(Stale::mark);
        });
        let linked = linked.inspect_err(|error| {
            warn!(
                dataset = shared.config.name, %error,
                "a segment of another snapshot cannot be linked: its blocks are fetched"
            );
        });
        let link = linked.ok();
        self.links.insert(file, link.clone());
        link
    }

    /// Sets the slots of blocks whose links and aliases exist.
    fn show(&mut self, batch: &mut Vec<Candidate>) {
        let shared = self.shared;
        self.take_room(batch);
        let mut shown = Vec::with_capacity(batch.len());
        let mut failed = false;
        for candidate in batch.drain(..) {
            // No other thread sets or clears the slot of a pending block. After a failure, the rest gives its room
            // back.
            let set = || shared.slots.set(candidate.block, Some(candidate.place));
            let is_set =
                !failed && set().inspect_err(|error| shared.table_failed("set a slot", error, Instant::now())).is_ok();
            failed |= !is_set;
            shown.push((candidate, is_set));
        }
        self.ended |= failed;
        let (mut bytes, mut disk_bytes) = (0, 0);
        let mut guard = shared.lock();
        let state = &mut *guard;
        shown.retain(|(Candidate { block, len, place, .. }, is_set)| {
            let pending = state.pending.remove(block);
            if *is_set {
                bytes += u64::from(*len);
                disk_bytes += record::extent_bytes(*len) as u64;
                if pending == Some(Pending::Evicted) {
                    // The policy evicted the block meanwhile.
                    let victim = state.evict(*block);
                    state.unclaimed.extend(victim);
                }
            } else {
                if pending == Some(Pending::Valid) {
                    shared.forget(state, *block, *len);
                }
                state.allocator.retire(&shared.space, *place, None);
            }
            *is_set
        });
        shared.adopted_disk_bytes.fetch_add(disk_bytes, Ordering::Relaxed);
        shared.blocks_cached.fetch_add(shown.len() as u64, Ordering::Relaxed);
        drop(guard);
        shared.stale.mark();
        self.bytes += bytes;
        self.blocks += shown.len() as u64;
        for (Candidate { block, place, .. }, _) in shown {
            shared.base.index.put_waiting(shared.number, block, place);
        }
        shared.free_room(false);
        self.remember();
    }

    /// Takes room for the blocks of a batch, and drops from it those that are here already or for which there is none.
    fn take_room(&mut self, batch: &mut Vec<Candidate>) {
        let shared = self.shared;
        let mut guard = shared.lock();
        let state = &mut *guard;
        let Some(policy) = &mut state.policy else { return batch.clear() };
        let wanted_bytes = shared.granted.promised().wanted_bytes;
        let limit_bytes = policy.capacity_bytes().max(if self.is_promised { wanted_bytes } else { 0 });
        let (mut bytes, mut disk_bytes) = (0, 0);
        let segments = shared.space.segments();
        batch.retain(|&Candidate { block, len, ref segment, .. }| {
            let is_busy = state.pending.contains_key(&block) || state.leaving.contains(&block);
            let is_here = is_busy || shared.slots.get(block).is_some();
            // Since the segment was linked, all of its adopted blocks may have left, which deletes it.
            let is_deleted = segment.as_ref().is_some_and(|segment| segments.get(segment.number).is_none());
            if self.ended || is_here || is_deleted {
                return false;
            }
            if policy.used_bytes().saturating_add(len.into()) > limit_bytes {
                self.ended = true;
                return false;
            }
            if let Some(segment) = segment {
                segment.add_live(1);
            }
            policy.restore(block, len);
            state.pending.insert(block, Pending::Valid);
            bytes += u64::from(len);
            disk_bytes += record::extent_bytes(len) as u64;
            true
        });
        if self.is_promised {
            policy.set_capacity(shared.granted.raise(bytes, disk_bytes));
        }
        shared.used_bytes.store(policy.used_bytes(), Ordering::Relaxed);
    }

    /// Makes later reservations count what was adopted so far. Stores the count every few seconds.
    fn remember(&mut self) {
        if self.written.is_none_or(|written| written.elapsed() >= WRITTEN_EVERY) {
            self.shared.remember_adopted();
            self.written = Some(Instant::now());
        } else {
            self.shared.base.reservations.note(&self.shared.config.key.id(), self.shared.adopted());
        }
    }
}
