//! A loss of power: of what was written since all was synced, any part is on the disk.
//!
//! The disk is mixed from a copy of the cache's files, made when all counted as synced, and from what is there when the
//! power goes: 4 KiB by 4 KiB of large files, word by word of tables, the names of new and deleted files, and the index
//! as a whole, which has a log of its own. Writes that the cache syncs in between may be lost here as well, except for
//! files that it replaces whole, and the first 4 KiB of a table.

use std::collections::{BTreeMap, HashMap, HashSet};

use larder_testkit::scaled;

use super::pair::{BLOCKS, FILES, Pair, pages_of};
use super::*;
use crate::folder::FileId;

/// The tables of a cache.
const TABLES: [&str; 3] = ["slots", "pages", "aliases"];

/// The unit in which writes of a large file are lost, and the part of a table that is not.
const UNIT: usize = 4096;

/// The losses of power of one folder.
const LOSSES: u8 = 4;

/// A sequence of numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 += 1;
        mix(self.0) % end
    }

    fn is_one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path())
}

/// The large files and tables of a store.
fn files_of(bed: &Bed) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for cache in [&bed.dir].into_iter().chain(&bed.more).flat_map(|dir| entries(&dir.join("datasets"))) {
        found.extend(TABLES.map(|name| cache.join(name)).into_iter().filter(|table| table.exists()));
        found.extend(entries(&cache.join("files")));
    }
    found
}

fn is_table(path: &Path) -> bool {
    TABLES.iter().any(|name| path.ends_with(name))
}

/// Writes to a file what a loss of power leaves of it. `before` is what was synced; nothing of a new file.
fn lose_writes(path: &Path, before: Option<&Vec<u8>>, random: &mut Random) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let after = fs::read(path).unwrap();
    let (from, unit) = if is_table(path) { (UNIT, 8) } else { (0, UNIT) };
    let odds = [1, 2, 8][random.below(3) as usize];
    let mut synced = before.cloned().unwrap_or_default();
    synced.resize(after.len(), 0);
    for at in (from..after.len()).step_by(unit) {
        let part = at..(at + unit).min(after.len());
        if after[part.clone()] != synced[part.clone()] && random.is_one_in(odds) {
            file.write_all_at(&synced[part], at as u64).unwrap();
        }
    }
    if before.is_none() && !is_table(path) && random.is_one_in(4) {
        file.set_len(random.below(after.len() as u64 + 1)).unwrap();
    }
}

/// The contents that a loss of power cannot take.
struct Synced {
    names: BTreeMap<PathBuf, FileId>,
    contents: HashMap<FileId, Vec<u8>>,
    index: Vec<(PathBuf, Vec<u8>)>,
}

impl Synced {
    /// Copies what is there now.
    fn copy(bed: &Bed) -> Self {
        let (mut names, mut contents) = (BTreeMap::new(), HashMap::new());
        for path in files_of(bed) {
            let id = FileId::of(&fs::metadata(&path).unwrap());
            contents.entry(id).or_insert_with(|| fs::read(&path).unwrap());
            names.insert(path, id);
        }
        bed.store().base.index.flush();
        // RocksDB may delete a file that it no longer needs meanwhile.
        let index = entries(&bed.dir.join("index")).filter_map(|path| Some((path.clone(), fs::read(&path).ok()?)));
        Self { names, contents, index: index.collect() }
    }

    /// Leaves any part of what was written since.
    fn lose_power(&self, bed: &Bed, random: &mut Random) {
        let mut seen = HashSet::new();
        for path in files_of(bed) {
            // The name of a table is synced when it is made.
            if !is_table(&path) && !self.names.contains_key(&path) && random.is_one_in(4) {
                fs::remove_file(&path).unwrap();
                continue;
            }
            let id = FileId::of(&fs::metadata(&path).unwrap());
            if seen.insert(id) {
                lose_writes(&path, self.contents.get(&id), random);
            }
        }
        for (path, id) in &self.names {
            if !path.exists() && random.is_one_in(2) {
                fs::write(path, &self.contents[id]).unwrap();
            }
        }
        if random.is_one_in(2) {
            fs::remove_dir_all(bed.dir.join("index")).unwrap();
            fs::create_dir(bed.dir.join("index")).unwrap();
            self.index.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
        }
    }
}

/// Writes parts and whole blocks of both snapshots, and adopts blocks.
fn write_some(pair: &Pair, random: &mut Random) {
    for _ in 0..random.below(80) {
        let (snapshot, at) = (random.below(2) as usize, random.below(BLOCKS.into()) as u32);
        let most = pages_of(at).end;
        let first = random.below(most.into()) as u32;
        match random.below(8) {
            0 => pair.adopt(),
            1 => drop(pair.put(snapshot, at, 0..most)),
            _ => drop(pair.put(snapshot, at, first..(first + 1 + random.below(8) as u32).min(most))),
        }
    }
}

// SEMANTICS: B1, C4, C21, C22
#[test]
fn after_a_loss_of_power_a_read_of_a_large_file_is_right_or_a_counted_miss() {
    let (mut spoilt, seeds) = (0, scaled(3));
    for seed in 0..seeds {
        let cases = [(PolicyKind::Nr, 1), (PolicyKind::Fifo, 1), (PolicyKind::Nr, 2)];
        let (policy, disks) = cases[seed as usize % cases.len()];
        let (temp, mut random) = (tempfile::tempdir().unwrap(), Random(u64::from(seed) << 32));
        let mut pair = Pair::new(temp.path(), policy, disks);
        for loss in 1..=LOSSES {
            write_some(&pair, &mut random);
            pair.close();
            pair.open();
            let held = pair.read_all();
            let synced = Synced::copy(&pair.bed);
            write_some(&pair, &mut random);
            let is_filled = loss % 2 == 0 && !policy.evicts();
            if is_filled {
                pair.fill();
            }
            pair.lend_all();
            pair.drop_all();
            synced.lose_power(&pair.bed, &mut random);
            pair.bed.boot_id = boot(1 + loss);
            pair.open();
            if is_filled {
                // Before a reader meets the pages that were lost.
                pair.lend_all();
            }
            let hits = pair.read_all();
            let lost = held.difference(&hits).count();
            assert!(policy.evicts() || lost == 0, "seed {seed}, loss {loss}: {lost} pages that were synced are gone");
            pair.lend_all();
        }
        if !policy.evicts() {
            pair.fill();
            assert_eq!(pair.lend_all(), 2 * FILES as usize, "seed {seed}");
        }
        spoilt += pair.bed.counters.corrupt_rotten.get();
        assert_eq!(pair.bed.counters.write_errors.get(), 0, "seed {seed}");
    }
    assert!(spoilt > 0, "no page was lost whose word was kept");
}
