//! A run: sorted records in an unnamed file.
//!
//! ```text
//!   record   shared varint (bytes of the previous key that this one begins with), rest varint, value varint, rest, value
//!   end      CRC32C of all records, u32
//! ```
//! Invariant: a reader returns a record only after all of its bytes were read. It reaches the end only if the checksum
//! of everything before is right. Runs are read by offset, so a run may have several readers.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use larder_dataset::crc32c_append;
use rustix::fs::FallocateFlags;

use crate::disk::{DiskUse, Held};

/// The number of bytes that are written or read at a time.
const BUFFER_BYTES: usize = 128 << 10;
/// The size of the pieces in which disk space of read bytes is freed.
const FREE_BYTES: u64 = 8 << 20;
/// A limit for the length of a record. A key has at most 4 KiB, and a value little more than an ETag.
const RECORD_BYTES_MAX: usize = 1 << 20;

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the disk corrupted a temporary file of the sort: try again")
}

/// A complete run.
#[derive(Clone, Debug)]
pub(crate) struct SortedRun {
    pub(super) file: Arc<File>,
    pub(super) len: u64,
    crc: u32,
    /// Its share of the disk.
    held: Arc<Held>,
}

impl SortedRun {
    /// A reader before the first record. It frees the disk space of records that it has read.
    pub(crate) fn consume(self) -> RunReader {
        RunReader { freed: Some(0), ..self.read() }
    }

    /// A reader before the first record.
    pub(crate) fn read(&self) -> RunReader {
        RunReader {
            freed: None,
            run: self.clone(),
            key: Vec::new(),
            value: 0..0,
            buffer: Vec::new(),
            at: 0,
            next: 0,
            crc: 0,
        }
    }
}

/// Writes a run record by record.
#[derive(Debug)]
pub(crate) struct RunWriter {
    file: File,
    buffer: Vec<u8>,
    last: Vec<u8>,
    len: u64,
    crc: u32,
    held: Held,
}

impl RunWriter {
    /// Starts a run in the folder `dir`, which takes its space from `disk`.
    pub(crate) fn create(dir: &Path, disk: &DiskUse) -> io::Result<Self> {
        let (file, held) = (tempfile::tempfile_in(dir)?, disk.hold());
        Ok(Self { file, buffer: Vec::with_capacity(2 * BUFFER_BYTES), last: Vec::new(), len: 0, crc: 0, held })
    }

    /// Adds a record. Keys must ascend; equal keys are allowed.
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let shared = self.last.iter().zip(key).take_while(|(a, b)| a == b).count();
        for number in [shared, key.len() - shared, value.len()] {
            put_varint(&mut self.buffer, number);
        }
        self.buffer.extend_from_slice(&key[shared..]);
        self.buffer.extend_from_slice(value);
        self.last.truncate(shared);
        self.last.extend_from_slice(&key[shared..]);
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.crc = crc32c_append(self.crc, &self.buffer);
        self.held.take(self.buffer.len() as u64)?;
        self.len += self.buffer.len() as u64;
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the checksum and returns the complete run.
    pub(crate) fn finish(mut self) -> io::Result<SortedRun> {
        self.flush()?;
        Ok(SortedRun { file: Arc::new(self.file), len: self.len, crc: self.crc, held: Arc::new(self.held) })
    }
}

/// Reads a run, record by record.
#[derive(Debug)]
pub(crate) struct RunReader {
    run: SortedRun,
    key: Vec<u8>,
    /// The position of the current value in the buffer.
    value: std::ops::Range<usize>,
    buffer: Vec<u8>,
    /// The position of the next record in the buffer.
    at: usize,
    /// The offset in the file of the bytes after the buffer.
    next: u64,
    crc: u32,
    /// The end of the part that was freed on the disk. `None` if nothing is to be freed.
    freed: Option<u64>,
}

impl RunReader {
    /// The key of the current record.
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// The value of the current record.
    pub(crate) fn value(&self) -> &[u8] {
        &self.buffer[self.value.clone()]
    }

    /// Advances to the next record. False at the end.
    pub(crate) fn advance(&mut self) -> io::Result<bool> {
        loop {
            if let Some((lens, head)) = lens(&self.buffer[self.at..]) {
                let [shared, rest, value] = lens;
                let rest_at = self.at + head;
                let value_at = rest_at.checked_add(rest).ok_or_else(damaged)?;
                let end = value_at.checked_add(value).ok_or_else(damaged)?;
                if end - self.at > RECORD_BYTES_MAX {
                    return Err(damaged());
                }
                if end <= self.buffer.len() {
                    if shared > self.key.len() {
                        return Err(damaged());
                    }
                    self.key.truncate(shared);
                    self.key.extend_from_slice(&self.buffer[rest_at..value_at]);
                    self.value = value_at..end;
                    self.at = end;
                    return Ok(true);
                }
            }
            if self.next == self.run.len {
                let whole = self.at == self.buffer.len() && self.crc == self.run.crc;
                return if whole { Ok(false) } else { Err(damaged()) };
            }
            self.fill()?;
        }
    }

    /// Reads more bytes and appends them to the unread ones.
    fn fill(&mut self) -> io::Result<()> {
        self.buffer.drain(..self.at);
        self.at = 0;
        let kept = self.buffer.len();
        let len = (self.run.len - self.next).min(BUFFER_BYTES as u64) as usize;
        self.buffer.resize(kept + len, 0);
        self.run.file.read_exact_at(&mut self.buffer[kept..], self.next)?;
        self.crc = crc32c_append(self.crc, &self.buffer[kept..]);
        self.next += len as u64;
        if let Some(freed) = self.freed
            && self.next - freed >= FREE_BYTES
        {
            // If the file system cannot free part of a file, the file keeps its space until it is closed.
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if rustix::fs::fallocate(&*self.run.file, flags, freed, self.next - freed).is_ok() {
                self.run.held.give(self.next - freed);
            }
            self.freed = Some(self.next);
        }
        Ok(())
    }
}

fn put_varint(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Decodes the three numbers at the head of a record. Also returns their length in bytes; `None` if they are cut off.
fn lens(bytes: &[u8]) -> Option<([usize; 3], usize)> {
    let (mut lens, mut at) = ([0; 3], 0);
    for len in &mut lens {
        let mut shift = 0;
        loop {
            let byte = *bytes.get(at)?;
            at += 1;
            *len |= usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
            shift += 7;
            if shift > 28 {
                // No record is that long, so the run is damaged. The checksum will show it at the end; until then,
                // nothing is read from here.
                return None;
            }
        }
    }
    Some((lens, at))
}
