//! Maps a manifest file. The kernel's page cache then holds it once for all readers and can evict it under memory
//! pressure. Rows that the disk fails to read again are errors for their readers, until the disk gives them.

use std::fmt;
use std::fs::{File, Permissions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use larder_dataset::size::{exact_bytes, show_bytes};
use larder_dataset::{Manifest, ManifestBytes, ManifestError, SnapshotId};
use larder_store::Mapping;
use rustix::fs::{AtFlags, CWD};
use tempfile::NamedTempFile;

/// A manifest read in place from a mapped file.
pub type MappedManifest = Manifest<ManifestFile>;

/// The bytes of a manifest file.
#[derive(Debug)]
pub struct ManifestFile(Mapping);

impl AsRef<[u8]> for ManifestFile {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl ManifestBytes for ManifestFile {
    fn losses(&self) -> u32 {
        self.0.losses()
    }

    fn read_again(&self, ranges: &[Range<usize>]) -> bool {
        self.0.read_again(ranges)
    }

    fn will_read(&self, range: Range<usize>) {
        self.0.will_read(range);
    }
}

/// Where the order of a manifest is, if it has one: the list of what its readers need first, as
/// [`larder_dataset::selection`] reads it. It lies beside the manifest and is no part of its snapshot.
pub fn order_of(manifest: &Path) -> PathBuf {
    let mut order = manifest.as_os_str().to_owned();
    order.push(ORDER_SUFFIX);
    order.into()
}

/// Suffix of an order's name: that of its manifest, and this.
pub const ORDER_SUFFIX: &str = ".order";

/// The largest order: a list of about a million names. Longer ones name folders or patterns instead.
const ORDER_BYTES_MOST: u64 = 64 << 20;

/// Checks the size of the order `name`. Errors: it is too large, in words.
pub fn check_order_size(name: &impl fmt::Display, bytes: u64) -> Result<(), String> {
    if bytes <= ORDER_BYTES_MOST {
        return Ok(());
    }
    let (has, most) = (show_bytes(bytes), exact_bytes(ORDER_BYTES_MOST));
    Err(format!(
        "the order {name} has {has}, more than the {most} that an order may have: name folders or patterns in it \
         instead of files"
    ))
}

/// How the names of orders begin that are being written.
const DRAFT_PREFIX: &str = ".larder-order-";

/// A file for a new order of the manifest `of`, which [`store_order`] puts in place. It is removed if that does not
/// happen.
pub(crate) fn draft_order(of: &Path) -> io::Result<NamedTempFile> {
    // As for a manifest, the umask decides who may read it.
    let readable = Permissions::from_mode(0o666);
    tempfile::Builder::new().prefix(DRAFT_PREFIX).permissions(readable).tempfile_in(folder_of(of))
}

/// Makes a draft the order of the manifest `of`. A reader finds the old one or the new one, whole, also after a power
/// cut. Blocks on the disk.
pub(crate) fn store_order(draft: NamedTempFile, of: &Path) -> io::Result<()> {
    draft.as_file().sync_all()?;
    draft.persist(order_of(of)).map_err(|error| error.error)?;
    File::open(folder_of(of))?.sync_all()
}

/// Removes the order of the manifest `of`, if it has one.
pub(crate) fn remove_order(of: &Path) -> io::Result<()> {
    match std::fs::remove_file(order_of(of)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Puts the order at `from` beside the manifest `of`, or removes the one that is there if there is none.
pub fn put_order(from: &Path, of: &Path) -> io::Result<()> {
    let mut from = match File::open(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return remove_order(of),
        opened => opened?,
    };
    let mut draft = draft_order(of)?;
    io::copy(&mut from, &mut draft)?;
    store_order(draft, of)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The reason that a manifest file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestFileError {
    /// It cannot be opened or mapped.
    #[error("open manifest {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It is not a valid manifest.
    #[error("{path}: {source}")]
    Manifest {
        /// The file.
        path: PathBuf,
        /// The flaw.
        source: ManifestError,
    },
}

/// Opens the manifest file at `path`. Nobody may change the file in place while it is open: Larder replaces a manifest
/// by renaming a new one over it. Errors name the file.
pub fn open_manifest(path: &Path) -> Result<MappedManifest, ManifestFileError> {
    let io = |source| ManifestFileError::Io { path: path.to_owned(), source };
    let manifest = |source| ManifestFileError::Manifest { path: path.to_owned(), source };
    let file = File::open(path).map_err(io)?;
    let len = usize::try_from(file.metadata().map_err(io)?.len()).map_err(|error| io(io::Error::other(error)))?;
    if len == 0 {
        return Err(manifest(ManifestError::NotAManifest));
    }
    let map = Mapping::new(file, len).map_err(io)?;
    Manifest::open(ManifestFile(map)).map_err(manifest)
}

/// Checks every row of a manifest file, in a mapping of it, and returns its snapshot. Blocking. Errors: the file cannot
/// be read; inside, the flaw.
pub fn verify_file(path: &Path) -> io::Result<Result<SnapshotId, ManifestError>> {
    match open_manifest(path) {
        Ok(manifest) => Ok(manifest.verify().map(|()| manifest.snapshot())),
        Err(ManifestFileError::Manifest { source, .. }) => Ok(Err(source)),
        Err(ManifestFileError::Io { source, .. }) => Err(source),
    }
}

/// Gives the file of an open manifest one more name, `to`, which must be free. Its first name may show another manifest
/// by now, which does not matter. A file on another disk, or without a name by now, is copied if `take` gives room for
/// its bytes; if that fails, `to` may be incomplete. Blocks on the disk.
pub(crate) fn link_manifest(
    manifest: &MappedManifest,
    to: &Path,
    take: impl FnOnce(u64) -> io::Result<()>,
) -> io::Result<()> {
    let opened = format!("/proc/self/fd/{}", manifest.holder().0.file().as_raw_fd());
    if rustix::fs::linkat(CWD, &opened, CWD, to, AtFlags::SYMLINK_FOLLOW).is_ok() {
        return Ok(());
    }
    take(manifest.len_bytes())?;
    let mut copy = File::create_new(to)?;
    io::copy(&mut File::open(opened)?, &mut copy)?;
    copy.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: C7
    #[test]
    fn an_order_is_replaced_whole_despite_drafts_of_killed_writers() {
        let folder = tempfile::tempdir().unwrap();
        let (manifest, list) = (folder.path().join("m.manifest"), folder.path().join("list"));
        let order = || std::fs::read_to_string(order_of(&manifest)).ok();
        std::fs::write(&list, "one").unwrap();
        put_order(&list, &manifest).unwrap();
        // Two writers at once, of which one is killed and the other is slower than a third.
        let (killed, mut slow) = (draft_order(&manifest).unwrap(), draft_order(&manifest).unwrap());
        std::mem::forget(killed);
        io::Write::write_all(&mut slow, b"slow, ").unwrap();
        std::fs::write(&list, "two").unwrap();
        put_order(&list, &manifest).unwrap();
        assert_eq!(order().as_deref(), Some("two"));
        io::Write::write_all(&mut slow, b"but whole").unwrap();
        store_order(slow, &manifest).unwrap();
        assert_eq!(order().as_deref(), Some("slow, but whole"));
        std::fs::remove_file(&list).unwrap();
        put_order(&list, &manifest).unwrap();
        put_order(&list, &manifest).unwrap();
        assert_eq!(order(), None);
    }
}
