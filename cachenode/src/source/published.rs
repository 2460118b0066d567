//! This machine's copies of what is published beside the data: a manifest, and its order.
//!
//! ```text
//!   HASH.published                  the manifest
//!   HASH.version                    which version of the object which file is a copy of
//!   HASH.published.order            the order, if one is published
//!   HASH.published.order-version    the same of the order
//! ```
//! Invariant: a note of a version names the file that it is about. So it never vouches for another one, whichever of
//! several fetches ends last; what it does not vouch for is fetched again.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use larder_dataset::Chain;
use larder_import::fetch_manifest;
use larder_origin::{Key, Origin, OriginError, Version};
use tracing::warn;

use super::error::SourceError;
use crate::home::Home;
use crate::kept_listing::Stamp;
use crate::manifest_file::{
    ORDER_SUFFIX, check_order_size, draft_order, order_of, remove_order, store_order, verify_file,
};

/// An order is fetched in pieces of this size.
const ORDER_PIECE_BYTES: u64 = 4 << 20;

/// The note of a copy's version.
struct VersionNote(PathBuf);

impl VersionNote {
    fn text(version: &Version, copy: Stamp) -> String {
        format!("{version:?} {copy:?}")
    }

    /// True if the file `copy` is a copy of this version.
    fn vouches_for(&self, copy: &Path, version: &Version) -> bool {
        let Some(stamp) = Stamp::of(copy) else { return false };
        let Ok(note) = std::fs::read_to_string(&self.0) else { return false };
        if note == format!("{version:?}") {
            // Version 0.1.0 did not note the file.
            self.write(version, stamp);
            return true;
        }
        note == Self::text(version, stamp)
    }

    fn write(&self, version: &Version, copy: Stamp) {
        // Without it, the next call fetches the object again.
        let _ = std::fs::write(&self.0, Self::text(version, copy));
    }
}

/// Fetches a published manifest, unless the local copy has the same version. False if none is published. An origin that
/// denies access to objects that do not exist (S3 without the right to list) counts as having none, unless there is a
/// local copy: then one was published, and these credentials may not read it.
pub(super) async fn fetch(origin: &dyn Origin, key: &[u8], to: &Path, home: &Home) -> Result<bool, SourceError> {
    let note = VersionNote(to.with_extension("version"));
    match origin.head(key).await {
        Ok(there) if note.vouches_for(to, &there.version) => return Ok(true),
        Ok(_) => {}
        Err(OriginError::NotFound { .. }) => return Ok(false),
        Err(OriginError::Denied { .. }) if !to.exists() => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    let stamp = Arc::new(OnceLock::new());
    let stamped = Arc::clone(&stamp);
    let limit = home.listing_limit();
    let fetched = fetch_manifest(origin, key, to, &limit, move |path| {
        // Under its own name: once it has the common one, another fetch may replace it at any time.
        if let Some(stamp) = Stamp::of(path) {
            let _ = stamped.set(stamp);
        }
        verify_file(path)
    });
    let version = fetched.await?.version;
    if let Some(stamp) = stamp.get() {
        note.write(&version, *stamp);
    }
    Ok(true)
}

/// Fetches the order that is published with a manifest, unless the local copy has the same version. An order that
/// cannot be fetched costs the order of warming and no mount.
pub(super) async fn fetch_order(origin: &dyn Origin, manifest_key: &[u8], manifest: &Path, home: &Home) {
    if let Err(error) = try_to_fetch_order(origin, manifest_key, manifest, home).await {
        warn!(origin = %origin.url(), error = %Chain(&error), "the order of a published manifest cannot be fetched");
    }
}

async fn try_to_fetch_order(
    origin: &dyn Origin,
    manifest_key: &[u8],
    manifest: &Path,
    home: &Home,
) -> Result<(), SourceError> {
    let key = [manifest_key, ORDER_SUFFIX.as_bytes()].concat();
    let order = order_of(manifest);
    let note = VersionNote(order.with_extension("order-version"));
    let head = match origin.head(&key).await {
        Err(OriginError::NotFound { .. } | OriginError::Denied { .. }) => return Ok(remove_order(manifest)?),
        head => head?,
    };
    if note.vouches_for(&order, &head.version) {
        return Ok(());
    }
    check_order_size(&Key::from(key.as_slice()), head.size).map_err(|what| SourceError::Invalid { what })?;
    home.take(head.size)?;
    let mut draft = draft_order(manifest)?;
    for start in (0..head.size).step_by(ORDER_PIECE_BYTES as usize) {
        let piece = start..head.size.min(start + ORDER_PIECE_BYTES);
        draft.write_all(&origin.read(&key, piece, Some(&head.version)).await?)?;
    }
    let stamp = Stamp::of(draft.path()).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    store_order(draft, manifest)?;
    note.write(&head.version, stamp);
    Ok(())
}

#[cfg(test)]
mod tests;
