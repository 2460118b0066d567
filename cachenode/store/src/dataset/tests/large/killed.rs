//! SIGKILL at any moment, while threads write parts and whole blocks of files that two snapshots share, evict them,
//! adopt, check and lend them.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use larder_testkit::scaled;

use super::pair::{BLOCKS, FILES, Pair, pages_of};
use super::*;

const CHILD_DIR: &str = "LARDER_TEST_CHILD_DIR";
const CHILD_POLICY: &str = "LARDER_TEST_CHILD_POLICY";
const CHILD_DISKS: &str = "LARDER_TEST_CHILD_DISKS";
const CHILD_SEED: &str = "LARDER_TEST_CHILD_SEED";

/// The kills of processes that have the same folder one after the other.
const KILLS: u32 = 4;

/// A write that has ended: a snapshot, a block, and the first page and the end of the pages. No page: the files are adopted.
type Report = [u32; 4];

/// A power of two, so that none crosses the pages of the page cache, between which a kill can end a write.
const REPORT_BYTES: usize = size_of::<Report>();

fn reports_file(dir: &Path) -> PathBuf {
    dir.join("reports")
}

fn reports(dir: &Path) -> Vec<Report> {
    let bytes = fs::read(reports_file(dir)).unwrap_or_default();
    let number = |report: &[u8], at: usize| u32::from_le_bytes(report[4 * at..][..4].try_into().unwrap());
    bytes.chunks_exact(REPORT_BYTES).map(|report| [0, 1, 2, 3].map(|at| number(report, at))).collect()
}

#[test]
#[ignore = "the process that a_killed_process_leaves_what_it_wrote_of_large_files_and_no_wrong_byte starts and kills"]
fn child() {
    let set = |name: &str| std::env::var(name).expect("started by its parent");
    let (dir, policy) = (PathBuf::from(set(CHILD_DIR)), set(CHILD_POLICY).parse().unwrap());
    let (disks, seed): (usize, u64) = (set(CHILD_DISKS).parse().unwrap(), set(CHILD_SEED).parse().unwrap());
    // The other threads never end.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        hook(panic);
        std::process::abort();
    }));
    let pair = Pair::new(&dir, policy, disks);
    let file = fs::OpenOptions::new().create(true).append(true).open(reports_file(&dir)).unwrap();
    let report = |report: Report| {
        let bytes: Vec<u8> = report.iter().flat_map(|number| number.to_le_bytes()).collect();
        (&file).write_all(&bytes).unwrap();
    };
    let put = |snapshot: usize, at: u32, pages: Range<u32>| {
        if pair.put(snapshot, at, pages.clone()) {
            report([snapshot as u32, at, pages.start, pages.end]);
        }
    };
    // From now on the later snapshot's files are links to those of the earlier one.
    (0..FILES).for_each(|nth| put(0, 3 * nth, 7..8));
    pair.adopt();
    report([0; 4]);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let put = &put;
            scope.spawn(move || {
                for round in 0_u64.. {
                    let random = mix(seed << 40 | round << 2 | thread);
                    let at = (random >> 8) as u32 % BLOCKS;
                    let (first, most) = ((random >> 16) as u32 % pages_of(at).end, pages_of(at).end);
                    let end = (first + 1 + (random >> 48) as u32 % 8).min(most);
                    let is_whole = (random >> 56).is_multiple_of(32);
                    put((random % 2) as usize, at, if is_whole { 0..most } else { first..end });
                }
            });
        }
        scope.spawn(|| {
            for _ in 0_u64.. {
                pair.adopt();
                pair.lend_all();
            }
        });
    });
}

/// Starts a process that writes, and kills it.
fn run_and_kill(dir: &Path, policy: PolicyKind, disks: usize, seed: u64) {
    let before = reports(dir).iter().filter(|report| **report == [0; 4]).count();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "dataset::tests::large::killed::child", "--ignored", "--nocapture"])
        .env(CHILD_DIR, dir)
        .env(CHILD_POLICY, policy.name())
        .env(CHILD_DISKS, disks.to_string())
        .env(CHILD_SEED, seed.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while reports(dir).iter().filter(|report| **report == [0; 4]).count() == before {
        assert!(begun.elapsed() < TIMEOUT && child.try_wait().unwrap().is_none(), "the child does not start");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_micros(mix(seed) % 120_000));
    // SIGKILL.
    child.kill().unwrap();
    let ended = child.wait().unwrap();
    assert_eq!(ended.signal(), Some(9), "seed {seed}: the process failed: {ended}");
}

// SEMANTICS: C3, C21, C22
#[test]
fn a_killed_process_leaves_what_it_wrote_of_large_files_and_no_wrong_byte() {
    for round in 0..scaled(3) {
        let cases = [(PolicyKind::Nr, 1), (PolicyKind::Fifo, 1), (PolicyKind::Nr, 2)];
        let (policy, disks) = cases[round as usize % cases.len()];
        let temp = tempfile::tempdir().unwrap();
        for kill in 0..KILLS {
            let seed = u64::from(KILLS * round + kill);
            run_and_kill(temp.path(), policy, disks, seed);
            let mut pair = Pair::new(temp.path(), policy, disks);
            let hits = pair.read_all();
            if !policy.evicts() {
                for [snapshot, at, first, end] in reports(temp.path()) {
                    let is_hit = |page: u32| hits.contains(&(snapshot as usize, at, page));
                    assert!((first..end).all(is_hit), "seed {seed}: {snapshot}, block {at}, pages {first}..{end}");
                }
            }
            pair.lend_all();
            if kill + 1 == KILLS && !policy.evicts() {
                pair.fill();
                assert_eq!(pair.lend_all(), 2 * FILES as usize);
            }
            // A page without its bytes would be a miss; none was shown before it was written.
            assert_eq!(pair.bed.counters.corrupt(), 0, "seed {seed}");
            pair.drop_all();
        }
    }
}
