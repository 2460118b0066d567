//! The disk itself: the upper bound for every filesystem with a cache on the same disk.

use std::path::PathBuf;

use super::corpus::Corpus;
use super::system::{Kind, System};

/// The plain files.
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
        "the same files in a plain directory on this disk (the filesystem is listed with the machine), without S3"
    }

    fn prepare(&mut self, _: &Corpus) -> anyhow::Result<()> {
        Ok(())
    }

    fn mount(&mut self, corpus: &Corpus) -> anyhow::Result<PathBuf> {
        Ok(corpus.tree.clone())
    }

    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}
