//! The file `key` of a dataset's folder: the snapshot whose blocks are in it, and for whom.
//!
//! ```text
//!  0          8         9             41                  45      49      53
//!  | LARDERKY | version | snapshot 32 | place length u32 | place | owner length u32 | owner | crc32c of all before |
//! ```
//! The folder is named after the hash of the key, so a file that was damaged or belongs elsewhere is noticed.
//!
//! Invariant: the file is there before the first block is. Only versions that stored no keys left folders without it.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use larder_dataset::{CacheId, CacheKey, SnapshotId};

use crate::whole_file::{is_damaged, write_whole};

const MAGIC: [u8; 8] = *b"LARDERKY";
const VERSION: u8 = 1;
/// A larger file counts as damaged.
const FILE_BYTES: u64 = 64 << 10;

/// Reads the key of the cache `id` from its folder. None if there is no such file, or if it is damaged. Errors: the
/// file cannot be read now, for example for want of descriptors, and whose blocks the folder holds is unknown.
pub(crate) fn read(folder: &Path, id: CacheId) -> io::Result<Option<CacheKey>> {
    let mut bytes = Vec::new();
    match File::open(file_in(folder)).and_then(|file| file.take(FILE_BYTES).read_to_end(&mut bytes)) {
        Ok(_) => Ok(decode(&bytes).filter(|key| key.id() == id)),
        Err(error) if error.kind() == io::ErrorKind::NotFound || is_damaged(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes the key of the cache in `folder`. Blocks on the disk.
pub(crate) fn write(folder: &Path, key: &CacheKey) -> io::Result<()> {
    write_whole(&file_in(folder), &encode(key))
}

fn file_in(folder: &Path) -> PathBuf {
    folder.join("key")
}

fn encode(key: &CacheKey) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    file.push(VERSION);
    file.extend(key.snapshot().0);
    for text in [key.place(), key.owner()] {
        file.extend((text.len() as u32).to_le_bytes());
        file.extend(text.as_bytes());
    }
    file.extend(larder_dataset::crc32c(&file).to_le_bytes());
    file
}

/// Decodes the file. None if it is of another version or damaged.
fn decode(file: &[u8]) -> Option<CacheKey> {
    let (file, crc) = file.split_last_chunk::<4>()?;
    if u32::from_le_bytes(*crc) != larder_dataset::crc32c(file) {
        return None;
    }
    let (snapshot, mut rest) = file.strip_prefix(&MAGIC)?.strip_prefix(&[VERSION])?.split_first_chunk()?;
    let (place, owner) = (text(&mut rest)?, text(&mut rest)?);
    rest.is_empty().then(|| CacheKey::new(SnapshotId(*snapshot), place, owner))
}

fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let (len, after) = rest.split_first_chunk()?;
    let (text, after) = after.split_at_checked(u32::from_le_bytes(*len).try_into().ok()?)?;
    *rest = after;
    str::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> CacheKey {
        CacheKey::new(SnapshotId([1; 32]), "http://a", "uid")
    }

    #[test]
    fn the_file_is_still_written_and_read_as_version_1() {
        let mut golden = b"LARDERKY\x01".to_vec();
        golden.extend([1; 32]);
        golden.extend(b"\x08\0\0\0http://a\x03\0\0\0uid");
        assert_eq!(encode(&key())[..golden.len()], golden);
        assert_eq!((encode(&key()).len(), decode(&encode(&key()))), (golden.len() + 4, Some(key())));
    }

    #[test]
    fn damaged_bytes_decode_to_nothing_and_never_panic() {
        let file = encode(&key());
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
    fn a_key_of_another_folder_is_no_key() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &key()).unwrap();
        assert_eq!(read(folder.path(), key().id()).unwrap(), Some(key()));
        assert_eq!(read(folder.path(), CacheId([2; 32])).unwrap(), None);
        assert_eq!(read(&folder.path().join("none"), key().id()).unwrap(), None);
        // Opening a link to itself fails, and says nothing about a key.
        std::fs::remove_file(file_in(folder.path())).unwrap();
        std::os::unix::fs::symlink("key", file_in(folder.path())).unwrap();
        read(folder.path(), key().id()).unwrap_err();
    }
}
