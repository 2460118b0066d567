//! The journal of an import or a packing: the finished part of the work, so that a run after `kill -9` continues where the
//! last one ended.
//!
//! - [`Journal`] is the file; one run at a time holds it.
//! - `header` identifies the work that a journal belongs to, `frames` are the checksummed units that follow it, and
//!   `records` are their contents.
//!
//! Invariant: a frame counts if it is complete and its CRC is right. The first other frame ends the journal and is cut off,
//! with everything after it. A journal only repeats what can be found out again, so one of another version, of other work,
//! or older than the caller accepts is started over without asking.

mod frames;
mod header;
mod records;
#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use frames::{FRAME_HEAD_BYTES, Frames, encode_frame};
use header::{HEADER_BYTES, decode_header, encode_header};
pub(crate) use header::{JournalIdentity, JournalKind};
pub(crate) use records::{BadRecord, PackRecord, PageFile, PageRecord};

use crate::clock::nanoseconds_now;

/// A power cut may lose this much work; `kill -9` loses none.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another run holds it.
    #[error("journal {} is in use: the same import or pack is running already", path.display())]
    InUse {
        /// The journal's path.
        path: PathBuf,
    },
    /// The file cannot be read or written.
    #[error("{verb} journal {}", path.display())]
    Io {
        /// The operation that failed.
        verb: &'static str,
        /// The journal's path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// One page of a listing does not fit a frame.
    #[error("one page of the listing takes {bytes} bytes, too many for the journal")]
    FrameTooLarge {
        /// Bytes that the page would take.
        bytes: usize,
    },
}

/// An open journal. While it lives no other run can open it; when it is dropped, its contents stay for the next run.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    synced: Instant,
}

impl Journal {
    /// Opens or starts the journal of `identity` in the folder `dir`, which is created if missing, and passes every record
    /// to `replay`, oldest first. A record that `replay` refuses ends the journal like a torn one. A journal older than
    /// `max_age`, or any journal if `restart` is set, is started over. Blocking. Errors: `InUse`, `Io`.
    pub(crate) fn open(
        dir: &Path,
        identity: JournalIdentity,
        max_age: Duration,
        restart: bool,
        replay: impl FnMut(&[u8]) -> Result<(), BadRecord>,
    ) -> Result<Self, JournalError> {
        let path = dir.join(identity.file_name());
        std::fs::create_dir_all(dir).map_err(|source| failed("create the folder of", dir, source))?;
        let mut file = lock(&path)?;
        let now_ns = nanoseconds_now();
        let end = if restart { None } else { read_back(&mut file, &path, identity, max_age, now_ns, replay)? };
        match end {
            Some(end) => file.set_len(end).map_err(|source| failed("cut the torn end off", &path, source))?,
            None => {
                let start = |file: &mut File| {
                    file.set_len(0)?;
                    file.rewind()?;
                    file.write_all(&encode_header(identity, now_ns))
                };
                start(&mut file).map_err(|source| failed("start", &path, source))?;
            }
        }
        file.seek(SeekFrom::End(0)).map_err(|source| failed("seek in", &path, source))?;
        Ok(Self { file, path, synced: Instant::now() })
    }

    /// Adds a record, which survives `kill -9` once this returns. Blocking. After an error the journal's end may be torn,
    /// so nothing may be appended any more.
    pub(crate) fn append(&mut self, payload: &[u8]) -> Result<(), JournalError> {
        let frame = encode_frame(payload).ok_or(JournalError::FrameTooLarge { bytes: payload.len() })?;
        self.file.write_all(&frame).map_err(|source| failed("write", &self.path, source))?;
        if self.synced.elapsed() >= SYNC_EVERY {
            self.file.sync_data().map_err(|source| failed("sync", &self.path, source))?;
            self.synced = Instant::now();
        }
        Ok(())
    }

    /// Removes the journal once its result is stored elsewhere. Blocking.
    pub fn discard(self) -> Result<(), JournalError> {
        std::fs::remove_file(&self.path).map_err(|source| failed("remove", &self.path, source))
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn failed(verb: &'static str, path: &Path, source: io::Error) -> JournalError {
    JournalError::Io { verb, path: path.to_path_buf(), source }
}

/// Opens and locks the file at `path`. Repeats that if a run that just ended has removed the opened file.
fn lock(path: &Path) -> Result<File, JournalError> {
    loop {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|source| failed("open", path, source))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(JournalError::InUse { path: path.to_path_buf() }),
            Err(TryLockError::Error(source)) => return Err(failed("lock", path, source)),
        }
        let opened = file.metadata().map_err(|source| failed("stat", path, source))?;
        match std::fs::metadata(path) {
            Ok(there) if (there.dev(), there.ino()) == (opened.dev(), opened.ino()) => return Ok(file),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(failed("stat", path, source)),
        }
    }
}

/// Replays the records and returns the offset at which the last good one ends; `None` if the journal must be started over.
fn read_back(
    file: &mut File,
    path: &Path,
    identity: JournalIdentity,
    max_age: Duration,
    now_ns: i64,
    mut replay: impl FnMut(&[u8]) -> Result<(), BadRecord>,
) -> Result<Option<u64>, JournalError> {
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut header = [0; HEADER_BYTES];
    match reader.read_exact(&mut header) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(source) => return Err(failed("read", path, source)),
    }
    let Some(started_ns) = decode_header(&header, identity) else { return Ok(None) };
    // If the clock was set back, the age is negative and the journal counts as new.
    if i128::from(now_ns) - i128::from(started_ns) > max_age.as_nanos().cast_signed() {
        return Ok(None);
    }
    let mut frames = Frames::new(reader);
    let mut end = HEADER_BYTES as u64;
    while let Some(payload) = frames.next_frame().map_err(|source| failed("read", path, source))? {
        if replay(payload).is_err() {
            break;
        }
        end += (FRAME_HEAD_BYTES + payload.len()) as u64;
    }
    Ok(Some(end))
}
