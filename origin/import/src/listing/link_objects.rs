//! Symbolic links in an object store: objects whose name ends in `.rclonelink`, and whose content is the link's target.
//!
//! rclone makes them of links. A listing shows no metadata, so the name alone says that an object is a link.
//!
//! Invariant: the target is read from the version that was listed. At most [`READS_MOST`] reads of a page are in
//! flight, and no object with more bytes than a path can have is read.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use larder_dataset::name::PATH_MAX;
use larder_origin::{Origin, Scheme};

use super::call::ListError;
use crate::journal::{PageFile, PageLink, PageRecord};
use crate::version::version_of;

/// The end of the names of such objects.
const SUFFIX: &[u8] = b".rclonelink";

/// The most reads in flight for a page.
const READS_MOST: usize = 16;

/// Whether objects that are links are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkObjects {
    /// They are links.
    Read,
    /// They are files like all others.
    AreFiles,
}

/// The path of a link that was listed under this key.
pub(crate) fn link_path(scheme: Scheme, key: &[u8]) -> &[u8] {
    if scheme == Scheme::Folder { key } else { key.strip_suffix(SUFFIX).unwrap_or(key) }
}

/// The key under which a link was listed.
pub(crate) fn link_key(scheme: Scheme, path: Vec<u8>) -> Vec<u8> {
    if scheme == Scheme::Folder { path } else { [&path, SUFFIX].concat() }
}

/// Moves the objects of a page that are links from its files to its links. A link without a target that could be a path
/// gets an empty one.
pub(super) async fn read(origin: &Arc<dyn Origin>, page: &mut PageRecord) -> Result<(), ListError> {
    let (links, files): (Vec<_>, Vec<_>) =
        std::mem::take(&mut page.files).into_iter().partition(|file| file.key.ends_with(SUFFIX));
    page.files = files;
    let reads = links.into_iter().map(|PageFile { key, size, mtime_ns, version }| {
        let origin = Arc::clone(origin);
        async move {
            let is_path = (1..=PATH_MAX as u64).contains(&size);
            let target = match is_path {
                true => origin.read(&key, 0..size, Some(&version_of(version))).await?.to_vec(),
                false => Vec::new(),
            };
            Ok(PageLink { key, target, mtime_ns })
        }
    });
    let read = futures::stream::iter(reads).buffered(READS_MOST).try_collect().await;
    page.links = read.map_err(|source| ListError::Origin { prefix: page.prefix.clone(), source })?;
    Ok(())
}
