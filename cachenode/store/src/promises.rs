//! The promises of a store. A promise keeps space for one snapshot, and no other dataset may use that space. It counts
//! whether or not the snapshot is open or any of its blocks are cached.
//!
//! ```text
//!  promises, little-endian:
//!  0          8         9           13
//!  | LARDERPM | version | count u32 | promises | crc32c u32 of all before |
//!  a promise: snapshot 32, wanted u64, kept u64, length u16 and text of the holder, the same of the name
//! ```
//! A damaged file counts as missing, since the controller repeats its promises.
//!
//! Invariant: [`Promises::put`] returns success only after the change is synced. On an error it changes nothing.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_dataset::SnapshotId;
use tracing::warn;

use crate::folder::write_whole;

const MAGIC: [u8; 8] = *b"LARDERPM";
const VERSION: u8 = 1;
/// A larger file counts as damaged.
const FILE_BYTES: u64 = 4 << 20;

/// Space in the cache that is reserved for one snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The snapshot that the space is for.
    pub snapshot: SnapshotId,
    /// The party that the promise is made to. One snapshot may have promises to several holders; the largest of them
    /// counts.
    pub holder: String,
    /// The dataset's name, for logs and listings.
    pub name: String,
    /// Disk bytes that were requested.
    pub wanted_disk_bytes: u64,
    /// The part of `wanted_disk_bytes` for which there was space.
    pub disk_bytes: u64,
}

/// The promises of a store: in memory, and in the file `promises` of its folder.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    made: Mutex<Vec<Promise>>,
    /// Held during a write. Reading the promises never waits for the disk.
    file: Mutex<Option<PathBuf>>,
}

impl Promises {
    pub(crate) fn load(file: PathBuf) -> Self {
        let made = read(&file).unwrap_or_else(|error| {
            warn!(
                ?file, %error,
                "cannot read the promises of the cache: each counts again once it is made again"
            );
            Vec::new()
        });
        Self { made: Mutex::new(made), file: Mutex::new(Some(file)) }
    }

    pub(crate) fn all(&self) -> Vec<Promise> {
        self.lock().clone()
    }

    /// Replaces all promises. Blocks on the disk. Errors: the promises cannot be written; the previous ones stay in
    /// force.
    pub(crate) fn put(&self, promises: Vec<Promise>) -> io::Result<()> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if *self.lock() == promises {
            return Ok(());
        }
        match &*file {
            Some(file) => write_whole(file, &encode(&promises))?,
            // Without a folder nothing is cached, so no space can be promised.
            None => return Err(io::ErrorKind::NotFound.into()),
        }
        *self.lock() = promises;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Promise>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(file: &Path) -> io::Result<Vec<Promise>> {
    let mut bytes = Vec::new();
    match File::open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?.take(FILE_BYTES).read_to_end(&mut bytes)?,
    };
    decode(&bytes).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "damaged, or of another version"))
}

fn encode(promises: &[Promise]) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    file.push(VERSION);
    file.extend((promises.len() as u32).to_le_bytes());
    for promise in promises {
        file.extend(promise.snapshot.0);
        file.extend(promise.wanted_disk_bytes.to_le_bytes());
        file.extend(promise.disk_bytes.to_le_bytes());
        for text in [&promise.holder, &promise.name] {
            let bytes = &text.as_bytes()[..text.len().min(u16::MAX.into())];
            file.extend((bytes.len() as u16).to_le_bytes());
            file.extend(bytes);
        }
    }
    file.extend(larder_dataset::crc32c(&file).to_le_bytes());
    file
}

/// Decodes the file. None if it is of another version or damaged.
fn decode(file: &[u8]) -> Option<Vec<Promise>> {
    let (file, crc) = file.split_last_chunk::<4>()?;
    if u32::from_le_bytes(*crc) != larder_dataset::crc32c(file) {
        return None;
    }
    let mut rest = file.strip_prefix(&MAGIC)?.strip_prefix(&[VERSION])?;
    let count = u32::from_le_bytes(*take(&mut rest)?);
    let mut promises = Vec::new();
    for _ in 0..count {
        promises.push(Promise {
            snapshot: SnapshotId(*take(&mut rest)?),
            wanted_disk_bytes: u64::from_le_bytes(*take(&mut rest)?),
            disk_bytes: u64::from_le_bytes(*take(&mut rest)?),
            holder: text(&mut rest)?,
            name: text(&mut rest)?,
        });
    }
    rest.is_empty().then_some(promises)
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (first, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(first)
}

fn text(rest: &mut &[u8]) -> Option<String> {
    let len = u16::from_le_bytes(*take(rest)?);
    let (text, after) = rest.split_at_checked(len.into())?;
    *rest = after;
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn promise(number: u8) -> Promise {
        Promise {
            snapshot: SnapshotId([number; 32]),
            holder: format!("uid-{number}"),
            name: "team-a/pets".into(),
            wanted_disk_bytes: 1 << 40,
            disk_bytes: number.into(),
        }
    }

    #[test]
    fn the_file_is_still_written_and_read_as_version_1() {
        let file = encode(&[promise(1)]);
        let mut golden = b"LARDERPM\x01\x01\0\0\0".to_vec();
        golden.extend([1; 32]);
        golden.extend(b"\0\0\0\0\0\x01\0\0\x01\0\0\0\0\0\0\0\x05\0uid-1\x0b\0team-a/pets");
        assert_eq!(file[..file.len() - 4], golden);
        assert_eq!(decode(&file), Some(vec![promise(1)]));
    }

    #[test]
    fn damaged_bytes_decode_to_nothing_and_never_panic() {
        let file = encode(&[promise(1), promise(2)]);
        for cut in 0..file.len() {
            assert_eq!(decode(&file[..cut]), None);
            // The checksum is valid, so the decoder must reject the content itself.
            let mut sealed = file[..cut].to_vec();
            sealed.extend(larder_dataset::crc32c(&sealed).to_le_bytes());
            assert!(cut + 4 == file.len() || decode(&sealed).is_none(), "{cut}");
        }
        for at in 0..file.len() {
            let mut flipped = file.clone();
            flipped[at] ^= 1;
            assert_eq!(decode(&flipped), None);
        }
    }

    #[test]
    fn promises_that_cannot_be_written_are_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("promises");
        let promises = Promises::load(file.clone());
        promises.put(vec![promise(1)]).unwrap();
        // A folder blocks the path of the temporary file, so the write fails.
        std::fs::create_dir(folder.path().join("promises.new")).unwrap();
        promises.put(vec![promise(2)]).unwrap_err();
        assert_eq!((promises.all(), Promises::load(file).all()), (vec![promise(1)], vec![promise(1)]));
        Promises::default().put(vec![promise(1)]).unwrap_err();
    }
}
