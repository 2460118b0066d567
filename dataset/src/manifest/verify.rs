//! Checks a whole manifest.

use super::bytes::ManifestBytes;
use super::contents_hash::snapshot_id;
use super::error::{ManifestError, corrupt};
use super::layout::{DIR_BYTES, FILE_BYTES, Section};
use super::read::Manifest;
use super::rows::{DirIndex, Entry, FileIndex, LinkIndex};
use crate::block;

impl<B: ManifestBytes> Manifest<B> {
    /// Checks every CRC and every row, and compares the snapshot id with the contents. Reads the whole manifest.
    pub fn verify(&self) -> Result<(), ManifestError> {
        let contents = self.sections.contents()?;
        let totals = self.totals();
        let (mut first_dir, mut first_file, mut first_block, mut bytes) = (1, 0, 0, 0_u64);
        for index in 0..totals.dirs {
            let dir = self.dir(DirIndex(index))?;
            if dir.first_dir != first_dir || dir.first_file != first_file {
                return Err(corrupt("folder rows"));
            }
            self.verify_names(Section::Dirs, dir.first_dir, dir.dir_count, DIR_BYTES)?;
            self.verify_names(Section::Files, dir.first_file, dir.file_count, FILE_BYTES)?;
            first_dir += dir.dir_count;
            first_file += dir.file_count;
            for row in dir.first_file..first_file {
                let file = self.file(FileIndex(row))?;
                self.version(&file)?;
                if file.dir.0 != index || file.first_block.0 != first_block {
                    return Err(corrupt("file rows"));
                }
                first_block += block::block_count(file.size) as u32;
                bytes = bytes.checked_add(file.size).ok_or(corrupt("file rows"))?;
            }
        }
        if (first_dir, first_file, first_block, bytes) != (totals.dirs, totals.files, totals.blocks, totals.bytes) {
            return Err(corrupt("totals"));
        }
        self.verify_links()?;
        let (_, origin) = self.name_and_origin()?;
        if snapshot_id(self.version_byte(), origin, contents) != self.snapshot() {
            return Err(corrupt("snapshot id"));
        }
        Ok(())
    }

    fn verify_links(&self) -> Result<(), ManifestError> {
        let mut last = None;
        for index in (0..self.totals().links).map(LinkIndex) {
            let link = self.link(index)?;
            // The look-up finds another row if a file or folder has the same name.
            let is_found =
                || Ok::<_, ManifestError>(self.lookup(&self.dir(link.dir)?, link.name)? == Some(Entry::Link(index)));
            if !is_name(link.name) || last >= Some((link.dir, link.name)) || !is_found()? {
                return Err(corrupt("link rows"));
            }
            last = Some((link.dir, link.name));
        }
        Ok(())
    }

    fn verify_names(&self, section: Section, first: u32, count: u32, row_bytes: usize) -> Result<(), ManifestError> {
        let mut last: &[u8] = &[];
        for row in first..first.checked_add(count).ok_or(corrupt("row numbers"))? {
            let name = self.sections.name(section, row, row_bytes)?;
            if name <= last || !is_name(name) {
                return Err(corrupt("names"));
            }
            last = name;
        }
        Ok(())
    }
}

/// True if no path through this name leads elsewhere.
fn is_name(name: &[u8]) -> bool {
    !name.contains(&b'/') && !matches!(name, b"" | b"." | b"..")
}
