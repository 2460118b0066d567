//! The journal of an import, a packing or a copy to a mirror. It records the finished part of the work, so that a run
//! after `kill -9` continues where the last one ended.
//!
//! - [`Journal`] is the file; one run at a time has it open.
//! - `header` identifies the work that a journal belongs to, `frames` are the checksummed units after it, and `records`
//!   are the contents of the frames.
//!
//! Invariant: a frame is valid if it is complete and its CRC is right. The first invalid frame ends the journal; it is
//! cut off together with everything after it. A journal contains nothing that cannot be listed or written again. A
//! journal of another version, of other work, or older than the caller accepts is therefore started over;
//! [`Journal::note`] reports that.

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
use header::{DAMAGED, HEADER_BYTES, decode_header, encode_header};
pub(crate) use header::{JournalIdentity, JournalKind};
pub(crate) use records::{BadRecord, CopiedRecord, PackRecord, PageFile, PageLink, PageRecord};

use crate::clock::nanoseconds_now;

/// A power loss may lose this much work; `kill -9` loses none.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// The suffix of a journal's name.
pub(crate) const JOURNAL_SUFFIX: &str = "journal";

/// How long another process may hold the lock to check whether a journal is in use.
const LOOK_MOST: Duration = Duration::from_millis(10);

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another run has the journal open.
    #[error("journal {} is in use: the same import, pack or sync is running already", path.display())]
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
    /// One page of a listing is too large for a frame.
    #[error("one page of the listing takes {bytes} bytes, too many for the journal")]
    FrameTooLarge {
        /// The size of the page in bytes.
        bytes: usize,
    },
}

/// An open journal. No other run can open it while this exists. After a drop, its contents stay for the next run.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    path: PathBuf,
    started_ns: i64,
    synced: Instant,
    note: Option<String>,
    /// True if there is nothing to continue: dropping the journal then deletes its file.
    finished: bool,
}

/// Why a record is rejected during replay.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The bytes are not a record. They end the journal like a torn frame.
    Bad,
    /// The caller cannot continue, for example because the disk is full. The journal is valid and remains unchanged.
    Stop(io::Error),
}

impl From<BadRecord> for Refused {
    fn from(_: BadRecord) -> Self {
        Self::Bad
    }
}

/// The part of an existing journal that can be replayed.
enum Replay {
    /// The work began then. The valid records end here; `lost` bytes follow.
    Until { started_ns: i64, end: u64, lost: u64 },
    /// Nothing can be replayed. The reason is set if the user should see it.
    Nothing(Option<String>),
}

impl Journal {
    /// Opens or starts the journal of `identity` in the folder `dir`, which is created if missing. Passes every record
    /// to `replay`, oldest first. Starts over if the journal is older than `max_age` or `restart` is set. Blocking.
    /// Errors: `InUse`, `Io`, also with the error that stopped `replay`.
    pub(crate) fn open(
        dir: &Path,
        identity: JournalIdentity,
        max_age: Duration,
        restart: bool,
        replay: impl FnMut(&[u8]) -> Result<(), Refused>,
    ) -> Result<Self, JournalError> {
        let path = dir.join(identity.file_name());
        std::fs::create_dir_all(dir).map_err(|source| failed("create the folder of", dir, source))?;
        let mut file = lock(&path)?;
        let now_ns = nanoseconds_now();
        let replayed = if restart {
            Replay::Nothing(None)
        } else {
            read_back(&mut file, &path, identity, max_age, now_ns, replay)?
        };
        let (started_ns, note) = match replayed {
            Replay::Until { started_ns, end, lost } => {
                file.set_len(end).map_err(|source| failed("cut the torn end off", &path, source))?;
                let cut = || {
                    format!(
                        "the journal {} is cut off or damaged after {end} bytes: the work recorded in the {lost} after \
                         that is repeated",
                        path.display()
                    )
                };
                (started_ns, (lost > 0).then(cut))
            }
            Replay::Nothing(why) => {
                let start = |file: &mut File| {
                    file.set_len(0)?;
                    file.rewind()?;
                    file.write_all(&encode_header(identity, now_ns))
                };
                start(&mut file).map_err(|source| failed("start", &path, source))?;
                let said =
                    |why: String| format!("the journal {} cannot be continued, {why}: started over", path.display());
                (now_ns, why.map(said))
            }
        };
        file.seek(SeekFrom::End(0)).map_err(|source| failed("seek in", &path, source))?;
        Ok(Self { file, path, started_ns, synced: Instant::now(), note, finished: false })
    }

    /// Adds a record, which survives `kill -9` once this returns. Blocking. After an error, the journal's end may be
    /// torn, so nothing more may be appended.
    pub(crate) fn append(&mut self, payload: &[u8]) -> Result<(), JournalError> {
        let frame = encode_frame(payload).ok_or(JournalError::FrameTooLarge { bytes: payload.len() })?;
        self.file.write_all(&frame).map_err(|source| failed("write", &self.path, source))?;
        if self.synced.elapsed() >= SYNC_EVERY {
            self.file.sync_data().map_err(|source| failed("sync", &self.path, source))?;
            self.synced = Instant::now();
        }
        Ok(())
    }

    /// The bytes that a record takes in the file.
    pub(crate) fn record_bytes(payload: &[u8]) -> u64 {
        (FRAME_HEAD_BYTES + payload.len()) as u64
    }

    /// Removes the journal after its result was stored elsewhere. Blocking.
    pub(crate) fn discard(self) -> Result<(), JournalError> {
        std::fs::remove_file(&self.path).map_err(|source| failed("remove", &self.path, source))
    }

    /// When the work began, in nanoseconds since the epoch: in an earlier run, if this one continues it.
    pub(crate) fn started_ns(&self) -> i64 {
        self.started_ns
    }

    /// The defect that was found in the journal, and how it was handled.
    pub(crate) fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Empties the journal: its work is done, and no later run may mistake it for the origin's state at that time.
    /// Other runs cannot open it until this is dropped, which removes it. Blocking.
    pub(crate) fn finish(&mut self) -> Result<(), JournalError> {
        self.finished = true;
        self.file.set_len(0).map_err(|source| failed("empty", &self.path, source))
    }

    /// The path of the journal's file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if self.finished {
            // An empty journal is equivalent to none, so an error is harmless.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn failed(verb: &'static str, path: &Path, source: io::Error) -> JournalError {
    JournalError::Io { verb, path: path.to_path_buf(), source }
}

/// True if a run has the journal at `path` open. Locks it for a moment.
pub(crate) fn is_in_use(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Removes the journals of imports to which nothing was added for `max_age`: they are older than that, so no import
/// would continue them. One that cannot be removed stays until the next call. Blocking.
pub fn remove_old_journals(dir: &Path, max_age: Duration) {
    let imports = format!("{}-", JournalKind::Import.as_str());
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let is_journal = name.as_encoded_bytes().starts_with(imports.as_bytes())
            && path.extension().is_some_and(|extension| extension == JOURNAL_SUFFIX);
        if !is_journal {
            continue;
        }
        // Removed while it is locked, so no run has it open; a run that waits for the lock starts over.
        let Ok(file) = File::open(&path) else { continue };
        let age = file.metadata().and_then(|about| about.modified()).map(|added| added.elapsed().unwrap_or_default());
        if age.is_ok_and(|age| age > max_age) && file.try_lock().is_ok() {
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Opens and locks the file at `path`. Retries if a run that just ended has removed the opened file. Also retries
/// briefly if the file is locked, because another process may only be checking whether it is in use.
fn lock(path: &Path) -> Result<File, JournalError> {
    let mut looks = 5;
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
            Err(TryLockError::WouldBlock) if looks > 0 => {
                looks -= 1;
                std::thread::sleep(LOOK_MOST);
                continue;
            }
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

/// Replays the records of the journal.
fn read_back(
    file: &mut File,
    path: &Path,
    identity: JournalIdentity,
    max_age: Duration,
    now_ns: i64,
    mut replay: impl FnMut(&[u8]) -> Result<(), Refused>,
) -> Result<Replay, JournalError> {
    let len = file.metadata().map_err(|source| failed("stat", path, source))?.len();
    if len == 0 {
        return Ok(Replay::Nothing(None));
    }
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut header = [0; HEADER_BYTES];
    match reader.read_exact(&mut header) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Ok(Replay::Nothing(Some(DAMAGED.to_owned())));
        }
        Err(source) => return Err(failed("read", path, source)),
    }
    let started_ns = match decode_header(&header, identity) {
        Ok(started_ns) => started_ns,
        Err(why) => return Ok(Replay::Nothing(Some(why.to_owned()))),
    };
    // If the clock was set back, the age is negative and the journal counts as new.
    if i128::from(now_ns) - i128::from(started_ns) > max_age.as_nanos().cast_signed() {
        return Ok(Replay::Nothing(Some(format!("it is older than {max_age:.0?}"))));
    }
    let mut frames = Frames::new(reader);
    let mut end = HEADER_BYTES as u64;
    while let Some(payload) = frames.next_frame().map_err(|source| failed("read", path, source))? {
        match replay(payload) {
            Ok(()) => {}
            Err(Refused::Bad) => break,
            Err(Refused::Stop(source)) => return Err(failed("take over", path, source)),
        }
        end += Journal::record_bytes(payload);
    }
    Ok(Replay::Until { started_ns, end, lost: len.saturating_sub(end) })
}
