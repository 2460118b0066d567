//! Several datasets under one budget, more than fit, while the daemon is killed: each keeps what it has.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use larder_daemon_api::v1;
use larder_e2e::{Keeper, Lab, Larderd};
use larder_testkit::seeded_bytes;
use serde_json::Value;

const FILE_BYTES: u64 = 25_000;

/// Files of each dataset: 8 MB, then four of 4 MB.
const FILES: [u64; 5] = [320, 160, 160, 160, 160];

/// As much as the first takes with what the disk needs beside its bytes, and a part of the second.
const CACHE_SIZE: &str = "--cache-size=10MiB";

struct World {
    lab: Lab,
    larderd: Larderd,
    keeper: Keeper,
    dirs: Vec<PathBuf>,
}

fn bytes(set: usize, file: u64) -> Vec<u8> {
    seeded_bytes(set as u64 * 1000 + file, FILE_BYTES)
}

fn stats(dir: &Path) -> Value {
    // The file keeps its content for 50 ms.
    std::thread::sleep(Duration::from_millis(60));
    serde_json::from_slice(&std::fs::read(dir.join(".larder/stats.json")).unwrap()).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

/// Capacity and cached blocks of each mount, when nothing is in flight.
fn caches(dirs: &[PathBuf]) -> Vec<(u64, u64)> {
    let settled = |dir: &PathBuf| loop {
        let stats = stats(dir);
        if number(&stats["metrics"]["fs_fetches_running"]) == 0 {
            return (number(&stats["cache"]["capacity_bytes"]), number(&stats["cache"]["blocks"]));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    dirs.iter().map(settled).collect()
}

impl World {
    /// All five are mounted, and read once.
    fn new() -> Self {
        let lab = Lab::new();
        let larderd = Larderd::start(&lab, "crowded", &[CACHE_SIZE]);
        let mut keeper = Keeper::new(larderd.run_dir());
        keeper.connect();
        let mut dirs = Vec::new();
        for (set, files) in FILES.into_iter().enumerate() {
            for file in 0..files {
                lab.put(&format!("s{set}/f{file}"), bytes(set, file));
            }
            let dataset = v1::Dataset { source: format!("{}/s{set}", lab.url()), ..v1::Dataset::default() };
            let request = v1::PrepareRequest { dataset: Some(dataset.clone()), wait_ms: 30_000, ..Default::default() };
            let prepared = {
                let _in_runtime = lab.runtime().enter();
                lab.runtime().block_on(larderd.client().prepare(request)).unwrap().into_inner().outcome
            };
            let Some(v1::prepare_response::Outcome::Prepared(prepared)) = prepared else { panic!("{prepared:?}") };
            let dir = lab.folder().join(format!("s{set}"));
            keeper.mount(&prepared, dataset, &dir).unwrap();
            dirs.push(dir);
        }
        let world = Self { lab, larderd, keeper, dirs };
        for set in 0..FILES.len() {
            world.read(set);
        }
        world
    }

    fn read(&self, set: usize) {
        for file in 0..FILES[set] {
            let opened = std::fs::File::open(self.dirs[set].join(format!("f{file}"))).unwrap();
            rustix::fs::fadvise(&opened, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            let mut got = Vec::new();
            std::io::Read::read_to_end(&mut &opened, &mut got).unwrap();
            assert!(got == bytes(set, file), "wrong bytes in file {file} of dataset {set}");
        }
    }

    fn kill(&mut self) {
        self.larderd.kill();
        self.larderd.restart();
        // A refused offer is a panic. The keeper offers in the order of a hash map: another one in each run.
        self.keeper.connect();
    }
}

// SEMANTICS: C10
#[test]
fn five_datasets_that_do_not_all_fit_keep_their_blocks_over_kills() {
    let mut world = World::new();
    let before = caches(&world.dirs);
    assert_eq!(before[0], (FILES[0] * FILE_BYTES, FILES[0]), "the first has room");
    assert!(before[1].1 > 0 && before[1].1 < FILES[1], "the second has the rest: {before:?}");
    assert_eq!(before[2..], [(0, 0); 3], "and for the others there is none");
    for kill in 0..3 {
        world.kill();
        let started = Instant::now();
        while caches(&world.dirs) != before {
            let now = caches(&world.dirs);
            assert!(started.elapsed() < Duration::from_secs(20), "kill {kill}: {before:?} became {now:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    world.lab.server.reset_counters();
    world.read(0);
    assert_eq!(world.lab.server.counters().gets, 0, "every block of the first is still cached");
    let wanted: Vec<_> = world.dirs.iter().map(|dir| number(&stats(dir)["cache"]["wanted_bytes"])).collect();
    assert_eq!(wanted, FILES.map(|files| files * FILE_BYTES));
    let shown = world.lab.larder_ok(&["stats", world.dirs[2].to_str().unwrap()]);
    assert!(shown.contains("needs 3.8 MiB, more than the cache can hold"), "{shown}");
}

// SEMANTICS: C5
#[test]
fn a_smaller_cache_size_refuses_no_reader_and_keeps_the_blocks() {
    let mut world = World::new();
    let before = caches(&world.dirs);
    world.larderd.set_flags(&["--cache-size=3MiB".to_owned()]);
    world.kill();
    for set in 0..FILES.len() {
        world.read(set);
    }
    let after = caches(&world.dirs);
    let blocks = |caches: &[(u64, u64)]| caches.iter().map(|cache| cache.1).collect::<Vec<_>>();
    assert_eq!(blocks(&after), blocks(&before), "nr keeps what it has");
    let part = |set: usize| after[set].0 as f64 / before[set].0 as f64;
    assert!((part(0) - 0.3).abs() < 0.01 && (part(0) - part(1)).abs() < 0.001, "{before:?} became {after:?}");
    world.larderd.set_flags(&[CACHE_SIZE.to_owned()]);
    world.kill();
    world.read(1);
    assert_eq!(caches(&world.dirs), before, "with the old size all is as before");
}
