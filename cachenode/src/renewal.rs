//! How to renew the listing of a dataset whose objects were replaced, in words for its readers.

use std::path::Path;

use larder_origin::OriginConfig;

use crate::home::Home;
use crate::manifest_file::MappedManifest;
use crate::source::{PUBLISHED, local_manifest};

/// How to renew the listing that was found at `path`. `mounts`: the folder of the manifests that were kept for mounts,
/// of which it is not known where they were found.
pub(crate) fn renewal(
    path: &Path,
    mounts: &Path,
    manifest: &MappedManifest,
    config: &OriginConfig,
    home: &Home,
) -> String {
    let Ok((_, origin)) = manifest.name_and_origin() else { return "mount it again".to_owned() };
    if manifest.is_packed() {
        return "mount it again".to_owned();
    }
    // The home of this process need not be that of the command that listed the origin.
    let listed = local_manifest(origin, config, home).unwrap_or_default();
    let published = listed.with_extension(PUBLISHED);
    let is_kept = path.parent() == Some(mounts);
    let beside = || format!("`larder import {origin} --to {}/.larder/manifest`", origin.trim_end_matches('/'));
    let import = if path.file_name() == published.file_name() || is_kept && published.exists() {
        beside()
    } else if path.extension().is_some_and(|extension| extension == PUBLISHED) {
        format!("`larder import {origin} --to URL` with the URL of its manifest")
    } else if is_kept || path.file_name() == listed.file_name() {
        return format!(
            "mount it again with --refresh (volumes: the attribute `refresh`), or run `larder import {origin}` and \
             mount it again"
        );
    } else {
        format!("`larder import {origin} --to {}`", path.display())
    };
    format!("run {import}, and mount it again")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::tests::manifest;

    #[test]
    fn replaced_objects_are_listed_again_where_their_listing_was_found() {
        let folder = tempfile::tempdir().unwrap();
        let (home, config) = (Home::new(folder.path()), OriginConfig::default());
        let (mounts, manifest) = (folder.path().join("mounts"), manifest(folder.path(), &[1]));
        let said = |path: &Path| renewal(path, &mounts, &manifest, &config, &home);
        let import = "larder import s3://bucket/data";
        let listed = local_manifest("s3://bucket/data", &config, &home).unwrap();
        let published = listed.with_extension(PUBLISHED);
        let kept = mounts.join("0123.manifest");
        for path in [&listed, &kept] {
            assert!(said(path).contains("--refresh") && said(path).contains(import), "{}", said(path));
        }
        std::fs::write(&published, b"").unwrap();
        let beside = format!("{import} --to s3://bucket/data/.larder/manifest`");
        for path in [&published, &kept] {
            assert!(said(path).contains(&beside) && !said(path).contains("--refresh"), "{}", said(path));
        }
        assert!(said(&published.with_file_name("other.published")).contains(&format!("{import} --to URL`")));
        assert!(said(Path::new("/d/my.manifest")).contains(&format!("{import} --to /d/my.manifest`")));
        assert!(said(&listed).contains("--refresh"), "it was listed although one is published");
    }
}
