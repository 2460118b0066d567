//! Files of tensors, such as the weights of a model: which parts of them their readers are about to read.
//!
//! A reader of a model reads each tensor of a layer, and then those of the next. It takes the same part of the tensors
//! that have the same role: all of it, or the eighth that is its share. So the header of the file says where that part
//! is in all layers to come, and these are fetched in the order of the file, as far ahead as a stream is. The parts
//! that readers of other tensors of the role have left out are not fetched.
//!
//! The part of a tensor is known by its 64ths that were read. A role is known once a reader has gone on from a tensor
//! of it to another one. All readers count together: eight of which each takes another eighth take all of it. A role is
//! forgotten after some time, so that the next job, which may read in another way, begins anew.
//!
//! Its parts: `header` decodes headers; `tensor` is one tensor; this file has the files whose readers are followed. Pure:
//! what is read drives it.
//!
//! Invariants: of a file, at most [`AHEAD_BYTES_LEAST`] and twice what was read of it are fetched because of this. A read
//! of a file whose readers are not followed takes no lock. At most [`FILES`] files are followed, and at most twice
//! [`ROLES_MOST`] roles are known.

mod header;
mod tensor;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_dataset::block::parts;
use larder_dataset::{BLOCK_BYTES, BlockIndex, BlockPart, FileIndex};
use tokio::time::Instant;

use crate::ahead::{AHEAD_BYTES_LEAST, AHEAD_BYTES_MOST};
use crate::memory::{Account, Permit};

#[cfg(test)]
pub(crate) use header::tests::safetensors_of;
pub(crate) use header::{Header, decode, may_begin_header};
use tensor::{Role, Tensor};

/// The most files of a dataset whose readers are followed at a time.
const FILES: usize = 16;

/// The most files that are known to have no header, or one that is being read.
const LOOKED_AT_MOST: usize = 256;

/// A role of which no tensor was read for so long is forgotten, at the latest after twice as long.
const FORGET: Duration = Duration::from_secs(300);

/// The most roles that become known in that time. The roles before are forgotten sooner then.
const ROLES_MOST: usize = 1 << 16;

/// The parts into which a tensor is divided: one for each bit of a word.
const PARTS: u64 = 64;

/// A gap is fetched, too, if it is no larger: another request would cost more.
const GAP_BYTES: u64 = 64 << 10;

/// A block is fetched as a whole if readers take this much of it.
const WHOLE: (u64, u64) = (3, 4);

/// The multiple to which ranges of a block are rounded.
const ROUND_BYTES: u32 = 16 << 10;

/// The most tensors that are looked at for one read.
const LOOKED_AT: usize = 1024;

/// A file is no longer followed once what its readers read next was here for so many blocks.
const IDLE_MOST: u32 = 16;

/// The range of blocks of a file that is not followed: it begins after its end.
const NO_BLOCKS: u64 = (u32::MAX as u64) << 32;

/// The files of tensors of a dataset.
#[derive(Debug)]
pub(crate) struct Tensors {
    state: Mutex<State>,
    /// The blocks of each file that is followed, for readers that take no lock: the first in the upper half, the last
    /// in the lower half.
    followed: [AtomicU64; FILES],
    /// Memory for headers.
    memory: Account,
}

#[derive(Debug, Default)]
struct State {
    files: [Option<TensorFile>; FILES],
    next_slot: usize,
    /// The first blocks of files that are no longer looked at, the oldest first.
    looked_at: VecDeque<BlockIndex>,
    roles: Roles,
}

/// A file whose tensors are known.
#[derive(Debug)]
struct TensorFile {
    file: FileIndex,
    first: BlockIndex,
    size: u64,
    tensors: Vec<Tensor>,
    _memory: Permit,
    /// The tensor that is being read, and its parts that were.
    current: Option<(usize, u64)>,
    /// The part that was read last.
    last: Option<BlockPart>,
    read_bytes: u64,
    ahead_bytes: u64,
    is_followed: bool,
    /// Blocks since something was fetched ahead.
    idle: u32,
}

/// The parts that readers take of the tensors of each role.
#[derive(Debug)]
struct Roles {
    recent: HashMap<Role, u64>,
    before: HashMap<Role, u64>,
    since: Instant,
}

/// Whether the readers of a file are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follows {
    /// From now on.
    FromNow,
    /// As before, or not at all.
    Same,
    /// It is not known whether the file has a header.
    Unknown,
}

/// The demand for the rest of a block that a read of a part of it shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// Nothing.
    Unknown,
    /// Most of it will be read.
    Block,
    /// Of what is next to it, this part, which includes it, and no more.
    Part(BlockPart),
}

/// The parts to fetch ahead of a reader, in its order, and how many bytes of them at most.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// Each is a whole block or a range of one.
    pub(crate) parts: Vec<BlockPart>,
    pub(crate) bytes_most: u64,
}

impl Tensors {
    /// Headers take their memory of `memory`.
    pub(crate) fn new(memory: Account) -> Self {
        Self { state: Mutex::default(), followed: std::array::from_fn(|_| AtomicU64::new(NO_BLOCKS)), memory }
    }

    /// Memory for a header of so many bytes. None: there is none.
    pub(crate) fn memory_for(&self, bytes: u64) -> Option<Permit> {
        // No header has so many that this would not fit.
        self.memory.try_acquire((bytes >> 10) as u32 + 1)
    }

    /// Records that a reader missed a part of a file.
    pub(crate) fn missed(&self, part: &BlockPart) -> Follows {
        self.change(|state| {
            let first = first_block(part);
            if let Some(file) = state.file_mut(first) {
                file.idle = 0;
                let was_followed = std::mem::replace(&mut file.is_followed, true);
                return if was_followed { Follows::Same } else { Follows::FromNow };
            }
            if state.looked_at.contains(&first) { Follows::Same } else { Follows::Unknown }
        })
    }

    /// True if the caller is to read the header of the file with this first block, and to report it by
    /// [`found`](Self::found) or [`failed`](Self::failed).
    pub(crate) fn begin_look(&self, first: BlockIndex) -> bool {
        let mut state = self.lock();
        let is_known = state.file_mut(first).is_some() || state.looked_at.contains(&first);
        if !is_known {
            state.looked_at.push_back(first);
            if state.looked_at.len() > LOOKED_AT_MOST {
                state.looked_at.pop_front();
            }
        }
        !is_known
    }

    /// The header of a file could not be read: another miss tries again.
    pub(crate) fn failed(&self, first: BlockIndex) {
        self.lock().looked_at.retain(|&other| other != first);
    }

    /// The readers of a file with these tensors are followed from now on, if there is memory for them.
    pub(crate) fn found(&self, file: FileIndex, first: BlockIndex, size: u64, mut tensors: Vec<Tensor>) {
        tensors.shrink_to_fit();
        let Some(memory) = self.memory_for(size_of_val(&*tensors) as u64) else { return };
        let found = TensorFile {
            file,
            first,
            size,
            tensors,
            _memory: memory,
            current: None,
            last: None,
            read_bytes: 0,
            ahead_bytes: 0,
            is_followed: true,
            idle: 0,
        };
        self.change(|state| {
            state.looked_at.retain(|&other| other != first);
            let slot = state.next_slot;
            state.next_slot = (slot + 1) % FILES;
            state.files[slot] = Some(found);
        });
    }

    /// Records a read of a part of a block. Some: the reader has come to another block of this file, and
    /// [`ahead`](Self::ahead) is to be called.
    pub(crate) fn read(&self, part: &BlockPart) -> Option<FileIndex> {
        if !self.follows(part.block) {
            return None;
        }
        let mut state = self.lock();
        let State { files, roles, .. } = &mut *state;
        let file = files.iter_mut().flatten().find(|file| file.is_followed && file.first == first_block(part))?;
        let is_elsewhere = file.last.is_none_or(|last| last.block != part.block);
        file.read(part, roles);
        is_elsewhere.then_some(file.file)
    }

    /// The demand for the rest of a block that a miss of this part shows. `keeps`: the store keeps ranges of it. The
    /// caller reports to [`fetched`](Self::fetched) how much it fetches beyond the part.
    pub(crate) fn demand(&self, part: &BlockPart, keeps: bool) -> Demand {
        if !self.follows(part.block) {
            return Demand::Unknown;
        }
        let state = self.lock();
        let file = state.files.iter().flatten().find(|file| file.first == first_block(part));
        file.map_or(Demand::Unknown, |file| file.demand(part, keeps, &state.roles))
    }

    /// The parts to fetch ahead of a reader at this one: no more than a stream begins with, unless the store `keeps`
    /// them. Each is fetched unless it is here, up to `bytes_most`, and reported to [`fetched`](Self::fetched).
    pub(crate) fn ahead(&self, part: &BlockPart, keeps: bool) -> Option<Ahead> {
        let state = self.lock();
        let file = state.files.iter().flatten().find(|file| file.first == first_block(part))?;
        Some(file.ahead(part, keeps, &state.roles))
    }

    /// True if readers are known to leave out parts of a tensor that this part touches: no stream leads on from there.
    pub(crate) fn leave_out(&self, part: &BlockPart) -> bool {
        if !self.follows(part.block) {
            return false;
        }
        let state = self.lock();
        let file = state.files.iter().flatten().find(|file| file.first == first_block(part));
        let is_partly_read = |tensor: &Tensor| !matches!(state.roles.of(tensor.role), 0 | u64::MAX);
        file.is_some_and(|file| file.touched(range_of(part)).any(|(_, tensor)| is_partly_read(tensor)))
    }

    /// Records how many bytes were fetched beside what a reader at this part asked for, for example none because all was
    /// here.
    pub(crate) fn fetched(&self, part: &BlockPart, bytes: u64) {
        self.change(|state| {
            let Some(file) = state.file_mut(first_block(part)) else { return };
            file.ahead_bytes += bytes;
            file.idle = if bytes > 0 { 0 } else { file.idle + 1 };
            file.is_followed &= file.idle < IDLE_MOST;
        });
    }

    /// True if a file with this block is followed. Takes no lock.
    fn follows(&self, BlockIndex(block): BlockIndex) -> bool {
        self.followed.iter().any(|blocks| {
            let blocks = blocks.load(Ordering::Relaxed);
            (blocks >> 32) as u32 <= block && block <= blocks as u32
        })
    }

    /// Changes the state, and shows which files are followed.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let changed = change(&mut state);
        for (shown, file) in self.followed.iter().zip(&state.files) {
            let blocks = file.as_ref().filter(|file| file.is_followed).map_or(NO_BLOCKS, TensorFile::blocks);
            // Most are the same, and other threads read them.
            if shown.load(Ordering::Relaxed) != blocks {
                shown.store(blocks, Ordering::Relaxed);
            }
        }
        changed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code under this lock can panic halfway, so the state behind a poisoned lock is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn file_mut(&mut self, first: BlockIndex) -> Option<&mut TensorFile> {
        self.files.iter_mut().flatten().find(|file| file.first == first)
    }
}

impl TensorFile {
    /// Its first block and its last one.
    fn blocks(&self) -> u64 {
        let last = self.first.0 + (self.size.div_ceil(BLOCK_BYTES) - 1) as u32;
        (u64::from(self.first.0) << 32) | u64::from(last)
    }

    /// The tensors that a range of the file touches, with their indices.
    fn touched(&self, range: Range<u64>) -> impl Iterator<Item = (usize, &Tensor)> {
        let from = self.tensors.partition_point(|tensor| tensor.end <= range.start);
        let touched = self.tensors[from..].iter().take_while(move |tensor| tensor.begin < range.end);
        (from..).zip(touched).take(LOOKED_AT)
    }

    /// Notes that a part was read. Of the tensors that it touches, the last one is being read; the kernel reads a
    /// little of the one before it, too.
    fn read(&mut self, part: &BlockPart, roles: &mut Roles) {
        // A read that goes on in another way is noted twice.
        if self.last != Some(*part) {
            self.read_bytes += u64::from(part.len);
        }
        self.last = Some(*part);
        let range = range_of(part);
        let mut current = self.current.take();
        for (at, tensor) in self.touched(range.clone()) {
            let bits = parts_touched(tensor, &range);
            match &mut current {
                Some((same, read)) if *same == at => *read |= bits,
                _ => {
                    if let Some((left, read)) = current.replace((at, bits)) {
                        roles.add(self.tensors[left].role, read);
                    }
                }
            }
        }
        self.current = current;
    }

    /// The parts of tensors that readers take, in order: as far as they lie behind the start of a range of the file, and
    /// of the tensors that begin before its end.
    fn taken<'a>(&'a self, range: Range<u64>, roles: &'a Roles) -> impl Iterator<Item = Range<u64>> + 'a {
        let from = range.start;
        self.touched(range)
            .flat_map(move |(_, tensor)| runs(roles.of(tensor.role)).map(move |run| bytes_of(tensor, run)))
            .filter(move |taken| taken.end > from)
            .map(move |taken| taken.start.max(from)..taken.end)
    }

    /// The ranges of a block that readers take, with what they leave out between them if that is little. All of it, if
    /// they take most of it.
    fn taken_of(&self, block: &BlockPart, roles: &Roles) -> Vec<BlockPart> {
        let (begin, end) = (block.file_offset, block.file_offset + u64::from(block.block_len));
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for taken in self.taken(begin..end, roles).take_while(|taken| taken.start < end) {
            let taken = taken.start..taken.end.min(end);
            match ranges.last_mut() {
                Some(last) if taken.start <= last.end + GAP_BYTES => last.end = last.end.max(taken.end),
                _ => ranges.push(taken),
            }
        }
        let sum: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        if sum * WHOLE.1 >= u64::from(block.block_len) * WHOLE.0 {
            return vec![BlockPart { start: 0, len: block.block_len, ..*block }];
        }
        ranges.iter().map(|range| part_in(block, range)).collect()
    }

    fn demand(&self, part: &BlockPart, keeps: bool, roles: &Roles) -> Demand {
        let range = range_of(part);
        let is_taken = |tensor: &Tensor| parts_touched(tensor, &range) & !roles.of(tensor.role) == 0;
        let mut touched = self.touched(range.clone()).peekable();
        if touched.peek().is_none() || !touched.all(|(_, tensor)| is_taken(tensor)) {
            return Demand::Unknown;
        }
        let is_allowed = |len: u32| u64::from(len - part.len) <= self.bytes_most();
        let taken = self.taken_of(part, roles);
        if taken.first().is_some_and(|taken| taken.len == part.block_len) {
            return if is_allowed(part.block_len) { Demand::Block } else { Demand::Unknown };
        }
        let end = part.start + part.len;
        let with_it = taken.iter().find(|taken| taken.start <= part.start && end <= taken.start + taken.len);
        let end = with_it.filter(|_| keeps).map_or(end, |taken| taken.start + taken.len);
        let asked = part.file_offset + u64::from(part.start)..part.file_offset + u64::from(end);
        let piece = part_in(part, &asked);
        if is_allowed(piece.len) { Demand::Part(piece) } else { Demand::Unknown }
    }

    /// How many more bytes may be fetched that nobody has asked for.
    fn bytes_most(&self) -> u64 {
        (AHEAD_BYTES_LEAST + 2 * self.read_bytes).saturating_sub(self.ahead_bytes)
    }

    fn ahead(&self, part: &BlockPart, keeps: bool, roles: &Roles) -> Ahead {
        let earned = AHEAD_BYTES_LEAST + self.read_bytes;
        let depth = earned.min(if keeps { AHEAD_BYTES_MOST } else { AHEAD_BYTES_LEAST });
        let from = range_of(part).end;
        let (mut found, mut bytes, mut last) = (Vec::new(), 0, None);
        let taken = self.taken(from..self.size, roles);
        for block in taken.flat_map(|taken| parts(self.first, self.size, taken.start, taken.end - taken.start)) {
            if bytes >= depth {
                break;
            }
            // Several parts of tensors may be of one block.
            if last != Some(block.block) {
                last = Some(block.block);
                let taken = self.taken_of(&block, roles).into_iter().filter(|part| range_of(part).end > from);
                found.extend(taken.inspect(|part| bytes += u64::from(part.len)));
            }
        }
        Ahead { parts: found, bytes_most: self.bytes_most() }
    }
}

impl Default for Roles {
    fn default() -> Self {
        Self { recent: HashMap::new(), before: HashMap::new(), since: Instant::now() }
    }
}

impl Roles {
    /// The parts that readers take of a tensor of this role. None of them: it is not known.
    fn of(&self, role: Role) -> u64 {
        let age = self.since.elapsed();
        let parts = |roles: &HashMap<Role, u64>, until: Duration| {
            if age < until { roles.get(&role).copied().unwrap_or_default() } else { 0 }
        };
        parts(&self.recent, 2 * FORGET) | parts(&self.before, FORGET)
    }

    /// Readers have taken these parts of a tensor of this role.
    fn add(&mut self, role: Role, parts: u64) {
        let is_full = self.recent.len() >= ROLES_MOST && !self.recent.contains_key(&role);
        let age = self.since.elapsed();
        if is_full || age >= FORGET {
            self.before = std::mem::take(&mut self.recent);
            self.since = Instant::now();
        }
        if age >= 2 * FORGET {
            self.before.clear();
        }
        *self.recent.entry(role).or_default() |= parts;
    }
}

/// The first block of the file of a part.
pub(crate) fn first_block(part: &BlockPart) -> BlockIndex {
    BlockIndex(part.block.0 - (part.file_offset / BLOCK_BYTES) as u32)
}

/// The bytes of a part in its file.
fn range_of(part: &BlockPart) -> Range<u64> {
    let start = part.file_offset + u64::from(part.start);
    start..start + u64::from(part.len)
}

/// A range of a file that lies in a block, rounded to what the store keeps.
fn part_in(block: &BlockPart, range: &Range<u64>) -> BlockPart {
    let start = (range.start - block.file_offset) as u32 / ROUND_BYTES * ROUND_BYTES;
    let end = ((range.end - block.file_offset) as u32).next_multiple_of(ROUND_BYTES).min(block.block_len);
    BlockPart { start, len: end - start, ..*block }
}

/// The parts of a tensor that a range of the file touches, a bit for each, the first in the lowest.
fn parts_touched(tensor: &Tensor, range: &Range<u64>) -> u64 {
    let (begin, end) = (range.start.max(tensor.begin), range.end.min(tensor.end));
    if begin >= end {
        return 0;
    }
    let part_at = |at: u64| (at - tensor.begin) * PARTS / (tensor.end - tensor.begin);
    bits_below(part_at(end - 1) + 1) & !bits_below(part_at(begin))
}

/// The bytes of parts of a tensor in its file.
fn bytes_of(tensor: &Tensor, parts: Range<u64>) -> Range<u64> {
    let len = tensor.end - tensor.begin;
    tensor.begin + parts.start * len / PARTS..tensor.begin + (parts.end * len).div_ceil(PARTS)
}

/// The lowest `count` bits.
fn bits_below(count: u64) -> u64 {
    if count < PARTS { (1 << count) - 1 } else { u64::MAX }
}

/// The runs of bits that are set.
fn runs(mut bits: u64) -> impl Iterator<Item = Range<u64>> {
    std::iter::from_fn(move || {
        if bits == 0 {
            return None;
        }
        let start = bits.trailing_zeros();
        let end = u64::from(start + (bits >> start).trailing_ones());
        bits &= !bits_below(end);
        Some(u64::from(start)..end)
    })
}
