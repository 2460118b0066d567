//! How to renew the listing of a dataset whose objects were replaced, in words for its readers.

use std::path::Path;

use larder_origin::OriginConfig;

use crate::home::Home;
use crate::manifest_file::MappedManifest;
use crate::source::{PUBLISHED, local_manifest, publish_command};

/// How to renew the listing of a dataset, in words.
#[derive(Clone, Debug, Default)]
pub struct Renewal {
    /// The remedy if objects were replaced.
    pub(crate) here: String,
    /// The remedy if nodes have different listings.
    pub(crate) everywhere: String,
}

/// How to renew the listing that was found at `path`. `mounts`: the folder of the manifests that were kept for mounts,
/// of which it is not known where they were found.
pub(crate) fn renewal(
    path: &Path,
    mounts: &Path,
    manifest: &MappedManifest,
    config: &OriginConfig,
    home: &Home,
) -> Renewal {
    let mut renewal =
        Renewal { here: "mount it again".to_owned(), everywhere: "mount the dataset again on all nodes".to_owned() };
    if let Ok((_, origin)) = manifest.name_and_origin()
        && !manifest.is_packed()
    {
        renewal.here = renewal_here(path, mounts, origin, config, home);
        renewal.everywhere =
            format!("publish one manifest with `{}`, and {}", publish_command(origin, config), renewal.everywhere);
    }
    renewal
}

fn renewal_here(path: &Path, mounts: &Path, origin: &str, config: &OriginConfig, home: &Home) -> String {
    // The home of this process need not be that of the command that listed the origin.
    let listed = local_manifest(origin, config, home).unwrap_or_default();
    let published = listed.with_extension(PUBLISHED);
    let is_kept = path.parent() == Some(mounts);
    let import_to = |to: &str| format!("`{}`", config.command(&["import", origin, "--to", to]));
    let beside = || format!("`{}`", publish_command(origin, config));
    let import = if path.file_name() == published.file_name() || is_kept && published.exists() {
        beside()
    } else if path.extension().is_some_and(|extension| extension == PUBLISHED) {
        format!("{} with the URL of its manifest", import_to("URL"))
    } else if is_kept || path.file_name() == listed.file_name() {
        return format!(
            "mount it again with --refresh (volumes: the attribute `refresh`), or run `{}` and mount it again",
            config.command(&["import", origin])
        );
    } else {
        import_to(&path.display().to_string())
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
        let said = |path: &Path| renewal(path, &mounts, &manifest, &config, &home).here;
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
        // What was given when it was mounted is given again.
        let config =
            OriginConfig { endpoint: Some("http://h:1/it's".to_owned()), anonymous: true, ..OriginConfig::default() };
        let said = renewal(Path::new("/d/my.manifest"), &mounts, &manifest, &config, &home);
        let published = r"`larder import s3://bucket/data --to s3://bucket/data/.larder/manifest --endpoint 'http";
        assert!(said.everywhere.contains(published) && said.everywhere.contains("--anonymous`"), "{said:?}");
        let command =
            r"`larder import s3://bucket/data --to /d/my.manifest --endpoint 'http://h:1/it'\''s' --anonymous`";
        assert!(said.here.contains(command), "{said:?}");
    }
}
