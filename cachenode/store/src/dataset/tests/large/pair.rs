//! Two snapshots with the same three large files. The later one has them one block later, and adopts the blocks of the
//! earlier one.

use std::collections::BTreeSet;

use super::*;
use crate::earlier::{Earlier, SameBlocks};

/// The number of files.
pub(super) const FILES: u32 = 3;

/// The number of blocks of the files together.
pub(super) const BLOCKS: u32 = 3 * FILES;

/// From the first block of a file to that of the next one.
const APART: u32 = 20;

/// The files of the earlier snapshot, and those of the later one.
const SPANS: [Spans; 2] = [Spans { shift: 0 }, Spans { shift: 1 }];

/// The large files of a snapshot.
#[derive(Clone, Copy, Debug)]
struct Spans {
    shift: u32,
}

impl Spans {
    fn span(self, file: u32) -> FileSpan {
        FileSpan { first: BlockIndex(FILE.first.0 + APART * file + self.shift), ..FILE }
    }
}

impl BlockLens for Spans {
    fn len_of(&self, block: BlockIndex) -> Option<u32> {
        Some(self.file_of(block).map_or_else(|| len_of(block), |span| span.len_of(block)))
    }

    fn file_of(&self, block: BlockIndex) -> Option<FileSpan> {
        (0..FILES).map(|file| self.span(file)).find(|span| span.contains(block))
    }
}

/// A snapshot as a later one sees it, which has the same files one block later: these.
#[derive(Debug)]
pub(super) struct Shifted(pub(super) Vec<FileSpan>);

impl Earlier for Shifted {
    fn cache(&self) -> CacheId {
        CacheId(SNAPSHOT.0)
    }

    fn blocks(&self) -> u32 {
        1000
    }

    fn is_promised(&self) -> bool {
        true
    }

    fn find(&self, block: BlockIndex) -> Option<BlockIndex> {
        self.0.iter().any(|span| span.contains(block)).then(|| BlockIndex(block.0 - 1))
    }

    fn each_run(&self, _: &dyn Fn() -> bool, f: &mut dyn FnMut(SameBlocks) -> bool) {
        for &FileSpan { first, .. } in &self.0 {
            if !f(SameBlocks { first, earlier: BlockIndex(first.0 - 1), count: 3 }) {
                return;
            }
        }
    }
}

/// The bytes of a block. Blocks have numbers below [`BLOCKS`], three for each file.
fn bytes_at(at: u32) -> &'static [u8] {
    static ALL: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let blocks = (0..FILES).flat_map(|file| SPANS[0].span(file).blocks());
        blocks.map(|block| bytes_of(block, SPANS[0].len_of(block).unwrap())).collect()
    });
    &all[at as usize]
}

/// All pages of a block.
pub(super) fn pages_of(at: u32) -> Range<u32> {
    0..page_count(bytes_at(at).len() as u32)
}

fn block_of(snapshot: usize, at: u32) -> BlockIndex {
    BlockIndex(SPANS[snapshot].span(at / 3).first.0 + at % 3)
}

/// A cache folder with the caches of both snapshots, the earlier one being that of `bed`.
pub(super) struct Pair {
    pub(super) bed: Bed,
    later: Option<Arc<DatasetCache>>,
}

impl Pair {
    /// Opens the caches in folders below `dir`, with room for all blocks, or for two whole ones if the policy evicts.
    pub(super) fn new(dir: &Path, policy: PolicyKind, disks: usize) -> Self {
        let room = if policy.evicts() { 2 * BLOCK_BYTES + 60_000 } else { 1 << 30 };
        let mut bed = Bed::closed(dir, policy, room);
        bed.more = (1..disks).map(|nth| dir.join(format!("disk-{nth}"))).collect();
        bed.boot_id = boot(1);
        bed.config.block_lens = Arc::new(SPANS[0]);
        let mut pair = Self { bed, later: None };
        pair.open();
        pair
    }

    pub(super) fn open(&mut self) {
        self.bed.open();
        let config = CacheConfig { key: OTHER.into(), block_lens: Arc::new(SPANS[1]), ..self.bed.config.clone() };
        let later = self.bed.store().dataset(config).unwrap();
        assert!(later.wait_rebuilt(TIMEOUT));
        drop(later.shared.adopted_room.lock().unwrap());
        self.later = Some(later);
    }

    /// Ends like a killed process.
    pub(super) fn drop_all(&mut self) {
        self.later = None;
        self.bed.drop_all();
    }

    pub(super) fn close(&mut self) {
        self.bed.store().close().unwrap();
        self.drop_all();
    }

    fn cache(&self, snapshot: usize) -> &DatasetCache {
        if snapshot == 0 { self.bed.cache() } else { self.later.as_deref().expect("it is open") }
    }

    /// The later snapshot adopts the blocks that the earlier one has now.
    pub(super) fn adopt(&self) {
        let (sender, ended) = mpsc::channel();
        let earlier = Shifted((0..FILES).map(|file| SPANS[1].span(file)).collect());
        self.cache(1).adopt(vec![Arc::new(earlier)], move |complete| sender.send(complete).unwrap());
        assert!(ended.recv_timeout(TIMEOUT).unwrap());
    }

    /// Writes pages of a block; all of them as a whole block. False if they are not admitted or not written.
    pub(super) fn put(&self, snapshot: usize, at: u32, pages: Range<u32>) -> bool {
        let (cache, block, bytes) = (self.cache(snapshot), block_of(snapshot, at), bytes_at(at));
        let Some(permit) = cache.admit(block, bytes.len() as u32) else { return false };
        if pages == pages_of(at) {
            cache.write(permit, &cache.record(block, bytes)).is_ok()
        } else {
            let range = bytes_of_pages(at % 3, &pages);
            cache.write_part(permit, range.start as u32, &bytes[range]).is_ok()
        }
    }

    /// Reads a page in both ways, and checks its bytes. True if it is a hit.
    fn get(&self, snapshot: usize, at: u32, page: u32) -> bool {
        let (cache, block, bytes) = (self.cache(snapshot), block_of(snapshot, at), bytes_at(at));
        let range = bytes_of_pages(at % 3, &(page..page + 1));
        let (block_len, start, len) = (bytes.len() as u32, range.start as u32, range.len() as u32);
        let right = |found: &[u8]| assert!(*found == bytes[range.clone()], "{snapshot}, block {at}, page {page}");
        let is_hit = cache.read(block, block_len, start, len, right).hit().is_some();
        let copied = cache.read_into(block, block_len, start, len, Vec::with_capacity).hit();
        assert_eq!(copied.is_some(), is_hit, "both ways to read agree");
        if let Some(PartBytes { memory, range, .. }) = copied {
            right(&memory[range]);
        }
        is_hit
    }

    /// Reads all pages of all blocks. Each must be right or a counted miss. Returns those that are hits, each with its
    /// snapshot and block.
    pub(super) fn read_all(&self) -> BTreeSet<(usize, u32, u32)> {
        let counted = || (self.bed.counters.hits.get(), self.bed.counters.misses.get());
        let (before, mut hits, mut reads) = (counted(), BTreeSet::new(), 0);
        for snapshot in 0..2 {
            let cache = self.cache(snapshot);
            let mut cached = 0;
            for at in 0..BLOCKS {
                let (block, pages) = (block_of(snapshot, at), pages_of(at));
                let found: Vec<u32> = pages.clone().filter(|&page| self.get(snapshot, at, page)).collect();
                assert!(!cache.contains(block) || found.len() == pages.len(), "{snapshot}, block {at} is not whole");
                // Each page is read twice.
                reads += 2 * pages.len() as u64;
                hits.extend(found.into_iter().map(|page| (snapshot, at, page)));
                cached += u64::from(cache.shared.slots.get(block).is_some());
            }
            let usage = cache.usage();
            assert_eq!(usage.blocks_cached, cached);
            assert!(usage.used_bytes <= usage.capacity_bytes, "{usage:?}");
        }
        let of_hits = 2 * hits.len() as u64;
        assert_eq!(counted(), (before.0 + of_hits, before.1 + reads - of_hits));
        assert_eq!(self.bed.counters.read_errors.get(), 0);
        hits
    }

    /// Has all files lent that are wholly cached and found right, and checks their bytes. Returns their number.
    pub(super) fn lend_all(&self) -> usize {
        let mut lent = 0;
        for (snapshot, spans) in SPANS.iter().enumerate() {
            for file in 0..FILES {
                let (cache, span, begun) = (self.cache(snapshot), spans.span(file), Instant::now());
                let found = loop {
                    let found = cache.lend(span.first);
                    // The check of a file that is not right shows a block of it as not whole.
                    if found.is_some() || !cache.shared.may_lend(&span) {
                        break found;
                    }
                    assert!(begun.elapsed() < TIMEOUT, "{snapshot}, file {file} is neither lent nor found damaged");
                    std::thread::sleep(Duration::from_millis(1));
                };
                if let Some(mut found) = found {
                    let mut bytes = Vec::new();
                    std::io::Read::read_to_end(&mut found, &mut bytes).unwrap();
                    let right = [0, 1, 2].map(|nth| bytes_at(3 * file + nth)).concat();
                    assert!(bytes == right, "{snapshot}, file {file} is lent with wrong bytes");
                    lent += 1;
                }
            }
        }
        lent
    }

    /// Writes all blocks that are not there as a whole.
    pub(super) fn fill(&self) {
        for snapshot in 0..2 {
            for at in 0..BLOCKS {
                // A check may have the block.
                wait_until("the block is cached", || {
                    let is_cached = self.cache(snapshot).contains(block_of(snapshot, at));
                    is_cached || self.put(snapshot, at, pages_of(at))
                });
            }
        }
    }
}
