//! The journal of an import or a packing: what is done, so that a run after `kill -9` goes on where the last one ended.
//!
//! The cast: [`Journal`] is the file, held by one run at a time; [`Frames`] reads its frames back; [`PageRecord`] and
//! [`PackRecord`] are what a frame holds.
//!
//! ```text
//!   header, 64 bytes   0  magic "LARDERJR"
//!                      8  version byte, kind byte (1 import, 2 pack), 6 bytes of zero
//!                     16  identity, 32 bytes: SHA-256 of what the work is about
//!                     48  when it was begun, i64 nanoseconds since the epoch
//!                     56  4 bytes of zero
//!                     60  CRC32C of bytes 0..60
//!   then frames        0  length of the payload, u32, 1 byte to 1 GiB
//!                      4  CRC32C of the length and the payload
//!                      8  payload
//! ```
//!
//! All numbers are little-endian; a byte string is its length as u32 and its bytes. Invariant: a frame counts when all of
//! it is there and its CRC is right; the first one that is not ends the journal and is cut off, with all after it. No
//! bytes, however broken, make a decoder panic or reserve more memory than they themselves take. What a journal says can
//! be found out again, so another version, another identity or an old journal is begun anew without asking.

use std::borrow::Cow;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use larder_origin::{Depth, Listed, Version};
use sha2::{Digest, Sha256};

const MAGIC: [u8; 8] = *b"LARDERJR";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 64;
const FRAME_HEAD_BYTES: usize = 8;
/// The most bytes a frame's payload has. A folder of ten million files comes in one page and still fits.
const FRAME_MAX: usize = 1 << 30;
/// A power cut may lose this much work; `kill -9` loses none.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another run holds it.
    #[error("{} is in use: the same import or pack is running already", path.display())]
    InUse {
        /// The journal's path.
        path: PathBuf,
    },
    /// The file cannot be read or written.
    #[error("{verb} journal {}", path.display())]
    Io {
        /// What was tried.
        verb: &'static str,
        /// The journal's path.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// One page of a listing has more entries than a frame holds.
    #[error("a single page of {bytes} bytes does not fit the journal")]
    FrameTooLarge {
        /// Bytes it would take.
        bytes: usize,
    },
}

/// A payload that is no record; the frame's CRC was right, so another program wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("journal record does not hold together")]
pub struct BadRecord;

/// The kind of work a journal belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`PageRecord`]s of an import.
    Import,
    /// [`PackRecord`]s of a packing.
    Pack,
}

impl Kind {
    const fn byte(self) -> u8 {
        match self {
            Self::Import => 1,
            Self::Pack => 2,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Import => "import",
            Self::Pack => "pack",
        }
    }
}

/// What tells one piece of work from another: two runs with the same identity share a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    kind: Kind,
    hash: [u8; 32],
}

impl Identity {
    /// The identity of work of this kind about these things, in this order.
    pub fn new(kind: Kind, about: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        hash.update([kind.byte()]);
        for part in about {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self { kind, hash: hash.finalize().into() }
    }

    fn file_name(&self) -> String {
        use std::fmt::Write;
        let mut name = format!("{}-", self.kind.as_str());
        for byte in &self.hash[..12] {
            // Writing to a String cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        name + ".journal"
    }
}

/// An open journal. While it lives no other run gets it; dropping it keeps what it holds for the next run.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    synced: Instant,
}

impl Journal {
    /// Opens or begins the journal of `identity` in the folder `dir`, which is made if need be, and hands every record
    /// to `replay`, oldest first. A record that `replay` refuses ends the journal like a torn one. A journal older than
    /// `max_age`, or any at all with `restart`, is begun anew. Blocking. Errors: `InUse`, `Io`.
    pub fn open(
        dir: &Path,
        identity: Identity,
        max_age: Duration,
        restart: bool,
        replay: impl FnMut(&[u8]) -> Result<(), BadRecord>,
    ) -> Result<Self, JournalError> {
        let path = dir.join(identity.file_name());
        std::fs::create_dir_all(dir).map_err(|source| failed("make the folder of", dir, source))?;
        let mut file = lock(&path)?;
        let now_ns = nanoseconds_now();
        let end = if restart { None } else { read_back(&mut file, &path, identity, max_age, now_ns, replay)? };
        match end {
            Some(end) => file.set_len(end).map_err(|source| failed("cut the torn end off", &path, source))?,
            None => {
                let begin = |file: &mut File| {
                    file.set_len(0)?;
                    file.rewind()?;
                    file.write_all(&encode_header(identity, now_ns))
                };
                begin(&mut file).map_err(|source| failed("begin", &path, source))?;
            }
        }
        file.seek(SeekFrom::End(0)).map_err(|source| failed("seek in", &path, source))?;
        Ok(Self { file, path, synced: Instant::now() })
    }

    /// Adds a record; it is safe from `kill -9` when this returns. Blocking. After an error the journal's end may be
    /// torn, so nothing more must be added.
    pub fn append(&mut self, payload: &[u8]) -> Result<(), JournalError> {
        let frame = encode_frame(payload)?;
        self.file.write_all(&frame).map_err(|source| failed("write", &self.path, source))?;
        if self.synced.elapsed() >= SYNC_EVERY {
            self.file.sync_data().map_err(|source| failed("sync", &self.path, source))?;
            self.synced = Instant::now();
        }
        Ok(())
    }

    /// Removes the journal: its result is stored safely elsewhere. Blocking.
    pub fn discard(self) -> Result<(), JournalError> {
        std::fs::remove_file(&self.path).map_err(|source| failed("remove", &self.path, source))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn failed(verb: &'static str, path: &Path, source: io::Error) -> JournalError {
    JournalError::Io { verb, path: path.to_path_buf(), source }
}

/// Opens and locks the file that is at `path` now: a run that just ended may have removed the one opened.
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
        let opened = file.metadata().map_err(|source| failed("look at", path, source))?;
        match std::fs::metadata(path) {
            Ok(there) if (there.dev(), there.ino()) == (opened.dev(), opened.ino()) => return Ok(file),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(failed("look at", path, source)),
        }
    }
}

/// Replays the records and returns where the last good one ends; `None` if the journal is to be begun anew.
fn read_back(
    file: &mut File,
    path: &Path,
    identity: Identity,
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
    let Some(begun_ns) = decode_header(&header, identity) else { return Ok(None) };
    // A clock that went back makes the age negative: such a journal is as good as a new one.
    if i128::from(now_ns) - i128::from(begun_ns) > max_age.as_nanos().cast_signed() {
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

fn nanoseconds_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

fn encode_header(identity: Identity, begun_ns: i64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8] = VERSION;
    header[9] = identity.kind.byte();
    header[16..48].copy_from_slice(&identity.hash);
    header[48..56].copy_from_slice(&begun_ns.to_le_bytes());
    let crc = larder_dataset::crc32c(&header[..60]);
    header[60..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// When the journal was begun; `None` if this is not a whole header of this version and identity.
fn decode_header(header: &[u8; HEADER_BYTES], identity: Identity) -> Option<i64> {
    let mut fields = Fields(header);
    let sealed = larder_dataset::crc32c(&header[..60]).to_le_bytes() == header[60..];
    let right = fields.take(8).ok()? == MAGIC
        && fields.take(2).ok()? == [VERSION, identity.kind.byte()]
        && fields.take(6).is_ok()
        && fields.take(32).ok()? == identity.hash;
    if sealed && right { fields.i64().ok() } else { None }
}

fn encode_frame(payload: &[u8]) -> Result<Vec<u8>, JournalError> {
    if payload.is_empty() || payload.len() > FRAME_MAX {
        return Err(JournalError::FrameTooLarge { bytes: payload.len() });
    }
    let len = (payload.len() as u32).to_le_bytes();
    let mut frame = Vec::with_capacity(FRAME_HEAD_BYTES + payload.len());
    frame.extend_from_slice(&len);
    frame.extend_from_slice(&frame_crc(len, payload).to_le_bytes());
    frame.extend_from_slice(payload);
    Ok(frame)
}

/// The length is covered too, so that a tail of zeroes is not a frame.
fn frame_crc(len: [u8; 4], payload: &[u8]) -> u32 {
    larder_dataset::crc32c_append(larder_dataset::crc32c(&len), payload)
}

/// Reads frames until the first that is not whole.
#[derive(Debug)]
pub struct Frames<R> {
    from: R,
    payload: Vec<u8>,
}

impl<R: Read> Frames<R> {
    /// Reads from where `from` stands: after the header.
    pub fn new(from: R) -> Self {
        Self { from, payload: Vec::new() }
    }

    /// The next payload; `None` at the end, and at a frame that is cut off, empty, too long or has a wrong CRC. After
    /// that there is nothing more to be read. Errors: only those of reading.
    pub fn next_frame(&mut self) -> io::Result<Option<&[u8]>> {
        let mut head = [0; FRAME_HEAD_BYTES];
        match self.from.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let [l0, l1, l2, l3, c0, c1, c2, c3] = head;
        let (len_bytes, crc) = ([l0, l1, l2, l3], u32::from_le_bytes([c0, c1, c2, c3]));
        let len = u32::from_le_bytes(len_bytes) as usize;
        if len == 0 || len > FRAME_MAX {
            return Ok(None);
        }
        self.payload.clear();
        // Grows with what is really there, so that a wrong length reserves nothing.
        self.from.by_ref().take(len as u64).read_to_end(&mut self.payload)?;
        let whole = self.payload.len() == len && frame_crc(len_bytes, &self.payload) == crc;
        Ok(whole.then_some(&self.payload[..]))
    }
}

/// One page of a listing: which unit it belongs to, what was on it, and where the unit goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageRecord {
    /// The prefix that is listed.
    pub prefix: Vec<u8>,
    /// How deep.
    pub depth: Depth,
    /// The files on the page.
    pub files: Vec<Listed>,
    /// The prefixes on the page.
    pub prefixes: Vec<Vec<u8>>,
    /// What the origin itself could not list, with its reason.
    pub skipped: Vec<(Vec<u8>, Cow<'static, str>)>,
    /// Where the next page of the unit begins; `None` if this was the last.
    pub next: Option<Vec<u8>>,
}

impl PageRecord {
    /// The record as a frame's payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + 128 * self.files.len());
        out.push(match self.depth {
            Depth::One => 0,
            Depth::All => 1,
        });
        put_bytes(&mut out, &self.prefix);
        put_option(&mut out, self.next.as_deref());
        put_u32(&mut out, self.files.len());
        for file in &self.files {
            put_bytes(&mut out, &file.key);
            out.extend_from_slice(&file.size.to_le_bytes());
            out.extend_from_slice(&file.mtime_ns.to_le_bytes());
            put_version(&mut out, &file.version);
        }
        put_u32(&mut out, self.prefixes.len());
        self.prefixes.iter().for_each(|prefix| put_bytes(&mut out, prefix));
        put_u32(&mut out, self.skipped.len());
        for (key, reason) in &self.skipped {
            put_bytes(&mut out, key);
            put_bytes(&mut out, reason.as_bytes());
        }
        out
    }

    /// Reads a payload back. Errors: it is not one.
    pub fn decode(payload: &[u8]) -> Result<Self, BadRecord> {
        let mut fields = Fields(payload);
        let depth = match fields.u8()? {
            0 => Depth::One,
            1 => Depth::All,
            _ => return Err(BadRecord),
        };
        let prefix = fields.bytes()?.to_vec();
        let next = fields.option()?.map(<[u8]>::to_vec);
        let files = fields.list(|fields| {
            Ok(Listed {
                key: fields.bytes()?.to_vec(),
                size: fields.u64()?,
                mtime_ns: fields.i64()?,
                version: fields.version()?,
            })
        })?;
        let prefixes = fields.list(|fields| Ok(fields.bytes()?.to_vec()))?;
        let skipped = fields.list(|fields| {
            let key = fields.bytes()?.to_vec();
            Ok((key, Cow::Owned(fields.text()?.to_owned())))
        })?;
        fields.end()?;
        Ok(Self { prefix, depth, files, prefixes, skipped, next })
    }
}

/// A finished pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackRecord {
    /// Its number.
    pub pack: u32,
    /// Its key below the destination.
    pub key: Vec<u8>,
    /// Bytes.
    pub size: u64,
    /// Its version at the destination.
    pub version: Version,
    /// The first file of the manifest that is in it.
    pub first_file: u32,
    /// One past the last.
    pub end_file: u32,
    /// CRC32C of each block of its files, in order.
    pub block_crcs: Vec<u32>,
}

impl PackRecord {
    /// The record as a frame's payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128 + 4 * self.block_crcs.len());
        out.extend_from_slice(&self.pack.to_le_bytes());
        put_bytes(&mut out, &self.key);
        out.extend_from_slice(&self.size.to_le_bytes());
        put_version(&mut out, &self.version);
        out.extend_from_slice(&self.first_file.to_le_bytes());
        out.extend_from_slice(&self.end_file.to_le_bytes());
        put_u32(&mut out, self.block_crcs.len());
        self.block_crcs.iter().for_each(|crc| out.extend_from_slice(&crc.to_le_bytes()));
        out
    }

    /// Reads a payload back. Errors: it is not one.
    pub fn decode(payload: &[u8]) -> Result<Self, BadRecord> {
        let mut fields = Fields(payload);
        let record = Self {
            pack: fields.u32()?,
            key: fields.bytes()?.to_vec(),
            size: fields.u64()?,
            version: fields.version()?,
            first_file: fields.u32()?,
            end_file: fields.u32()?,
            block_crcs: fields.list(Fields::u32)?,
        };
        fields.end()?;
        Ok(record)
    }
}

/// A list longer than u32 would be longer than a frame, which `append` refuses.
fn put_u32(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(&(len as u32).to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_option(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    out.push(u8::from(bytes.is_some()));
    if let Some(bytes) = bytes {
        put_bytes(out, bytes);
    }
}

fn put_version(out: &mut Vec<u8>, version: &Version) {
    match version {
        Version::MtimeSize { mtime_ns, size } => {
            out.push(0);
            out.extend_from_slice(&mtime_ns.to_le_bytes());
            out.extend_from_slice(&size.to_le_bytes());
        }
        Version::ETag(etag) => {
            out.push(1);
            put_bytes(out, etag.as_bytes());
        }
    }
}

/// What is left of a payload.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], BadRecord> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(BadRecord)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadRecord> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(BadRecord)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, BadRecord> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    fn u32(&mut self) -> Result<u32, BadRecord> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, BadRecord> {
        self.array().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Result<i64, BadRecord> {
        self.array().map(i64::from_le_bytes)
    }

    fn bytes(&mut self) -> Result<&'a [u8], BadRecord> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    fn text(&mut self) -> Result<&'a str, BadRecord> {
        std::str::from_utf8(self.bytes()?).map_err(|_| BadRecord)
    }

    fn option(&mut self) -> Result<Option<&'a [u8]>, BadRecord> {
        match self.u8()? {
            0 => Ok(None),
            1 => self.bytes().map(Some),
            _ => Err(BadRecord),
        }
    }

    fn version(&mut self) -> Result<Version, BadRecord> {
        match self.u8()? {
            0 => Ok(Version::MtimeSize { mtime_ns: self.i64()?, size: self.u64()? }),
            1 => Ok(Version::ETag(self.text()?.to_owned())),
            _ => Err(BadRecord),
        }
    }

    /// Each item takes at least a byte, so a count that promises more than what is left fails on the way there.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T, BadRecord>) -> Result<Vec<T>, BadRecord> {
        let count = self.u32()?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn end(self) -> Result<(), BadRecord> {
        if self.0.is_empty() { Ok(()) } else { Err(BadRecord) }
    }
}

#[cfg(test)]
mod tests;
