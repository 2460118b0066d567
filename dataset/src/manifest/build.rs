//! Makes a manifest from a listing in any order.
//!
//! Invariant: the same files of the same origin give the same bytes and snapshot id, however the listing arrived, except
//! for the time of making in the header. Names that cannot be files are never in the tree: [`ManifestBuilder::push`]
//! refuses them at once, and [`ManifestBuilder::finish`] returns the ones that a folder shadows.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use super::layout::{self, CHUNK_BYTES, HEADER_BYTES, Section, StringRef, header, tag};
use super::{Totals, VersionTag};
use crate::block;
use crate::name::{self, NameRules, Rejection};
use crate::snapshot::SnapshotId;

/// One file of a plain snapshot.
#[derive(Clone, Debug)]
pub struct FileSource<'a> {
    /// Its path, which is its key below the origin.
    pub path: &'a [u8],
    /// Bytes.
    pub size: u64,
    /// Time of last modification, nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// What its bytes are bound to.
    pub version: VersionTag<'a>,
}

/// One file of a packed snapshot.
#[derive(Clone, Debug)]
pub struct Packed<'a> {
    /// Its path.
    pub path: &'a [u8],
    /// Bytes.
    pub size: u64,
    /// Time of last modification, nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// Number of its pack.
    pub pack: u32,
    /// First byte in the pack.
    pub offset: u64,
    /// CRC32C of each of its blocks.
    pub block_crcs: &'a [u32],
}

/// A pack as it was written.
#[derive(Clone, Debug)]
pub struct PackObject {
    /// Its key below the origin.
    pub key: Vec<u8>,
    /// Bytes.
    pub size: u64,
    /// Its ETag; empty for a local folder.
    pub etag: String,
}

/// A key that was listed but is not in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedKey {
    /// The key below the origin.
    pub key: Vec<u8>,
    /// Why.
    pub reason: Rejection,
}

/// Why no manifest could be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BuildError {
    /// More rows than row numbers.
    #[error("the dataset has more than {limit} {what}: split it into several")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// The most that fits.
        limit: u64,
    },
    /// Name or origin too long for the format.
    #[error("{what} is longer than 65,535 bytes")]
    TooLong {
        /// Which string.
        what: &'static str,
    },
    /// Two different files came under one name.
    #[error("the origin listed {path} twice with different contents while it was being read: import again")]
    ChangedWhileListed {
        /// The path, escaped.
        path: String,
    },
}

/// A finished manifest.
#[derive(Debug)]
pub struct Built {
    /// The file's bytes, in order; write one after the other.
    pub parts: Vec<Vec<u8>>,
    /// Files that a folder of the same name shadows.
    pub rejected: Vec<RejectedKey>,
    /// Which snapshot it is.
    pub snapshot: SnapshotId,
    /// Counts and sizes.
    pub totals: Totals,
}

impl Built {
    /// Bytes of the manifest.
    pub fn len_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }

    /// All in one piece.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.parts.concat()
    }
}

struct Row {
    path_at: u64,
    path_len: u16,
    tag: u32,
    size: u64,
    mtime_ns: i64,
    version: [u8; 16],
    crcs_at: u32,
}

/// Collects a listing; about 70 bytes and the path for each file.
#[derive(Default)]
pub struct ManifestBuilder {
    paths: Vec<u8>,
    rows: Vec<Row>,
    etags: Vec<u8>,
    crcs: Vec<u32>,
    /// Paths of folder markers, so that empty folders are kept.
    markers: Vec<Vec<u8>>,
    packs: Option<Vec<PackObject>>,
}

impl std::fmt::Debug for ManifestBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManifestBuilder").field("files", &self.rows.len()).finish_non_exhaustive()
    }
}

impl ManifestBuilder {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of files so far.
    pub fn files(&self) -> usize {
        self.rows.len()
    }

    /// Adds a file of a plain snapshot. Errors: its key cannot be a file name; nothing was added.
    pub fn push(&mut self, file: &FileSource<'_>, rules: NameRules) -> Result<(), Rejection> {
        name::check(file.path, rules)?;
        let (tag, version) = match &file.version {
            VersionTag::MtimeSize { .. } => (u32::from(tag::MTIME_SIZE), [0; 16]),
            VersionTag::ETag(etag) => match parse_md5(etag) {
                Some((md5, parts)) => (u32::from(tag::MD5) | parts << 8, md5),
                None => {
                    // An ETag is a header's value, far below 64 KiB; what is cut off fails the match, it does not lie.
                    let etag = &etag.as_bytes()[..etag.len().min(usize::from(u16::MAX))];
                    let at = StringRef::new(self.etags.len() as u64, etag.len() as u16);
                    self.etags.extend_from_slice(etag);
                    let mut version = [0; 16];
                    version[..8].copy_from_slice(&at.0.to_le_bytes());
                    (u32::from(tag::HEAP), version)
                }
            },
        };
        self.add(file.path, file.size, file.mtime_ns, tag, version, 0);
        Ok(())
    }

    /// Adds a file of a packed snapshot, whose name is known to be clean. `block_crcs` has one entry for each block.
    pub fn push_packed(&mut self, file: &Packed<'_>) -> Result<(), Rejection> {
        name::check(file.path, NameRules::FOLDER)?;
        let mut version = [0; 16];
        version[..4].copy_from_slice(&file.pack.to_le_bytes());
        version[8..].copy_from_slice(&file.offset.to_le_bytes());
        let crcs_at = self.crcs.len() as u32;
        self.crcs.extend_from_slice(file.block_crcs);
        self.add(file.path, file.size, file.mtime_ns, u32::from(tag::PACKED), version, crcs_at);
        Ok(())
    }

    /// Says which packs there are; makes the snapshot a packed one.
    pub fn set_packs(&mut self, packs: Vec<PackObject>) {
        self.packs = Some(packs);
    }

    /// Adds a folder that has a marker of its own, so that it exists though it may be empty.
    pub fn push_folder(&mut self, path: &[u8], rules: NameRules) -> Result<(), Rejection> {
        name::check(path, rules)?;
        self.markers.push(path.to_vec());
        Ok(())
    }

    fn add(&mut self, path: &[u8], size: u64, mtime_ns: i64, tag: u32, version: [u8; 16], crcs_at: u32) {
        let path_at = self.paths.len() as u64;
        self.paths.extend_from_slice(path);
        // PATH_MAX is below 64 KiB, and `check` has seen the path.
        self.rows.push(Row { path_at, path_len: path.len() as u16, tag, size, mtime_ns, version, crcs_at });
    }

    /// Sorts, numbers and writes out. `origin` is the URL below which the files (or packs) are.
    pub fn finish(mut self, name: &str, origin: &str, created_ns: i64) -> Result<Built, BuildError> {
        let paths = std::mem::take(&mut self.paths);
        let path = |row: &Row| &paths[row.path_at as usize..row.path_at as usize + usize::from(row.path_len)];
        self.rows.sort_unstable_by(|a, b| name::split(path(a)).cmp(&name::split(path(b))));
        drop_repeats(&mut self.rows, path)?;

        let tree = FolderTree::new(self.rows.iter().map(|row| name::split(path(row)).0), &self.markers)?;
        let mut rejected = Vec::new();
        self.rows.retain(|row| {
            let shadowed = tree.index_of.contains_key(path(row));
            if shadowed {
                rejected.push(RejectedKey { key: path(row).to_vec(), reason: Rejection::ShadowedByFolder });
            }
            !shadowed
        });
        limit("files", self.rows.len() as u64)?;

        // Rows are grouped by folder already; put the groups into the folders' order.
        let folder_of = |row: &Row| tree.index_of[name::split(path(row)).0];
        self.rows.sort_by_key(folder_of);

        let mut writer = Writer::default();
        writer.folders(&tree, self.rows.iter().map(folder_of))?;
        for row in &self.rows {
            writer.file(
                row,
                folder_of(row),
                name::split(path(row)).1,
                &self.etags,
                &self.crcs,
                self.packs.is_some(),
            )?;
        }
        for pack in self.packs.iter().flatten() {
            writer.pack(pack)?;
        }
        writer.finish(name, origin, created_ns, self.packs.is_some(), rejected)
    }
}

/// A listing that was resumed may name a file twice. The same file is kept once; two different ones are an error.
fn drop_repeats<'a>(rows: &mut Vec<Row>, path: impl Fn(&Row) -> &'a [u8]) -> Result<(), BuildError> {
    let same = |a: &Row, b: &Row| (a.size, a.mtime_ns, a.tag as u8) == (b.size, b.mtime_ns, b.tag as u8);
    if let Some(pair) = rows.windows(2).find(|pair| path(&pair[0]) == path(&pair[1]) && !same(&pair[0], &pair[1])) {
        return Err(BuildError::ChangedWhileListed { path: path(&pair[0]).escape_ascii().to_string() });
    }
    rows.dedup_by(|a, b| path(a) == path(b));
    Ok(())
}

fn limit(what: &'static str, count: u64) -> Result<u32, BuildError> {
    u32::try_from(count).map_err(|_| BuildError::TooLarge { what, limit: u64::from(u32::MAX) })
}

/// `"<32 lower-case hex digits>"`, or with `-N` for an upload in N parts.
fn parse_md5(etag: &str) -> Option<([u8; 16], u32)> {
    let inner = etag.strip_prefix('"')?.strip_suffix('"')?;
    let (hex, parts) = match inner.split_once('-') {
        Some((hex, parts)) if !parts.starts_with('0') && parts.bytes().all(|byte| byte.is_ascii_digit()) => {
            (hex, parts.parse().ok().filter(|&parts: &u32| parts > 0 && parts < 1 << 24)?)
        }
        Some(_) => return None,
        None => (inner, 0),
    };
    if hex.len() != 32 || !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let mut md5 = [0; 16];
    for (byte, digits) in md5.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some((md5, parts))
}

/// The folders in breadth-first order, children of one folder beside each other and sorted by name.
struct FolderTree {
    folders: Vec<Folder>,
    index_of: HashMap<Vec<u8>, u32>,
}

struct Folder {
    name: Vec<u8>,
    parent: u32,
    first_dir: u32,
    dir_count: u32,
}

impl FolderTree {
    fn new<'a>(parents: impl Iterator<Item = &'a [u8]>, markers: &'a [Vec<u8>]) -> Result<Self, BuildError> {
        let mut levels: Vec<Vec<Vec<u8>>> = vec![vec![Vec::new()]];
        let mut index_of = HashMap::from([(Vec::new(), 0_u32)]);
        let mut last: &[u8] = &[];
        // Parents arrive sorted, so that most repeats are neighbours.
        for path in parents.chain(markers.iter().map(Vec::as_slice)) {
            if path == last {
                continue;
            }
            last = path;
            let mut path = path;
            while !path.is_empty() && !index_of.contains_key(path) {
                index_of.insert(path.to_vec(), u32::MAX);
                let depth = path.iter().filter(|&&byte| byte == b'/').count() + 1;
                if levels.len() <= depth {
                    levels.resize_with(depth + 1, Vec::new);
                }
                levels[depth].push(path.to_vec());
                path = name::split(path).0;
            }
        }
        limit("folders", index_of.len() as u64)?;
        let mut folders: Vec<Folder> = Vec::with_capacity(index_of.len());
        for level in &mut levels {
            level.sort_unstable_by(|a, b| {
                let ((a_parent, a_name), (b_parent, b_name)) = (name::split(a), name::split(b));
                (index_of[a_parent], a_name).cmp(&(index_of[b_parent], b_name))
            });
            for path in level.drain(..) {
                let index = folders.len() as u32;
                let (parent, name) = name::split(&path);
                let parent = index_of[parent];
                if index > 0 {
                    let above = &mut folders[parent as usize];
                    if above.dir_count == 0 {
                        above.first_dir = index;
                    }
                    above.dir_count += 1;
                }
                folders.push(Folder { name: name.to_vec(), parent, first_dir: 0, dir_count: 0 });
                index_of.insert(path, index);
            }
        }
        // Folders without children point to where theirs would be, so that first_dir never decreases.
        let mut next = 1;
        for folder in &mut folders {
            folder.first_dir = next;
            next += folder.dir_count;
        }
        Ok(Self { folders, index_of })
    }
}

#[derive(Default)]
struct Writer {
    dirs: Vec<u8>,
    files: Vec<u8>,
    block_crcs: Vec<u8>,
    packs: Vec<u8>,
    heap: Vec<u8>,
    totals: Counts,
}

#[derive(Default)]
struct Counts {
    dirs: u64,
    files: u64,
    blocks: u64,
    packs: u64,
    bytes: u64,
}

impl Writer {
    fn string(&mut self, string: &[u8]) -> StringRef {
        let at = StringRef::new(self.heap.len() as u64, string.len() as u16);
        self.heap.extend_from_slice(string);
        at
    }

    fn folders(&mut self, tree: &FolderTree, folder_of_files: impl Iterator<Item = u32>) -> Result<(), BuildError> {
        let mut counts = vec![0_u32; tree.folders.len()];
        for folder in folder_of_files {
            counts[folder as usize] += 1;
        }
        let mut first_file = 0_u32;
        for (folder, file_count) in tree.folders.iter().zip(counts) {
            let name = self.string(&folder.name);
            self.dirs.extend_from_slice(&name.0.to_le_bytes());
            for field in [folder.parent, folder.first_dir, folder.dir_count, first_file, file_count] {
                self.dirs.extend_from_slice(&field.to_le_bytes());
            }
            first_file += file_count;
        }
        self.totals.dirs = u64::from(limit("folders", tree.folders.len() as u64)?);
        Ok(())
    }

    fn file(
        &mut self,
        row: &Row,
        dir: u32,
        name: &[u8],
        etags: &[u8],
        crcs: &[u32],
        packed: bool,
    ) -> Result<(), BuildError> {
        let name = self.string(name);
        let first_block = limit("blocks", self.totals.blocks)?;
        let blocks = block::block_count(row.size);
        let mut version = row.version;
        if row.tag as u8 == tag::HEAP {
            let etag = StringRef(layout::u64_at(&version, 0));
            let etag = &etags[etag.offset() as usize..(etag.offset() + etag.len()) as usize];
            version[..8].copy_from_slice(&self.string(etag).0.to_le_bytes());
        }
        self.files.extend_from_slice(&name.0.to_le_bytes());
        self.files.extend_from_slice(&row.size.to_le_bytes());
        self.files.extend_from_slice(&row.mtime_ns.to_le_bytes());
        self.files.extend_from_slice(&dir.to_le_bytes());
        self.files.extend_from_slice(&first_block.to_le_bytes());
        self.files.extend_from_slice(&row.tag.to_le_bytes());
        self.files.extend_from_slice(&version);
        if packed {
            for crc in &crcs[row.crcs_at as usize..row.crcs_at as usize + blocks as usize] {
                self.block_crcs.extend_from_slice(&crc.to_le_bytes());
            }
        }
        self.totals.files += 1;
        self.totals.blocks += blocks;
        self.totals.bytes =
            self.totals.bytes.checked_add(row.size).ok_or(BuildError::TooLarge { what: "bytes", limit: u64::MAX })?;
        limit("blocks", self.totals.blocks)?;
        Ok(())
    }

    fn pack(&mut self, pack: &PackObject) -> Result<(), BuildError> {
        let key = self.string(&pack.key);
        let etag = self.string(pack.etag.as_bytes());
        self.packs.extend_from_slice(&key.0.to_le_bytes());
        self.packs.extend_from_slice(&pack.size.to_le_bytes());
        self.packs.extend_from_slice(&etag.0.to_le_bytes());
        self.totals.packs += 1;
        limit("packs", self.totals.packs)?;
        Ok(())
    }

    fn finish(
        self,
        name: &str,
        origin: &str,
        created_ns: i64,
        packed: bool,
        rejected: Vec<RejectedKey>,
    ) -> Result<Built, BuildError> {
        let totals = Totals {
            dirs: limit("folders", self.totals.dirs)?,
            files: limit("files", self.totals.files)?,
            blocks: limit("blocks", self.totals.blocks)?,
            packs: limit("packs", self.totals.packs)?,
            bytes: self.totals.bytes,
        };
        let snapshot = snapshot_id(
            origin,
            [&self.dirs, &self.files, &self.block_crcs, &self.packs, &self.heap].into_iter().map(Vec::as_slice),
        );
        let mut meta = Vec::new();
        for (what, string) in [("the dataset's name", name), ("the origin's URL", origin)] {
            let len = u16::try_from(string.len()).map_err(|_| BuildError::TooLong { what })?;
            meta.extend_from_slice(&len.to_le_bytes());
            meta.extend_from_slice(string.as_bytes());
        }
        let mut parts =
            vec![vec![0; HEADER_BYTES], self.dirs, self.files, self.block_crcs, self.packs, self.heap, meta];
        parts.push(chunk_crcs(&parts));

        let mut head = std::mem::take(&mut parts[0]);
        head[..8].copy_from_slice(&layout::MAGIC);
        head[header::VERSION] = layout::VERSION;
        head[header::FLAGS] = if packed { layout::FLAG_PACKED } else { 0 };
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        put(header::SNAPSHOT, &snapshot.0);
        for (at, count) in [
            (header::DIRS, totals.dirs),
            (header::FILES, totals.files),
            (header::BLOCKS, totals.blocks),
            (header::PACKS, totals.packs),
        ] {
            put(at, &count.to_le_bytes());
        }
        put(header::BYTES, &totals.bytes.to_le_bytes());
        put(header::CREATED, &created_ns.to_le_bytes());
        let mut at = HEADER_BYTES as u64;
        for (nth, part) in parts[1..].iter().enumerate() {
            put(header::SECTIONS + nth * 16, &at.to_le_bytes());
            put(header::SECTIONS + nth * 16 + 8, &(part.len() as u64).to_le_bytes());
            at += part.len() as u64;
        }
        put(header::CHUNKS_CRC, &crate::checksum::crc32c(&parts[Section::ChunkCrcs as usize + 1]).to_le_bytes());
        let crc = crate::checksum::crc32c(&head[..header::CRC]);
        head[header::CRC..].copy_from_slice(&crc.to_le_bytes());
        parts[0] = head;
        Ok(Built { parts, rejected, snapshot, totals })
    }
}

/// CRC32C of each chunk of the body, as if `parts` stood one after the other; the header at the front is left out.
fn chunk_crcs(parts: &[Vec<u8>]) -> Vec<u8> {
    let total: usize = parts.iter().map(Vec::len).sum();
    let mut crcs = vec![0_u32; total.div_ceil(CHUNK_BYTES)];
    let mut at = HEADER_BYTES;
    for mut part in parts[1..].iter().map(Vec::as_slice) {
        while !part.is_empty() {
            let (piece, rest) = part.split_at((CHUNK_BYTES - at % CHUNK_BYTES).min(part.len()));
            let crc = &mut crcs[at / CHUNK_BYTES];
            *crc = crate::checksum::crc32c_append(*crc, piece);
            at += piece.len();
            part = rest;
        }
    }
    crcs.iter().flat_map(|crc| crc.to_le_bytes()).collect()
}

/// SHA-256 over the origin's URL and the sections that say what the snapshot holds.
pub(super) fn snapshot_id<'a>(origin: &str, sections: impl Iterator<Item = &'a [u8]>) -> SnapshotId {
    let mut hash = Sha256::new();
    hash.update([layout::VERSION]);
    hash.update((origin.len() as u64).to_le_bytes());
    hash.update(origin.as_bytes());
    for section in sections {
        hash.update(section);
    }
    SnapshotId(hash.finalize().into())
}
