//! Assembles a manifest of any size from sorted files and folders, in constant memory.
//!
//! - [`RowSorter`] accepts files and folders in any order and sorts them on disk. It keeps links in memory.
//! - [`RowSorter::assemble`] joins files and folders, determines the rows that links lead to, and writes the manifest.
//!
//! A manifest numbers its folders breadth first. The sort key of a path is therefore its depth, followed by its parts
//! in order: the path with `/` as the least byte. In this order, folders come in the order of their numbers, the files
//! of a folder are adjacent, and the folders of the next depth come in the order of their parents. One pass over the
//! files, with three cursors over the folders (parent, folder, children), therefore has all the data that a row needs.
//!
//! Invariant: the same files give the same bytes as with the in-memory builder, in any order of arrival.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use larder_dataset::manifest::{BuildError, DirRow, FileRow, RowEncoder, Sealed};
use larder_dataset::{DirIndex, FileIndex, LinkTarget};

use crate::disk::{DiskUse, Held};
use crate::links::{Ends, Links};
use crate::sort::{Merge, RunReader, RunWriter, SortedRun, Sorter};

const BUFFER_BYTES: usize = 1 << 20;
/// The size of the depth at the start of a sort key.
const DEPTH_BYTES: usize = 2;
const HEADER_BYTES: u64 = 256;

/// Why a manifest could not be assembled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AssembleError {
    #[error(transparent)]
    Disk(#[from] io::Error),
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// Writes the sort key of a path to `out`. `depth` is the number of folders above the file, or including the folder
/// itself for a folder.
fn put_key(out: &mut Vec<u8>, depth: usize, path: &[u8]) {
    out.clear();
    // The cast cannot truncate: a path has at most 4,095 bytes.
    out.extend_from_slice(&(depth as u16).to_be_bytes());
    out.extend(path.iter().map(|&byte| if byte == b'/' { 0 } else { byte }));
}

/// The path that a sort key was made from.
fn path_of(key: &[u8]) -> Vec<u8> {
    key[DEPTH_BYTES..].iter().map(|&byte| if byte == 0 { b'/' } else { byte }).collect()
}

fn slashes(path: &[u8]) -> usize {
    path.iter().filter(|&&byte| byte == b'/').count()
}

/// A listed entry that is not in the manifest.
#[derive(Debug)]
pub(crate) enum LeftOut {
    /// A file that a folder shadows.
    File(Vec<u8>),
    /// A symbolic link, and the reason.
    Link(Vec<u8>, &'static str),
}

/// Collects the files, folders and symbolic links of a snapshot.
#[derive(Debug)]
pub(crate) struct RowSorter {
    dir: PathBuf,
    disk: DiskUse,
    files: Sorter,
    folders: Sorter,
    links: Links,
    /// The last folder that was added. Its parents need not be added again.
    last_folder: Vec<u8>,
    key: Vec<u8>,
    row: Vec<u8>,
}

impl RowSorter {
    /// Creates a sorter that uses about three times `share_bytes` of memory, and unnamed files in the folder `dir`,
    /// which take their space from `disk`.
    pub(crate) fn new(dir: &Path, disk: DiskUse, share_bytes: usize) -> io::Result<Self> {
        let mut folders = Sorter::new(dir, disk.clone(), share_bytes / 8);
        folders.push(&[0; DEPTH_BYTES], &[])?;
        Ok(Self {
            dir: dir.to_path_buf(),
            files: Sorter::new(dir, disk.clone(), share_bytes),
            disk,
            folders,
            links: Links::default(),
            last_folder: Vec::new(),
            key: Vec::new(),
            row: Vec::new(),
        })
    }

    /// Adds a file under a clean path.
    pub(crate) fn push(&mut self, path: &[u8], row: &FileRow<'_>) -> io::Result<()> {
        put_key(&mut self.key, slashes(path), path);
        self.row.clear();
        row.encode(&mut self.row);
        self.files.push(&self.key, &self.row)?;
        match path.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => self.push_folder(&path[..slash]),
            None => Ok(()),
        }
    }

    /// Adds a symbolic link under a clean path, and the folders above it. False if there are too many links.
    pub(crate) fn push_link(&mut self, path: &[u8], target: &[u8], mtime_ns: i64) -> io::Result<bool> {
        if let Some(slash) = path.iter().rposition(|&byte| byte == b'/') {
            self.push_folder(&path[..slash])?;
        }
        Ok(self.links.push(path, target, mtime_ns))
    }

    /// Adds a folder under a clean path, and the folders above it.
    pub(crate) fn push_folder(&mut self, path: &[u8]) -> io::Result<()> {
        if path == self.last_folder {
            return Ok(());
        }
        let last = &self.last_folder;
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).chain([path.len()]);
        for (nth, end) in ends.enumerate() {
            let above = &path[..end];
            let known = last.starts_with(above) && matches!(last.get(end), None | Some(b'/'));
            if !known {
                put_key(&mut self.key, nth + 1, above);
                self.folders.push(&self.key, &[])?;
            }
        }
        self.last_folder.clear();
        self.last_folder.extend_from_slice(path);
        Ok(())
    }

    /// Waits until all spilled records are on the disk. Returns their size in bytes. Errors: the disk's.
    pub(crate) fn settle(&mut self) -> io::Result<u64> {
        Ok(self.files.settle()? + self.folders.settle()?)
    }

    /// Writes the manifest to `to`, an empty file. Passes files and links that are not in it to `left_out`. Errors:
    /// `Disk`; `Build`, also if two different files or links were listed under one path.
    pub(crate) fn assemble(
        self,
        to: &File,
        name: &str,
        origin: &str,
        created_ns: i64,
        mut left_out: impl FnMut(LeftOut),
    ) -> Result<Sealed, AssembleError> {
        let Self { dir, disk, files, folders, links, .. } = self;
        // Of the names and of the manifest, until both are complete.
        let held = disk.hold();
        let names = tempfile::tempfile_in(&dir)?;
        let mut heap = Section::new(&names, 0, &held);
        let sorted = write_folders(folders.finish()?, &dir, &disk, &mut heap)?;
        let mut encoder = RowEncoder::new(heap.at());
        let mut ends = links.follow()?;
        let mut dirs = Section::new(to, HEADER_BYTES, &held);
        let mut rows = Section::new(to, HEADER_BYTES + 28 * sorted.count, &held);
        let mut join = Join {
            files: files.finish()?,
            parents: FolderCursor::first(&sorted)?,
            children: FolderCursor::first(&sorted)?,
            encoder: &mut encoder,
            heap: &mut heap,
            rows: &mut rows,
            ends: &mut ends,
            first_file: 0,
        };
        join.files.next()?;
        join.children.advance()?;
        let mut folder = FolderCursor::first(&sorted)?;
        loop {
            let row = join.folder(&folder, &mut left_out)?;
            dirs.write(&join.encoder.dir(&row))?;
            if !folder.advance()? {
                break;
            }
        }
        if join.files.current().is_some() {
            return Err(out_of_order().into());
        }
        let mut links = Vec::new();
        for link in ends.finish(|path, reason| left_out(LeftOut::Link(path, reason))) {
            let name = link.name();
            links.extend_from_slice(&encoder.link(name.len(), link.mtime_ns, link.folder, link.target));
            heap.write(name)?;
        }
        dirs.flush()?;
        rows.flush()?;
        heap.flush()?;
        let contents_end = rows.at();
        let (heap_len, mut at) = (heap.at(), contents_end);

        let mut seal = encoder.seal(false, name, origin, created_ns)?;
        each_piece(to, HEADER_BYTES..contents_end, |piece| {
            seal.update(piece);
            Ok(())
        })?;
        each_piece(&names, 0..heap_len, |piece| {
            seal.update(piece);
            held.take(piece.len() as u64)?;
            to.write_all_at(piece, at)?;
            at += piece.len() as u64;
            Ok(())
        })?;
        seal.update(&links);
        held.take(links.len() as u64)?;
        to.write_all_at(&links, at)?;
        at += links.len() as u64;
        let sealed = seal.finish();
        held.take(HEADER_BYTES + sealed.tail.len() as u64)?;
        to.write_all_at(&sealed.tail, at)?;
        to.write_all_at(&sealed.header, 0)?;
        Ok(sealed)
    }
}

fn out_of_order() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the disk corrupted a temporary file of the sort: try again")
}

/// The folders of a snapshot, sorted by their numbers.
struct SortedFolders {
    run: SortedRun,
    count: u64,
}

/// Writes each folder once, and the names of the folders to the heap.
fn write_folders(
    mut folders: Merge,
    dir: &Path,
    disk: &DiskUse,
    heap: &mut Section<'_>,
) -> Result<SortedFolders, AssembleError> {
    let mut run = RunWriter::create(dir, disk)?;
    let (mut last, mut count) = (Vec::new(), 0_u64);
    while let Some((key, _)) = folders.next()? {
        if key != last {
            run.push(key, &[])?;
            heap.write(name_of(&key[DEPTH_BYTES..]))?;
            last.clear();
            last.extend_from_slice(key);
            count += 1;
        }
    }
    if u32::try_from(count).is_err() {
        return Err(BuildError::TooLarge { what: "folders", limit: u64::from(u32::MAX) }.into());
    }
    Ok(SortedFolders { run: run.finish()?, count })
}

/// The last part of a path in which the separators are zeros.
fn name_of(path: &[u8]) -> &[u8] {
    path.iter().rposition(|&byte| byte == 0).map_or(path, |slash| &path[slash + 1..])
}

/// A position in the list of folders.
struct FolderCursor {
    run: RunReader,
    /// The number of the current folder. At the end, the number of all folders.
    index: u32,
    ended: bool,
}

impl FolderCursor {
    /// A cursor at the root.
    fn first(folders: &SortedFolders) -> io::Result<Self> {
        let mut run = folders.run.read();
        let ended = !run.advance()?;
        Ok(Self { run, index: 0, ended })
    }

    fn advance(&mut self) -> io::Result<bool> {
        if !self.ended {
            self.index += 1;
            self.ended = !self.run.advance()?;
        }
        Ok(!self.ended)
    }

    fn key(&self) -> &[u8] {
        self.run.key()
    }

    fn depth(&self) -> u16 {
        u16::from_be_bytes([self.key()[0], self.key()[1]])
    }

    fn path(&self) -> &[u8] {
        &self.key()[DEPTH_BYTES..]
    }

    /// The name of the current folder, if it is a child of the folder `path` at `depth`.
    fn child_of(&self, depth: u16, path: &[u8]) -> Option<&[u8]> {
        if self.ended || self.depth() != depth + 1 {
            return None;
        }
        below(self.path(), path)
    }
}

/// The rest of a path below a folder; `None` if the path is not below it.
fn below<'a>(path: &'a [u8], folder: &[u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(folder)?;
    if folder.is_empty() { Some(rest) } else { rest.strip_prefix(&[0]) }
}

/// Joins the files to their folders.
struct Join<'a, 'f> {
    files: Merge,
    /// At the parent of the current folder, or before it.
    parents: FolderCursor,
    /// At the first folder whose parent was not reached yet.
    children: FolderCursor,
    encoder: &'a mut RowEncoder,
    heap: &'a mut Section<'f>,
    rows: &'a mut Section<'f>,
    ends: &'a mut Ends,
    first_file: u32,
}

impl Join<'_, '_> {
    /// Writes the files of the next folder, and returns the folder's row.
    fn folder(&mut self, folder: &FolderCursor, left_out: &mut impl FnMut(LeftOut)) -> Result<DirRow, AssembleError> {
        let (depth, path) = (folder.depth(), folder.path());
        self.ends.see(depth, path, LinkTarget::Dir(DirIndex(folder.index)));
        let name = name_of(path);
        let mut parent = 0;
        if depth > 0 {
            let above = &path[..path.len() - name.len()];
            let above = above.strip_suffix(&[0]).unwrap_or(above);
            while (self.parents.depth(), self.parents.path()) != (depth - 1, above) {
                if !self.parents.advance()? {
                    return Err(out_of_order().into());
                }
            }
            parent = self.parents.index;
        }
        let (first_dir, first_file, mut file_count) = (self.children.index, self.first_file, 0);
        let (mut last_name, mut last_row) = (Vec::new(), Vec::new());
        while let Some((key, row)) = self.files.current() {
            if key[..DEPTH_BYTES] != depth.to_be_bytes() {
                break;
            }
            let Some(file) = below(&key[DEPTH_BYTES..], path) else { break };
            // Files and child folders are both sorted by name.
            while self.children.child_of(depth, path).is_some_and(|child| child < file) {
                self.children.advance()?;
            }
            if file_count > 0 && file == last_name {
                // A directory that changes while it is read may return an entry twice.
                if row != last_row {
                    let path = path_of(key).escape_ascii().to_string();
                    return Err(BuildError::ChangedWhileListed { path }.into());
                }
            } else if self.children.child_of(depth, path) == Some(file) {
                left_out(LeftOut::File(path_of(key)));
            } else {
                let decoded = FileRow::decode(row).ok_or_else(out_of_order)?;
                self.rows.write(&self.encoder.file(file.len(), folder.index, &decoded)?)?;
                let row_number = FileIndex(self.first_file + file_count);
                self.ends.see(depth, &key[DEPTH_BYTES..], LinkTarget::File(row_number));
                self.heap.write(file)?;
                self.heap.write(decoded.heap_etag())?;
                file_count += 1;
                last_name.clear();
                last_name.extend_from_slice(file);
                last_row.clear();
                last_row.extend_from_slice(row);
            }
            self.files.next()?;
        }
        while self.children.child_of(depth, path).is_some() {
            self.children.advance()?;
        }
        self.first_file += file_count;
        let dir_count = self.children.index - first_dir;
        Ok(DirRow { name_len: name.len(), parent, first_dir, dir_count, first_file, file_count })
    }
}

/// Appends to a section of a file, starting at an offset.
struct Section<'a> {
    file: &'a File,
    /// The offset in the file of the first buffered byte.
    start: u64,
    buffer: Vec<u8>,
    held: &'a Held,
}

impl<'a> Section<'a> {
    fn new(file: &'a File, start: u64, held: &'a Held) -> Self {
        Self { file, start, held, buffer: Vec::with_capacity(BUFFER_BYTES + (64 << 10)) }
    }

    fn at(&self) -> u64 {
        self.start + self.buffer.len() as u64
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.buffer.write_all(bytes)?;
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.held.take(self.buffer.len() as u64)?;
        self.file.write_all_at(&self.buffer, self.start)?;
        self.start += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// Reads a part of a file piece by piece.
pub(crate) fn each_piece(
    file: &File,
    range: std::ops::Range<u64>,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(BUFFER_BYTES as u64) as usize;
        file.read_exact_at(&mut buffer[..len], at)?;
        take(&buffer[..len])?;
        at += len as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
