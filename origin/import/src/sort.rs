//! Sorts more records than memory can hold: writes sorted runs to disk and merges them in one pass.
//!
//! - [`Sorter`] accepts records in any order. Whenever its share of memory is full, it sorts and spills a run on a
//!   thread of its own, while it accepts more records.
//! - [`Merge`] returns the records in the order of their keys; records with equal keys are adjacent.
//! - `run` is a run: prefix-compressed, checksummed, in an unnamed file.
//!
//! Invariant: memory stays within twice the share plus one buffer per run, for any number of records. Bytes that the
//! disk changed are detected: a merge reports its end only after comparing the checksum of each run. The files
//! disappear with the process, even if it is killed, and shrink while they are merged.

mod run;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use crate::disk::DiskUse;
pub(crate) use run::{RunReader, RunWriter, SortedRun};

/// The most runs at a time: each needs a buffer and an open file. Beyond it, they are merged into one.
const RUNS_AT_ONCE: usize = 256;

/// The position of a record in the arena.
#[derive(Clone, Copy, Debug)]
struct Slot {
    at: u32,
    key_len: u32,
    value_len: u32,
}

/// Records in memory.
#[derive(Debug, Default)]
struct Batch {
    arena: Vec<u8>,
    slots: Vec<Slot>,
}

impl Batch {
    fn record(&self, slot: &Slot) -> (&[u8], &[u8]) {
        let (key_at, value_at) = (slot.at as usize, (slot.at + slot.key_len) as usize);
        (&self.arena[key_at..value_at], &self.arena[value_at..value_at + slot.value_len as usize])
    }

    fn bytes(&self) -> usize {
        self.arena.len() + self.slots.len() * size_of::<Slot>()
    }

    /// Listings are mostly sorted already, and the stable sort detects sorted stretches.
    fn sort(&mut self) {
        let mut slots = std::mem::take(&mut self.slots);
        slots.sort_by(|a, b| self.record(a).0.cmp(self.record(b).0));
        self.slots = slots;
    }

    fn write_run(&mut self, dir: &Path, disk: &DiskUse) -> io::Result<SortedRun> {
        self.sort();
        let mut run = RunWriter::create(dir, disk)?;
        for slot in &self.slots {
            let (key, value) = self.record(slot);
            run.push(key, value)?;
        }
        self.arena.clear();
        self.slots.clear();
        run.finish()
    }
}

type Spill = JoinHandle<(Batch, io::Result<SortedRun>)>;

/// Collects records and sorts them.
#[derive(Debug)]
pub(crate) struct Sorter {
    dir: PathBuf,
    disk: DiskUse,
    share_bytes: usize,
    batch: Batch,
    spare: Option<Batch>,
    spill: Option<Spill>,
    runs: Vec<SortedRun>,
    spilled_bytes: u64,
}

impl Sorter {
    /// Sorts in about `share_bytes` of memory, and twice that while it spills. Its runs are files in the folder `dir`,
    /// which take their space from `disk`.
    pub(crate) fn new(dir: &Path, disk: DiskUse, share_bytes: usize) -> Self {
        // Limited because offsets in the arena are u32.
        let share_bytes = share_bytes.min(1 << 30);
        let batch = Batch::default();
        Self {
            dir: dir.to_path_buf(),
            disk,
            share_bytes,
            batch,
            spare: Some(Batch::default()),
            spill: None,
            runs: Vec::new(),
            spilled_bytes: 0,
        }
    }

    /// Adds a record. Blocks on the disk if the previous run is still being written. Errors: the disk's.
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let bytes = key.len() + value.len() + size_of::<Slot>();
        if self.batch.bytes() + bytes > self.share_bytes && !self.batch.slots.is_empty() {
            self.spill()?;
        }
        let at = self.batch.arena.len() as u32;
        self.batch.arena.extend_from_slice(key);
        self.batch.arena.extend_from_slice(value);
        self.batch.slots.push(Slot { at, key_len: key.len() as u32, value_len: value.len() as u32 });
        Ok(())
    }

    fn spill(&mut self) -> io::Result<()> {
        self.end_spill()?;
        let mut full = std::mem::replace(&mut self.batch, self.spare.take().unwrap_or_default());
        let (dir, disk) = (self.dir.clone(), self.disk.clone());
        let sorting = std::thread::Builder::new().name("import-sort".into()).spawn(move || {
            let run = full.write_run(&dir, &disk);
            (full, run)
        });
        self.spill = Some(sorting?);
        Ok(())
    }

    fn end_spill(&mut self) -> io::Result<()> {
        let Some(spill) = self.spill.take() else { return Ok(()) };
        let (batch, run) = spill.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        self.spare = Some(batch);
        let run = run?;
        self.spilled_bytes += run.len;
        self.runs.push(run);
        if self.runs.len() == RUNS_AT_ONCE { self.merge_runs() } else { Ok(()) }
    }

    fn merge_runs(&mut self) -> io::Result<()> {
        let mut merge = Merge::new(std::mem::take(&mut self.runs), Batch::default())?;
        let mut run = RunWriter::create(&self.dir, &self.disk)?;
        while let Some((key, value)) = merge.next()? {
            run.push(key, value)?;
        }
        let run = run.finish()?;
        self.spilled_bytes += run.len;
        self.runs.push(run);
        Ok(())
    }

    /// Waits until all spilled records are on the disk. Returns the bytes of all runs that were ever written. Errors:
    /// the disk's.
    pub(crate) fn settle(&mut self) -> io::Result<u64> {
        self.end_spill()?;
        Ok(self.spilled_bytes)
    }

    /// Returns the records in order. If all records fit into memory, none were written to the disk. Errors: the disk's.
    pub(crate) fn finish(mut self) -> io::Result<Merge> {
        self.end_spill()?;
        self.spare = None;
        self.batch.sort();
        let last = std::mem::take(&mut self.batch);
        Merge::new(self.runs, last)
    }
}

/// One input of a merge, positioned at its current record.
#[derive(Debug)]
enum Source {
    Run(RunReader),
    Memory { batch: Batch, at: usize },
}

impl Source {
    fn record(&self) -> (&[u8], &[u8]) {
        match self {
            Self::Run(run) => (run.key(), run.value()),
            Self::Memory { batch, at } => batch.record(&batch.slots[*at]),
        }
    }

    /// Advances to the next record. False at the end.
    fn advance(&mut self) -> io::Result<bool> {
        match self {
            Self::Run(run) => run.advance(),
            Self::Memory { batch, at } => {
                *at += 1;
                Ok(*at < batch.slots.len())
            }
        }
    }
}

/// Reverses the order of inputs, so that the least record is at the top of the heap.
#[derive(Debug)]
struct Head(Box<Source>);

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.record().0.cmp(self.0.record().0)
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

/// Returns records in the order of their keys.
#[derive(Debug)]
pub(crate) struct Merge {
    heads: BinaryHeap<Head>,
    /// True if the record at the top was already returned.
    given: bool,
}

impl Merge {
    fn new(runs: Vec<SortedRun>, last: Batch) -> io::Result<Self> {
        let mut heads = BinaryHeap::with_capacity(runs.len() + 1);
        for run in runs {
            let mut reader = run.consume();
            if reader.advance()? {
                heads.push(Head(Box::new(Source::Run(reader))));
            }
        }
        if !last.slots.is_empty() {
            heads.push(Head(Box::new(Source::Memory { batch: last, at: 0 })));
        }
        Ok(Self { heads, given: false })
    }

    /// The key and value of the next record. Errors: the disk's; `InvalidData` if a run is damaged.
    pub(crate) fn next(&mut self) -> io::Result<Option<(&[u8], &[u8])>> {
        if self.given
            && let Some(mut top) = self.heads.peek_mut()
            && !top.0.advance()?
        {
            PeekMut::pop(top);
        }
        self.given = true;
        Ok(self.heads.peek().map(|head| head.0.record()))
    }

    /// Returns the current record again.
    pub(crate) fn current(&self) -> Option<(&[u8], &[u8])> {
        self.heads.peek().map(|head| head.0.record())
    }
}
