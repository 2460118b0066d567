//! Opens the files of a dataset's cache: its slot table, its segments and the pages of its large files.

use std::path::Path;
use std::{fs, io};

use tracing::warn;

use super::space::{Allocator, Space};
use crate::aliases::Aliases;
use crate::base::Base;
use crate::config::CacheConfig;
use crate::error::StoreError;
use crate::large_file::LargeFiles;
use crate::segment::SegmentFolder;
use crate::slots::{Found, Slots};
use crate::whole_file::is_damaged;

/// The files of a dataset's cache, open.
pub(super) struct Files {
    pub(super) slots: Slots,
    pub(super) found: Found,
    pub(super) space: (Space, Allocator),
    pub(super) large: LargeFiles,
}

impl Files {
    pub(super) fn open(base: &Base, folder: &Path, config: &CacheConfig) -> Result<Self, StoreError> {
        let id = config.key.id();
        let failed = |step| move |source| StoreError::Dataset { id, step, source };
        fs::create_dir_all(folder.join("segments")).map_err(failed("create the folder"))?;
        let (slots, found) =
            Slots::open(&folder.join("slots"), &id, config.blocks).map_err(failed("open the slot table"))?;
        let aliases = match Aliases::open_existing(&folder.join("aliases"), &id, config.blocks) {
            Err(error) if is_damaged(&error) => {
                warn!(
                    dataset = config.name, %error,
                    "the blocks adopted from another snapshot are fetched again: their aliases are damaged"
                );
                None
            }
            opened => opened.map_err(failed("open the aliases"))?,
        };
        let folders = base.segment_folders(&id);
        let large = LargeFiles::open(&folders, &id, config.blocks).map_err(failed("open the pages of large files"))?;
        let space = Self::space(base, folders, aliases, slots.highest_segment(), config);
        let space = space.map_err(failed("open the segments"))?;
        let lost = space.0.lost();
        if let Some(first) = lost.first() {
            let (dataset, segments, error) = (&config.name, lost.len(), &first.error);
            warn!(
                dataset, segments, path = ?first.path, %error,
                "segments that cannot be opened are skipped: their blocks are fetched again"
            );
        }
        Ok(Self { slots, found, space, large })
    }

    /// A cache without files: every look-up is a miss, and nothing is admitted.
    pub(super) fn none(base: &Base, config: &CacheConfig) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Dataset { id: config.key.id(), step: "make an empty cache", source };
        let (slots, space) = Slots::none()
            .and_then(|slots| Ok((slots, Self::space(base, Vec::new(), None, 0, config)?)))
            .map_err(failed)?;
        let large = LargeFiles::open(&[], &config.key.id(), config.blocks).map_err(failed)?;
        Ok(Self { slots, found: Found::Made, space, large })
    }

    fn space(
        base: &Base,
        folders: Vec<SegmentFolder>,
        aliases: Option<Aliases>,
        highest: u32,
        config: &CacheConfig,
    ) -> io::Result<(Space, Allocator)> {
        let evicts = config.policy.evicts();
        Space::open(folders, aliases, highest, base.segment_bytes, config.reservation_bytes, evicts)
    }
}
