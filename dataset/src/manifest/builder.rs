//! Builds a manifest from a listing in any order.
//!
//! Invariant: the same files of the same origin give the same bytes and snapshot id, in any order of listing. Only the
//! creation time in the header differs. A key that cannot be a file name is never in the tree:
//! [`ManifestBuilder::push`] rejects it immediately, and [`ManifestBuilder::finish`] returns the keys that a folder
//! shadows.

use super::built::{BuildError, Built, RejectedKey};
use super::encoder::{DirRow, FileRow, RowEncoder};
use super::layout::tag;
use super::rows::{DirIndex, FileIndex, LinkTarget};
use super::tree::FolderTree;
use super::version_tag::VersionTag;
use crate::block;
use crate::name::{self, NameRules, Rejection};
use crate::snapshot::SnapshotId;

/// A file of a plain snapshot, for [`ManifestBuilder::push`].
#[derive(Clone, Debug)]
pub struct PlainFile<'a> {
    /// The file's path, which is also its key below the origin.
    pub path: &'a [u8],
    /// Size in bytes.
    pub size: u64,
    /// The time of the last modification, in nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// The version of the object. Its bytes are served only while the origin has this version.
    pub version: VersionTag<'a>,
}

/// A file of a packed snapshot, for [`ManifestBuilder::push_packed`].
#[derive(Clone, Debug)]
pub struct PackedFile<'a> {
    /// The file's path.
    pub path: &'a [u8],
    /// Size in bytes.
    pub size: u64,
    /// The time of the last modification, in nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// The number of the pack that contains the file.
    pub pack: u32,
    /// The offset of the file's first byte in the pack.
    pub offset: u64,
    /// The CRC32C of each of the file's blocks, in order.
    pub block_crcs: &'a [u32],
}

/// A pack that was written to the origin.
#[derive(Clone, Debug)]
pub struct PackObject {
    /// The pack's key below the origin.
    pub key: Vec<u8>,
    /// Size in bytes.
    pub size: u64,
    /// The pack's ETag; empty for a local folder.
    pub etag: String,
}

/// A file that was added: its row, and the position of its path in the builder's `strings`.
struct AddedFile {
    path_at: u64,
    path_len: u16,
    /// The length of the file's ETag, which follows the path.
    etag_len: u16,
    tag: u32,
    size: u64,
    mtime_ns: i64,
    version: [u8; 16],
    /// The index of the file's first block CRC in the builder's `crcs`.
    crcs_at: u32,
}

/// A symbolic link that was added.
struct AddedLink {
    path: Vec<u8>,
    target: Vec<u8>,
    mtime_ns: i64,
}

/// Collects a listing and builds a [`Manifest`](crate::Manifest) from it. Uses about 70 bytes per file in addition to
/// its path.
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
/// // `a` cannot be a file, because `a/b` makes it a folder.
/// assert_eq!(built.rejected[0].reason, Rejection::ShadowedByFolder);
/// # Ok::<(), BuildError>(())
/// ```
#[derive(Default)]
pub struct ManifestBuilder {
    strings: Vec<u8>,
    files: Vec<AddedFile>,
    crcs: Vec<u32>,
    /// The paths of folder markers, which keep empty folders in the tree.
    markers: Vec<Vec<u8>>,
    links: Vec<AddedLink>,
    packs: Option<Vec<PackObject>>,
    /// The snapshot that is mirrored, and the URL of its origin.
    mirrored: Option<(SnapshotId, String)>,
}

impl std::fmt::Debug for ManifestBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManifestBuilder").field("files", &self.files.len()).finish_non_exhaustive()
    }
}

impl ManifestBuilder {
    /// A builder without files.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of files that were added so far.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Adds a file of a plain snapshot. Errors: the key cannot be a file name; the file is not added.
    pub fn push(&mut self, file: &PlainFile<'_>, rules: NameRules) -> Result<(), Rejection> {
        name::check(file.path, rules)?;
        self.add(file.path, &FileRow::plain(file.size, file.mtime_ns, &file.version), 0);
        Ok(())
    }

    /// Adds a file of a packed snapshot. `block_crcs` must have one entry per block. Errors: the path cannot be a file
    /// name; the file is not added.
    pub fn push_packed(&mut self, file: &PackedFile<'_>) -> Result<(), Rejection> {
        name::check(file.path, NameRules::FOLDER)?;
        let mut version = [0; 16];
        version[..4].copy_from_slice(&file.pack.to_le_bytes());
        version[8..].copy_from_slice(&file.offset.to_le_bytes());
        let crcs_at = self.crcs.len() as u32;
        self.crcs.extend_from_slice(file.block_crcs);
        let tag = u32::from(tag::PACKED);
        let row = FileRow { tag, size: file.size, mtime_ns: file.mtime_ns, version, etag: &[] };
        self.add(file.path, &row, crcs_at);
        Ok(())
    }

    /// Sets the packs, which makes the snapshot a packed snapshot.
    pub fn set_packs(&mut self, packs: Vec<PackObject>) {
        self.packs = Some(packs);
    }

    /// Notes that the files are copies of those of the snapshot `snapshot` of `origin`.
    pub fn set_mirrored(&mut self, snapshot: SnapshotId, origin: &str) {
        self.mirrored = Some((snapshot, origin.to_owned()));
    }

    /// Adds a folder that has a marker object, so that the folder exists even if it is empty.
    pub fn push_folder(&mut self, path: &[u8], rules: NameRules) -> Result<(), Rejection> {
        name::check(path, rules)?;
        self.markers.push(path.to_vec());
        Ok(())
    }

    /// Adds a symbolic link to the file or folder `target`, which is a path below the root that leads through no link.
    /// The link is left out if the tree has no such file or folder, or if one has the link's own path. Errors: the path
    /// cannot be a file name; the link is not added.
    pub fn push_link(&mut self, path: &[u8], target: &[u8], mtime_ns: i64) -> Result<(), Rejection> {
        name::check(path, NameRules::FOLDER)?;
        let folder = name::split(path).0;
        if !folder.is_empty() {
            self.markers.push(folder.to_vec());
        }
        self.links.push(AddedLink { path: path.to_vec(), target: target.to_vec(), mtime_ns });
        Ok(())
    }

    fn add(&mut self, path: &[u8], row: &FileRow<'_>, crcs_at: u32) {
        let path_at = self.strings.len() as u64;
        self.strings.extend_from_slice(path);
        self.strings.extend_from_slice(row.etag);
        let FileRow { size, mtime_ns, tag, version, etag } = *row;
        // The casts cannot truncate: `check` has limited the path to PATH_MAX, which is below 64 KiB.
        let (path_len, etag_len) = (path.len() as u16, etag.len() as u16);
        self.files.push(AddedFile { path_at, path_len, etag_len, tag, size, mtime_ns, version, crcs_at });
    }

    /// Sorts and numbers the rows, and writes the manifest. `origin` is the URL that the keys of the files (or packs)
    /// are below.
    pub fn finish(mut self, name: &str, origin: &str, created_ns: i64) -> Result<Built, BuildError> {
        let strings = std::mem::take(&mut self.strings);
        let string = |at: u64, len: u16| &strings[at as usize..at as usize + usize::from(len)];
        let path = |file: &AddedFile| string(file.path_at, file.path_len);
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

        // Files are already grouped by folder; the groups are now put into the order of the folders.
        let folder_of = |file: &AddedFile| tree.index_of[name::split(path(file)).0];
        self.files.sort_by_key(folder_of);
        let mut file_counts = vec![0_u32; tree.folders.len()];
        self.files.iter().for_each(|file| file_counts[folder_of(file) as usize] += 1);

        let mut heap: Vec<u8> = tree.folders.iter().flat_map(|folder| folder.name.iter().copied()).collect();
        let mut encoder = RowEncoder::new(heap.len() as u64);
        let (mut dirs, mut files, mut block_crcs, mut packs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut first_file = 0;
        for (folder, file_count) in tree.folders.iter().zip(file_counts) {
            dirs.extend_from_slice(&encoder.dir(&DirRow {
                name_len: folder.name.len(),
                parent: folder.parent,
                first_dir: folder.first_dir,
                dir_count: folder.dir_count,
                first_file,
                file_count,
            }));
            first_file += file_count;
        }
        for file in &self.files {
            let AddedFile { size, mtime_ns, tag, version, .. } = *file;
            let etag = string(file.path_at + u64::from(file.path_len), file.etag_len);
            let file_name = name::split(path(file)).1;
            let row = FileRow { size, mtime_ns, tag, version, etag };
            files.extend_from_slice(&encoder.file(file_name.len(), folder_of(file), &row)?);
            heap.extend_from_slice(file_name);
            heap.extend_from_slice(etag);
            if self.packs.is_some() {
                let crcs_at = file.crcs_at as usize;
                let crcs = &self.crcs[crcs_at..crcs_at + block::block_count(size) as usize];
                crcs.iter().for_each(|crc| block_crcs.extend_from_slice(&crc.to_le_bytes()));
            }
        }
        for pack in self.packs.iter().flatten() {
            packs.extend_from_slice(&encoder.pack(pack.key.len(), pack.size, pack.etag.len()));
            heap.extend_from_slice(&pack.key);
            heap.extend_from_slice(pack.etag.as_bytes());
        }
        let find = |wanted: &[u8]| {
            if let Some(&dir) = tree.index_of.get(wanted) {
                return Some(LinkTarget::Dir(DirIndex(dir)));
            }
            let (folder, file) = name::split(wanted);
            let wanted = (*tree.index_of.get(folder)?, file);
            let place = |file: &AddedFile| (folder_of(file), name::split(path(file)).1);
            let row = self.files.binary_search_by(|file| place(file).cmp(&wanted)).ok()?;
            Some(LinkTarget::File(FileIndex(row as u32)))
        };
        let mut rows = Vec::new();
        let place = |link: &AddedLink| tree.index_of[name::split(&link.path).0];
        self.links.sort_by(|a, b| (place(a), name::split(&a.path).1).cmp(&(place(b), name::split(&b.path).1)));
        self.links.dedup_by(|a, b| a.path == b.path);
        for link in &self.links {
            let (Some(target), None) = (find(&link.target), find(&link.path)) else { continue };
            let link_name = name::split(&link.path).1;
            rows.extend_from_slice(&encoder.link(link_name.len(), link.mtime_ns, place(link), target));
            heap.extend_from_slice(link_name);
        }
        let mut seal = encoder.seal(self.packs.is_some(), name, origin, created_ns)?;
        if let Some((snapshot, origin)) = &self.mirrored {
            seal.mirrors(*snapshot, origin)?;
        }
        let sections = [dirs, files, block_crcs, packs, heap, rows];
        sections.iter().for_each(|section| seal.update(section));
        let sealed = seal.finish();
        let parts = std::iter::once(sealed.header.to_vec()).chain(sections).chain([sealed.tail]).collect();
        Ok(Built { parts, rejected, snapshot: sealed.snapshot, totals: sealed.totals })
    }
}

/// Removes files that a resumed listing named twice. Errors: two files with one path differ.
fn drop_repeats<'a>(files: &mut Vec<AddedFile>, path: impl Fn(&AddedFile) -> &'a [u8]) -> Result<(), BuildError> {
    let same = |a: &AddedFile, b: &AddedFile| (a.size, a.mtime_ns, a.tag as u8) == (b.size, b.mtime_ns, b.tag as u8);
    let changed = |pair: &[AddedFile]| path(&pair[0]) == path(&pair[1]) && !same(&pair[0], &pair[1]);
    if let Some(pair) = files.windows(2).find(|pair| changed(pair)) {
        return Err(BuildError::ChangedWhileListed { path: path(&pair[0]).escape_ascii().to_string() });
    }
    files.dedup_by(|a, b| path(a) == path(b));
    Ok(())
}
