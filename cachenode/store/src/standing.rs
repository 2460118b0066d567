//! A list that stands until it is replaced, also for later processes: in memory, and in a file of the cache folder.
//!
//! ```text
//!  little-endian:
//!  0       8         9           13
//!  | magic | version | count u32 | entries | crc32c u32 of all before |
//! ```
//! A damaged file counts as missing, since the controller repeats what it asked for.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::warn;

use crate::whole_file::write_whole;

/// A larger file counts as damaged.
const FILE_BYTES: u64 = 4 << 20;

/// An entry of such a list.
pub(crate) trait Entry: Clone + PartialEq {
    /// The first bytes of the file.
    const MAGIC: [u8; 8];
    /// The version that is written.
    const VERSION: u8;
    /// The entries, for logs.
    const NAME: &'static str;

    fn encode(&self, file: &mut Vec<u8>);

    /// Decodes an entry of a file of this version and advances `rest`. None if it is damaged, or the version unknown.
    fn decode(version: u8, rest: &mut &[u8]) -> Option<Self>;
}

/// The list.
#[derive(Debug)]
pub(crate) struct Standing<T> {
    entries: Mutex<Vec<T>>,
    /// Held during a write. Reading the entries never waits for the disk.
    disk: Mutex<OnDisk>,
}

#[derive(Debug, Default)]
struct OnDisk {
    file: Option<PathBuf>,
    /// True if the file does not have the entries in memory.
    is_behind: bool,
}

impl<T> Default for Standing<T> {
    fn default() -> Self {
        Self { entries: Mutex::default(), disk: Mutex::default() }
    }
}

impl<T: Entry> Standing<T> {
    pub(crate) fn load(file: PathBuf) -> Self {
        let entries = read(&file).unwrap_or_else(|error| {
            warn!(
                ?file, %error,
                "cannot read the {} of the cache: they count again once the controller has repeated them", T::NAME
            );
            Vec::new()
        });
        Self { entries: Mutex::new(entries), disk: Mutex::new(OnDisk { file: Some(file), is_behind: false }) }
    }

    pub(crate) fn all(&self) -> Vec<T> {
        self.lock().clone()
    }

    /// Replaces all entries, once that is synced. Blocks on the disk. Errors: they cannot be written; the previous ones
    /// stay in force.
    pub(crate) fn put(&self, entries: Vec<T>) -> io::Result<()> {
        let disk = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        if *self.lock() == entries {
            return Ok(());
        }
        disk.write(&entries)?;
        *self.lock() = entries;
        Ok(())
    }

    /// Replaces all entries at once, and for later processes. Blocks on the disk. Errors: they cannot be written, so
    /// they count for this process only until a later call succeeds.
    pub(crate) fn impose(&self, entries: Vec<T>) -> io::Result<()> {
        let mut disk = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        if !disk.is_behind && *self.lock() == entries {
            return Ok(());
        }
        *self.lock() = entries.clone();
        let written = disk.write(&entries);
        disk.is_behind = written.is_err();
        written
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OnDisk {
    fn write<T: Entry>(&self, entries: &[T]) -> io::Result<()> {
        // Without a folder nothing is cached.
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        write_whole(file, &encode(entries))
    }
}

fn read<T: Entry>(file: &Path) -> io::Result<Vec<T>> {
    let mut bytes = Vec::new();
    match File::open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?.take(FILE_BYTES).read_to_end(&mut bytes)?,
    };
    decode(&bytes).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "damaged, or of another version"))
}

pub(crate) fn encode<T: Entry>(entries: &[T]) -> Vec<u8> {
    let mut file = T::MAGIC.to_vec();
    file.push(T::VERSION);
    file.extend((entries.len() as u32).to_le_bytes());
    entries.iter().for_each(|entry| entry.encode(&mut file));
    file.extend(larder_dataset::crc32c(&file).to_le_bytes());
    file
}

/// Decodes the file. None if it is of another version or damaged.
pub(crate) fn decode<T: Entry>(file: &[u8]) -> Option<Vec<T>> {
    let (file, crc) = file.split_last_chunk::<4>()?;
    if u32::from_le_bytes(*crc) != larder_dataset::crc32c(file) {
        return None;
    }
    let (&version, mut rest) = file.strip_prefix(&T::MAGIC)?.split_first()?;
    let count = u32::from_le_bytes(*take(&mut rest)?);
    let mut entries = Vec::new();
    for _ in 0..count {
        entries.push(T::decode(version, &mut rest)?);
    }
    // A list without entries has nothing else that says whether its version is known.
    (rest.is_empty() && version <= T::VERSION).then_some(entries)
}

pub(crate) fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (first, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(first)
}

/// Appends a text with its length in front, cut to 64 KiB.
pub(crate) fn put_text(file: &mut Vec<u8>, text: &str) {
    let bytes = &text.as_bytes()[..text.len().min(u16::MAX.into())];
    file.extend((bytes.len() as u16).to_le_bytes());
    file.extend(bytes);
}

pub(crate) fn take_text(rest: &mut &[u8]) -> Option<String> {
    let len = u16::from_le_bytes(*take(rest)?);
    let (text, after) = rest.split_at_checked(len.into())?;
    *rest = after;
    Some(String::from_utf8_lossy(text).into_owned())
}

/// Tests a format on these entries: a file that is cut or of which a bit is flipped decodes to nothing.
#[cfg(test)]
pub(crate) fn assert_no_damage_decodes<T: Entry + std::fmt::Debug>(entries: &[T]) {
    let file = encode(entries);
    assert_eq!(decode(&file).as_deref(), Some(entries));
    for cut in 0..file.len() {
        assert_eq!(decode::<T>(&file[..cut]), None);
        // The checksum is valid, so the decoder must reject the content itself.
        let mut sealed = file[..cut].to_vec();
        sealed.extend(larder_dataset::crc32c(&sealed).to_le_bytes());
        assert!(cut + 4 == file.len() || decode::<T>(&sealed).is_none(), "{cut}");
    }
    for at in 0..file.len() {
        let mut flipped = file.clone();
        flipped[at] ^= 1;
        assert_eq!(decode::<T>(&flipped), None);
    }
}
