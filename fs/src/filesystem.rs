//! Names, attributes and folders of a mount, answered from the manifest alone. This module does not depend on FUSE, so
//! it is tested without a mount. [`Dataset`] answers reads.
//!
//! Invariant: stateless. Every answer follows from the manifest and the request. Any number of threads may call, and a
//! new daemon gives the same answers as the old one.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use larder_cachenode::dataset::Dataset;
use larder_cachenode::plan::command::Command;
use larder_cachenode::{ListRefused, PageCache, PlanRefused, PlanSource, WarmListPart};
use larder_dataset::{DirIndex, Entry, FileBlocks, FileIndex, LinkIndex, ManifestError, VersionTag};

use crate::about::AboutFiles;
use crate::inode::{About, Inodes, Node};

/// Why a request about a node failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FsError {
    /// No node has this inode number; it belongs to another snapshot.
    #[error("no such inode")]
    NoSuchInode,
    /// The operation needs a folder, but the node is a file.
    #[error("not a folder")]
    NotADirectory,
    /// The operation needs a file, but the node is a folder.
    #[error("is a folder")]
    IsADirectory,
    /// The operation is for links and the node is none, or the other way round.
    #[error("not an operation for this kind of node")]
    WrongKind,
    /// The name is longer than any file name may be.
    #[error("name too long")]
    NameTooLong,
    /// The node has no extended attribute of this name.
    #[error("no such attribute")]
    NoSuchAttribute,
    /// The part of the manifest that has the answer is damaged or cannot be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    Dir,
    File,
    Link,
}

/// Attributes of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attr {
    pub(crate) ino: u64,
    pub(crate) kind: NodeKind,
    /// Bytes.
    pub(crate) size: u64,
    /// Nanoseconds since the epoch.
    pub(crate) mtime_ns: i64,
    /// Links: for a folder 2 plus its subfolders, for a file 1.
    pub(crate) nlink: u32,
    /// True if the attributes never change, so that the kernel may cache them without end.
    pub(crate) forever: bool,
}

/// One entry of a folder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirEntry<'a> {
    /// Its name.
    pub(crate) name: &'a [u8],
    /// Its attributes.
    pub(crate) attr: Attr,
    /// The offset of the entry after this one, for the next call.
    pub(crate) next_offset: u64,
}

/// The names of the extended attributes that files have.
pub(crate) const XATTRS: [&str; 3] = ["user.larder.crc32c", "user.larder.etag", "user.larder.origin"];

/// Answers from the manifest. Shared by all threads of a mount.
#[derive(Debug)]
pub(crate) struct Filesystem {
    dataset: Arc<Dataset>,
    inodes: Inodes,
    about: AboutFiles,
}

impl Filesystem {
    /// Creates the file system of `dataset`.
    pub(crate) fn new(dataset: Arc<Dataset>) -> Self {
        let totals = dataset.manifest().totals();
        Self { inodes: Inodes::new(totals), about: AboutFiles::default(), dataset }
    }

    /// The dataset that this file system shows.
    pub(crate) fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// The numbers of its nodes.
    pub(crate) fn inodes(&self) -> Inodes {
        self.inodes
    }

    fn node(&self, ino: u64) -> Result<Node, FsError> {
        self.inodes.node(ino).ok_or(FsError::NoSuchInode)
    }

    /// Finds a name in a folder. `None` if the snapshot has no such name.
    pub(crate) fn lookup(&self, parent: u64, name: &[u8]) -> Result<Option<Attr>, FsError> {
        if name.len() > larder_dataset::name::NAME_MAX {
            return Err(FsError::NameTooLong);
        }
        match self.node(parent)? {
            // No key can have this name. It must be found even if the disk has lost parts of the manifest.
            Node::Row(Entry::Dir(DirIndex(0))) if name == larder_dataset::name::RESERVED => {
                Ok(Some(self.about_attr(About::Folder)))
            }
            Node::Row(Entry::Dir(dir)) => {
                let row = self.dataset.manifest().dir(dir)?;
                let found = self.dataset.manifest().lookup(&row, name)?;
                found.map(|entry| self.attr_of(entry)).transpose()
            }
            Node::About(About::Folder) => {
                let found = About::FILES.iter().find(|(_, file_name)| file_name.as_bytes() == name);
                Ok(found.map(|&(file, _)| self.about_attr(file)))
            }
            Node::Row(Entry::File(_) | Entry::Link(_)) | Node::About(_) => Err(FsError::NotADirectory),
        }
    }

    /// The attributes of the node with this inode number.
    pub(crate) fn attr(&self, ino: u64) -> Result<Attr, FsError> {
        match self.node(ino)? {
            Node::Row(entry) => self.attr_of(entry),
            Node::About(about) => Ok(self.about_attr(about)),
        }
    }

    fn attr_of(&self, entry: Entry) -> Result<Attr, FsError> {
        let ino = self.inodes.number(Node::Row(entry));
        let manifest = self.dataset.manifest();
        Ok(match entry {
            Entry::Dir(dir) => Attr {
                ino,
                kind: NodeKind::Dir,
                size: 0,
                mtime_ns: manifest.created_ns(),
                nlink: manifest.dir(dir)?.dir_count.saturating_add(2),
                forever: true,
            },
            Entry::File(file) => {
                let file = manifest.file(file)?;
                let kind = NodeKind::File;
                Attr { ino, kind, size: file.size, mtime_ns: file.mtime_ns, nlink: 1, forever: true }
            }
            Entry::Link(link) => {
                let link = manifest.link(link)?;
                // The size of a link is the length of its text.
                let size = manifest.link_text(&link)?.len() as u64;
                Attr { ino, kind: NodeKind::Link, size, mtime_ns: link.mtime_ns, nlink: 1, forever: true }
            }
        })
    }

    fn about_attr(&self, about: About) -> Attr {
        let ino = self.inodes.number(Node::About(about));
        match self.about.refresh(about, &self.dataset) {
            None => {
                let mtime_ns = self.dataset.manifest().created_ns();
                Attr { ino, kind: NodeKind::Dir, size: 0, mtime_ns, nlink: 2, forever: true }
            }
            Some(text) => {
                let since = text.made.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
                let mtime_ns = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
                let size = text.bytes.len() as u64;
                Attr { ino, kind: NodeKind::File, size, mtime_ns, nlink: 1, forever: false }
            }
        }
    }

    /// Calls `emit` for the entries of a folder, starting at `offset`, until it returns true. The first offset is 0;
    /// later ones are an entry's `next_offset`. The order is `.`, `..`, folders, files, links; each kind is sorted by
    /// name.
    pub(crate) fn read_dir(
        &self,
        ino: u64,
        offset: u64,
        mut emit: impl FnMut(DirEntry<'_>) -> bool,
    ) -> Result<(), FsError> {
        let dir = match self.node(ino)? {
            Node::Row(Entry::Dir(dir)) => dir,
            Node::About(About::Folder) => return self.read_about_dir(offset, emit),
            Node::Row(Entry::File(_) | Entry::Link(_)) | Node::About(_) => return Err(FsError::NotADirectory),
        };
        let manifest = self.dataset.manifest();
        // Names are borrowed from the mapped manifest. If the disk loses parts of it during the call, all emitted names
        // are invalid.
        manifest.stable(|| {
            let row = manifest.dir(dir)?;
            let (dirs, files) = (u64::from(row.dir_count), u64::from(row.file_count));
            let links = manifest.links_of(dir)?;
            for at in offset..2 + dirs + files + links.len() as u64 {
                let (name, entry) = match at {
                    0 => (&b"."[..], Entry::Dir(dir)),
                    1 => (&b".."[..], Entry::Dir(row.parent)),
                    _ if at - 2 < dirs => {
                        let child = DirIndex(row.first_dir + (at - 2) as u32);
                        (manifest.dir(child)?.name, Entry::Dir(child))
                    }
                    _ if at - 2 - dirs < files => {
                        let file = FileIndex(row.first_file + (at - 2 - dirs) as u32);
                        (manifest.file(file)?.name, Entry::File(file))
                    }
                    _ => {
                        let link = LinkIndex(links.start + (at - 2 - dirs - files) as u32);
                        (manifest.link(link)?.name, Entry::Link(link))
                    }
                };
                if emit(DirEntry { name, attr: self.attr_of(entry)?, next_offset: at + 1 }) {
                    break;
                }
            }
            Ok(())
        })
    }

    fn read_about_dir(&self, offset: u64, mut emit: impl FnMut(DirEntry<'_>) -> bool) -> Result<(), FsError> {
        let mut entries = vec![(".", self.about_attr(About::Folder)), ("..", self.attr_of(Entry::Dir(DirIndex(0)))?)];
        entries.extend(About::FILES.map(|(file, name)| (name, self.about_attr(file))));
        for (at, (name, attr)) in entries.into_iter().enumerate().skip(offset as usize) {
            if emit(DirEntry { name: name.as_bytes(), attr, next_offset: at as u64 + 1 }) {
                break;
            }
        }
        Ok(())
    }

    /// The text of a symbolic link.
    pub(crate) fn link_text(&self, ino: u64) -> Result<Vec<u8>, FsError> {
        let Node::Row(Entry::Link(link)) = self.node(ino)? else { return Err(FsError::WrongKind) };
        let manifest = self.dataset.manifest();
        Ok(manifest.stable(|| manifest.link_text(&manifest.link(link)?))?)
    }

    /// Where to read an inode from: a file of the dataset, or the text of one of the mount's own files.
    pub(crate) fn readable(&self, ino: u64) -> Result<Readable, FsError> {
        match self.node(ino)? {
            Node::Row(Entry::File(file)) => Ok(Readable::File(self.dataset.manifest().file_blocks(file)?)),
            Node::Row(Entry::Dir(_)) | Node::About(About::Folder) => Err(FsError::IsADirectory),
            // The kernel reads a link's text and opens its target.
            Node::Row(Entry::Link(_)) => Err(FsError::WrongKind),
            Node::About(about) => match self.about.shown(about, &self.dataset) {
                Some(text) => Ok(Readable::Text(text.bytes)),
                None => Err(FsError::IsADirectory),
            },
        }
    }

    /// A file for the kernel to read by itself in place of this one, if the cache has all of it. Opens a file.
    pub(crate) fn lend(&self, ino: u64) -> Option<File> {
        match self.node(ino).ok()? {
            Node::Row(Entry::File(file)) => self.dataset.lend(self.dataset.manifest().file_blocks(file).ok()?),
            Node::Row(Entry::Dir(_) | Entry::Link(_)) | Node::About(_) => None,
        }
    }

    /// Starts to warm the store. The next stats report the progress.
    pub(crate) fn start_warming(&self) {
        self.dataset.start_warming();
        self.about.forget_stats();
    }

    /// Accepts a part of a list of files to warm.
    pub(crate) fn warm_listed(&self, part: WarmListPart) -> Result<(), ListRefused> {
        let taken = self.dataset.warm_listed(part);
        self.about.forget_stats();
        taken
    }

    /// Which of these files the node is to keep: a bit for each.
    pub(crate) fn owned(&self, files: Range<u32>) -> Vec<u8> {
        self.dataset.owned(files)
    }

    /// Carries out a command about a plan, which the node `ino` took from a user. Returns how many more items the plan
    /// wants.
    pub(crate) fn plan(
        &self,
        ino: u64,
        user: u32,
        command: &Command<'_>,
        pages: &Arc<dyn PageCache>,
    ) -> Result<u32, PlanRefused> {
        let folder = match self.inodes.node(ino) {
            Some(Node::Row(Entry::Dir(dir))) => Some(dir),
            _ => None,
        };
        self.dataset.plan(command, &PlanSource { user, folder, pages })
    }

    /// True for `.larder/stats.json`, the file that accepts the ioctls for warming.
    pub(crate) fn is_stats(&self, ino: u64) -> bool {
        self.inodes.node(ino) == Some(Node::About(About::Stats))
    }

    /// The value of an extended attribute.
    pub(crate) fn xattr(&self, ino: u64, name: &[u8]) -> Result<Vec<u8>, FsError> {
        let Node::Row(Entry::File(index)) = self.node(ino)? else { return Err(FsError::NoSuchAttribute) };
        let manifest = self.dataset.manifest();
        manifest.stable(|| {
            let file = manifest.file(index)?;
            match name {
                b"user.larder.crc32c" => {
                    let crc = manifest.file_crc(&file)?.ok_or(FsError::NoSuchAttribute)?;
                    Ok(format!("{crc:08x}").into_bytes())
                }
                b"user.larder.etag" => match manifest.version(&file)? {
                    Some(VersionTag::ETag(etag)) => Ok(etag.as_bytes().to_vec()),
                    Some(VersionTag::MtimeSize { .. }) | None => Err(FsError::NoSuchAttribute),
                },
                b"user.larder.origin" => self.dataset.origin_of(&file).map_err(FsError::Manifest),
                _ => Err(FsError::NoSuchAttribute),
            }
        })
    }

    /// The names of a node's extended attributes, each terminated by a NUL.
    pub(crate) fn xattr_names(&self, ino: u64) -> Result<Vec<u8>, FsError> {
        let mut names = Vec::new();
        for name in XATTRS {
            match self.xattr(ino, name.as_bytes()) {
                Ok(_) => {
                    names.extend_from_slice(name.as_bytes());
                    names.push(0);
                }
                Err(FsError::NoSuchAttribute) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(names)
    }
}

/// Where a read gets its bytes.
#[derive(Debug)]
pub(crate) enum Readable {
    /// A file of the dataset.
    File(FileBlocks),
    /// A generated text below `.larder`.
    Text(Arc<[u8]>),
}
