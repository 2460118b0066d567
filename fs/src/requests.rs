//! The unanswered requests of a connection, stored where they outlive this process.
//!
//! A request that was read from `/dev/fuse` is no longer in the kernel's queue. If its process is killed, the next
//! process can answer only requests that are stored here: in a memfd that the keeper holds too. Threads read requests into
//! pieces of the memfd (`slots`), so the request that a thread is working on is stored there. A read that is answered
//! later is stored in a table behind the pieces before its thread takes the next request. It is removed after its reply.
//!
//! ```text
//! 0            format, 8 bytes
//! 8            8 bytes, which say that OPENs on the connection are answered (`passthrough`)
//! 16           the files that the kernel reads by itself, 16 bytes each: inode (u64), number, CRC32C (u32)
//! 4 KiB        256 buffers of 32 KiB, one for each thread that serves the connection at the same time
//! 8,196 KiB    table of reads, 32 bytes each: unique, inode, offset (u64), size, CRC32C (u32)
//! ```
//! Numbers are in the machine's byte order. Only pages that were written use memory. The table grows with the number of
//! reads that wait at the same time.
//!
//! Invariants: at every instant, a request that was taken and not answered is in a buffer or in the table. Entries of
//! an earlier process are validated, and torn ones are skipped. At most one session at a time uses the file. What
//! is in the first page stays.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use larder_dataset::crc32c;
use rustix::fs::FallocateFlags;
use tracing::warn;

use crate::wire::{ReadRequest, Taken};

#[cfg(test)]
mod tests;

/// The name of the layout. A file with another name is emptied and used with this layout.
const FORMAT: [u8; 8] = *b"LARDREQ\x01";

/// The mark that OPENs are answered.
const ANSWERS_OPENS: [u8; 8] = *b"OPENS\0\0\x01";

/// The offset of the files that the kernel reads by itself, and the size of one.
const LENT_AT: usize = 16;
const LENT_BYTES: usize = 16;

/// The offset of the buffers.
const BUFFERS_AT: u64 = 4 << 10;

/// The most files that the kernel reads by itself.
pub(crate) const LENT_MOST: usize = (BUFFERS_AT as usize - LENT_AT) / LENT_BYTES;

/// The size of a buffer. The largest request to a read-only mount is an ioctl with 16 KiB.
pub(crate) const BUFFER_BYTES: usize = 32 << 10;

/// The most buffers, and so the most threads that serve a connection at the same time.
pub(crate) const BUFFERS: usize = 256;

/// The offset of the table.
const TABLE_AT: u64 = BUFFERS_AT + (BUFFERS * BUFFER_BYTES) as u64;

const ENTRY_BYTES: usize = 32;

/// The most entries of the table. A read that finds the table full occupies its thread until it is answered.
const ENTRIES: usize = 1 << 20;

/// How long to wait for an ending process to release the file.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause between two checks of the file's lock, or of the table.
const POLL: Duration = Duration::from_millis(5);

/// The unanswered requests of a connection that this process serves.
#[derive(Debug)]
pub(crate) struct Requests {
    file: File,
    table: Mutex<Table>,
}

/// The entries that are in use.
#[derive(Debug, Default)]
struct Table {
    /// The number of the read in each entry; 0 if the entry is unused.
    reads: Vec<u64>,
    unused: Vec<u32>,
    /// The number of reads so far, which numbers the next one.
    count: u64,
}

/// A read in the table. Dropping this value removes it.
#[derive(Debug)]
pub(crate) struct Kept {
    requests: Arc<Requests>,
    entry: u32,
}

/// The requests that an earlier process had taken and may not have answered. Dropping this value loses none of them.
#[derive(Debug, Default)]
pub(crate) struct Unanswered {
    reads: Vec<(ReadRequest, u32)>,
    /// Requests of other kinds, as the kernel sent them. They are stored only in the buffers.
    pub(crate) others: Vec<Vec<u8>>,
}

impl Unanswered {
    /// Drops requests that were answered. `waits` returns whether the kernel still waits for an answer.
    pub(crate) fn retain_unanswered(&mut self, requests: &Requests, waits: impl Fn(u64) -> bool) {
        self.reads.retain(|&(read, entry)| {
            waits(read.unique) || {
                requests.remove(entry);
                false
            }
        });
        self.others.retain(|request| Taken::parse(request).is_some_and(|taken| waits(taken.unique())));
    }

    /// The number of reads. All of them are in the table.
    pub(crate) fn reads(&self) -> usize {
        self.reads.len()
    }

    /// The reads. Each must be answered before its `Kept` is dropped.
    pub(crate) fn into_reads(self, requests: &Arc<Requests>) -> impl Iterator<Item = (ReadRequest, Kept)> + use<> {
        let requests = Arc::clone(requests);
        self.reads.into_iter().map(move |(read, entry)| (read, Kept { requests: Arc::clone(&requests), entry }))
    }
}

impl Requests {
    /// Opens the memory of a connection, and finds the requests that an earlier process left there. Waits up to 5 s for
    /// that process to end. Errors: another session uses the memory, or it cannot be opened.
    pub(crate) fn open(memory: BorrowedFd<'_>) -> io::Result<(Arc<Self>, Unanswered)> {
        // Opened separately, because a lock belongs to the open file description, and all processes share the keeper's.
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        lock(&file)?;
        let mut format = [0; FORMAT.len()];
        if file.metadata()?.len() >= TABLE_AT {
            file.read_exact_at(&mut format, 0)?;
        }
        if format != FORMAT {
            if format != [0; FORMAT.len()] {
                warn!("an earlier larderd left requests in an unknown format: delete the pods that hang");
            }
            file.set_len(0)?;
            file.set_len(TABLE_AT)?;
            file.write_all_at(&FORMAT, 0)?;
        }
        let entries = read_table(&file)?;
        let reads = entries.iter().map(|entry| u64::from(entry.is_some())).collect();
        let unused = (0..).zip(&entries).filter_map(|(at, entry)| entry.is_none().then_some(at)).collect::<Vec<_>>();
        // Reversed, so that entries at the beginning of the table are reused first.
        let table = Table { reads, unused: unused.into_iter().rev().collect(), count: 1 };
        let requests = Self { file, table: Mutex::new(table) };
        let unanswered = requests.find(&entries)?;
        Ok((Arc::new(requests), unanswered))
    }

    /// Collects each request once. Reads that are only in a buffer are added to the table.
    fn find(&self, entries: &[Option<ReadRequest>]) -> io::Result<Unanswered> {
        let mut found = BTreeSet::new();
        let mut unanswered = Unanswered::default();
        for (entry, read) in (0..).zip(entries).filter_map(|(entry, read)| Some((entry, (*read)?))) {
            if found.insert(read.unique) {
                unanswered.reads.push((read, entry));
            } else {
                // A process that was killed while taking over may have left a read in two entries.
                self.remove(entry);
            }
        }
        let mut buffer = vec![0; BUFFER_BYTES];
        for number in 0..BUFFERS {
            // Most buffers are unused or hold a few hundred bytes, so the length is read first.
            let mut len = [0; 4];
            self.file.read_exact_at(&mut len, Self::buffer_at(number))?;
            let len = (u32::from_ne_bytes(len) as usize).min(BUFFER_BYTES);
            let buffer = &mut buffer[..len];
            self.file.read_exact_at(buffer, Self::buffer_at(number))?;
            match Taken::parse(buffer) {
                Some(taken) if !found.insert(taken.unique()) => {}
                Some(Taken::Read(read)) => unanswered.reads.push((read, self.add(read)?)),
                Some(Taken::Other { request, .. }) => unanswered.others.push(request.to_owned()),
                None => {}
            }
        }
        Ok(unanswered)
    }

    /// Empties the buffers. Each request in them must be answered or in the table.
    pub(crate) fn clear_buffers(&self) -> io::Result<()> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, hole, BUFFERS_AT, TABLE_AT - BUFFERS_AT)?)
    }

    /// Records that this process and the next ones answer OPENs.
    pub(crate) fn answers_opens(&self) -> io::Result<()> {
        self.file.write_all_at(&ANSWERS_OPENS, FORMAT.len() as u64)
    }

    /// Records the `nth` file that the kernel reads by itself. Errors: there are too many, or it cannot be written.
    pub(crate) fn keep_lent(&self, nth: usize, node: u64, number: u32) -> io::Result<()> {
        if nth >= LENT_MOST {
            return Err(io::Error::other("the connection's memory has no room for more files"));
        }
        let mut entry = [0; LENT_BYTES];
        entry[..8].copy_from_slice(&node.to_ne_bytes());
        entry[8..12].copy_from_slice(&number.to_ne_bytes());
        let crc = crc32c(&entry[..12]);
        entry[12..].copy_from_slice(&crc.to_ne_bytes());
        self.file.write_all_at(&entry, (LENT_AT + nth * LENT_BYTES) as u64)
    }

    /// The inodes and numbers of the files that the kernel reads by itself. None if OPENs are not answered.
    pub(crate) fn lent(&self) -> io::Result<Option<Vec<(u64, u32)>>> {
        let mut page = [0; BUFFERS_AT as usize];
        self.file.read_exact_at(&mut page, 0)?;
        let lent = |entry: &[u8; LENT_BYTES]| {
            let [node, rest] = *entry.as_chunks::<8>().0 else { return None };
            let [number, crc] = *rest.as_chunks::<4>().0 else { return None };
            let is_whole = number != [0; 4] && u32::from_ne_bytes(crc) == crc32c(&entry[..12]);
            is_whole.then(|| (u64::from_ne_bytes(node), u32::from_ne_bytes(number)))
        };
        let (head, entries) = page.split_at(LENT_AT);
        Ok((head[FORMAT.len()..] == ANSWERS_OPENS).then(|| entries.as_chunks().0.iter().filter_map(lent).collect()))
    }

    /// The offset of a buffer in the file.
    pub(crate) const fn buffer_at(number: usize) -> u64 {
        BUFFERS_AT + (number * BUFFER_BYTES) as u64
    }

    /// Keeps a read in the table until its answer is sent. Errors: the table is full or cannot be written.
    pub(crate) fn keep(self: &Arc<Self>, read: ReadRequest) -> io::Result<Kept> {
        Ok(Kept { requests: Arc::clone(self), entry: self.add(read)? })
    }

    fn add(&self, read: ReadRequest) -> io::Result<u32> {
        let entry = self.table().add().ok_or_else(|| io::Error::other("too many reads wait"))?;
        // The entry is written in one call and lies within one page: a killed process has written all of it or none.
        match self.file.write_all_at(&encode(read), entry_at(entry)) {
            Ok(()) => Ok(entry),
            Err(error) => {
                self.remove(entry);
                Err(error)
            }
        }
    }

    fn remove(&self, entry: u32) {
        // If this fails, the next process answers the read once more, which has no effect.
        let _ = self.file.write_all_at(&0u64.to_ne_bytes(), entry_at(entry));
        self.table().remove(entry);
    }

    /// Waits until all reads that are in the table at the time of the call have been answered. Cancel-safe.
    pub(crate) async fn answered(&self) {
        let until = self.table().count;
        while self.table().reads.iter().any(|read| (1..=until).contains(read)) {
            tokio::time::sleep(POLL).await;
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Requests {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Table {
    /// Takes a free entry; `None` if all are in use.
    fn add(&mut self) -> Option<u32> {
        let entry = match self.unused.pop() {
            Some(entry) => entry,
            None if self.reads.len() < ENTRIES => {
                self.reads.push(0);
                // The cast cannot truncate: there are at most ENTRIES entries.
                (self.reads.len() - 1) as u32
            }
            None => return None,
        };
        self.count += 1;
        self.reads[entry as usize] = self.count;
        Some(entry)
    }

    fn remove(&mut self, entry: u32) {
        self.reads[entry as usize] = 0;
        self.unused.push(entry);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.requests.remove(self.entry);
    }
}

fn lock(file: &File) -> io::Result<()> {
    let started = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if started.elapsed() < LOCK_TIMEOUT => std::thread::sleep(POLL),
            Err(TryLockError::WouldBlock) => return Err(io::Error::other("another session serves the connection")),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

const fn entry_at(entry: u32) -> u64 {
    TABLE_AT + entry as u64 * ENTRY_BYTES as u64
}

fn read_table(file: &File) -> io::Result<Vec<Option<ReadRequest>>> {
    let entries = (file.metadata()?.len().saturating_sub(TABLE_AT) / ENTRY_BYTES as u64).min(ENTRIES as u64);
    let mut bytes = vec![0; entries as usize * ENTRY_BYTES];
    file.read_exact_at(&mut bytes, TABLE_AT)?;
    Ok(bytes.as_chunks().0.iter().map(decode).collect())
}

fn encode(ReadRequest { unique, ino, offset, size }: ReadRequest) -> [u8; ENTRY_BYTES] {
    let mut entry = [0; ENTRY_BYTES];
    entry[..8].copy_from_slice(&unique.to_ne_bytes());
    entry[8..16].copy_from_slice(&ino.to_ne_bytes());
    entry[16..24].copy_from_slice(&offset.to_ne_bytes());
    entry[24..28].copy_from_slice(&size.to_ne_bytes());
    let crc = crc32c(&entry[..28]);
    entry[28..].copy_from_slice(&crc.to_ne_bytes());
    entry
}

/// Decodes an entry. `None` if it is unused or torn.
fn decode(entry: &[u8; ENTRY_BYTES]) -> Option<ReadRequest> {
    let [unique, ino, offset, rest] = *entry.as_chunks::<8>().0 else { return None };
    let [size, crc] = *rest.as_chunks::<4>().0 else { return None };
    let read = ReadRequest {
        unique: u64::from_ne_bytes(unique),
        ino: u64::from_ne_bytes(ino),
        offset: u64::from_ne_bytes(offset),
        size: u32::from_ne_bytes(size),
    };
    (read.unique != 0 && u32::from_ne_bytes(crc) == crc32c(&entry[..28])).then_some(read)
}
