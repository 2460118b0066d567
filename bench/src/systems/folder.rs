//! The disk itself: the floor that a filesystem with a cache on the same disk is held against.

use std::path::PathBuf;

use crate::systems::{Kind, Source, System};

/// The files as they are.
pub(super) struct Folder;

impl System for Folder {
    fn name(&self) -> &str {
        "ext4"
    }

    fn kind(&self) -> Kind {
        Kind::Floor
    }

    fn version(&self) -> String {
        String::new()
    }

    fn options(&self) -> &str {
        "the same files in a plain folder of this disk (its filesystem is named with the machine), without S3"
    }

    fn prepare(&mut self, _: &Source) -> anyhow::Result<()> {
        Ok(())
    }

    fn mount(&mut self, source: &Source) -> anyhow::Result<PathBuf> {
        Ok(source.tree.clone())
    }

    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}
