//! The space of adopted blocks, interrupted adoptions, and concurrent operations of other datasets.

use super::*;

/// Another snapshot, whose walk lasts until it is stopped or its gate is dropped.
#[derive(Debug)]
struct Endless {
    same: Arc<Same>,
    gate: Mutex<mpsc::Receiver<()>>,
    begun: mpsc::Sender<()>,
    /// If true, the walk ignores the stop and continues until the gate is dropped.
    is_slow: bool,
    has_ended: std::sync::atomic::AtomicBool,
}

impl Earlier for Endless {
    fn cache(&self) -> CacheId {
        self.same.cache()
    }

    fn blocks(&self) -> u32 {
        BLOCKS
    }

    fn is_promised(&self) -> bool {
        true
    }

    fn find(&self, block: BlockIndex) -> Option<BlockIndex> {
        self.same.find(block)
    }

    fn each_run(&self, is_stopped: &dyn Fn() -> bool, f: &mut dyn FnMut(SameBlocks) -> bool) {
        self.begun.send(()).unwrap();
        let gate = self.gate.lock().unwrap();
        while gate.try_recv() != Err(mpsc::TryRecvError::Disconnected) && (self.is_slow || !is_stopped()) {
            std::thread::yield_now();
        }
        self.same.each_run(is_stopped, f);
        self.has_ended.store(true, Ordering::Relaxed);
    }
}

/// An adoption that waits in its walk.
struct Waiting {
    earlier: Arc<Endless>,
    gate: Option<mpsc::Sender<()>>,
    done: mpsc::Receiver<bool>,
}

impl Waiting {
    fn begin(cache: &DatasetCache, old: Version, new: Version, is_slow: bool) -> Self {
        let ((gate, opened), (begun, has_begun), (sender, done)) = (mpsc::channel(), mpsc::channel(), mpsc::channel());
        let earlier = Arc::new(Endless {
            same: Same::of(old, new),
            gate: Mutex::new(opened),
            begun,
            is_slow,
            has_ended: false.into(),
        });
        cache.adopt(vec![Arc::clone(&earlier) as Arc<dyn Earlier>], move |complete| sender.send(complete).unwrap());
        has_begun.recv_timeout(TIMEOUT).unwrap();
        Self { earlier, gate: Some(gate), done }
    }

    /// Lets the walk continue to its end. True if nothing remained to be adopted.
    fn end(mut self) -> bool {
        drop(self.gate.take());
        self.done.recv_timeout(TIMEOUT).unwrap()
    }
}

// SEMANTICS: C16
#[test]
fn a_snapshot_is_not_released_while_its_blocks_are_taken_over() {
    let versions = Versions::new();
    drop(versions.filled(ONE));
    let two = versions.all(TWO);
    let waiting = Waiting::begin(&two, ONE, TWO, false);
    assert!(versions.info(ONE).is_ancestor && !versions.info(TWO).is_ancestor);
    let released = versions.bed.store().release(&ONE.id());
    assert!(matches!(released, Err(StoreError::DatasetInUse { .. })), "{released:?}");
    assert!(waiting.end());
    assert_eq!(hits(&two, TWO), same(ONE, TWO));
    assert!(!versions.info(ONE).is_ancestor);
    assert!(versions.bed.store().release(&ONE.id()).unwrap());
    assert_eq!(hits(&two, TWO), same(ONE, TWO));
}

// SEMANTICS: C16
#[test]
fn an_adoption_that_is_stopped_ends_at_once_and_says_that_blocks_are_left() {
    for close in [false, true] {
        let versions = Versions::new();
        drop(versions.filled(ONE));
        let two = versions.all(TWO);
        let waiting = Waiting::begin(&two, ONE, TWO, false);
        if close {
            versions.bed.store().close().unwrap();
        } else {
            drop(two);
        }
        assert!(!waiting.done.recv_timeout(TIMEOUT).unwrap(), "blocks are left");
    }
}

// SEMANTICS: C16
#[test]
fn a_dataset_that_is_opened_while_its_cache_is_being_closed_gets_one_that_has_the_files_for_itself() {
    let versions = Versions::new();
    drop(versions.filled(ONE));
    let two = versions.all(TWO);
    let mut waiting = Waiting::begin(&two, ONE, TWO, true);
    std::thread::scope(|scope| {
        let weak = Arc::downgrade(&two);
        scope.spawn(move || drop(two));
        while weak.strong_count() > 0 {
            std::thread::yield_now();
        }
        let earlier = Arc::clone(&waiting.earlier);
        let store = versions.bed.store();
        let opening = scope.spawn(move || {
            let two = store.dataset(TWO.config(PolicyKind::Nr, TWO.total())).unwrap();
            (earlier.has_ended.load(Ordering::Relaxed), two)
        });
        // An opening that does not wait has finished by now.
        (0..1000).for_each(|_| std::thread::yield_now());
        drop(waiting.gate.take());
        let (has_ended, two) = opening.join().unwrap();
        assert!(has_ended, "the cache before still wrote to the files");
        assert!(two.wait_rebuilt(TIMEOUT));
        adopt(&two, ONE, TWO);
        assert_eq!(hits(&two, TWO), same(ONE, TWO));
    });
}

/// A dataset that wanted all of its size and was promised a tenth of it.
fn tenth_of(version: Version) -> CacheConfig {
    let tenth = version.total() / 10;
    let promised = Reservation { bytes: tenth, disk_bytes: tenth, wanted_bytes: version.total() };
    CacheConfig { promised, ..version.config(PolicyKind::Nr, tenth) }
}

// SEMANTICS: C16
#[test]
fn what_is_adopted_from_a_closed_snapshot_takes_the_room_that_the_dataset_was_given() {
    let versions = Versions::new();
    drop(versions.filled(ONE));
    let config = tenth_of(TWO);
    let promised = config.promised;
    let two = versions.bed.store().dataset(config).unwrap();
    adopt_from(&two, Same { is_promised: false, ..Same::between(ONE, TWO) });
    put_each(&two, TWO, 0..BLOCKS);
    let usage = two.usage();
    assert!(usage.used_bytes <= promised.bytes && usage.used_bytes + 400_000 > promised.bytes, "{usage:?}");
    assert_eq!((usage.capacity_bytes, versions.info(TWO).reservation), (promised.bytes, Some(promised)));
}

/// Starts an adoption whose walk takes one block per message.
fn adopt_step_by_step(cache: &DatasetCache) -> (mpsc::SyncSender<()>, mpsc::Receiver<bool>) {
    let ((step, steps), (sender, done)) = (mpsc::sync_channel(0), mpsc::channel());
    let earlier = Same { gate: Some(Mutex::new(steps)), ..Same::between(ONE, TWO) };
    cache.adopt(vec![Arc::new(earlier)], move |complete| sender.send(complete).unwrap());
    (step, done)
}

// SEMANTICS: C16
#[test]
fn the_room_of_what_was_adopted_is_known_to_others_before_the_adoption_ends_and_after_a_kill() {
    let versions = Versions::new();
    let _one = versions.filled(ONE);
    let config = tenth_of(TWO);
    let tenth = config.promised;
    let two = versions.bed.store().dataset(config).unwrap();
    let (step, done) = adopt_step_by_step(&two);
    // The walk accepts a step once it has finished the previous one.
    (0..700).for_each(|_| step.send(()).unwrap());
    let (usage, now) = (two.usage(), versions.info(TWO));
    assert_eq!(usage.blocks_cached, 512);
    let folder = versions.bed.dir.join("datasets").join(TWO.id().to_string());
    let later = crate::reservations::Reservations::load([(TWO.id(), folder)], []).unwrap().get(&TWO.id()).unwrap();
    for reservation in [now.reservation.unwrap(), later.reservation.unwrap()] {
        assert_eq!(reservation.bytes, tenth.bytes + usage.used_bytes);
        assert_eq!(reservation.disk_bytes, tenth.disk_bytes + now.adopted_disk_bytes);
    }
    assert_eq!(
        (usage.capacity_bytes, later.adopted_disk_bytes),
        (tenth.bytes + usage.used_bytes, now.adopted_disk_bytes)
    );
    drop(step);
    assert!(done.recv_timeout(TIMEOUT).unwrap());
}

// SEMANTICS: C16
#[test]
fn blocks_of_a_segment_of_which_all_others_have_left_meanwhile_are_adopted() {
    let mut versions = Versions::new();
    // The whole dataset is in one segment.
    versions.bed.drop_all();
    versions.bed.segment_bytes = 1 << 30;
    versions.bed.open();
    drop(versions.filled(ONE));
    let two = versions.open(TWO, PolicyKind::Lru, TWO.total());
    let (step, done) = adopt_step_by_step(&two);
    (0..700).for_each(|_| step.send(()).unwrap());
    assert_eq!(two.usage().blocks_cached, 512);
    // There is space for exactly one more block.
    let changed = (0..BLOCKS).find(|block| TWO.before(*block).is_none()).unwrap();
    let promised = Reservation::exactly(TWO.total());
    two.resize(TWO.len(changed).into(), promised);
    assert!(put(&two, TWO, changed));
    assert_eq!(two.usage().blocks_cached, 1);
    two.resize(TWO.total(), promised);
    drop(step);
    assert!(done.recv_timeout(TIMEOUT).unwrap());
    let there: Vec<u32> = (0..BLOCKS).filter(|block| two.contains(BlockIndex(*block))).collect();
    assert!(there.len() > 200, "{}", there.len());
    assert_eq!(hits(&two, TWO), there);
    assert_eq!(versions.bed.counters.corrupt(), 0);
}

/// Another snapshot with the same blocks, all of them in one file.
#[derive(Debug)]
struct OneFile;

impl Earlier for OneFile {
    fn cache(&self) -> CacheId {
        ONE.id()
    }

    fn blocks(&self) -> u32 {
        BLOCKS
    }

    fn is_promised(&self) -> bool {
        true
    }

    fn find(&self, block: BlockIndex) -> Option<BlockIndex> {
        Some(block)
    }

    fn each_run(&self, _: &dyn Fn() -> bool, f: &mut dyn FnMut(SameBlocks) -> bool) {
        f(SameBlocks { first: BlockIndex(0), earlier: BlockIndex(0), count: BLOCKS });
    }
}

// SEMANTICS: C16
#[test]
fn a_large_file_is_adopted_a_few_blocks_at_a_time() {
    let versions = Versions::new();
    drop(versions.filled(ONE));
    let cache = Arc::new(std::sync::OnceLock::<std::sync::Weak<DatasetCache>>::new());
    let shown = Arc::new(AtomicU64::new(0));
    let len = {
        let (cache, shown) = (Arc::clone(&cache), Arc::clone(&shown));
        move |block: BlockIndex| {
            if let Some(cache) = cache.get().and_then(std::sync::Weak::upgrade) {
                shown.fetch_max(cache.usage().blocks_cached, Ordering::Relaxed);
            }
            ONE.len(block.0)
        }
    };
    let id = SnapshotId([9; 32]);
    let config = CacheConfig { key: id.into(), block_lens: Arc::new(len), ..ONE.config(PolicyKind::Nr, ONE.total()) };
    let other = versions.bed.store().dataset(config).unwrap();
    cache.set(Arc::downgrade(&other)).unwrap();
    adopt_from(&other, OneFile);
    assert_eq!(hits(&other, ONE).len(), BLOCKS as usize);
    assert_eq!(shown.load(Ordering::Relaxed), 512, "before the last block was looked at");
}
