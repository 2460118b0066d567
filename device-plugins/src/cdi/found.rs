//! The devices in other programs' CDI files. These files appear and disappear while we run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::decode::{self, Format};
use crate::names::CLAIM_FILE;

/// At most this many files of a folder are read.
const FILES_MOST: usize = 256;

/// Looks for devices in folders of CDI files. A file is read again only when it has changed.
#[derive(Debug)]
pub struct Found {
    folders: Vec<PathBuf>,
    read: Mutex<BTreeMap<PathBuf, Known>>,
}

/// The version of a file that was read, and the names in it.
type Known = (Version, Arc<[String]>);

/// Differs when a file has changed: device, inode, size and change time.
type Version = (u64, u64, u64, (i64, i64));

impl Found {
    pub fn new(folders: Vec<PathBuf>) -> Self {
        Self { folders, read: Mutex::default() }
    }

    /// The qualified names of all devices in the folders now. Blocks.
    pub fn names(&self) -> BTreeSet<String> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let mut now = BTreeMap::new();
        for folder in &self.folders {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let others =
                entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(CLAIM_FILE.as_bytes()));
            let files = others.filter_map(|entry| Some((format(&entry.path())?, entry.path())));
            for (format, path) in files.take(FILES_MOST) {
                let Some(version) =
                    std::fs::metadata(&path).ok().filter(Metadata::is_file).map(|found| version(&found))
                else {
                    continue;
                };
                let names = match read.remove(&path) {
                    Some((known, names)) if known == version => names,
                    _ => decode::names(&contents(&path), format).into(),
                };
                now.insert(path, (version, names));
            }
        }
        *read = now;
        read.values().flat_map(|(_, names)| names.iter().cloned()).collect()
    }
}

fn format(path: &Path) -> Option<Format> {
    match path.extension()?.to_str()? {
        "json" => Some(Format::Json),
        "yaml" => Some(Format::Yaml),
        _ => None,
    }
}

fn version(found: &Metadata) -> Version {
    (found.dev(), found.ino(), found.size(), (found.ctime(), found.ctime_nsec()))
}

/// The file's content, cut one byte after the size limit so that the decoder can recognize a file that is too large.
/// Empty if the file cannot be read.
fn contents(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(decode::BYTES_MOST as u64 + 1).read_to_end(&mut bytes));
    if read.is_ok() { bytes } else { Vec::new() }
}
