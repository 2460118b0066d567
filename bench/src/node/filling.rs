//! Fills a node's cache.

use anyhow::bail;

use super::origin::Origin;
use super::running::Node;
use crate::reader::Reader;
use larder_epochs::kernel_caches::drop_kernel_caches;

/// Number of threads that fill a cache.
const READERS: u32 = 16;

/// A read that arrives while the node is busy may not be cached, so a file may need several reads.
const EPOCHS: u64 = 5;

/// Reads `files` files, which must be all of the reader's list, until none of them needs a GET.
pub(crate) fn fill(node: &Node, origin: &Origin, reader: &Reader<'_>, files: u32) -> anyhow::Result<()> {
    for epoch in 0..EPOCHS {
        drop_kernel_caches()?;
        let (_, gets) = origin.counting_gets(|| reader.read(&node.volumes(), READERS, files, epoch))?;
        if gets == 0 {
            return Ok(());
        }
    }
    bail!("not all files are cached after {EPOCHS} epochs: is the disk of --folder full? {}", node.last_words())
}
