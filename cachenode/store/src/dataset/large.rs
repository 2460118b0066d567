//! Blocks of large files: how they enter the cache in parts, are found, mended and freed.
//!
//! The policy counts such a block as a whole from when its first page is admitted: its room is taken then, and the rest
//! of it needs none. NR therefore keeps whole blocks, and no page is refused for which the file has room. A permit for
//! the rest of a block is [`Pending::Growing`]: the block keeps its slot, and its place in the policy, if the permit is
//! not used.
//!
//! Invariant: only the thread to which a block is pending or leaving writes, clears or frees its pages.

use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use larder_dataset::BlockIndex;
use tracing::{debug, info, warn};

use super::admission::NotKept;
use super::shared::{Pending, Shared};
use super::space::Trouble;
use crate::config::FileSpan;
use crate::disk::Disk;
use crate::large_file::{LargeFile, PageTrouble};
use crate::record::Flaw;
use crate::slots::Place;

impl Shared {
    /// The file of a block, if new blocks of it are kept in a large file.
    pub(super) fn kept_in(&self, block: BlockIndex) -> Option<FileSpan> {
        let evicts = self.config.policy.evicts();
        self.span_of(block).filter(|span| self.large.keeps(span, evicts))
    }

    pub(super) fn span_of(&self, block: BlockIndex) -> Option<FileSpan> {
        self.config.block_lens.file_of(block).filter(|span| span.contains(block))
    }

    /// The large file of a block whose slot says that it is there. If the file is gone, the block is dropped. Blocks on
    /// the disk unless the file is open.
    pub(super) fn large_file(&self, span: &FileSpan, block: BlockIndex, place: Place) -> Option<Arc<LargeFile>> {
        match self.large.find(span) {
            Ok(Some(file)) => return Some(file),
            Ok(None) => self.found_trouble(block, place, Trouble::Flaw(Flaw::Torn)),
            Err(error) => self.found_trouble(block, place, Trouble::Unreadable(error)),
        }
        None
    }

    /// Handles pages of a block that could not be read.
    pub(super) fn found_page_trouble(&self, block: BlockIndex, place: Place, trouble: PageTrouble) {
        match trouble {
            PageTrouble::NotHeld if place.is_part() => {}
            PageTrouble::NotHeld | PageTrouble::Wrong => {
                self.mend(block, place);
            }
            PageTrouble::Unreadable(error) => self.found_trouble(block, place, Trouble::Unreadable(error)),
        }
    }

    /// Reads all pages of a block again, now that no other thread changes it, and drops those that are wrong: they are
    /// fetched again, and the rest of the block stays. Does nothing if the block is being changed or the blocks of an
    /// earlier run are being counted; a later read then finds the same. True if the block was read and is whole. Blocks
    /// on the disk.
    pub(super) fn mend(&self, block: BlockIndex, place: Place) -> bool {
        let file = self.span_of(block).and_then(|span| self.large.find(&span).ok().flatten());
        let Some(file) = file else { return false };
        let mut state = self.lock();
        let is_busy = state.pending.contains_key(&block) || state.leaving.contains(&block);
        if state.policy.is_none() || is_busy || self.slots.get(block) != Some(place) {
            return false;
        }
        state.pending.insert(block, Pending::Growing);
        drop(state);
        let checked = file.clear_wrong(block);
        let is_right = checked.is_ok() && file.holds_all(block);
        match checked {
            Ok(wrong) => {
                (0..wrong).for_each(|_| self.count_flaw(block, Flaw::RottenData));
                if !place.is_part() && !file.holds_all(block) {
                    if wrong == 0 {
                        self.count_flaw(block, Flaw::Torn);
                    }
                    self.show_in_file(block, false);
                }
            }
            Err(error) => self.found_trouble(block, place, Trouble::Unreadable(error)),
        }
        self.end_permit(block, file.span.len_of(block), Vec::new());
        is_right
    }

    /// True if all blocks of a file are in its large file, each as a whole.
    fn is_whole(&self, span: &FileSpan) -> bool {
        span.blocks().all(|block| self.slots.get(block) == Some(Place::in_file(true)))
    }

    /// Reads all pages of a file, and drops those that are wrong. Blocks on the disk, for as long as it takes to read
    /// the file.
    pub(super) fn check(&self, span: &FileSpan) {
        // It was asked for once more while it was being checked.
        if self.large.is_checked(span) {
            return;
        }
        let Ok(Some(file)) = self.large.find(span) else { return };
        let Ok(identity) = file.identity() else { return };
        if span.blocks().all(|block| !self.is_stopped() && self.mend(block, Place::in_file(true))) {
            self.large.note_checked(span, identity);
        }
    }

    /// A descriptor of a file that is wholly cached and was checked. `None` if it is not, or cannot be lent.
    pub(super) fn lend(&self, span: &FileSpan) -> Option<File> {
        let file = self.large.find(span).ok()??;
        if !self.large.has_checked(&file) {
            // At its next opening it is asked for.
            self.large.uncheck(span.first);
            return None;
        }
        let lent = file.lend(&self.base.boot_id).inspect_err(|error| {
            debug!(dataset = self.config.name, %error, "the kernel cannot read a cached file by itself");
            if error.kind() == std::io::ErrorKind::NotFound {
                // Another process has replaced it or changed its size. At its next opening, what is there is asked for.
                self.large.close(span.first);
            }
        });
        // A block that has left before the file was marked may have freed its pages, and a file that was cut off may
        // have its size again.
        lent.ok().filter(|_| self.is_whole(span) && self.large.has_checked(&file))
    }

    /// True if the kernel may be lent a file of this cache: nothing is evicted from it, so that it is not kept from
    /// freeing what it evicts, and all of the file is there.
    pub(super) fn may_lend(&self, span: &FileSpan) -> bool {
        !self.config.policy.evicts() && !self.is_rebuilding() && self.is_whole(span)
    }

    /// Sets the slot of a block that is cached already.
    fn show_in_file(&self, block: BlockIndex, is_whole: bool) {
        let place = Place::in_file(is_whole);
        match self.slots.set(block, Some(place)) {
            Ok(()) => self.base.index.put(self.number, block, place),
            Err(error) => self.table_failed("set a slot", &error, Instant::now()),
        }
    }

    /// Writes pages of a block from `start` on to its large file, then sets its slot. `bytes` are aligned for direct
    /// I/O and padded with zeros to 4 KiB; the first `len` of them are the block's. Returns the disk; None if the
    /// policy has evicted the block since its admission.
    pub(super) fn keep_pages(
        &self,
        block: BlockIndex,
        start: u32,
        len: usize,
        bytes: &[u8],
    ) -> Result<Option<Arc<Disk>>, NotKept> {
        let gone = || NotKept { disk: None, source: std::io::ErrorKind::NotFound.into() };
        let span = self.span_of(block).ok_or_else(gone)?;
        if !matches!(self.lock().pending.get(&block), Some(Pending::Valid | Pending::Growing)) {
            return Ok(None);
        }
        let is_new = || !span.blocks().any(|block| self.has_pages(block));
        let find = || self.large.find_or_make(&span, is_new).map_err(|(disk, source)| NotKept { disk, source });
        let mut file = self.link_earlier(&span).map_or_else(find, Ok)?;
        let disk = Arc::clone(&file.disk);
        let failed = |source| NotKept { disk: Some(Arc::clone(&disk)), source };
        if disk.holds_writers() {
            return Err(failed(std::io::ErrorKind::TimedOut.into()));
        }
        let writing = disk.write();
        disk.free_share.take(bytes.len() as u64, Instant::now()).map_err(failed)?;
        let mut written = file.write(block, start, len, bytes);
        if written.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            // The file was deleted after it was found, because it had no block.
            file = find()?;
            written = file.write(block, start, len, bytes);
        }
        if written.is_err() && self.slots.get(block).is_none() {
            // Otherwise what the disk allocated for it would be nobody's until the next start.
            let _ = file.free(block, &self.base.boot_id);
        }
        written.map_err(failed)?;
        // No other thread sets or clears the slot of a pending block.
        let (before, place) = (self.slots.get(block), Place::in_file(file.holds_all(block)));
        if before != Some(place) {
            self.slots.set(block, Some(place)).map_err(|source| NotKept { disk: None, source })?;
            self.base.index.put(self.number, block, place);
        }
        self.stale.mark();
        self.written(block, len as u64, before.is_none());
        drop(writing);
        Ok(Some(disk))
    }

    /// True if the file of a block is on a disk that fails or holds writers, or cannot be made because of such a disk,
    /// and another disk takes blocks.
    pub(super) fn is_file_stuck(&self, block: BlockIndex) -> bool {
        let is_stuck = |span: FileSpan| match self.large.find(&span) {
            Ok(Some(file)) => file.disk.health.is_failing() || file.disk.holds_writers(),
            Ok(None) => self.large.turn_to_make().is_err(),
            Err(_) => true,
        };
        self.base.has_sound_disk() && self.span_of(block).is_some_and(is_stuck)
    }

    /// While blocks of other snapshots are adopted: a link to the file that one of them has. Otherwise it would get a
    /// file of its own here, and the blocks of the other one could not be adopted. None also if the thread would wait
    /// for a disk that ends no write.
    fn link_earlier(&self, span: &FileSpan) -> Option<Arc<LargeFile>> {
        let ancestors = self.ancestors.load_full()?;
        ancestors.iter().find_map(|ancestor| {
            let earlier = ancestor.span_of(span)?;
            let making = self.large.turn_to_make().ok()?;
            self.large.link(making, span, &ancestor.large, &earlier).ok().flatten()
        })
    }

    /// Frees the pages of a block that is leaving and has no slot. If its disk holds writers, they are freed after the
    /// next start. Blocks on the disk.
    pub(super) fn free_pages(&self, block: BlockIndex) {
        let file = self.span_of(block).and_then(|span| self.large.find(&span).ok().flatten());
        let Some(file) = file.filter(|file| !file.disk.holds_writers()) else { return };
        if let Err(error) = file.free(block, &self.base.boot_id) {
            self.not_freed(&file.disk, &error);
        }
    }

    /// True if other datasets share the large file of a block.
    pub(super) fn shares_pages(&self, block: BlockIndex) -> bool {
        self.span_of(block).and_then(|span| self.large.is_shared(&span)).unwrap_or(false)
    }

    /// Sets the slots of the blocks in large files if slots were lost: on all disks if the slot table is new, and
    /// always on those that do not have it, which may have been away. Runs before the blocks of an earlier run are
    /// counted. Blocks on the disk.
    pub(super) fn find_pages(&self, is_table_new: bool) {
        let mut blocks = 0;
        for (first, is_beside_tables, disk) in self.large.all() {
            if self.is_stopped() {
                return;
            }
            if is_beside_tables && !is_table_new {
                continue;
            }
            let span = self.span_of(first).filter(|span| span.first == first);
            let Some(Ok(Some(file))) = span.map(|span| self.large.find(&span)) else { continue };
            if Arc::ptr_eq(&file.disk, &disk) {
                blocks += self.find_blocks(&file);
            } else {
                self.prefer(&file);
            }
        }
        if blocks > 0 {
            info!(dataset = self.config.name, blocks, "blocks of large files found again");
        }
    }

    /// Sets the slots of the blocks of which a file has pages, and that have none. Returns their number.
    fn find_blocks(&self, file: &LargeFile) -> u64 {
        let mut found = 0;
        for block in file.span.blocks().filter(|block| block.0 < self.slots.blocks()) {
            if self.slots.get(block).is_none() && file.pages.holds_any(block) {
                let place = Place::in_file(file.holds_all(block));
                if self.slots.set(block, Some(place)).is_ok() {
                    self.base.index.put_waiting(self.number, block, place);
                    found += 1;
                }
            }
        }
        found
    }

    /// A disk that was away when this file was made has another one with the same blocks. Those that only the other one
    /// has are fetched again.
    fn prefer(&self, file: &LargeFile) {
        for block in file.span.blocks() {
            if self.slots.get(block).is_some_and(Place::is_in_file) && !file.pages.holds_any(block) {
                // If this fails, a read finds that the pages are missing.
                let _ = self.slots.set(block, None);
            }
        }
    }

    /// Frees what no block uses of files that no other dataset links, and deletes files that have no block. The caller
    /// holds `adopted_room`. Blocks on the disk.
    pub(super) fn free_unused_pages(&self) {
        for (first, _, disk) in self.large.all() {
            if self.is_stopped() {
                return;
            }
            let span = self.span_of(first).filter(|span| span.first == first);
            if span.is_none() && self.config.block_lens.len_of(first).is_none() {
                // Without the manifest, nothing is known about the file.
                continue;
            }
            let is_used = || span.is_some_and(|span| self.is_used(&span));
            if let Err(error) = self.large.delete_unless(first, span.as_ref(), &disk, is_used) {
                let (dataset, dir) = (&self.config.name, disk.dir());
                warn!(dataset, ?dir, %error, "cannot delete an unused file of the cache");
            }
            let Some(Ok(Some(file))) = span.map(|span| self.large.find(&span)) else { continue };
            if Arc::ptr_eq(&file.disk, &disk) {
                for block in file.span.blocks().take_while(|_| !self.is_stopped()) {
                    if !self.has_pages(block) && file.takes_space(block) {
                        self.free_unused_block(block, &file);
                    }
                }
            }
        }
    }

    /// True if a block of a file is cached or is being changed.
    fn is_used(&self, span: &FileSpan) -> bool {
        let state = self.lock();
        span.blocks().any(|block| {
            let is_busy = state.pending.contains_key(&block) || state.leaving.contains(&block);
            is_busy || self.has_pages(block)
        })
    }

    /// True if the slot of a block says that it is in its large file.
    fn has_pages(&self, block: BlockIndex) -> bool {
        self.slots.get(block).is_some_and(Place::is_in_file)
    }

    /// Frees the pages of a block that has no slot, or one of a record, unless it is being changed. Blocks on the disk.
    pub(super) fn free_unused_block(&self, block: BlockIndex, file: &LargeFile) {
        let mut state = self.lock();
        let is_busy = state.pending.contains_key(&block) || state.leaving.contains(&block);
        if is_busy || self.has_pages(block) {
            return;
        }
        // Not as one that leaves: the policy counts a record, and may evict it meanwhile.
        state.pending.insert(block, Pending::Growing);
        drop(state);
        if let Err(error) = file.free(block, &self.base.boot_id) {
            self.not_freed(&file.disk, &error);
        }
        self.end_permit(block, file.span.len_of(block), Vec::new());
    }
}
