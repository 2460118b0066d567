//! Builds the manifest of a mirror: of a copy of a snapshot in another origin.
//!
//! Invariant: the rows are those of the source in the same order, with the same names, sizes and block numbers. So a
//! row, an inode and a block stand for the same bytes in both snapshots. Only the versions are the mirror's own, and
//! where the modification time is the version, the times.

#[cfg(test)]
mod tests;

use super::built::{BuildError, Built};
use super::bytes::ManifestBytes;
use super::encoder::{DirRow, FileRow, RowEncoder};
use super::error::ManifestError;
use super::read::Manifest;
use super::rows::{DirIndex, FileIndex, LinkIndex};
use super::version_tag::VersionTag;
use crate::block::BlockIndex;

impl<B: ManifestBytes> Manifest<B> {
    /// Builds the manifest of a copy of this snapshot below the URL `origin`. `version` returns the version of each
    /// copied object by its row, in order: of the files of a plain snapshot, of the packs of a packed one. Uses as much
    /// memory as the manifest has bytes.
    pub fn mirrored_at<E: From<ManifestError> + From<BuildError>>(
        &self,
        origin: &str,
        version: impl FnMut(u32) -> VersionTag<'static>,
    ) -> Result<Built, E> {
        self.stable(|| self.rewrite(origin, version))
    }

    fn rewrite<E: From<ManifestError> + From<BuildError>>(
        &self,
        origin: &str,
        mut version: impl FnMut(u32) -> VersionTag<'static>,
    ) -> Result<Built, E> {
        let totals = self.totals();
        let mut heap = Vec::new();
        for index in 0..totals.dirs {
            heap.extend_from_slice(self.dir(DirIndex(index))?.name);
        }
        let mut encoder = RowEncoder::new(heap.len() as u64);
        let (mut dirs, mut files, mut block_crcs, mut packs, mut links) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for index in 0..totals.dirs {
            let dir = self.dir(DirIndex(index))?;
            dirs.extend_from_slice(&encoder.dir(&DirRow {
                name_len: dir.name.len(),
                parent: dir.parent.0,
                first_dir: dir.first_dir,
                dir_count: dir.dir_count,
                first_file: dir.first_file,
                file_count: dir.file_count,
            }));
        }
        for index in 0..totals.files {
            let file = self.file(FileIndex(index))?;
            let tag;
            let row = if self.is_packed() {
                let (size, mtime_ns, tag, version) = (file.size, file.mtime_ns, file.tag, file.version);
                FileRow { size, mtime_ns, tag, version, etag: &[] }
            } else {
                tag = version(index);
                let mtime_ns = match &tag {
                    VersionTag::MtimeSize { mtime_ns, .. } => *mtime_ns,
                    VersionTag::ETag(_) => file.mtime_ns,
                };
                FileRow::plain(file.size, mtime_ns, &tag)
            };
            files.extend_from_slice(&encoder.file(file.name.len(), file.dir.0, &row)?);
            heap.extend_from_slice(file.name);
            heap.extend_from_slice(row.heap_etag());
        }
        if self.is_packed() {
            for index in 0..totals.blocks {
                let crc = self.block_crc(BlockIndex(index))?.unwrap_or_default();
                block_crcs.extend_from_slice(&crc.to_le_bytes());
            }
        }
        for index in 0..totals.packs {
            let pack = self.pack(index)?;
            let etag = match version(index) {
                VersionTag::ETag(etag) => etag.into_owned(),
                VersionTag::MtimeSize { .. } => String::new(),
            };
            packs.extend_from_slice(&encoder.pack(pack.key.len(), pack.size, etag.len()));
            heap.extend_from_slice(pack.key);
            heap.extend_from_slice(etag.as_bytes());
        }
        for index in 0..totals.links {
            let link = self.link(LinkIndex(index))?;
            links.extend_from_slice(&encoder.link(link.name.len(), link.mtime_ns, link.dir.0, link.target));
            heap.extend_from_slice(link.name);
        }
        let (name, source) = self.name_and_origin()?;
        let mut seal = encoder.seal(self.is_packed(), name, origin, self.created_ns())?;
        seal.mirrors(self.snapshot(), source)?;
        let sections = [dirs, files, block_crcs, packs, heap, links];
        sections.iter().for_each(|section| seal.update(section));
        let sealed = seal.finish();
        let parts = std::iter::once(sealed.header.to_vec()).chain(sections).chain([sealed.tail]).collect();
        Ok(Built { parts, rejected: Vec::new(), snapshot: sealed.snapshot, totals: sealed.totals })
    }
}
