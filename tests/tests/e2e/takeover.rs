//! Mounts that outlive the daemon: a real `larderd`, real kernel mounts, and a keeper that holds the connections.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use larder_daemon_api::socket::GRPC_SOCKET;
use larder_daemon_api::v1;
use larder_e2e::{BUCKET, Keeper, Lab, Larderd, Mount};
use larder_testkit::{Fault, built, earlier, scaled};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};

const FILES: usize = 300;

/// The bytes of file `i`, which no other file has.
fn bytes(i: usize) -> Vec<u8> {
    let mut rng = StdRng::seed_from_u64(i as u64);
    let mut bytes = vec![0; 1_000 + (i * 7919) % 60_000];
    rng.fill(&mut bytes[..]);
    bytes
}

fn lab() -> Lab {
    let lab = Lab::new();
    for i in 0..FILES {
        lab.put(&format!("d{}/f{i}", i % 7), bytes(i));
    }
    lab
}

fn path(dir: &Path, i: usize) -> std::path::PathBuf {
    dir.join(format!("d{}/f{i}", i % 7))
}

fn dataset(lab: &Lab) -> v1::Dataset {
    v1::Dataset { source: lab.url(), ..v1::Dataset::default() }
}

pub(crate) fn prepare(lab: &Lab, larderd: &Larderd, dataset: &v1::Dataset) -> v1::Prepared {
    let _in_runtime = lab.runtime().enter();
    let mut client = larderd.client();
    let request = v1::PrepareRequest { dataset: Some(dataset.clone()), wait_ms: 30_000, ..Default::default() };
    match lab.runtime().block_on(client.prepare(request)).unwrap().into_inner().outcome {
        Some(v1::prepare_response::Outcome::Prepared(prepared)) => prepared,
        other => panic!("{other:?}"),
    }
}

/// A lab, a daemon, a keeper that is connected, and a mount.
fn mounted(name: &str, flags: &[&str]) -> (Lab, Larderd, Keeper, std::path::PathBuf) {
    let lab = lab();
    let larderd = Larderd::start(&lab, name, flags);
    let mut keeper = Keeper::new(larderd.run_dir());
    keeper.connect();
    let prepared = prepare(&lab, &larderd, &dataset(&lab));
    assert_eq!(prepared.files, FILES as u64);
    let dir = lab.folder().join("kept");
    keeper.mount(&prepared, dataset(&lab), &dir).unwrap();
    (lab, larderd, keeper, dir)
}

/// A mount, and the number that is added to that of a file for its bytes.
type Shown<'a> = (&'a Path, usize);

/// Readers that check every byte until they are stopped.
struct Readers {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<u64>>,
    /// Files read, of each mount.
    read: Arc<Vec<AtomicU64>>,
}

impl Readers {
    /// As many for each mount.
    fn start(mounts: &[Shown<'_>], count: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let read: Arc<Vec<AtomicU64>> = Arc::new(mounts.iter().map(|_| AtomicU64::new(0)).collect());
        let each = mounts.iter().enumerate().flat_map(|mount| (0..count).map(move |reader| (mount, reader)));
        let start = |((mount, &(dir, first)), reader): ((usize, &Shown<'_>), u64)| {
            let (stop, read, dir) = (Arc::clone(&stop), Arc::clone(&read), dir.to_owned());
            std::thread::spawn(move || {
                let mut rng = StdRng::seed_from_u64(reader);
                let mut files = 0;
                while !stop.load(Ordering::Relaxed) {
                    let i = rng.random_range(0..FILES);
                    let file = std::fs::File::open(path(&dir, i)).unwrap();
                    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                    let mut got = Vec::new();
                    std::io::Read::read_to_end(&mut &file, &mut got).unwrap();
                    assert!(got == bytes(first + i), "file {i} of mount {mount} has wrong bytes");
                    // Only then it counts: `start` waits for the answer to a close.
                    drop(file);
                    files += 1;
                    read[mount].fetch_add(1, Ordering::Relaxed);
                }
                files
            })
        };
        let threads = each.map(start).collect();
        let readers = Self { stop, threads, read };
        // A program that this process starts inherits its open files and closes them. Until the kernel has the first
        // answer to a close, that would wait for the daemon, which may be the very program that starts.
        while readers.totals().contains(&0) {
            std::thread::sleep(Duration::from_millis(1));
        }
        readers
    }

    fn totals(&self) -> Vec<u64> {
        self.read.iter().map(|read| read.load(Ordering::Relaxed)).collect()
    }

    /// Waits until files of every mount have been read since.
    fn go_on(&self, before: &[u64], larderd: &Larderd) {
        let started = std::time::Instant::now();
        while self.totals().iter().zip(before).any(|(now, before)| now <= before) {
            let waited = started.elapsed();
            assert!(waited < Duration::from_secs(30), "the readers do not go on: {}", larderd.log());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Every reader must end by itself, without an error. Returns the number of files read.
    fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    }
}

/// How many requests each larderd of a log found that its predecessor had left: reads, and others.
pub(crate) fn inherited(larderd: &Larderd) -> (u64, u64) {
    let log = larderd.log();
    let number = |line: &str, name: &str| {
        let text = line.split(&format!("{name}=")).nth(1).unwrap().split_whitespace().next().unwrap();
        text.parse::<u64>().unwrap_or_else(|_| panic!("{line}"))
    };
    let lines = log.lines().filter(|line| line.contains("answering requests"));
    lines.map(|line| (number(line, "reads"), number(line, "others"))).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
}

// SEMANTICS: K1
#[test]
fn readers_outlive_300_kills_of_the_daemon() {
    let (_lab, mut larderd, mut keeper, dir) = mounted("kills", &[]);
    let readers = Readers::start(&[(&dir, 0)], 8);
    let mut rng = StdRng::seed_from_u64(1);
    let kills = scaled(30);
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(rng.random_range(0..40)));
        larderd.kill();
        let before = readers.totals();
        larderd.restart();
        assert_eq!(keeper.connect(), [] as [String; 0]);
        readers.go_on(&before, &larderd);
    }
    let files = readers.finish();
    println!("{kills} kills, {files} files read, requests inherited (reads, others): {:?}", inherited(&larderd));
    assert!(files >= kills.into());
    assert_ne!(inherited(&larderd), (0, 0), "no kill met a request under way");
}

// SEMANTICS: P11
#[test]
fn readers_outlive_an_upgrade_of_the_daemon_and_its_way_back() {
    let Some(earlier) = earlier("larderd") else { return };
    let lab = lab();
    let mut larderd = Larderd::start(&lab, "upgrade", &[]);
    larderd.terminate();
    larderd.set_program(earlier.clone());
    larderd.restart();
    let mut keeper = Keeper::new(larderd.run_dir());
    keeper.connect();
    let dir = lab.folder().join("kept");
    keeper.mount(&prepare(&lab, &larderd, &dataset(&lab)), dataset(&lab), &dir).unwrap();
    let readers = Readers::start(&[(&dir, 0)], 8);
    for program in [built("larderd"), earlier.clone(), built("larderd")] {
        let before = readers.totals();
        larderd.terminate();
        larderd.set_program(program);
        larderd.restart();
        assert_eq!(keeper.connect(), [] as [String; 0]);
        readers.go_on(&before, &larderd);
    }
    assert!(readers.finish() > 0);
}

/// With a cache too small for them and an origin that takes its time, the reads of both datasets wait for the origin
/// most of the time: a killed daemon has taken them, and they are in the table of their connection.
// SEMANTICS: K1
#[test]
fn misses_of_two_datasets_outlive_kills_of_daemon_and_keeper_in_any_order() {
    let lab = lab();
    for i in 0..FILES {
        lab.server.put(BUCKET, &format!("more/d{}/f{i}", i % 7), bytes(1000 + i));
    }
    lab.proxy.set_hook(|request| match request.is_get_object() {
        true => Fault::Delay(Duration::from_millis(30)),
        false => Fault::None,
    });
    let mut larderd = Larderd::start(&lab, "misses", &[]);
    let mut keeper = Keeper::new(larderd.run_dir());
    keeper.connect();
    let dirs = [lab.folder().join("data"), lab.folder().join("more")];
    for (dir, source) in dirs.iter().zip([lab.url(), format!("s3://{BUCKET}/more")]) {
        let dataset = v1::Dataset { source, cache_bytes: Some(500_000), ..v1::Dataset::default() };
        let prepared = prepare(&lab, &larderd, &dataset);
        keeper.mount(&prepared, dataset, dir).unwrap();
    }
    let readers = Readers::start(&[(&dirs[0], 0), (&dirs[1], 1000)], 6);
    let mut rng = StdRng::seed_from_u64(2);
    for kill in 0..scaled(20) {
        std::thread::sleep(Duration::from_millis(rng.random_range(0..80)));
        let before = readers.totals();
        if kill % 3 == 1 {
            // The memory comes back from larderd, and goes to the next one.
            keeper.lose_everything();
            assert_eq!(keeper.connect().len(), 2, "{}", larderd.log());
        }
        larderd.kill();
        larderd.restart();
        if kill % 3 == 2 {
            // The next one dies in the middle of its takeover, or just before or after it.
            let pause = Duration::from_millis(rng.random_range(0..40));
            std::thread::scope(|scope| {
                scope.spawn(|| keeper.connect_if_it_lives());
                std::thread::sleep(Duration::from_millis(100) + pause);
                larderd.kill();
            });
            larderd.restart();
        }
        assert_eq!(keeper.connect(), [] as [String; 0]);
        readers.go_on(&before, &larderd);
    }
    let files = readers.finish();
    println!("{files} files read, requests inherited (reads, others): {:?}", inherited(&larderd));
    assert!(inherited(&larderd).0 > 0, "no kill met a read that waited");
}

/// One plan of the Python package, whose program reads on whatever happens to the daemon.
// SEMANTICS: C27
#[test]
fn a_python_program_reads_on_and_puts_its_plan_again_while_the_daemon_is_stopped_and_killed() {
    let lab = lab();
    let expected = lab.folder().join("expected");
    for i in 0..FILES {
        let path = path(&expected, i);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes(i)).unwrap();
    }
    let mut larderd = Larderd::start(&lab, "planned", &[]);
    let mut keeper = Keeper::new(larderd.run_dir());
    keeper.connect();
    // Most files are read from the origin.
    let dataset = v1::Dataset { cache_bytes: Some(500_000), ..dataset(&lab) };
    let prepared = prepare(&lab, &larderd, &dataset);
    let dir = lab.folder().join("kept");
    keeper.mount(&prepared, dataset, &dir).unwrap();

    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    let mut command = Command::new("python3");
    command.arg(package.join("tests/endless.py")).args([&dir, &expected]);
    command.env("PYTHONPATH", package.join("src")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = command.spawn().unwrap();
    let (mut asked, stdout) = (program.stdin.take().unwrap(), program.stdout.take().unwrap());
    let mut answers = BufReader::new(stdout).lines();
    let mut reads_on = |larderd: &Larderd| {
        asked.write_all(b"\n").unwrap();
        answers.next().unwrap_or_else(|| panic!("the program has ended: {}", larderd.log())).unwrap();
    };
    reads_on(&larderd);
    for _ in 0..scaled(4) {
        let pid = Pid::from_raw(larderd.pid().unwrap().cast_signed()).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        kill_process(pid, Signal::CONT).unwrap();
        reads_on(&larderd);
        larderd.kill();
        larderd.restart();
        assert_eq!(keeper.connect(), [] as [String; 0]);
        reads_on(&larderd);
    }
    let mount = Mount::standing(dir);
    mount.wait_until("the plan is followed by the last daemon, too", |mount| {
        mount.metric("fs_plan_blocks_in_time_total") + mount.metric("fs_plan_blocks_late_total") > 0
    });
    assert_eq!(mount.metric("fs_errors_total"), 0);
    drop(asked);
    assert!(program.wait().unwrap().success());
}

// SEMANTICS: K1
#[test]
fn a_keeper_that_lost_everything_gets_it_back_and_both_may_die_in_turn() {
    let (_lab, mut larderd, mut keeper, dir) = mounted("turns", &[]);
    let readers = Readers::start(&[(&dir, 0)], 4);
    for _ in 0..scaled(20) {
        keeper.lose_everything();
        assert_eq!(keeper.connect().len(), 1, "{}", larderd.log());
        larderd.kill();
        larderd.restart();
        assert_eq!(keeper.connect().len(), 0);
    }
    assert!(readers.finish() > 0);
}

// SEMANTICS: K1
#[test]
fn an_upgrade_keeps_the_cache_and_the_readers() {
    let (lab, mut larderd, mut keeper, dir) = mounted("upgrade", &[]);
    for i in 0..FILES {
        assert!(std::fs::read(path(&dir, i)).unwrap() == bytes(i));
    }
    let open = std::fs::File::open(path(&dir, 1)).unwrap();
    lab.server.reset_counters();
    let readers = Readers::start(&[(&dir, 0)], 4);
    for _ in 0..3 {
        larderd.terminate();
        let before = readers.totals();
        larderd.restart();
        keeper.connect();
        readers.go_on(&before, &larderd);
    }
    assert!(readers.finish() > 0);
    rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut got = Vec::new();
    std::io::Read::read_to_end(&mut &open, &mut got).unwrap();
    assert!(got == bytes(1), "a file that was open before the upgrade can still be read");
    let gets: u64 = (0..FILES).map(|i| lab.gets_of(&format!("d{}/f{i}", i % 7))).sum();
    assert_eq!(gets, 0, "everything was cached before the upgrade");
}

/// A reader of a file whose GET gets this fault, and which has been asked for.
fn reader_that_waits(lab: &Lab, dir: &Path, fault: Fault) -> std::thread::JoinHandle<std::io::Result<Vec<u8>>> {
    // A child inherits open files of the mount and closes them. Until the kernel has the first answer to a close, that
    // would wait.
    assert!(std::fs::read(path(dir, 1)).unwrap() == bytes(1));
    let asked = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&asked);
    lab.proxy.set_hook(move |request| {
        seen.fetch_or(request.is_get_object(), Ordering::Relaxed);
        fault.clone()
    });
    let reader = std::thread::spawn({
        let path = path(dir, 5);
        move || std::fs::read(path)
    });
    while !asked.load(Ordering::Relaxed) {
        assert!(!reader.is_finished());
        std::thread::sleep(Duration::from_millis(5));
    }
    reader
}

// SEMANTICS: K1
#[test]
fn a_read_under_way_when_the_daemon_is_told_to_stop_is_answered_before_it_ends() {
    let (lab, mut larderd, _keeper, dir) = mounted("answered", &[]);
    let reader = reader_that_waits(&lab, &dir, Fault::Delay(Duration::from_secs(2)));
    larderd.terminate();
    // No other daemon runs.
    let started = std::time::Instant::now();
    while !reader.is_finished() {
        assert!(started.elapsed() < Duration::from_secs(10), "the read was not answered: {}", larderd.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(reader.join().unwrap().unwrap() == bytes(5));
}

// SEMANTICS: K1
#[test]
fn a_read_that_a_stopping_daemon_cannot_answer_in_time_is_answered_by_the_next() {
    let (lab, mut larderd, mut keeper, dir) = mounted("stop", &[]);
    let reader = reader_that_waits(&lab, &dir, Fault::StallBeforeHead);
    larderd.terminate();
    assert!(!reader.is_finished());
    lab.proxy.set_hook(|_| Fault::None);
    larderd.restart();
    keeper.connect();
    assert!(reader.join().unwrap().unwrap() == bytes(5));
    assert_eq!(inherited(&larderd), (1, 0));
}

#[test]
fn kept_requests_take_32_kib_for_each_thread_that_a_mount_has_had() {
    let (lab, mut larderd, mut keeper, dir) = mounted("pages", &[]);
    let shared = |larderd: &Larderd| larderd.memory_kib("RssShmem");
    // The mount may have been looked at by one or two programs.
    let before = shared(&larderd);
    assert!((32..=128).contains(&before), "{before} KiB before a read of the mount");
    let readers = Readers::start(&[(&dir, 0)], 16);
    while readers.totals()[0] < 2000 {
        std::thread::sleep(Duration::from_millis(5));
    }
    for _ in 0..3 {
        larderd.kill();
        larderd.restart();
        keeper.connect();
        readers.go_on(&readers.totals(), &larderd);
        let after = shared(&larderd);
        // At most 16 threads with 32 KiB each.
        assert!((32..=540).contains(&after), "{after} KiB after a takeover");
    }
    readers.finish();
    drop(lab);
}

// SEMANTICS: K1
#[test]
fn a_daemon_killed_before_it_answered_the_first_request_is_no_loss() {
    let lab = lab();
    let mut larderd = Larderd::start(&lab, "early", &[]);
    let mut keeper = Keeper::new(larderd.run_dir());
    keeper.connect();
    let prepared = prepare(&lab, &larderd, &dataset(&lab));
    larderd.kill();
    let dir = lab.folder().join("kept");
    // Nobody answers INIT, so everyone who accesses the mount waits.
    keeper.mount(&prepared, dataset(&lab), &dir).unwrap_err();
    let looker = std::thread::spawn({
        let dir = dir.clone();
        move || std::fs::read(path(&dir, 3)).unwrap() == bytes(3)
    });
    std::thread::sleep(Duration::from_millis(200));
    assert!(!looker.is_finished());
    larderd.restart();
    keeper.connect();
    assert!(looker.join().unwrap());
}

#[test]
fn larder_mount_joins_a_larderd_that_runs_and_leaves_it_running() {
    let lab = lab();
    let larderd = Larderd::start(&lab, "standing", &["--cache-size=1MB"]);
    let listening = || larderd.run_dir().join(GRPC_SOCKET).exists();
    let started = std::time::Instant::now();
    while !listening() {
        assert!(started.elapsed() < Duration::from_secs(30), "larderd does not come up: {}", larderd.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    let dir = lab.folder().join("joined");
    std::fs::create_dir(&dir).unwrap();
    let args = ["mount", &lab.url(), dir.to_str().unwrap(), "--cache-dir", larderd.run_dir().to_str().unwrap()];
    // larderd has a size, which a mount cannot exceed.
    let complaint = lab.larder_fails(1, &[&args[..], &["--cache-size", "2MB"]].concat());
    assert!(complaint.contains("are not promised to other datasets"), "{complaint}");
    lab.larder_ok(&args);
    for i in 0..FILES {
        assert!(std::fs::read(path(&dir, i)).unwrap() == bytes(i));
    }
    let stats: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join(".larder/stats.json")).unwrap()).unwrap();
    let capacity = stats["cache"]["capacity_bytes"].as_u64().unwrap();
    assert!((800_000..1_000_000).contains(&capacity), "as much as fits with what records take on the disk: {capacity}");
    let _in_runtime = lab.runtime().enter();
    let mounts = lab.runtime().block_on(larderd.client().list_mounts(v1::ListMountsRequest {})).unwrap().into_inner();
    assert_eq!(mounts.mounts.len(), 1);
    lab.larder_ok(&["umount", dir.to_str().unwrap()]);
    let mounts = lab.runtime().block_on(larderd.client().list_mounts(v1::ListMountsRequest {})).unwrap().into_inner();
    assert_eq!(mounts.mounts, [], "larderd continues without a mount");
}
