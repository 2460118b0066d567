//! The manifest of a packed snapshot.

use larder_dataset::manifest::{Built, PackObject, PackedFile};
use larder_dataset::{
    DirIndex, FileIndex, LinkIndex, Manifest, ManifestBuilder, ManifestBytes, ManifestError, NameRules, VersionTag,
};

use super::error::PackError;
use super::plan::PackPlan;
use crate::journal::PackRecord;

/// Builds the manifest of the packs, which are stored below `url`. It names the snapshot if it is that of a `mirror`.
/// Blocking.
pub(super) fn build<B: ManifestBytes>(
    manifest: &Manifest<B>,
    plan: &[PackPlan],
    done: impl Iterator<Item = PackRecord>,
    url: &str,
    mirror: bool,
) -> Result<Built, PackError> {
    let mut builder = ManifestBuilder::new();
    let mut packs = Vec::with_capacity(plan.len());
    for (plan, record) in plan.iter().zip(done) {
        let (mut offset, mut blocks) = (0, record.block_crcs.as_slice());
        for index in plan.files.clone() {
            let file = manifest.file(FileIndex(index))?;
            let path = manifest.file_path(&file)?;
            let count = file.parts(0, file.size).count();
            let Some((block_crcs, rest)) = blocks.split_at_checked(count) else {
                return Err(PackError::Manifest(ManifestError::Corrupt { what: "block count" }));
            };
            blocks = rest;
            let (size, mtime_ns, pack) = (file.size, file.mtime_ns, plan.number);
            let row = PackedFile { path: &path, size, mtime_ns, pack, offset, block_crcs };
            builder.push_packed(&row).map_err(|reason| PackError::Name { path: path.clone(), reason })?;
            offset += file.size;
        }
        let etag = match record.version {
            VersionTag::ETag(etag) => etag.into_owned(),
            VersionTag::MtimeSize { .. } => String::new(),
        };
        packs.push(PackObject { key: record.key, size: record.size, etag });
    }
    builder.set_packs(packs);
    keep_empty_folders(manifest, &mut builder)?;
    for index in (0..manifest.totals().links).map(LinkIndex) {
        let link = manifest.link(index)?;
        let (path, target) = (manifest.link_path(&link)?, manifest.target_path(link.target)?);
        builder
            .push_link(&path, &target, link.mtime_ns)
            .map_err(|reason| PackError::Name { path: path.clone(), reason })?;
    }
    let (name, origin) = manifest.name_and_origin()?;
    if mirror {
        builder.set_mirrored(manifest.snapshot(), origin);
    }
    // The packs have what was there when the source was listed.
    Ok(builder.finish(name, url, manifest.created_ns())?)
}

fn keep_empty_folders<B: ManifestBytes>(
    manifest: &Manifest<B>,
    builder: &mut ManifestBuilder,
) -> Result<(), PackError> {
    for index in 1..manifest.totals().dirs {
        let dir = manifest.dir(DirIndex(index))?;
        if dir.dir_count == 0 && dir.file_count == 0 {
            let mut path = Vec::new();
            manifest.dir_path(DirIndex(index), &mut path)?;
            builder
                .push_folder(&path, NameRules::FOLDER)
                .map_err(|reason| PackError::Name { path: path.clone(), reason })?;
        }
    }
    Ok(())
}
