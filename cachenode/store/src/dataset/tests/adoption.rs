//! Adoption, without copying, of blocks that another snapshot's cache has.

mod interrupted;

use std::process::{Command, Stdio};
use std::sync::mpsc;

use super::*;
use crate::earlier::{Earlier, SameBlocks};
use crate::info::DatasetInfo;
use crate::record::extent_bytes;

const BLOCKS: u32 = 1000;
const CHILD_DIR: &str = "LARDER_TEST_ADOPTING_DIR";

/// Snapshot `version` of the dataset. In each version, a tenth of the blocks differ from the previous version's, and
/// all block numbers are one higher.
#[derive(Clone, Copy, Debug)]
struct Version(u8);

impl Version {
    fn id(self) -> CacheId {
        CacheId([self.0; 32])
    }

    /// The version and the number under which a block's bytes first appeared in the dataset.
    fn made(self, block: u32) -> (u8, u32) {
        match self.before(block) {
            Some(before) => Self(self.0 - 1).made(before),
            None => (self.0, block),
        }
    }

    /// The block of the previous version that has the same bytes.
    fn before(self, block: u32) -> Option<u32> {
        (self.0 > 1 && block > 0 && !mix(u64::from(block) << 8 | u64::from(self.0)).is_multiple_of(10))
            .then(|| block - 1)
    }

    fn len(self, block: u32) -> u32 {
        let (version, number) = self.made(block);
        len_of(BlockIndex(number + u32::from(version)))
    }

    fn bytes(self, block: u32) -> Vec<u8> {
        let (version, number) = self.made(block);
        bytes_of(BlockIndex(number + 1_000_000 * u32::from(version)), self.len(block))
    }

    fn total(self) -> u64 {
        (0..BLOCKS).map(|block| u64::from(self.len(block))).sum()
    }

    fn config(self, policy: PolicyKind, reservation_bytes: u64) -> CacheConfig {
        CacheConfig {
            key: SnapshotId(self.id().0).into(),
            is_known_as_ours: false,
            name: format!("version {}", self.0),
            blocks: BLOCKS,
            reservation_bytes,
            promised: Reservation::exactly(reservation_bytes),
            policy,
            seed: 5,
            block_lens: Arc::new(move |block: BlockIndex| self.len(block.0)),
        }
    }
}

/// The blocks that the second version has in common with the first.
#[derive(Debug)]
struct Same {
    old: Version,
    new: Version,
    is_promised: bool,
    /// The walk waits for a message before each block.
    gate: Option<Mutex<mpsc::Receiver<()>>>,
}

impl Same {
    fn of(old: Version, new: Version) -> Arc<Self> {
        Arc::new(Self::between(old, new))
    }

    fn between(old: Version, new: Version) -> Self {
        Self { old, new, is_promised: true, gate: None }
    }
}

impl Earlier for Same {
    fn cache(&self) -> CacheId {
        self.old.id()
    }

    fn blocks(&self) -> u32 {
        BLOCKS
    }

    fn is_promised(&self) -> bool {
        self.is_promised
    }

    fn find(&self, block: BlockIndex) -> Option<BlockIndex> {
        let (older, newer) = if self.old.0 < self.new.0 { (self.old, self.new) } else { (self.new, self.old) };
        let steps = newer.0 - older.0;
        let found = if self.old.0 < self.new.0 {
            (0..steps).try_fold(block.0, |block, step| Version(newer.0 - step).before(block))?
        } else {
            block.0 + u32::from(steps)
        };
        let same = found < BLOCKS && self.old.made(found) == self.new.made(block.0);
        same.then_some(BlockIndex(found))
    }

    fn each_run(&self, is_stopped: &dyn Fn() -> bool, f: &mut dyn FnMut(SameBlocks) -> bool) {
        for first in (0..BLOCKS).map(BlockIndex).take_while(|_| !is_stopped()) {
            if let Some(gate) = &self.gate {
                let _ = gate.lock().unwrap().recv();
            }
            if let Some(earlier) = self.find(first)
                && !f(SameBlocks { first, earlier, count: 1 })
            {
                break;
            }
        }
    }
}

/// A store with several versions of a dataset.
struct Versions {
    bed: Bed,
}

impl Versions {
    fn new() -> Self {
        let bed = Bed::new(PolicyKind::Nr, 0);
        Self { bed }
    }

    fn open(&self, version: Version, policy: PolicyKind, bytes: u64) -> Arc<DatasetCache> {
        let cache = self.bed.store().dataset(version.config(policy, bytes)).unwrap();
        assert!(cache.wait_rebuilt(TIMEOUT));
        cache
    }

    fn all(&self, version: Version) -> Arc<DatasetCache> {
        self.open(version, PolicyKind::Nr, version.total())
    }

    fn filled(&self, version: Version) -> Arc<DatasetCache> {
        let cache = self.all(version);
        put_each(&cache, version, 0..BLOCKS);
        cache
    }

    fn info(&self, version: Version) -> DatasetInfo {
        let all = self.bed.store().datasets();
        all.into_iter().find(|info| info.cache() == version.id()).unwrap()
    }

    /// Disk bytes of all versions together.
    fn disk_bytes(&self) -> u64 {
        let mut seen = std::collections::HashSet::new();
        let mut bytes = 0;
        for info in self.bed.store().datasets() {
            bytes += info.disk_bytes;
            bytes -= info.shared.iter().filter(|file| !seen.insert(file.id)).map(|file| file.bytes).sum::<u64>();
        }
        bytes
    }
}

fn put(cache: &DatasetCache, version: Version, block: u32) -> bool {
    let Some(permit) = cache.admit(BlockIndex(block), version.len(block)) else { return false };
    cache.write(permit, &cache.record(BlockIndex(block), &version.bytes(block))).unwrap();
    true
}

fn put_each(cache: &DatasetCache, version: Version, blocks: impl IntoIterator<Item = u32>) {
    for block in blocks {
        put(cache, version, block);
    }
}

/// The blocks that are hits. Checks their bytes.
fn hits(cache: &DatasetCache, version: Version) -> Vec<u32> {
    let hit = |block: &u32| {
        let len = version.len(*block);
        let right = |bytes: &[u8]| assert!(bytes == version.bytes(*block), "{version:?} {block}");
        cache.read(BlockIndex(*block), len, 0, len, right).hit().is_some()
    };
    (0..BLOCKS).filter(hit).collect()
}

fn same(old: Version, new: Version) -> Vec<u32> {
    (0..BLOCKS).filter(|block| Same::of(old, new).find(BlockIndex(*block)).is_some()).collect()
}

fn adopt(cache: &DatasetCache, old: Version, new: Version) {
    adopt_from(cache, Same::between(old, new));
}

fn adopt_from(cache: &DatasetCache, earlier: impl Earlier + 'static) {
    let (sender, ended) = mpsc::channel();
    cache.adopt(vec![Arc::new(earlier)], move |complete| sender.send(complete).unwrap());
    assert!(ended.recv_timeout(TIMEOUT).unwrap());
    assert!(!cache.is_adopting());
}

const ONE: Version = Version(1);
const TWO: Version = Version(2);
const THREE: Version = Version(3);

// SEMANTICS: C16
#[test]
fn blocks_that_another_snapshot_has_are_taken_over_and_take_no_room() {
    for close_first in [false, true] {
        let versions = Versions::new();
        let mut one = Some(versions.filled(ONE));
        if close_first {
            one = None;
        }
        let before = versions.disk_bytes();
        let two = versions.all(TWO);
        adopt(&two, ONE, TWO);
        assert_eq!(hits(&two, TWO), same(ONE, TWO));
        // Only a slot table, aliases and folders were added.
        assert!(versions.disk_bytes() - before < 64 << 10, "{before} {}", versions.disk_bytes());
        let usage = two.usage();
        assert_eq!(usage.blocks_cached, same(ONE, TWO).len() as u64);
        assert_eq!(usage.used_bytes, same(ONE, TWO).iter().map(|block| u64::from(TWO.len(*block))).sum::<u64>());
        put_each(&two, TWO, 0..BLOCKS);
        assert_eq!(hits(&two, TWO).len(), BLOCKS as usize, "there is room for all that has changed");
        assert_eq!(one.as_ref().map_or(BLOCKS as usize, |one| hits(one, ONE).len()), BLOCKS as usize);
        // The result is the same whether the first dataset stays or is released.
        assert!(versions.bed.store().release(&ONE.id()).is_ok() == close_first);
        assert_eq!(hits(&two, TWO).len(), BLOCKS as usize);
        assert_eq!(versions.bed.counters.corrupt(), 0);
        assert_eq!(versions.bed.counters.adopted.get(), usage.blocks_cached);
    }
}

// SEMANTICS: C16, C20
#[test]
fn adopted_blocks_stay_on_their_disks() {
    let mut versions = Versions::new();
    versions.bed.drop_all();
    versions.bed.more = vec![versions.bed.dir.with_file_name("other")];
    versions.bed.open();
    let one = versions.filled(ONE);
    let two = versions.all(TWO);
    let before = versions.disk_bytes();
    adopt(&two, ONE, TWO);
    assert!(versions.disk_bytes() - before < 64 << 10, "{before} {}", versions.disk_bytes());
    let disk_of = |cache: &DatasetCache, block: u32| {
        let place = cache.shared.slots.get(BlockIndex(block)).unwrap();
        cache.shared.space.segments().get(place.segment).unwrap().disk.dir().to_owned()
    };
    let disks: Vec<PathBuf> = same(ONE, TWO).into_iter().map(|block| disk_of(&two, block)).collect();
    // In each version, the numbers of the blocks are one higher.
    assert_eq!(disks, same(ONE, TWO).into_iter().map(|block| disk_of(&one, block - 1)).collect::<Vec<_>>());
    assert!(disks.contains(&versions.bed.dir) && disks.contains(&versions.bed.more[0]));
    drop((one, two));
    versions.bed.drop_all();
    versions.bed.open();
    let two = versions.all(TWO);
    assert_eq!((hits(&two, TWO), versions.bed.counters.corrupt()), (same(ONE, TWO), 0));
}

#[test]
fn adopted_blocks_are_hits_after_a_restart_and_a_second_adoption_finds_nothing_to_do() {
    let mut versions = Versions::new();
    drop(versions.filled(ONE));
    adopt(&versions.all(TWO), ONE, TWO);
    for end in [Bed::drop_all, Bed::close] {
        end(&mut versions.bed);
        versions.bed.open();
        let two = versions.all(TWO);
        assert_eq!((hits(&two, TWO), two.usage().blocks_cached), (same(ONE, TWO), same(ONE, TWO).len() as u64));
        let adopted = versions.info(TWO).adopted_disk_bytes;
        assert_eq!(adopted, hits(&two, TWO).iter().map(|block| extent_bytes(TWO.len(*block)) as u64).sum::<u64>());
        adopt(&two, ONE, TWO);
        assert_eq!((versions.info(TWO).adopted_disk_bytes, hits(&two, TWO)), (adopted, same(ONE, TWO)));
        drop(two);
        assert_eq!(versions.info(TWO).adopted_disk_bytes, adopted.next_multiple_of(4096));
    }
    assert_eq!(versions.bed.counters.corrupt(), 0);
}

/// True if a thread of this name waits for another thread.
fn is_asleep(name: &str) -> bool {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let mut stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    stats.any(|stat| stat.contains(&format!("({name}) S ")))
}

/// The lock of the slot table is held for as long as a write of the table takes.
// SEMANTICS: C4, C16
#[test]
fn while_an_adoption_waits_for_the_disk_admissions_and_hits_do_not() {
    let versions = Versions::new();
    let one = versions.filled(ONE);
    let two = versions.all(TWO);
    let adopted = same(ONE, TWO);
    let own: Vec<u32> = (0..BLOCKS).filter(|block| !adopted.contains(block)).collect();
    let (cached, others) = own.split_at(10);
    put_each(&two, TWO, cached.iter().copied());

    let stalled = two.shared.slots.0.changing.lock().unwrap();
    let (sender, ended) = mpsc::channel();
    two.adopt(vec![Same::of(ONE, TWO) as Arc<dyn Earlier>], move |complete| sender.send(complete).unwrap());
    let begun = Instant::now();
    while !is_asleep("larder-adopt") {
        assert!(begun.elapsed() < TIMEOUT, "the adoption does not wait");
        std::thread::yield_now();
    }
    let (done, used) = mpsc::channel();
    let (using, others) = (Arc::clone(&two), others.to_vec());
    std::thread::spawn(move || {
        for block in others {
            drop(using.admit(BlockIndex(block), TWO.len(block)).expect("there is room"));
        }
        done.send((hits(&one, ONE).len(), hits(&using, TWO))).unwrap();
    });
    let used = used.recv_timeout(TIMEOUT).expect("admissions or hits wait for the disk");
    assert_eq!(used, (BLOCKS as usize, cached.to_vec()));
    assert!(two.is_adopting());
    drop(stalled);
    assert!(ended.recv_timeout(TIMEOUT).unwrap());
    assert_eq!(hits(&two, TWO).len(), adopted.len() + cached.len());
}

// SEMANTICS: C16
#[test]
fn a_chain_of_snapshots_needs_none_of_those_before_and_frees_what_nobody_uses() {
    let versions = Versions::new();
    drop(versions.filled(ONE));
    let two = versions.all(TWO);
    adopt(&two, ONE, TWO);
    put_each(&two, TWO, 0..BLOCKS);
    drop(two);
    let three = versions.all(THREE);
    adopt(&three, TWO, THREE);
    assert_eq!(hits(&three, THREE), same(TWO, THREE));
    for old in [ONE, TWO] {
        let before = versions.disk_bytes();
        versions.bed.store().release(&old.id()).unwrap();
        three.free_unused();
        assert!(versions.disk_bytes() < before);
        assert_eq!(hits(&three, THREE), same(TWO, THREE));
    }
    let used: u64 = same(TWO, THREE).iter().map(|block| extent_bytes(THREE.len(*block)) as u64).sum();
    let left = versions.disk_bytes();
    // The overhead: the file system's own blocks for files with many holes, slot tables and aliases. The changed blocks
    // are 4 MB.
    assert!(left < used + (512 << 10), "{left} for {used}");
    // Back to the first version: it adopts what it shares with the third.
    let one = versions.all(ONE);
    adopt(&one, THREE, ONE);
    assert_eq!(hits(&one, ONE), same(THREE, ONE));
    assert!(hits(&one, ONE).len() > 700);
    assert_eq!(versions.bed.counters.corrupt(), 0);
}

// SEMANTICS: C16
#[test]
fn what_the_other_dataset_evicts_stays_where_it_was_adopted() {
    let versions = Versions::new();
    for (policy, other) in [(PolicyKind::Lru, PolicyKind::Nr), (PolicyKind::Nr, PolicyKind::Lru)] {
        let half = ONE.total() / 2;
        let one = versions.open(ONE, policy, half);
        put_each(&one, ONE, 0..BLOCKS);
        let kept = hits(&one, ONE);
        let two = versions.open(TWO, other, TWO.total());
        adopt(&two, ONE, TWO);
        let adopted = hits(&two, TWO);
        assert_eq!(adopted, same(ONE, TWO).into_iter().filter(|b| kept.contains(&(b - 1))).collect::<Vec<_>>());
        for round in 0..2 {
            put_each(&one, ONE, (0..BLOCKS).map(|block| (block * 7 + round) % BLOCKS));
        }
        assert_eq!(hits(&two, TWO), adopted, "{policy}");
        if other == PolicyKind::Lru {
            two.resize(half / 4, Reservation::exactly(half / 4));
            put_each(&two, TWO, 0..BLOCKS);
            assert_eq!(hits(&one, ONE), kept);
        }
        drop((one, two));
        for version in [ONE, TWO] {
            versions.bed.store().release(&version.id()).unwrap();
        }
    }
    assert_eq!(versions.bed.counters.corrupt(), 0);
}

#[test]
fn a_block_is_read_from_the_other_cache_until_it_is_adopted() {
    let versions = Versions::new();
    drop(versions.filled(ONE));
    let two = versions.all(TWO);
    let (gate, waiting) = mpsc::channel();
    let same = Arc::new(Same { gate: Some(Mutex::new(waiting)), ..Same::between(ONE, TWO) });
    let (sender, ended) = mpsc::channel();
    let find = {
        let same = Arc::clone(&same);
        move |block| same.find(BlockIndex(block)).is_some()
    };
    two.adopt(vec![same], move |complete| sender.send(complete).unwrap());
    for block in 0..BLOCKS {
        let len = TWO.len(block);
        // A read from the middle of the block.
        let (start, middle) = (len / 3, len - 2 * (len / 3));
        let read = two.read_earlier(BlockIndex(block), len, start, middle);
        assert_eq!((read.is_some(), two.has_earlier(BlockIndex(block))), (find(block), find(block)));
        if let Some(PartBytes { memory, range, .. }) = read {
            assert!(memory[range] == TWO.bytes(block)[start as usize..(start + middle) as usize]);
        }
        assert!(two.is_adopting() && !two.contains(BlockIndex(block)));
    }
    // A block that is fetched during the adoption is kept.
    let changed = (0..BLOCKS).find(|block| !find(*block)).unwrap();
    assert!(put(&two, TWO, changed));
    drop(gate);
    ended.recv_timeout(TIMEOUT).unwrap();
    let expected: Vec<u32> = (0..BLOCKS).filter(|block| find(*block) || *block == changed).collect();
    assert_eq!(hits(&two, TWO), expected);
    assert!(two.read_earlier(BlockIndex(1), TWO.len(1), 0, 1).is_none() && !two.has_earlier(BlockIndex(1)));
}

// SEMANTICS: C16
#[test]
fn no_more_is_adopted_than_was_wanted_and_adopted_blocks_leave_the_room_of_others() {
    let versions = Versions::new();
    let _one = versions.filled(ONE);
    // The dataset wanted half of its size, and there was space for a tenth.
    let (tenth, half) = (TWO.total() / 10, TWO.total() / 2);
    let promised = Reservation { bytes: tenth, disk_bytes: tenth, wanted_bytes: half };
    let config = CacheConfig { promised, ..TWO.config(PolicyKind::Nr, tenth) };
    let two = versions.bed.store().dataset(config).unwrap();
    adopt(&two, ONE, TWO);
    let usage = two.usage();
    assert!(usage.used_bytes <= half && usage.used_bytes + (256 << 10) > half, "{usage:?}");
    assert_eq!(usage.capacity_bytes, half);
    let info = versions.info(TWO);
    let reservation = info.reservation.unwrap();
    assert_eq!(reservation.bytes, half);
    // Only the adopted blocks that raised the capacity count.
    let most = info.adopted_disk_bytes as f64 * (half - tenth) as f64 / usage.used_bytes as f64;
    assert!((reservation.disk_bytes - tenth) as f64 <= most + 1.0, "{reservation:?}, {info:?}");
    // A dataset that wants all of its size, of which less can be adopted: it has its own space for the rest.
    drop(two);
    versions.bed.store().release(&TWO.id()).unwrap();
    let promised = Reservation { bytes: tenth, disk_bytes: tenth, wanted_bytes: TWO.total() };
    let config = CacheConfig { promised, ..TWO.config(PolicyKind::Nr, tenth) };
    let two = versions.bed.store().dataset(config).unwrap();
    adopt(&two, ONE, TWO);
    assert_eq!(hits(&two, TWO), same(ONE, TWO));
    let usage = two.usage();
    assert_eq!(usage.capacity_bytes, (usage.used_bytes + tenth).min(TWO.total()));
}

// SEMANTICS: C16
#[test]
fn lost_and_damaged_aliases_cost_hits_and_a_number_that_was_used_twice_costs_the_adopted_segment() {
    let mut versions = Versions::new();
    drop(versions.filled(ONE));
    adopt(&versions.all(TWO), ONE, TWO);
    versions.bed.drop_all();
    let folder = versions.bed.dir.join("datasets").join(TWO.id().to_string());
    let aliases = folder.join("aliases");
    let sound = fs::read(&aliases).unwrap();
    let spoiled = |spoil: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = sound.clone();
        spoil(&mut bytes);
        bytes
    };
    for bytes in [
        spoiled(&|bytes| bytes[4096..].iter_mut().step_by(8).for_each(|byte| *byte ^= 1)),
        spoiled(&|bytes| bytes[4096..].fill(0)),
        spoiled(&|bytes| bytes[4096 + 8 * 500..].rotate_left(8)),
        Vec::new(),
    ] {
        let backup = versions.bed.dir.join("datasets").with_extension("backup");
        Command::new("cp").arg("-a").arg(versions.bed.dir.join("datasets")).arg(&backup).status().unwrap();
        fs::write(&aliases, bytes).unwrap();
        versions.bed.open();
        assert!(hits(&versions.all(TWO), TWO).len() < same(ONE, TWO).len(), "and none is wrong");
        versions.bed.drop_all();
        fs::remove_dir_all(versions.bed.dir.join("datasets")).unwrap();
        fs::rename(&backup, versions.bed.dir.join("datasets")).unwrap();
    }
    // A version that does not know adopted segments creates one with the same number.
    let adopted = fs::read_dir(folder.join("segments")).unwrap().flatten().next().unwrap().file_name();
    let number = adopted.to_str().unwrap().split_once('-').unwrap().0.to_owned();
    fs::write(folder.join("segments").join(format!("{number}.seg")), vec![0; 1 << 20]).unwrap();
    versions.bed.open();
    assert!(hits(&versions.all(TWO), TWO).len() < same(ONE, TWO).len());
    let two = versions.all(TWO);
    put_each(&two, TWO, 0..BLOCKS);
    assert_eq!(hits(&two, TWO).len(), BLOCKS as usize);
}

#[test]
#[ignore = "the process that an_adoption_that_is_killed_anywhere_is_right_and_goes_on starts and kills"]
fn child() {
    let dir = std::env::var_os(CHILD_DIR).expect("started by its parent");
    let versions = Versions { bed: Bed::at(Path::new(&dir), PolicyKind::Nr, 0) };
    fs::write(Path::new(&dir).join("ready"), b"").unwrap();
    loop {
        let two = versions.all(TWO);
        adopt(&two, ONE, TWO);
        assert_eq!(hits(&two, TWO), same(ONE, TWO));
        drop(two);
        versions.bed.store().release(&TWO.id()).unwrap();
    }
}

// SEMANTICS: C16
#[test]
fn an_adoption_that_is_killed_anywhere_is_right_and_goes_on() {
    let temp = tempfile::tempdir().unwrap();
    let mut versions = Versions { bed: Bed::at(temp.path(), PolicyKind::Nr, 0) };
    drop(versions.filled(ONE));
    let common = same(ONE, TWO);
    for kill in 0..12 {
        versions.bed.drop_all();
        let ready = temp.path().join("ready");
        let _ = fs::remove_file(&ready);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "dataset::tests::adoption::child", "--ignored"])
            .env(CHILD_DIR, temp.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while !ready.exists() {
            assert!(begun.elapsed() < TIMEOUT && child.try_wait().unwrap().is_none(), "the child does not start");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(mix(kill) % 30_000));
        child.kill().unwrap();
        child.wait().unwrap();
        versions.bed.open();
        let two = versions.all(TWO);
        let found = hits(&two, TWO);
        assert_eq!(two.usage().blocks_cached, found.len() as u64);
        assert!(found.iter().all(|block| common.contains(block)));
        adopt(&two, ONE, TWO);
        assert_eq!(hits(&two, TWO), common);
        assert_eq!(hits(&versions.all(ONE), ONE).len(), BLOCKS as usize);
    }
    assert_eq!(versions.bed.counters.corrupt(), 0);
}
