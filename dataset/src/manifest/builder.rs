//! Makes a manifest from a listing in any order.
//!
//! Invariant: the same files of the same origin give the same bytes and snapshot id, in whatever order they were listed,
//! except for the creation time in the header. A name that cannot be a file's is never in the tree:
//! [`ManifestBuilder::push`] refuses it at once, and [`ManifestBuilder::finish`] returns those that a folder shadows.

use super::built::{BuildError, Built, RejectedKey, limit};
use super::layout::{StringRef, tag};
use super::tree::FolderTree;
use super::version_tag::{VersionTag, parse_md5};
use super::writer::{FileRow, Writer};
use crate::name::{self, NameRules, Rejection};

/// One file of a plain snapshot, to be added to a manifest.
#[derive(Clone, Debug)]
pub struct PlainFile<'a> {
    /// Its path, which is its key below the origin.
    pub path: &'a [u8],
    /// Size in bytes.
    pub size: u64,
    /// Time of last modification, nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// The version that its bytes are bound to.
    pub version: VersionTag<'a>,
}

/// One file of a packed snapshot, to be added to a manifest.
#[derive(Clone, Debug)]
pub struct PackedFile<'a> {
    /// Its path.
    pub path: &'a [u8],
    /// Size in bytes.
    pub size: u64,
    /// Time of last modification, nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// Number of its pack.
    pub pack: u32,
    /// Offset of its first byte in the pack.
    pub offset: u64,
    /// CRC32C of each of its blocks.
    pub block_crcs: &'a [u32],
}

/// A pack as it was written.
#[derive(Clone, Debug)]
pub struct PackObject {
    /// Its key below the origin.
    pub key: Vec<u8>,
    /// Size in bytes.
    pub size: u64,
    /// Its ETag; empty for a local folder.
    pub etag: String,
}

/// A file that was added: its row, and where its path is in the builder's `paths`.
struct AddedFile {
    path_at: u64,
    path_len: u16,
    row: FileRow,
}

/// Collects a listing, in about 70 bytes per file and its path, and makes a [`Manifest`](crate::Manifest) of it.
///
/// ```
/// use larder_dataset::manifest::{BuildError, PlainFile};
/// use larder_dataset::{ManifestBuilder, NameRules, Rejection, VersionTag};
///
/// let mut builder = ManifestBuilder::new();
/// let mut push = |path: &[u8]| {
///     let version = VersionTag::ETag("\"0123456789abcdef0123456789abcdef\"".into());
///     builder.push(&PlainFile { path, size: 5, mtime_ns: 0, version }, NameRules::OBJECT_STORE)
/// };
/// assert_eq!(push(b"../escape"), Err(Rejection::DotPart));
/// assert_eq!(push(b"a/b"), Ok(()));
/// assert_eq!(push(b"a"), Ok(()));
///
/// let built = builder.finish("letters", "s3://bucket/letters", 0)?;
/// assert_eq!(built.totals.files, 1);
/// // `a` cannot be a file beside the folder of `a/b`.
/// assert_eq!(built.rejected[0].reason, Rejection::ShadowedByFolder);
/// # Ok::<(), BuildError>(())
/// ```
#[derive(Default)]
pub struct ManifestBuilder {
    paths: Vec<u8>,
    files: Vec<AddedFile>,
    etags: Vec<u8>,
    crcs: Vec<u32>,
    /// Paths of folder markers, so that empty folders are kept.
    markers: Vec<Vec<u8>>,
    packs: Option<Vec<PackObject>>,
}

impl std::fmt::Debug for ManifestBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManifestBuilder").field("files", &self.files.len()).finish_non_exhaustive()
    }
}

impl ManifestBuilder {
    /// An empty builder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of files added so far.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Adds a file of a plain snapshot. Errors: its key cannot be a file name; nothing was added.
    pub fn push(&mut self, file: &PlainFile<'_>, rules: NameRules) -> Result<(), Rejection> {
        name::check(file.path, rules)?;
        let (tag, version) = match &file.version {
            VersionTag::MtimeSize { .. } => (u32::from(tag::MTIME_SIZE), [0; 16]),
            VersionTag::ETag(etag) => match parse_md5(etag) {
                Some((md5, parts)) => (u32::from(tag::MD5) | parts << 8, md5),
                None => {
                    // An ETag is a header's value, far below 64 KiB. A truncated one would match nothing, not the wrong
                    // version.
                    let etag = &etag.as_bytes()[..etag.len().min(usize::from(u16::MAX))];
                    let at = StringRef::new(self.etags.len() as u64, etag.len() as u16);
                    self.etags.extend_from_slice(etag);
                    let mut version = [0; 16];
                    version[..8].copy_from_slice(&at.0.to_le_bytes());
                    (u32::from(tag::HEAP), version)
                }
            },
        };
        self.add(file.path, FileRow { tag, size: file.size, mtime_ns: file.mtime_ns, version, crcs_at: 0 });
        Ok(())
    }

    /// Adds a file of a packed snapshot. `block_crcs` has one entry for each block. Errors: its path cannot be a file
    /// name; nothing was added.
    pub fn push_packed(&mut self, file: &PackedFile<'_>) -> Result<(), Rejection> {
        name::check(file.path, NameRules::FOLDER)?;
        let mut version = [0; 16];
        version[..4].copy_from_slice(&file.pack.to_le_bytes());
        version[8..].copy_from_slice(&file.offset.to_le_bytes());
        let crcs_at = self.crcs.len() as u32;
        self.crcs.extend_from_slice(file.block_crcs);
        let tag = u32::from(tag::PACKED);
        self.add(file.path, FileRow { tag, size: file.size, mtime_ns: file.mtime_ns, version, crcs_at });
        Ok(())
    }

    /// Sets the packs, which makes the snapshot a packed one.
    pub fn set_packs(&mut self, packs: Vec<PackObject>) {
        self.packs = Some(packs);
    }

    /// Adds a folder that has a marker of its own, so that it exists even if it is empty.
    pub fn push_folder(&mut self, path: &[u8], rules: NameRules) -> Result<(), Rejection> {
        name::check(path, rules)?;
        self.markers.push(path.to_vec());
        Ok(())
    }

    fn add(&mut self, path: &[u8], row: FileRow) {
        let path_at = self.paths.len() as u64;
        self.paths.extend_from_slice(path);
        // PATH_MAX is below 64 KiB, and `check` has seen the path.
        self.files.push(AddedFile { path_at, path_len: path.len() as u16, row });
    }

    /// Sorts and numbers the rows and writes the manifest. `origin` is the URL below which the files (or packs) are.
    pub fn finish(mut self, name: &str, origin: &str, created_ns: i64) -> Result<Built, BuildError> {
        let paths = std::mem::take(&mut self.paths);
        let path = |file: &AddedFile| &paths[file.path_at as usize..file.path_at as usize + usize::from(file.path_len)];
        self.files.sort_unstable_by(|a, b| name::split(path(a)).cmp(&name::split(path(b))));
        drop_repeats(&mut self.files, path)?;

        let tree = FolderTree::new(self.files.iter().map(|file| name::split(path(file)).0), &self.markers)?;
        let mut rejected = Vec::new();
        self.files.retain(|file| {
            let shadowed = tree.index_of.contains_key(path(file));
            if shadowed {
                rejected.push(RejectedKey { key: path(file).to_vec(), reason: Rejection::ShadowedByFolder });
            }
            !shadowed
        });
        limit("files", self.files.len() as u64)?;

        // Files are grouped by folder already; put the groups into the folders' order.
        let folder_of = |file: &AddedFile| tree.index_of[name::split(path(file)).0];
        self.files.sort_by_key(folder_of);

        let mut writer = Writer::new(&self.etags, &self.crcs, self.packs.is_some());
        writer.folders(&tree, self.files.iter().map(folder_of))?;
        for file in &self.files {
            writer.file(&file.row, folder_of(file), name::split(path(file)).1)?;
        }
        for pack in self.packs.iter().flatten() {
            writer.pack(&pack.key, pack.size, &pack.etag)?;
        }
        writer.finish(name, origin, created_ns, rejected)
    }
}

/// A resumed listing may name a file twice. The same file is kept once; two different ones are an error.
fn drop_repeats<'a>(files: &mut Vec<AddedFile>, path: impl Fn(&AddedFile) -> &'a [u8]) -> Result<(), BuildError> {
    let same = |a: &FileRow, b: &FileRow| (a.size, a.mtime_ns, a.tag as u8) == (b.size, b.mtime_ns, b.tag as u8);
    let changed = |pair: &[AddedFile]| path(&pair[0]) == path(&pair[1]) && !same(&pair[0].row, &pair[1].row);
    if let Some(pair) = files.windows(2).find(|pair| changed(pair)) {
        return Err(BuildError::ChangedWhileListed { path: path(&pair[0]).escape_ascii().to_string() });
    }
    files.dedup_by(|a, b| path(a) == path(b));
    Ok(())
}
