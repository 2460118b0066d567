//! Reads a manifest in place.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

use super::bytes::ManifestBytes;
use super::error::{ManifestError, corrupt};
use super::layout::{
    self, CRC_BYTES, DIR_BYTES, FILE_BYTES, LINK_BYTES, PACK_BYTES, Section, StringRef, header, tag, target, u32_at,
    u64_at,
};
use super::rows::{
    Dir, DirIndex, Entry, File, FileBlocks, FileIndex, Link, LinkIndex, LinkTarget, Location, Mirrored, Pack, Totals,
};
use super::sections::{SectionTable, Sections, checked_header};
use super::version_tag::{VersionTag, format_md5};
use crate::block::{self, BlockIndex};
use crate::checksum::crc32c_combine;
use crate::snapshot::SnapshotId;

/// A manifest that is read in place from `B`, usually a mapped file. Any number of threads may share it. It allocates
/// memory only for paths and version tags.
///
/// ```
/// use larder_dataset::manifest::PlainFile;
/// use larder_dataset::{Entry, Manifest, ManifestBuilder, NameRules, VersionTag};
///
/// let mut builder = ManifestBuilder::new();
/// let version = VersionTag::ETag("\"0123456789abcdef0123456789abcdef\"".into());
/// let file = PlainFile { path: b"train/cat.jpg", size: 9 << 20, mtime_ns: 0, version };
/// builder.push(&file, NameRules::OBJECT_STORE)?;
/// let built = builder.finish("pets", "s3://bucket/pets", 0)?;
///
/// let manifest = Manifest::open(built.to_bytes())?;
/// let Some(Entry::File(index)) = manifest.resolve(b"train/cat.jpg")? else { panic!("the file was added above") };
/// let file = manifest.file(index)?;
/// assert_eq!(file.size, 9 << 20);
/// // A read of the first 5 MiB touches the first two blocks of 4 MiB.
/// assert_eq!(file.parts(0, 5 << 20).count(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Manifest<B> {
    pub(super) sections: Sections<B>,
    totals: Totals,
    snapshot: SnapshotId,
    packed: bool,
    created_ns: i64,
}

/// Checks that the manifest of `len` bytes that begins with `start` has as many bytes as its header says, and as its
/// counts of rows need. `start` is at least the header, or the whole manifest if that is shorter. A reader that fetches
/// a manifest calls it before it fetches the rest.
pub fn check_header(start: &[u8], len: u64) -> Result<(), ManifestError> {
    let (head, table) = checked_header(start, len)?;
    checked_totals(head, &table).map(drop)
}

fn is_packed(head: &[u8]) -> bool {
    head[header::FLAGS] & layout::FLAG_PACKED != 0
}

/// The counts of a header whose sections have the lengths that these counts need.
fn checked_totals(head: &[u8], table: &SectionTable) -> Result<Totals, ManifestError> {
    let links = u32::try_from(table[Section::Links as usize].1 / LINK_BYTES).map_err(|_| corrupt("section length"))?;
    let totals = Totals {
        links,
        dirs: u32_at(head, header::DIRS),
        files: u32_at(head, header::FILES),
        blocks: u32_at(head, header::BLOCKS),
        packs: u32_at(head, header::PACKS),
        bytes: u64_at(head, header::BYTES),
    };
    let expect = |section: Section, rows: u32, row: usize| {
        if table[section as usize].1 as u64 == u64::from(rows) * row as u64 {
            Ok(())
        } else {
            Err(corrupt("section length"))
        }
    };
    expect(Section::Dirs, totals.dirs, DIR_BYTES)?;
    expect(Section::Files, totals.files, FILE_BYTES)?;
    expect(Section::BlockCrcs, if is_packed(head) { totals.blocks } else { 0 }, CRC_BYTES)?;
    expect(Section::Packs, totals.packs, PACK_BYTES)?;
    expect(Section::Links, links, LINK_BYTES)?;
    if totals.dirs == 0 {
        return Err(corrupt("no root folder"));
    }
    Ok(totals)
}

impl<B: ManifestBytes> Manifest<B> {
    /// Opens a manifest: checks its header and chunk CRCs. Rows are checked when they are first touched.
    pub fn open(bytes: B) -> Result<Self, ManifestError> {
        let sections = Sections::open(bytes)?;
        let head = sections.header();
        let totals = checked_totals(head, sections.table())?;
        let packed = is_packed(head);
        let mut snapshot = SnapshotId([0; 32]);
        snapshot.0.copy_from_slice(&head[header::SNAPSHOT..header::SNAPSHOT + 32]);
        let created_ns = u64_at(head, header::CREATED).cast_signed();
        Ok(Self { sections, totals, snapshot, packed, created_ns })
    }

    /// The id of the snapshot.
    pub fn snapshot(&self) -> SnapshotId {
        self.snapshot
    }

    /// The counts and sizes of the snapshot.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// When the listing began that the manifest describes, in nanoseconds since the epoch.
    pub fn created_ns(&self) -> i64 {
        self.created_ns
    }

    /// The format version.
    pub(super) fn version_byte(&self) -> u8 {
        self.sections.header()[header::VERSION]
    }

    /// True if the files' bytes are in packs.
    pub fn is_packed(&self) -> bool {
        self.packed
    }

    /// The owner of the manifest's bytes. Bytes read through it are not checked.
    pub fn holder(&self) -> &B {
        self.sections.holder()
    }

    /// The length of the manifest itself in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.sections.len_bytes()
    }

    /// Runs `read`, which reads rows of the manifest and uses the names in them. Errors: `Corrupt` too if bytes of the
    /// manifest were lost while it ran, since `read` may have seen arbitrary values in their place.
    pub fn stable<T, E: From<ManifestError>>(&self, read: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.sections.stable(read)
    }

    /// The name of the dataset and the URL of its origin.
    pub fn name_and_origin(&self) -> Result<(&str, &str), ManifestError> {
        self.stable(|| {
            let (name, origin, _) = self.meta()?;
            Ok((name, origin))
        })
    }

    /// The snapshot that this one is a copy of; `None` if it is no mirror.
    pub fn mirrored(&self) -> Result<Option<Mirrored<'_>>, ManifestError> {
        self.stable(|| {
            let (_, _, rest) = self.meta()?;
            if rest.is_empty() {
                return Ok(None);
            }
            let (id, rest) = rest.split_first_chunk::<32>().ok_or(corrupt("meta"))?;
            let (origin, _) = split_string(rest)?;
            Ok(Some(Mirrored { snapshot: SnapshotId(*id), origin }))
        })
    }

    /// The dataset's name, the URL of its origin, and the metadata after them.
    fn meta(&self) -> Result<(&str, &str, &[u8]), ManifestError> {
        let meta = self.sections.get(Section::Meta, 0, self.sections.section_bytes(Section::Meta))?;
        let (name, rest) = split_string(meta)?;
        let (origin, rest) = split_string(rest)?;
        Ok((name, origin, rest))
    }

    /// The row of a folder. Errors: `Corrupt`, also if the row does not exist.
    pub fn dir(&self, dir: DirIndex) -> Result<Dir<'_>, ManifestError> {
        self.stable(|| self.read_dir(dir))
    }

    fn read_dir(&self, dir: DirIndex) -> Result<Dir<'_>, ManifestError> {
        let row = self.sections.row(Section::Dirs, dir.0, DIR_BYTES)?;
        let found = Dir {
            index: dir,
            name: self.sections.string(StringRef(u64_at(row, 0)))?,
            parent: DirIndex(u32_at(row, 8)),
            first_dir: u32_at(row, 12),
            dir_count: u32_at(row, 16),
            first_file: u32_at(row, 20),
            file_count: u32_at(row, 24),
        };
        let dirs_end = u64::from(found.first_dir) + u64::from(found.dir_count);
        let files_end = u64::from(found.first_file) + u64::from(found.file_count);
        // Each parent has a smaller number than its children, so a walk towards the root always ends.
        let ordered = if dir.0 == 0 { found.parent.0 == 0 } else { found.parent < dir };
        if ordered && dirs_end <= u64::from(self.totals.dirs) && files_end <= u64::from(self.totals.files) {
            Ok(found)
        } else {
            Err(corrupt("folder row"))
        }
    }

    /// The row of a file. Errors: `Corrupt`, also if the row does not exist.
    pub fn file(&self, file: FileIndex) -> Result<File<'_>, ManifestError> {
        self.stable(|| self.read_file(file))
    }

    /// The location of a file's blocks. Errors: as for [`Self::file`].
    pub fn file_blocks(&self, file: FileIndex) -> Result<FileBlocks, ManifestError> {
        Ok(FileBlocks::of(file, &self.file(file)?))
    }

    fn read_file(&self, file: FileIndex) -> Result<File<'_>, ManifestError> {
        let row = self.sections.row(Section::Files, file.0, FILE_BYTES)?;
        let mut version = [0; 16];
        version.copy_from_slice(&row[36..52]);
        let tag = u32_at(row, 32);
        let found = File {
            name: self.sections.string(StringRef(u64_at(row, 0)))?,
            size: u64_at(row, 8),
            mtime_ns: u64_at(row, 16).cast_signed(),
            dir: DirIndex(u32_at(row, 24)),
            first_block: BlockIndex(u32_at(row, 28)),
            location: if tag as u8 == tag::PACKED {
                Location::Pack { pack: u32_at(&version, 0), offset: u64_at(&version, 8) }
            } else {
                Location::Object
            },
            tag,
            version,
        };
        let blocks_end = block::block_count(found.size).checked_add(u64::from(found.first_block.0));
        if found.dir.0 < self.totals.dirs && blocks_end.is_some_and(|end| end <= u64::from(self.totals.blocks)) {
            Ok(found)
        } else {
            Err(corrupt("file row"))
        }
    }

    /// The row of a pack. Errors: `Corrupt`, also if the row does not exist.
    pub fn pack(&self, pack: u32) -> Result<Pack<'_>, ManifestError> {
        self.stable(|| {
            let row = self.sections.row(Section::Packs, pack, PACK_BYTES)?;
            let etag = self.sections.string(StringRef(u64_at(row, 16)))?;
            Ok(Pack {
                key: self.sections.string(StringRef(u64_at(row, 0)))?,
                size: u64_at(row, 8),
                etag: std::str::from_utf8(etag).map_err(|_| corrupt("pack row"))?,
            })
        })
    }

    /// The row of a symbolic link. Errors: `Corrupt`, also if the row does not exist.
    pub fn link(&self, link: LinkIndex) -> Result<Link<'_>, ManifestError> {
        self.stable(|| {
            let row = self.sections.row(Section::Links, link.0, LINK_BYTES)?;
            let index = u32_at(row, 20);
            let target = match u32_at(row, 24) {
                target::DIR if index < self.totals.dirs => LinkTarget::Dir(DirIndex(index)),
                target::FILE if index < self.totals.files => LinkTarget::File(FileIndex(index)),
                _ => return Err(corrupt("link row")),
            };
            let found = Link {
                name: self.sections.string(StringRef(u64_at(row, 0)))?,
                mtime_ns: u64_at(row, 8).cast_signed(),
                dir: DirIndex(u32_at(row, 16)),
                target,
            };
            if found.dir.0 < self.totals.dirs { Ok(found) } else { Err(corrupt("link row")) }
        })
    }

    /// The links in a folder, sorted by name, as their row numbers.
    pub fn links_of(&self, dir: DirIndex) -> Result<Range<u32>, ManifestError> {
        self.stable(|| {
            let links = self.totals.links;
            let first_not_below = |bound: u64| {
                let (mut low, mut high) = (0, links);
                while low < high {
                    let middle = low + (high - low) / 2;
                    let row = self.sections.row(Section::Links, middle, LINK_BYTES)?;
                    if u64::from(u32_at(row, 16)) < bound { low = middle + 1 } else { high = middle }
                }
                Ok::<_, ManifestError>(low)
            };
            Ok(first_not_below(u64::from(dir.0))?..first_not_below(u64::from(dir.0) + 1)?)
        })
    }

    /// The text of a link: the path from its folder to its target. The target is a row, and folders have no links
    /// among their parents, so no text leads out of the tree.
    pub fn link_text(&self, link: &Link<'_>) -> Result<Vec<u8>, ManifestError> {
        self.stable(|| {
            let mut from = Vec::new();
            self.dir_path(link.dir, &mut from)?;
            Ok(relative(&from, &self.target_path(link.target)?))
        })
    }

    /// The path of a link.
    pub fn link_path(&self, link: &Link<'_>) -> Result<Vec<u8>, ManifestError> {
        self.path_in(link.dir, link.name)
    }

    /// The path of the file or folder that a link leads to.
    pub fn target_path(&self, target: LinkTarget) -> Result<Vec<u8>, ManifestError> {
        match target {
            LinkTarget::Dir(dir) => {
                let mut path = Vec::new();
                self.dir_path(dir, &mut path)?;
                Ok(path)
            }
            LinkTarget::File(file) => self.file_path(&self.file(file)?),
        }
    }

    /// The version of a file's object, or of its pack. Its bytes are served only while the origin has this version.
    /// `None` for a pack in a local folder, whose blocks have CRCs instead.
    pub fn version(&self, file: &File<'_>) -> Result<Option<VersionTag<'_>>, ManifestError> {
        Ok(match file.tag as u8 {
            tag::MTIME_SIZE => Some(VersionTag::MtimeSize { mtime_ns: file.mtime_ns, size: file.size }),
            tag::MD5 => Some(VersionTag::ETag(Cow::Owned(format_md5(&file.version, file.tag >> 8)))),
            tag::HEAP => {
                let etag = self.sections.string(StringRef(u64_at(&file.version, 0)))?;
                Some(VersionTag::ETag(Cow::Borrowed(std::str::from_utf8(etag).map_err(|_| corrupt("version tag"))?)))
            }
            tag::PACKED => self.pack(u32_at(&file.version, 0))?.version(),
            _ => return Err(corrupt("version tag")),
        })
    }

    /// The object that contains the bytes `range` of a file: its key below the origin, and the range within it. In a
    /// plain snapshot the key is the file's path; in a packed one it is the pack's key. Errors: `Corrupt`, also if
    /// `range` exceeds the file.
    pub fn locate(&self, file: &File<'_>, range: Range<u64>) -> Result<(Vec<u8>, Range<u64>), ManifestError> {
        if range.start > range.end || range.end > file.size {
            return Err(corrupt("range beyond the file"));
        }
        match file.location {
            Location::Object => Ok((self.file_path(file)?, range)),
            Location::Pack { pack, offset } => self.stable(|| {
                let pack = self.pack(pack)?;
                // The whole file must lie within the pack. This check also rules out an overflow below.
                if offset.checked_add(file.size).is_none_or(|end| end > pack.size) {
                    return Err(corrupt("file beyond its pack"));
                }
                Ok((pack.key.to_vec(), offset + range.start..offset + range.end))
            }),
        }
    }

    /// The CRC32C of a block. `None` in a plain snapshot, which does not store CRCs.
    pub fn block_crc(&self, block: BlockIndex) -> Result<Option<u32>, ManifestError> {
        if !self.packed {
            return Ok(None);
        }
        self.stable(|| Ok(Some(u32_at(self.sections.row(Section::BlockCrcs, block.0, CRC_BYTES)?, 0))))
    }

    /// The CRC32C of a whole file. `None` in a plain snapshot, which does not store CRCs.
    pub fn file_crc(&self, file: &File<'_>) -> Result<Option<u32>, ManifestError> {
        let mut crc = None;
        for part in file.parts(0, file.size) {
            let Some(next) = self.block_crc(part.block)? else { return Ok(None) };
            crc = Some(crc.map_or(next, |so_far| crc32c_combine(so_far, next, u64::from(part.block_len))));
        }
        Ok(if self.packed { crc.or(Some(0)) } else { None })
    }

    /// Finds `name` in a folder by binary search.
    pub fn lookup(&self, dir: &Dir<'_>, name: &[u8]) -> Result<Option<Entry>, ManifestError> {
        self.stable(|| self.search_dir(dir, name))
    }

    fn search_dir(&self, dir: &Dir<'_>, name: &[u8]) -> Result<Option<Entry>, ManifestError> {
        let files = dir.first_file..dir.first_file + dir.file_count;
        if let Some(row) = search(files, |row| Ok(self.sections.name(Section::Files, row, FILE_BYTES)?.cmp(name)))? {
            return Ok(Some(Entry::File(FileIndex(row))));
        }
        let dirs = dir.first_dir..dir.first_dir + dir.dir_count;
        let found = search(dirs, |row| Ok(self.sections.name(Section::Dirs, row, DIR_BYTES)?.cmp(name)))?;
        if let Some(row) = found {
            return Ok(Some(Entry::Dir(DirIndex(row))));
        }
        if self.totals.links == 0 {
            return Ok(None);
        }
        let found = search(self.links_of(dir.index)?, |row| {
            Ok(self.sections.name(Section::Links, row, LINK_BYTES)?.cmp(name))
        })?;
        Ok(found.map(|row| Entry::Link(LinkIndex(row))))
    }

    /// Finds a file, folder or link by a clean relative path, without following links. The empty path is the root.
    pub fn resolve(&self, path: &[u8]) -> Result<Option<Entry>, ManifestError> {
        self.walk(path, |link| Ok(Entry::Link(link)))
    }

    /// Finds a file or folder by a clean relative path that may lead through links. The empty path is the root.
    pub fn follow(&self, path: &[u8]) -> Result<Option<Entry>, ManifestError> {
        self.walk(path, |link| Ok(self.link(link)?.target.into()))
    }

    fn walk(
        &self,
        path: &[u8],
        pass: impl Fn(LinkIndex) -> Result<Entry, ManifestError>,
    ) -> Result<Option<Entry>, ManifestError> {
        let mut at = Entry::Dir(DirIndex(0));
        for part in parts(path) {
            let Entry::Dir(dir) = at else { return Ok(None) };
            match self.lookup(&self.dir(dir)?, part)? {
                Some(Entry::Link(link)) => at = pass(link)?,
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// Appends the path of a folder to `out`. The root's path is empty.
    pub fn dir_path(&self, dir: DirIndex, out: &mut Vec<u8>) -> Result<(), ManifestError> {
        self.stable(|| {
            let mut chain = Vec::new();
            let mut at = dir;
            while at.0 != 0 {
                let row = self.dir(at)?;
                chain.push(row.name);
                at = row.parent;
            }
            for (nth, name) in chain.iter().rev().enumerate() {
                if nth > 0 {
                    out.push(b'/');
                }
                out.extend_from_slice(name);
            }
            Ok(())
        })
    }

    /// The path of a file. In a plain snapshot it is also the key below the origin.
    pub fn file_path(&self, file: &File<'_>) -> Result<Vec<u8>, ManifestError> {
        self.path_in(file.dir, file.name)
    }

    /// The path of a name in a folder.
    fn path_in(&self, dir: DirIndex, name: &[u8]) -> Result<Vec<u8>, ManifestError> {
        self.stable(|| {
            let mut path = Vec::new();
            self.dir_path(dir, &mut path)?;
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            Ok(path)
        })
    }

    /// The file that contains a block.
    pub fn file_of_block(&self, block: BlockIndex) -> Result<FileIndex, ManifestError> {
        // Finds the last file whose first block is not after `block`. Empty files before it have the same first block.
        let (mut low, mut high) = (0, self.totals.files);
        while low < high {
            let middle = low + (high - low) / 2;
            let (first, size) = self.blocks_of(middle)?;
            if u64::from(first.0) + block::block_count(size) <= u64::from(block.0) {
                low = middle + 1
            } else {
                high = middle
            }
        }
        let (first, _) = self.blocks_of(low)?;
        if first <= block { Ok(FileIndex(low)) } else { Err(corrupt("block numbers")) }
    }

    /// The first block and the size of a file, without reading its name.
    pub(super) fn blocks_of(&self, file: u32) -> Result<(BlockIndex, u64), ManifestError> {
        self.stable(|| {
            let row = self.sections.row(Section::Files, file, FILE_BYTES)?;
            let (first, size) = (u32_at(row, 28), u64_at(row, 8));
            let end = block::block_count(size).checked_add(u64::from(first));
            if end.is_some_and(|end| end <= u64::from(self.totals.blocks)) {
                Ok((BlockIndex(first), size))
            } else {
                Err(corrupt("file row"))
            }
        })
    }
}

/// The parts of a clean path.
fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|part| !part.is_empty())
}

/// The path from the folder `from` to `to`; both are paths below the root.
pub(super) fn relative(from: &[u8], to: &[u8]) -> Vec<u8> {
    let shared = parts(from).zip(parts(to)).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n(&b".."[..], parts(from).count() - shared);
    let text = up.chain(parts(to).skip(shared)).collect::<Vec<_>>().join(&b'/');
    if text.is_empty() { b".".to_vec() } else { text }
}

fn split_string(bytes: &[u8]) -> Result<(&str, &[u8]), ManifestError> {
    let (len, rest) = bytes.split_first_chunk::<2>().ok_or(corrupt("meta"))?;
    let (string, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len))).ok_or(corrupt("meta"))?;
    Ok((std::str::from_utf8(string).map_err(|_| corrupt("meta"))?, rest))
}

/// Binary search over row numbers. `compare` returns the order of a row relative to the wanted one. Skips rows that
/// cannot be read. Errors: the wanted row may be one of those.
fn search(
    rows: Range<u32>,
    mut compare: impl FnMut(u32) -> Result<Ordering, ManifestError>,
) -> Result<Option<u32>, ManifestError> {
    let (mut low, mut high) = (rows.start, rows.end);
    while low < high {
        let middle = low + (high - low) / 2;
        let (row, order) = match compare(middle) {
            Ok(order) => (middle, order),
            Err(error) => {
                let below = nearest(middle - low, |distance| compare(middle - distance).ok());
                let above = nearest(high - 1 - middle, |distance| compare(middle + distance).ok());
                match (below, above) {
                    (Some((distance, order @ (Ordering::Greater | Ordering::Equal))), _) => (middle - distance, order),
                    (_, Some((distance, order @ (Ordering::Less | Ordering::Equal)))) => (middle + distance, order),
                    _ => return Err(error),
                }
            }
        };
        match order {
            Ordering::Less => low = row + 1,
            Ordering::Greater => high = row,
            Ordering::Equal => return Ok(Some(row)),
        }
    }
    Ok(None)
}

/// Finds the nearest readable row, at most `most` away, if all lost rows are adjacent; otherwise finds any readable
/// one. Probes few rows, because detecting a lost row costs a checksum.
fn nearest(most: u32, mut read: impl FnMut(u32) -> Option<Ordering>) -> Option<(u32, Ordering)> {
    let (mut lost, mut step) = (0, 1);
    let mut found = loop {
        if lost == most {
            return None;
        }
        let distance = step.min(most);
        match read(distance) {
            Some(order) => break (distance, order),
            None => (lost, step) = (distance, distance.saturating_mul(2)),
        }
    };
    while found.0 - lost > 1 {
        let middle = lost + (found.0 - lost) / 2;
        match read(middle) {
            Some(order) => found = (middle, order),
            None => lost = middle,
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_finds_every_row_but_those_that_are_lost() {
        for (rows, lost) in [(0..100, 50..51), (0..100, 40..60), (7..300, 7..9), (7..300, 290..300), (0..100, 0..0)] {
            for wanted in 0..2 * rows.end + 2 {
                // Row n has the name 2 n; odd names do not exist.
                let compare = |row: u32| match lost.contains(&row) {
                    true => Err(corrupt("a test")),
                    false => Ok((2 * row).cmp(&wanted)),
                };
                let found = search(rows.clone(), compare);
                let exists = wanted % 2 == 0 && rows.contains(&(wanted / 2));
                // Names between the nearest readable rows may be lost.
                let may_be_lost = !lost.is_empty()
                    && (lost.start == rows.start || wanted > 2 * (lost.start - 1))
                    && (lost.end == rows.end || wanted < 2 * lost.end);
                match found {
                    Err(_) => assert!(may_be_lost, "{wanted} in {rows:?} without {lost:?}"),
                    Ok(found) => {
                        assert_eq!(found, exists.then_some(wanted / 2), "{wanted} in {rows:?} without {lost:?}");
                        assert!(!may_be_lost, "{wanted} in {rows:?} without {lost:?}");
                    }
                }
            }
        }
    }
}
