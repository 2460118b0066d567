//! The whole, against a model: random trees, caches, readers, faults, deaths and damage. Whatever happens, a read gives the
//! bytes that were put into the bucket, or an errno that what has happened allows; and while nothing has happened, never an
//! errno.
//!
//! The cast: [`Setup`] and [`Step`] are what is drawn, and what a failure prints; [`World`] is the bucket, the mount and
//! the model; [`Allowed`] is which errnos the present trouble permits.
#![expect(unsafe_code, reason = "maps files of the mount")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use larder_e2e::{BUCKET, Lab, Mount};
use larder_testkit::{Fault, seeded_bytes};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;

const BLOCK: u64 = 4 << 20;

/// Cases in an ordinary run; PROPTEST_CASES asks for more.
const CASES: u32 = 20;

/// Cache sizes: nothing fits, some small files, some blocks, everything.
const CACHE_SIZES: [u64; 4] = [1, 100_000, 6 << 20, 1 << 30];

const POLICIES: [&str; 4] = ["nr", "lru", "fifo", "random"];

/// A dataset and how it is mounted first.
#[derive(Clone, Debug)]
struct Setup {
    /// Keys as they are drawn; those that would shadow another are left out.
    files: Vec<(String, u64)>,
    packed: bool,
    cache: Cache,
}

#[derive(Clone, Copy, Debug)]
struct Cache {
    bytes: u64,
    policy: &'static str,
}

/// Something happens, and threads read meanwhile.
#[derive(Clone, Debug)]
struct Step {
    event: Event,
    readers: Vec<Vec<Op>>,
}

#[derive(Clone, Debug)]
enum Event {
    Nothing,
    /// `kill -9` under the readers, and a new mount once they are done.
    Kill(Cache),
    /// Unmounts and mounts, then the readers read.
    Restart(Cache),
    /// The origin misbehaves during this step.
    Faults(Trouble),
    /// A byte of a segment changes.
    Rot(Pick, Pick),
    /// A segment ends earlier.
    Tear(Pick, Pick),
    /// A byte of the slot table changes.
    RotSlots(Pick),
    /// Another object of the same size in a file's place.
    Replace(Pick),
    /// A file's object is gone.
    Delete(Pick),
}

/// What is wrong with the answers of the origin.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Errors,
    SlowDown,
    Truncation,
    Resets,
    WrongLength,
    Stalls,
    Denied,
    Missing,
}

/// One thing that a reader does with a file.
#[derive(Clone, Debug)]
enum Op {
    Read { file: Pick, at: Pick, len: u32 },
    Direct { file: Pick, at: Pick, len: u32 },
    Whole { file: Pick },
    Mapped { file: Pick, at: Pick, len: u32 },
    Stat { file: Pick },
    List { file: Pick },
    Attributes { file: Pick },
    DropPages { file: Pick },
    NoSuchName { file: Pick },
}

/// Picks one of however many there are.
#[derive(Clone, Copy, Debug)]
struct Pick(u32);

impl Pick {
    fn of(self, count: u64) -> u64 {
        (u64::from(self.0) * count) >> 32
    }
}

fn pick() -> impl Strategy<Value = Pick> {
    any::<u32>().prop_map(Pick)
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => "[a-z]{1,6}",
        // Whatever is no control character, of any script.
        3 => "\\PC{1,12}",
        3 => prop::sample::select(vec![
            " ", "a b", "%2F", "+", "?x=1&y", "#", "~", "\\", "*", "..a", "...", ".hidden", "-", "'\"<>&", "\u{e9}",
            "e\u{301}", "\u{1f980}", "\u{202e}gpj.exe", "\u{85}", "\u{feff}", "\u{fffd}", "\u{e000}", ".larder2", "CON",
        ]).prop_map(str::to_owned),
        1 => (0..4_usize).prop_map(|less| "\u{fc}".repeat(127) + &"x"[..less.min(1)]),
    ]
    .prop_filter_map("a name", |name| {
        let name: String = name.chars().filter(|c| *c != '/' && !c.is_ascii_control()).collect();
        (!["", ".", "..", ".larder"].contains(&name.as_str()) && name.len() <= 255).then_some(name)
    })
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 0..20_000_u64,
        4 => 20_000..400_000_u64,
        3 => prop::sample::select(vec![0, 1, 4095, 4096, 4097, 65_535, 65_536, 65_537, 131_072, 1 << 20]),
        2 => prop::sample::select(vec![BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1]),
        1 => 400_000..12_582_912_u64,
    ]
}

fn cache() -> impl Strategy<Value = Cache> {
    (prop::sample::select(CACHE_SIZES.to_vec()), prop::sample::select(POLICIES.to_vec()))
        .prop_map(|(bytes, policy)| Cache { bytes, policy })
}

fn setup() -> impl Strategy<Value = Setup> {
    let key = prop::collection::vec(name(), 1..4).prop_map(|parts| parts.join("/"));
    (prop::collection::vec((key, size()), 1..16), prop::bool::weighted(0.25), cache())
        .prop_map(|(files, packed, cache)| Setup { files, packed, cache })
}

fn op() -> impl Strategy<Value = Op> {
    let len = || prop_oneof![1..10_000_u32, 100_000..300_000_u32, 1_000_000..5_000_000_u32];
    prop_oneof![
        4 => (pick(), pick(), len()).prop_map(|(file, at, len)| Op::Read { file, at, len }),
        3 => (pick(), pick(), len()).prop_map(|(file, at, len)| Op::Direct { file, at, len }),
        5 => pick().prop_map(|file| Op::Whole { file }),
        2 => (pick(), pick(), len()).prop_map(|(file, at, len)| Op::Mapped { file, at, len }),
        1 => pick().prop_map(|file| Op::Stat { file }),
        1 => pick().prop_map(|file| Op::List { file }),
        1 => pick().prop_map(|file| Op::Attributes { file }),
        6 => pick().prop_map(|file| Op::DropPages { file }),
        1 => pick().prop_map(|file| Op::NoSuchName { file }),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    use Trouble::{Denied, Errors, Missing, Resets, SlowDown, Stalls, Truncation, WrongLength};
    let troubles = vec![Errors, SlowDown, Truncation, Resets, WrongLength, Stalls, Denied, Missing];
    prop_oneof![
        4 => Just(Event::Nothing),
        2 => cache().prop_map(Event::Kill),
        1 => cache().prop_map(Event::Restart),
        4 => prop::sample::select(troubles).prop_map(Event::Faults),
        2 => (pick(), pick()).prop_map(|(segment, at)| Event::Rot(segment, at)),
        1 => (pick(), pick()).prop_map(|(segment, at)| Event::Tear(segment, at)),
        1 => pick().prop_map(Event::RotSlots),
        1 => pick().prop_map(Event::Replace),
        1 => pick().prop_map(Event::Delete),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let readers = prop::collection::vec(prop::collection::vec(op(), 1..12), 1..5);
    prop::collection::vec((event(), readers).prop_map(|(event, readers)| Step { event, readers }), 1..9)
}

/// Which errnos a read may end in.
#[derive(Clone, Debug, Default)]
struct Allowed {
    /// For everything.
    errnos: Vec<Errno>,
    /// For everything, any: the process is being killed, and even names may be missing.
    anything: bool,
}

struct FileModel {
    key: String,
    bytes: Vec<u8>,
    etag: String,
    /// What reading bytes that are not cached ends in, since the object is another one or gone.
    lost: Option<Errno>,
}

struct World {
    lab: Lab,
    mount: Mount,
    source: String,
    packed: bool,
    files: Vec<FileModel>,
    /// What each folder holds.
    folders: BTreeMap<String, BTreeSet<String>>,
    replaced: u64,
}

fn flags(cache: Cache) -> [String; 8] {
    // The deadline is far away, so that a slow machine is no fault; the attempts are short, so that a stall passes.
    let flags = [
        "--cache-size",
        &cache.bytes.to_string(),
        "--policy",
        cache.policy,
        "--attempt-timeout",
        "500ms",
        "--read-deadline",
        "60s",
    ];
    flags.map(str::to_owned)
}

fn mount(lab: &Lab, source: &str, cache: Cache) -> Mount {
    let flags = flags(cache);
    lab.mount("m", source, &flags.each_ref().map(String::as_str))
}

impl World {
    fn new(setup: &Setup) -> Self {
        let lab = Lab::new();
        let mut kept = BTreeMap::<&str, u64>::new();
        for (key, size) in &setup.files {
            let shadows = |other: &str| {
                other == key || other.starts_with(&format!("{key}/")) || key.starts_with(&format!("{other}/"))
            };
            if !kept.keys().any(|other| shadows(other)) {
                kept.insert(key, *size);
            }
        }
        let mut folders = BTreeMap::<String, BTreeSet<String>>::new();
        let mut files = Vec::new();
        for (nth, (key, size)) in kept.into_iter().enumerate() {
            let bytes = seeded_bytes(nth as u64, size);
            let etag = lab.server.put(BUCKET, &format!("data/{key}"), bytes.clone());
            files.push(FileModel { key: key.to_owned(), bytes, etag, lost: None });
            let mut path = key;
            loop {
                let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
                folders.entry(folder.to_owned()).or_default().insert(name.to_owned());
                if folder.is_empty() {
                    break;
                }
                path = folder;
            }
        }
        let mut source = lab.url();
        if setup.packed {
            source = format!("s3://{BUCKET}/packed");
            lab.larder_ok(&["pack", &lab.url(), &source, "--pack-size", "1MiB"]);
        }
        let mount = mount(&lab, &source, setup.cache);
        Self { mount, source, packed: setup.packed, files, folders, replaced: 0, lab }
    }

    /// Mounts again where the last mount was.
    fn mount_again(&mut self, cache: Cache) {
        let mount = mount(&self.lab, &self.source, cache);
        // Dropping the old one would take the new one away.
        std::mem::forget(std::mem::replace(&mut self.mount, mount));
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let mut allowed = Allowed::default();
        match &step.event {
            Event::Nothing => {}
            Event::Restart(cache) => {
                self.lab.larder_ok(&["umount", self.mount.dir().to_str().unwrap()]);
                let proc = format!("/proc/{}/stat", self.mount.pid());
                while std::fs::read_to_string(&proc).is_ok_and(|stat| !stat.contains(") Z ")) {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                self.mount_again(*cache);
            }
            Event::Kill(_) => allowed.anything = true,
            Event::Faults(trouble) => {
                allowed.errnos = trouble.errnos();
                self.set_trouble(*trouble);
            }
            Event::Rot(segment, at) => self.spoil(".seg", *segment, |file, len| {
                let at = at.of(len);
                let mut byte = [0];
                if file.read_exact_at(&mut byte, at).is_ok() {
                    file.write_all_at(&[!byte[0]], at).unwrap();
                }
            }),
            Event::Tear(segment, at) => self.spoil(".seg", *segment, |file, len| file.set_len(at.of(len)).unwrap()),
            Event::RotSlots(at) => self.spoil("/slots", Pick(0), |file, len| {
                file.write_all_at(&[at.0 as u8], 4096 + at.of(len.saturating_sub(4096)).min(8 * 40)).unwrap();
            }),
            Event::Replace(file) => self.lose(*file, Errno::STALE),
            Event::Delete(file) => self.lose(*file, Errno::NOENT),
        }
        let (world, is_killed) = (&*self, matches!(step.event, Event::Kill(_)));
        let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
            let readers: Vec<_> = step
                .readers
                .iter()
                .map(|ops| {
                    let allowed = &allowed;
                    scope.spawn(move || {
                        ops.iter().try_for_each(|op| world.run(op, allowed).map_err(|e| format!("{op:?}: {e}")))
                    })
                })
                .collect();
            if is_killed {
                world.mount.kill();
            }
            readers
                .into_iter()
                .map(|reader| reader.join().unwrap_or_else(|_| Err("a reader panicked".into())))
                .collect()
        });
        for result in results {
            result.map_err(|error| TestCaseError::fail(format!("{error}, in {step:?}")))?;
        }
        self.lab.proxy.set_hook(|_| Fault::None);
        if let Event::Kill(cache) = &step.event {
            self.mount_again(*cache);
        }
        // The kernel reads ahead: what it has asked for during a fault must not be met after it.
        self.mount.settle();
        let stats = self.mount.stats();
        prop_assert_eq!(&stats["metrics"]["fs_panics_total"], 0, "{:#}", stats);
        Ok(())
    }

    fn set_trouble(&self, trouble: Trouble) {
        self.lab.proxy.set_hook(move |head| match trouble {
            Trouble::Errors if head.seq % 2 == 0 => Fault::Status { status: 500, code: "InternalError" },
            Trouble::SlowDown if head.seq % 2 == 0 => Fault::Status { status: 503, code: "SlowDown" },
            Trouble::Truncation if head.seq % 2 == 0 => Fault::Truncate { after: head.seq * 777 % 100_000 },
            Trouble::Resets if head.seq % 2 == 0 => Fault::Reset,
            Trouble::WrongLength if head.seq % 3 == 0 => Fault::WrongLength { delta: -1 },
            Trouble::WrongLength if head.seq % 3 == 1 => Fault::WrongLength { delta: 100 },
            Trouble::Stalls if head.seq % 4 == 0 => Fault::Stall,
            Trouble::Stalls if head.seq % 4 == 1 => Fault::StallBeforeHead,
            Trouble::Denied => Fault::Status { status: 403, code: "AccessDenied" },
            Trouble::Missing => Fault::Status { status: 404, code: "NoSuchKey" },
            _ => Fault::None,
        });
    }

    /// Changes a file of the cache, if there is one.
    fn spoil(&self, ending: &str, which: Pick, change: impl FnOnce(&File, u64)) {
        let mut folders = vec![self.lab.cache_dir("m").join("datasets")];
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.to_str().unwrap().ends_with(ending) {
                    found.push(path);
                }
            }
        }
        found.sort();
        if found.is_empty() {
            return;
        }
        let file = OpenOptions::new().read(true).write(true).open(&found[which.of(found.len() as u64) as usize]);
        // An evicting policy may have deleted it by now.
        if let Ok(file) = file {
            let len = file.metadata().unwrap().len();
            change(&file, len);
        }
    }

    fn lose(&mut self, file: Pick, errno: Errno) {
        let (which, packed) = (file.of(self.files.len() as u64) as usize, self.packed);
        let file = &mut self.files[which];
        // A pack goes on holding the bytes of an object that was packed; an object of no byte is never asked for.
        if packed || file.bytes.is_empty() {
            return;
        }
        let key = format!("data/{}", file.key);
        if errno == Errno::NOENT {
            self.lab.server.delete(BUCKET, &key);
        } else {
            self.replaced += 1;
            self.lab.server.put(BUCKET, &key, seeded_bytes(u64::MAX - self.replaced, file.bytes.len() as u64));
        }
        file.lost = Some(errno);
    }

    fn path(&self, file: &FileModel) -> PathBuf {
        self.mount.path(&file.key)
    }

    fn pick(&self, file: Pick) -> &FileModel {
        &self.files[file.of(self.files.len() as u64) as usize]
    }

    /// Does one thing and holds its result against the model.
    fn run(&self, op: &Op, allowed: &Allowed) -> Result<(), String> {
        // Where a piece starts: anywhere in the file, and now and then past its end.
        let start = |file: &FileModel, at: Pick| at.of(file.bytes.len() as u64 + 1 + file.bytes.len() as u64 / 16);
        let piece = |file: &FileModel, at: Pick, len: u32| {
            let from = (start(file, at) as usize).min(file.bytes.len());
            let to = (from + len as usize).min(file.bytes.len());
            from..to
        };
        let check = |file: &FileModel, got: std::io::Result<Vec<u8>>, expected: &[u8]| match got {
            Ok(got) if got == expected => Ok(()),
            Ok(got) => Err(format!(
                "{:?}: wrong bytes: {} where {} were expected, first difference at {:?}",
                file.key,
                got.len(),
                expected.len(),
                got.iter().zip(expected).position(|(a, b)| a != b)
            )),
            Err(error) if allowed.permits(&error, file.lost) => Ok(()),
            Err(error) => Err(format!("{:?}: {error}, which nothing allows", file.key)),
        };
        let name_error = |file: &FileModel, error: std::io::Error| {
            // Names and attributes need no origin, so only a death may fail them.
            if allowed.anything { Ok(()) } else { Err(format!("{:?}: {error}", file.key)) }
        };
        match op {
            Op::Read { file, at, len } | Op::Direct { file, at, len } => {
                let direct = if matches!(op, Op::Direct { .. }) { OFlags::DIRECT } else { OFlags::empty() };
                let file = self.pick(*file);
                let got = read_piece(&self.path(file), direct, start(file, *at), *len as usize);
                check(file, got, &file.bytes[piece(file, *at, *len)])
            }
            Op::Whole { file } => {
                let file = self.pick(*file);
                check(file, std::fs::read(self.path(file)), &file.bytes)
            }
            Op::Mapped { file, at, len } => {
                let file = self.pick(*file);
                let piece = piece(file, *at, *len);
                if piece.is_empty() {
                    return Ok(());
                }
                check(file, read_mapped(&self.path(file), piece.clone()), &file.bytes[piece])
            }
            Op::Stat { file } => {
                let file = self.pick(*file);
                match std::fs::metadata(self.path(file)) {
                    Ok(found) if found.is_file() && found.len() == file.bytes.len() as u64 => Ok(()),
                    Ok(found) => Err(format!("{:?}: {found:?}", file.key)),
                    Err(error) => name_error(file, error),
                }
            }
            Op::List { file } => {
                let file = self.pick(*file);
                let folder = file.key.rsplit_once('/').map_or("", |(folder, _)| folder);
                let listed = std::fs::read_dir(self.mount.path(folder)).and_then(|entries| {
                    entries.map(|entry| Ok(entry?.file_name().as_bytes().to_vec())).collect::<std::io::Result<Vec<_>>>()
                });
                let mut listed = match listed {
                    Ok(listed) => listed,
                    Err(error) => return name_error(file, error),
                };
                listed.sort_unstable();
                let expected: Vec<_> = self.folders[folder].iter().map(|name| name.as_bytes().to_vec()).collect();
                if listed == expected { Ok(()) } else { Err(format!("{folder:?} holds {listed:?}")) }
            }
            Op::Attributes { file } => {
                let file = self.pick(*file);
                let (name, expected) = if self.packed {
                    ("user.larder.crc32c", format!("{:08x}", larder_dataset::crc32c(&file.bytes)))
                } else {
                    ("user.larder.etag", format!("\"{}\"", file.etag))
                };
                let mut value = [0; 100];
                match rustix::fs::getxattr(self.path(file), name, &mut value) {
                    Ok(len) if value[..len] == *expected.as_bytes() => Ok(()),
                    Ok(len) => Err(format!("{:?}: {name} is {}", file.key, value[..len].escape_ascii())),
                    Err(errno) => name_error(file, errno.into()),
                }
            }
            Op::DropPages { file } => {
                let file = self.pick(*file);
                match File::open(self.path(file)) {
                    Ok(open) => {
                        // Advice: the kernel may not follow it.
                        let _ = rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed);
                        Ok(())
                    }
                    Err(error) => name_error(file, error),
                }
            }
            Op::NoSuchName { file } => {
                let mut path = self.path(self.pick(*file)).into_os_string();
                path.push("-");
                let is_another = self.files.iter().any(|file| self.path(file) == path)
                    || self.folders.keys().any(|folder| self.mount.path(folder) == path);
                match std::fs::metadata(&path) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound || allowed.anything => Ok(()),
                    // The longest names become too long.
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::NAMETOOLONG) => Ok(()),
                    Ok(_) if is_another => Ok(()),
                    other => Err(format!("{path:?}: {other:?}")),
                }
            }
        }
    }
}

impl Trouble {
    fn errnos(self) -> Vec<Errno> {
        match self {
            Self::Denied => vec![Errno::ACCESS],
            Self::Missing => vec![Errno::NOENT],
            // These pass when asked again, within a deadline that is far away.
            _ => vec![],
        }
    }
}

impl Allowed {
    fn permits(&self, error: &std::io::Error, lost: Option<Errno>) -> bool {
        let errno = Errno::from_io_error(error);
        self.anything || errno.is_some_and(|errno| lost == Some(errno) || self.errnos.contains(&errno))
    }
}

/// What one or more reads of at most `len` bytes from `at` give, until that many or the end.
fn read_piece(path: &Path, flags: OFlags, at: u64, len: usize) -> std::io::Result<Vec<u8>> {
    let file = File::from(rustix::fs::open(path, OFlags::RDONLY | flags, Mode::empty())?);
    let mut piece = vec![0; len];
    let mut filled = 0;
    while filled < len {
        match file.read_at(&mut piece[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) => return Err(error),
        }
    }
    piece.truncate(filled);
    Ok(piece)
}

/// A piece of a file through a mapping. The kernel does the copying: where it cannot bring in a page it says so with
/// EFAULT, and this process does not get SIGBUS for touching it.
fn read_mapped(path: &Path, piece: std::ops::Range<usize>) -> std::io::Result<Vec<u8>> {
    let file = File::open(path)?;
    // SAFETY: the mount is read-only and its files never change, so nothing alters or cuts what is mapped.
    let map = unsafe { memmap2::Mmap::map(&file) }?;
    let copy = File::from(rustix::fs::memfd_create("copy", MemfdFlags::CLOEXEC)?);
    let mut from = piece.start;
    while from < piece.end {
        match copy.write_at(&map[from..piece.end], (from - piece.start) as u64) {
            Ok(written) => from += written,
            // Why, only a read can tell.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::FAULT) => {
                return match read_piece(path, OFlags::empty(), from as u64, 1) {
                    Ok(_) => read_mapped(path, piece),
                    Err(error) => Err(error),
                };
            }
            Err(error) => return Err(error),
        }
    }
    let mut bytes = vec![0; piece.len()];
    copy.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn run(setup: &Setup, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut world = World::new(setup);
    for step in steps {
        world.step(step)?;
    }
    Ok(())
}

#[test]
fn every_read_is_the_reference_or_a_clear_errno() {
    let asked = std::env::var("PROPTEST_CASES").is_ok();
    let mut config = Config { failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    if !asked {
        config.cases = CASES;
    }
    if matches!(config.rng_seed, RngSeed::Random) {
        config.rng_seed = RngSeed::Fixed(rand::random());
    }
    eprintln!(
        "PROPTEST_RNG_SEED={}",
        match config.rng_seed {
            RngSeed::Fixed(seed) => seed,
            RngSeed::Random => 0,
        }
    );
    TestRunner::new(config)
        .run(&(setup(), steps()), |(setup, steps)| run(&setup, &steps))
        .unwrap_or_else(|error| panic!("{error}"));
}
