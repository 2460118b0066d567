//! Compares two snapshots of one origin, file by file.
//!
//! [`Manifest::compare`] merges the sorted rows of two manifests in one pass; [`Manifest::find_unchanged`] answers for
//! a single file. A file is unchanged if its object has the same path, size and version. A packed file is unchanged if
//! it is the same range of the same version of the same pack. A version that cannot prove equality (a weak ETag, or a
//! pack without an ETag) counts as changed.
//!
//! Invariant: files come in the order of their rows in each of the two manifests. The walk visits each folder at most
//! once, even if the rows are damaged, so it ends.

#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Range;

use super::bytes::ManifestBytes;
use super::error::{ManifestError, corrupt};
use super::layout::{StringRef, tag, u64_at};
use super::read::Manifest;
use super::rows::{Dir, DirIndex, Entry, File, FileIndex, Location};

/// The change of a file from one snapshot to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileChange {
    /// The file's bytes are the same in both snapshots.
    Unchanged {
        /// The file's row in the earlier snapshot.
        old: FileIndex,
        /// The file's row in the later snapshot.
        new: FileIndex,
    },
    /// The file is in both snapshots, and its bytes may differ.
    Changed {
        /// The file's row in the earlier snapshot.
        old: FileIndex,
        /// The file's row in the later snapshot.
        new: FileIndex,
    },
    /// Only the later snapshot has the file.
    Added(FileIndex),
    /// Only the earlier snapshot has the file.
    Removed(FileIndex),
}

/// An iterator over the files of two snapshots, merged. See [`Manifest::compare`].
#[derive(Debug)]
pub struct Comparison<'a, A, B> {
    old: &'a Manifest<A>,
    new: &'a Manifest<B>,
    /// The folders to visit next, as their rows in the two snapshots. At least one of the two is set.
    folders: VecDeque<(Option<DirIndex>, Option<DirIndex>)>,
    old_files: FilesOf,
    new_files: FilesOf,
}

/// The files of a folder that were not returned yet.
#[derive(Clone, Debug, Default)]
struct FilesOf {
    dir: DirIndex,
    rows: Range<u32>,
}

impl<B: ManifestBytes> Manifest<B> {
    /// Compares the snapshot `old` with this one, file by file, in one pass over both. Both must come from one origin:
    /// the same URL on the same server and account, which only the caller can check. Uses 8 to 16 bytes of memory per
    /// folder, and none per file. Ends after the first error.
    ///
    /// ```
    /// use larder_dataset::manifest::{FileChange, PlainFile};
    /// use larder_dataset::{FileIndex, Manifest, ManifestBuilder, NameRules, VersionTag};
    ///
    /// let snapshot = |files: &[(&str, &str)]| {
    ///     let mut builder = ManifestBuilder::new();
    ///     for (path, etag) in files {
    ///         let version = VersionTag::ETag((*etag).into());
    ///         let file = PlainFile { path: path.as_bytes(), size: 5, mtime_ns: 0, version };
    ///         builder.push(&file, NameRules::OBJECT_STORE).unwrap();
    ///     }
    ///     Manifest::open(builder.finish("letters", "s3://bucket/letters", 0).unwrap().to_bytes()).unwrap()
    /// };
    /// let old = snapshot(&[("a", "\"1\""), ("b", "\"1\""), ("c", "\"1\"")]);
    /// let new = snapshot(&[("a", "\"1\""), ("c", "\"2\""), ("d", "\"1\"")]);
    /// let changes: Result<Vec<_>, _> = new.compare(&old).collect();
    /// assert_eq!(
    ///     changes?,
    ///     [
    ///         FileChange::Unchanged { old: FileIndex(0), new: FileIndex(0) },
    ///         FileChange::Removed(FileIndex(1)),
    ///         FileChange::Changed { old: FileIndex(2), new: FileIndex(1) },
    ///         FileChange::Added(FileIndex(2)),
    ///     ]
    /// );
    /// # Ok::<(), larder_dataset::ManifestError>(())
    /// ```
    pub fn compare<'a, A: ManifestBytes>(&'a self, old: &'a Manifest<A>) -> Comparison<'a, A, B> {
        let root = Some(DirIndex(0));
        Comparison {
            old,
            new: self,
            folders: VecDeque::from([(root, root)]),
            old_files: FilesOf::default(),
            new_files: FilesOf::default(),
        }
    }

    /// Finds a file of this snapshot in `old`, a snapshot of the same origin. Returns its row there if its bytes are
    /// the same.
    pub fn find_unchanged<A: ManifestBytes>(
        &self,
        old: &Manifest<A>,
        file: FileIndex,
    ) -> Result<Option<FileIndex>, ManifestError> {
        stable(old, self, || {
            let file = self.file(file)?;
            let Some(Entry::File(found)) = old.resolve(&self.file_path(&file)?)? else { return Ok(None) };
            Ok(is_same(old, &old.file(found)?, self, &file)?.then_some(found))
        })
    }
}

impl<A: ManifestBytes, B: ManifestBytes> Comparison<'_, A, B> {
    fn step(&mut self) -> Result<Option<FileChange>, ManifestError> {
        let (old, new) = (self.old, self.new);
        stable(old, new, || {
            while self.old_files.rows.is_empty() && self.new_files.rows.is_empty() {
                let Some((in_old, in_new)) = self.folders.pop_front() else { return Ok(None) };
                self.enter(in_old, in_new)?;
            }
            let (before, after) = (self.old_files.first(old)?, self.new_files.first(new)?);
            let (at, row) = (FileIndex(self.old_files.rows.start), FileIndex(self.new_files.rows.start));
            let change = match (&before, &after) {
                (Some(before), Some(after)) => match before.name.cmp(after.name) {
                    Ordering::Less => FileChange::Removed(at),
                    Ordering::Greater => FileChange::Added(row),
                    Ordering::Equal if is_same(old, before, new, after)? => FileChange::Unchanged { old: at, new: row },
                    Ordering::Equal => FileChange::Changed { old: at, new: row },
                },
                (Some(_), None) => FileChange::Removed(at),
                (None, _) => FileChange::Added(row),
            };
            self.old_files.rows.start += u32::from(!matches!(change, FileChange::Added(_)));
            self.new_files.rows.start += u32::from(!matches!(change, FileChange::Removed(_)));
            Ok(Some(change))
        })
    }

    /// Starts on the files of a folder, and queues its child folders.
    fn enter(&mut self, in_old: Option<DirIndex>, in_new: Option<DirIndex>) -> Result<(), ManifestError> {
        let old_dir = in_old.map(|dir| self.old.dir(dir)).transpose()?;
        let new_dir = in_new.map(|dir| self.new.dir(dir)).transpose()?;
        self.old_files = FilesOf::of(in_old, old_dir.as_ref());
        self.new_files = FilesOf::of(in_new, new_dir.as_ref());
        let dirs = |dir: Option<Dir<'_>>| dir.map_or(0..0, |dir| dir.first_dir..dir.first_dir + dir.dir_count);
        let (mut olds, mut news) = (dirs(old_dir), dirs(new_dir));
        while !olds.is_empty() || !news.is_empty() {
            let before = child(self.old, in_old, &olds)?;
            let after = child(self.new, in_new, &news)?;
            let order = match (&before, &after) {
                (Some(before), Some(after)) => before.name.cmp(after.name),
                (Some(_), None) => Ordering::Less,
                (None, _) => Ordering::Greater,
            };
            let in_old = order.is_le().then_some(DirIndex(olds.start));
            let in_new = order.is_ge().then_some(DirIndex(news.start));
            olds.start += u32::from(in_old.is_some());
            news.start += u32::from(in_new.is_some());
            self.folders.push_back((in_old, in_new));
        }
        Ok(())
    }
}

impl<A: ManifestBytes, B: ManifestBytes> Iterator for Comparison<'_, A, B> {
    type Item = Result<FileChange, ManifestError>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            self.folders.clear();
            (self.old_files, self.new_files) = Default::default();
        }
        step.transpose()
    }
}

impl FilesOf {
    fn of(index: Option<DirIndex>, dir: Option<&Dir<'_>>) -> Self {
        let rows = dir.map_or(0..0, |dir| dir.first_file..dir.first_file + dir.file_count);
        Self { dir: index.unwrap_or_default(), rows }
    }

    fn first<'a, M: ManifestBytes>(&self, manifest: &'a Manifest<M>) -> Result<Option<File<'a>>, ManifestError> {
        if self.rows.is_empty() {
            return Ok(None);
        }
        let file = manifest.file(FileIndex(self.rows.start))?;
        if file.dir == self.dir { Ok(Some(file)) } else { Err(corrupt("a file's folder")) }
    }
}

/// The first of the child folders in `rows`. `parent` must be their parent folder.
fn child<'a, M: ManifestBytes>(
    manifest: &'a Manifest<M>,
    parent: Option<DirIndex>,
    rows: &Range<u32>,
) -> Result<Option<Dir<'a>>, ManifestError> {
    if rows.is_empty() {
        return Ok(None);
    }
    let dir = manifest.dir(DirIndex(rows.start))?;
    // The root is its own parent and a child of no other folder.
    if Some(dir.parent) == parent && rows.start > 0 { Ok(Some(dir)) } else { Err(corrupt("a folder's parent")) }
}

/// True if two files with the same path, in two snapshots of one origin, have the same bytes.
fn is_same<A: ManifestBytes, B: ManifestBytes>(
    old: &Manifest<A>,
    before: &File<'_>,
    new: &Manifest<B>,
    after: &File<'_>,
) -> Result<bool, ManifestError> {
    if (before.size, before.tag) != (after.size, after.tag) {
        return Ok(false);
    }
    match (before.tag as u8, before.location, after.location) {
        (tag::MTIME_SIZE, ..) => Ok(before.mtime_ns == after.mtime_ns),
        (tag::MD5, ..) => Ok(before.version == after.version),
        (tag::HEAP, ..) => {
            let etag = old.sections.string(StringRef(u64_at(&before.version, 0)))?;
            let is_strong = !etag.is_empty() && !etag.starts_with(b"W/");
            Ok(is_strong && etag == new.sections.string(StringRef(u64_at(&after.version, 0)))?)
        }
        (_, Location::Pack { pack: old_pack, offset: from }, Location::Pack { pack: new_pack, offset: to }) => {
            let (was, is) = (old.pack(old_pack)?, new.pack(new_pack)?);
            let is_strong = !is.etag.is_empty() && !is.etag.starts_with("W/");
            Ok(is_strong && was == is && from == to)
        }
        _ => Ok(false),
    }
}

/// Runs `read`, which reads rows of both manifests. Errors: `Corrupt` too if bytes of either were lost while it ran.
fn stable<A: ManifestBytes, B: ManifestBytes, T>(
    old: &Manifest<A>,
    new: &Manifest<B>,
    read: impl FnOnce() -> Result<T, ManifestError>,
) -> Result<T, ManifestError> {
    old.stable(|| new.stable(read))
}
