//! Reference folders with reproducible content.
//!
//! The invariant: the bytes of a file depend only on the tree's seed and the file's number, so the seed is enough to
//! repeat a failed test.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Number of files in one folder of a tree.
const FOLDER_FILES: usize = 100;

/// A folder with files, removed when dropped.
#[derive(Debug)]
pub struct TempTree {
    folder: tempfile::TempDir,
    seed: u64,
    files: Vec<(PathBuf, u64)>,
}

impl TempTree {
    /// Creates one file per size: `00000/0000000.bin` and so on, a hundred in each folder.
    pub fn new(seed: u64, sizes: impl IntoIterator<Item = u64>) -> io::Result<Self> {
        let mut tree = Self { folder: tempfile::tempdir()?, seed, files: Vec::new() };
        for (number, size) in sizes.into_iter().enumerate() {
            tree.add(format!("{:05}/{number:07}.bin", number / FOLDER_FILES), size)?;
        }
        Ok(tree)
    }

    /// Adds a file of seeded bytes at a path below the root, which need not be UTF-8.
    pub fn add(&mut self, path: impl Into<PathBuf>, size: u64) -> io::Result<()> {
        let path = path.into();
        let target = self.folder.path().join(&path);
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(target, seeded_bytes(self.file_seed(self.files.len()), size))?;
        self.files.push((path, size));
        Ok(())
    }

    /// The root.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The root as an origin's URL.
    pub fn url(&self) -> String {
        format!("file://{}", self.folder.path().display())
    }

    /// The files' paths below the root and their sizes, in the order in which they were made.
    pub fn files(&self) -> &[(PathBuf, u64)] {
        &self.files
    }

    /// The expected bytes of a file.
    pub fn bytes(&self, number: usize) -> Vec<u8> {
        seeded_bytes(self.file_seed(number), self.files[number].1)
    }

    /// A file's path below the root as a key.
    pub fn key(&self, number: usize) -> Vec<u8> {
        OsString::from(&self.files[number].0).into_vec()
    }

    /// The number of the file at a path below the root.
    pub fn number(&self, path: impl AsRef<Path>) -> Option<usize> {
        let wanted = path.as_ref().as_os_str().as_bytes();
        self.files.iter().position(|(path, _)| path.as_os_str().as_bytes() == wanted)
    }

    fn file_seed(&self, number: usize) -> u64 {
        self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number as u64
    }
}

/// Incompressible bytes, derived from a seed with SplitMix64.
pub fn seeded_bytes(seed: u64, size: u64) -> Vec<u8> {
    let size = usize::try_from(size).expect("a test file fits into memory");
    let mut bytes = Vec::with_capacity(size + 8);
    let mut state = seed;
    while bytes.len() < size {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bytes.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_those_that_the_seed_tells() {
        let tree = TempTree::new(7, [0, 1, 4097]).expect("a tree");
        for (number, (path, size)) in tree.files().iter().enumerate() {
            let bytes = std::fs::read(tree.path().join(path)).expect("read");
            assert_eq!(bytes.len() as u64, *size);
            assert_eq!(bytes, tree.bytes(number));
            assert_eq!(tree.number(path), Some(number));
        }
        assert_ne!(tree.bytes(2), TempTree::new(8, [0, 1, 4097]).expect("a tree").bytes(2));
    }
}
