//! What is drawn at random: a dataset, and what happens to it.

use proptest::prelude::*;

/// Datasets on the node.
pub(super) const DATASETS: usize = 2;

const BLOCK: u64 = 4 << 20;

/// Bytes for all datasets together: nothing fits, some small files, some blocks, everything.
const CACHE_SIZES: [u64; 4] = [1, 100_000, 6 << 20, 1 << 30];

const POLICIES: [&str; 5] = ["nr", "smallest", "lru", "fifo", "random"];

/// The datasets, and the cache at first.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) trees: [Tree; DATASETS],
    pub(super) cache: Cache,
}

/// What is put into the bucket for a dataset.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    /// Keys as they are drawn. Those that would shadow another are left out.
    pub(super) files: Vec<(String, u64)>,
    pub(super) packed: bool,
}

/// The budget of all datasets, and the policy of each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cache {
    pub(super) bytes: u64,
    pub(super) policies: [&'static str; DATASETS],
}

/// An event, and threads that read at the same time.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) event: Event,
    pub(super) readers: Vec<Reader>,
}

/// A thread that reads.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    pub(super) dataset: Pick,
    pub(super) ops: Vec<Op>,
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    Nothing,
    /// `kill -9` under the readers, and a new mount after they end.
    Kill(Cache),
    /// Ends the daemon in order, starts and mounts again, then the readers read.
    Restart(Cache),
    /// Unmounts one dataset and mounts it again, while the other stays. Then the readers read.
    Remount(Pick),
    /// The origin misbehaves during this step.
    Faults(Trouble),
    /// A byte of a file with blocks changes.
    Rot(Pick, Pick),
    /// A file with blocks ends earlier.
    Tear(Pick, Pick),
    /// A byte of a slot table changes.
    RotSlots(Pick, Pick),
    /// A slot table ends earlier, under the daemon that has mapped it: as if the disk failed to read the rest.
    CutSlots(Pick, Pick),
    /// The disk is full during this step.
    FullDisk,
    /// Everything in the cache's folder is deleted under the daemon.
    Wipe,
    /// Another object of the same size replaces the object of a file of a dataset.
    Replace(Pick, Pick),
    /// The object of a file of a dataset is deleted.
    Delete(Pick, Pick),
    /// Unmounts one dataset, lists its bucket again and mounts the new snapshot. Then the readers read.
    NewSnapshot(Pick),
}

/// What is wrong with the origin's answers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trouble {
    Errors,
    SlowDown,
    Truncation,
    Resets,
    WrongLength,
    Stalls,
    Denied,
    Missing,
}

/// One operation of a reader on a file.
#[derive(Clone, Debug)]
pub(super) enum Op {
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

/// Picks one of any number of things.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pick(pub(super) u32);

impl Pick {
    pub(super) fn of(self, count: u64) -> u64 {
        (u64::from(self.0) * count) >> 32
    }

    pub(super) fn among<T>(self, things: &[T]) -> &T {
        &things[self.of(things.len() as u64) as usize]
    }
}

fn pick() -> impl Strategy<Value = Pick> {
    any::<u32>().prop_map(Pick)
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => "[a-z]{1,6}",
        // Anything but control characters, of any script.
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
    let policy = || prop::sample::select(POLICIES.to_vec());
    (prop::sample::select(CACHE_SIZES.to_vec()), [policy(), policy()])
        .prop_map(|(bytes, policies)| Cache { bytes, policies })
}

fn tree() -> impl Strategy<Value = Tree> {
    let key = prop::collection::vec(name(), 1..4).prop_map(|parts| parts.join("/"));
    (prop::collection::vec((key, size()), 1..10), prop::bool::weighted(0.25))
        .prop_map(|(files, packed)| Tree { files, packed })
}

pub(super) fn setup() -> impl Strategy<Value = Setup> {
    ([tree(), tree()], cache()).prop_map(|(trees, cache)| Setup { trees, cache })
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
        1 => pick().prop_map(Event::Remount),
        4 => prop::sample::select(troubles).prop_map(Event::Faults),
        2 => (pick(), pick()).prop_map(|(file, at)| Event::Rot(file, at)),
        1 => (pick(), pick()).prop_map(|(file, at)| Event::Tear(file, at)),
        1 => (pick(), pick()).prop_map(|(table, at)| Event::RotSlots(table, at)),
        1 => (pick(), pick()).prop_map(|(table, at)| Event::CutSlots(table, at)),
        1 => Just(Event::FullDisk),
        1 => Just(Event::Wipe),
        1 => (pick(), pick()).prop_map(|(dataset, file)| Event::Replace(dataset, file)),
        1 => (pick(), pick()).prop_map(|(dataset, file)| Event::Delete(dataset, file)),
        2 => pick().prop_map(Event::NewSnapshot),
    ]
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let reader = (pick(), prop::collection::vec(op(), 1..12)).prop_map(|(dataset, ops)| Reader { dataset, ops });
    let readers = prop::collection::vec(reader, 1..6);
    prop::collection::vec((event(), readers).prop_map(|(event, readers)| Step { event, readers }), 1..9)
}
