//! Fetches ahead of the readers of files of tensors (`tensors`): reads their headers, and fetches what the readers are
//! about to read.
//!
//! The header of a file of at least three blocks is read when a reader has missed and got its first block, or misses any
//! part of it while the store has its beginning or its name says that it has a header. So no file of another kind costs
//! a GET more.

use std::sync::Arc;

use bytes::Bytes;
use larder_dataset::{BLOCK_BYTES, BlockIndex, BlockPart, FileIndex};
use larder_origin::Caller;
use larder_store::PartBytes;

use super::context::FetchContext;
use super::end::End;
use super::outcome::Outcome;
use super::purpose::Purpose;
use super::{Fetcher, slice};
use crate::ahead::AHEAD_BLOCKS;
use crate::sharing::Asker;
use crate::tensors::{Ahead, Demand, Follows, Header, decode, first_block, may_begin_header};

/// The endings of the names of files of tensors. Others, such as those in the cache of a hub, are known by their bytes.
const ENDINGS: [&[u8]; 2] = [b".safetensors", b".gguf"];

/// The first bytes of a file that are looked at.
const LOOK_BYTES: u64 = 16 << 10;

/// The part of the window that ranges of blocks may fill which are fetched ahead and that the store does not keep: half
/// of what it holds of them.
const SHARE_HELD: u64 = 16;

/// The fewest bytes of a file whose readers are followed: more than two blocks.
const FILE_BYTES_LEAST: u64 = 2 * BLOCK_BYTES + 1;

impl Fetcher {
    /// Follows the readers of the file of a part that was missed, if it is one of tensors. Returns what the miss says
    /// about the rest of its block.
    pub(super) fn follow_tensors(self: &Arc<Self>, file: FileIndex, part: &BlockPart) -> Demand {
        if !self.may_have_tensors(file) {
            return Demand::Unknown;
        }
        match self.tensors.missed(part) {
            Follows::Same => {}
            Follows::FromNow => self.read_tensors(part),
            Follows::Unknown => self.look_for_tensors(file, part),
        }
        let demand = self.tensors.demand(part, self.keeps_parts(file, part.block));
        let more = match demand {
            Demand::Unknown => 0,
            Demand::Block => part.block_len - part.len,
            Demand::Part(piece) => piece.len - part.len,
        };
        if more > 0 && !self.in_flight.contains(part.block) {
            self.tensors.fetched(part, more.into());
        }
        demand
    }

    /// Records a read of a part of a file, and fetches ahead of its reader if the file is one of tensors that is
    /// followed, and the reader has come to another block.
    pub(super) fn read_tensors(self: &Arc<Self>, part: &BlockPart) {
        if let Some(file) = self.tensors.read(part) {
            let (fetcher, part) = (Arc::clone(self), *part);
            let ahead = async move { fetcher.fetch_tensors_ahead(file, &part) };
            self.tasks.spawn_on(Caller::current().run(ahead), &self.runtime);
        }
    }

    /// True if the store keeps parts of a block, as far as is known.
    fn keeps_parts(&self, file: FileIndex, block: BlockIndex) -> bool {
        let cache = &self.context.cache;
        let usage = cache.usage();
        let has_room = usage.room_bytes >= BLOCK_BYTES && usage.degraded.is_none() && !usage.rebuilding;
        has_room && cache.takes_parts(block) && self.is_ours(file, block)
    }

    /// Starts to read the header of a file of which a part was missed, if its name says that it has one, or if the store
    /// has its beginning. If the beginning was missed, [`look_at_start`](Self::look_at_start) does that once it is here.
    fn look_for_tensors(self: &Arc<Self>, file: FileIndex, part: &BlockPart) {
        let FetchContext { manifest, cache, .. } = &*self.context;
        let first = first_block(part);
        if part.block == first && part.start == 0 {
            return;
        }
        let has_name = manifest.file(file).is_ok_and(|row| ENDINGS.iter().any(|ending| row.name.ends_with(ending)));
        let is_stored = || cache.contains_part(first, BLOCK_BYTES as u32, 0, LOOK_BYTES as u32);
        if (has_name || is_stored()) && self.tensors.begin_look(first) {
            self.look(file, first, Bytes::new(), has_name);
        }
    }

    /// Looks for a header in the first block of a file, which a reader has missed and got.
    pub(super) fn look_at_start(self: &Arc<Self>, file: FileIndex, part: &BlockPart, block: &Bytes) {
        let is_start = part.file_offset == 0 && u64::from(part.block_len) == BLOCK_BYTES;
        if is_start && may_begin_header(block) && self.may_have_tensors(file) && self.tensors.begin_look(part.block) {
            self.look(file, part.block, block.clone(), true);
        }
    }

    /// True if a file of tensors may be in this place: it is large enough to be worth it, and not packed.
    fn may_have_tensors(&self, file: FileIndex) -> bool {
        let manifest = &self.context.manifest;
        // A checksum of a packed block covers all of it.
        !manifest.is_packed() && manifest.file(file).is_ok_and(|row| row.size >= FILE_BYTES_LEAST)
    }

    /// Starts to read the header of a file that begins with these bytes.
    fn look(self: &Arc<Self>, file: FileIndex, first: BlockIndex, start: Bytes, may_fetch: bool) {
        let fetcher = Arc::clone(self);
        let look = async move {
            if fetcher.read_header(file, first, start, may_fetch).await.is_none() {
                fetcher.tensors.failed(first);
            }
        };
        self.tasks.spawn_on(Caller::current().run(look), &self.runtime);
    }

    /// Reads the header of a file that begins with the bytes of `here`, and the rest of it from the store, or from
    /// elsewhere if it `may_fetch` or the beginning is that of a header. None: it could not be read, or there is no
    /// memory for it.
    async fn read_header(
        self: &Arc<Self>,
        file: FileIndex,
        first: BlockIndex,
        here: Bytes,
        mut may_fetch: bool,
    ) -> Option<()> {
        let manifest = &self.context.manifest;
        let blocks = manifest.file_blocks(file).ok()?;
        let (size, folder) = manifest.file(file).map(|row| (row.size, row.dir.0)).ok()?;
        let (mut start, mut wanted) = (Vec::new(), LOOK_BYTES);
        loop {
            let _memory = self.tensors.memory_for(wanted)?;
            for part in blocks.parts(start.len() as u64, wanted - start.len() as u64) {
                let end = start.len() + part.len as usize;
                if let Some(bytes) = here.get(start.len()..end) {
                    start.extend_from_slice(bytes);
                    continue;
                }
                let bytes = self.header_part(file, part, may_fetch).await?;
                start.extend_from_slice(&bytes);
            }
            let decoded = move || {
                let header = decode(&start, size, folder);
                (start, header)
            };
            let (read, header) = self.tasks.spawn_blocking_on(decoded, &self.runtime).await.ok()?;
            match header {
                Header::Needs(bytes) => {
                    (start, may_fetch) = (read, true);
                    wanted = bytes.next_multiple_of(LOOK_BYTES).min(size);
                }
                Header::Tensors(tensors) => {
                    self.tensors.found(file, first, size, tensors);
                    return Some(());
                }
                // Nobody looks at it again.
                Header::Unknown => return Some(()),
            }
        }
    }

    /// A part of a header, fetched if it is nowhere here and `may_fetch`. It is no read that a stream could begin with.
    pub(super) async fn header_part(
        self: &Arc<Self>,
        file: FileIndex,
        part: BlockPart,
        may_fetch: bool,
    ) -> Option<Bytes> {
        let deadline = self.deadline();
        if let Some(bytes) = self.in_window(&part) {
            return Some(bytes);
        }
        if let Some(bytes) = self.stored(part, deadline).await {
            return Some(bytes);
        }
        if let Some(PartBytes { memory, range, .. }) = self.keeper.read_earlier(part, deadline).await {
            return Some(Bytes::from(memory).slice(range));
        }
        if !may_fetch {
            return None;
        }
        if let Some(in_flight) = self.in_flight.get(part.block)
            && let Some(Outcome::Fetched(block, _)) = in_flight.outcome_until(deadline).await
        {
            return Some(slice(&block, &part));
        }
        Some(self.fetch_larger_piece(file, part, part, Asker::Here, deadline).await.ok()?.bytes)
    }

    /// Starts to fetch what a reader at this part is about to read: no more than the origin bears, than there is memory
    /// for beside what others wait for, and than the cache's disk takes.
    fn fetch_tensors_ahead(self: &Arc<Self>, file: FileIndex, part: &BlockPart) {
        let keeps = self.keeps_parts(file, part.block);
        let Some(Ahead { parts, bytes_most }) = self.tensors.ahead(part, keeps) else { return };
        let (mut started_bytes, mut kib_started, mut held_bytes) = (0, 0, 0);
        for part in parts.into_iter().take(AHEAD_BLOCKS.min(self.origin.places())) {
            let is_whole = part.len == part.block_len;
            if !is_whole && !self.keeps_parts(file, part.block) {
                held_bytes += u64::from(part.len);
                let is_full = self.context.window.is_full_of_ahead(part.len);
                if is_full || held_bytes > self.config().window_bytes / SHARE_HELD {
                    continue;
                }
            }
            if self.is_here(&part) || self.coming.find(&part).is_some() {
                continue;
            }
            kib_started += u64::from(part.len >> 10) + 1;
            let has_memory = self.memory.leaves_half(kib_started) && self.context.disk_keeps_up();
            if started_bytes + u64::from(part.len) > bytes_most || (started_bytes > 0 && !has_memory) {
                break;
            }
            started_bytes += u64::from(part.len);
            if is_whole {
                let _ = self.join_or_start(file, part, Purpose::Ahead, End::by(self.deadline()));
            } else {
                let (fetcher, landing) = (Arc::clone(self), self.coming.begin(part));
                let fetch = async move {
                    // Its reader, if one comes, sees the error of its own fetch.
                    let _ = fetcher.land_piece(file, part, Asker::Here, fetcher.deadline(), landing).await;
                };
                self.tasks.spawn_on(Caller::current().run(fetch), &self.runtime);
            }
        }
        self.tensors.fetched(part, started_bytes);
    }
}
