use std::time::Duration;

use larder_import::Silent;
use larder_s3_server::{S3Server, S3ServerConfig};

use super::*;

#[test]
fn a_url_of_a_manifest_is_distinguished_from_a_dataset() {
    assert_eq!(manifest_url("s3://b/p/.larder/manifest"), Some(("s3://b/p/.larder", "manifest")));
    assert_eq!(manifest_url("s3://b/p/x.manifest"), Some(("s3://b/p", "x.manifest")));
    assert_eq!(manifest_url("s3://b/p/manifest"), None);
    assert_eq!(manifest_url("s3://b/p"), None);
}

#[test]
fn accounts_of_one_container_have_manifests_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::new(folder.path());
    let of = |url: &str, account: &str| {
        let env = [("AZURE_STORAGE_ACCOUNT_NAME", account)].into_iter().collect();
        local_manifest(url, &OriginConfig { env, ..OriginConfig::default() }, &home).unwrap()
    };
    assert_ne!(of("az://container/set", "ours"), of("az://container/set", "theirs"));
    assert_eq!(of("az://container/set", "ours"), of("az://container/set/", "ours"));
    assert_eq!(of("s3://bucket/set", "ours"), of("s3://bucket/set", "theirs"));
}

/// A folder of one file that was listed, and the path of its listing.
async fn listed() -> (tempfile::TempDir, String, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("file"), b"bytes").unwrap();
    let url = format!("file://{}", data.display());
    let listing = renewed(folder.path(), &url, Refresh::Never).await.unwrap().path;
    (folder, url, listing)
}

async fn renewed(folder: &Path, url: &str, refresh: Refresh) -> Result<ResolvedSource, SourceError> {
    resolve(url, &OriginConfig::default(), &Home::new(folder.join("home")), refresh, &Here, &Silent).await
}

// SEMANTICS: V4
#[tokio::test]
async fn a_listing_whose_lock_cannot_be_opened_is_served_with_the_reason() {
    let (folder, url, listing) = listed().await;
    let lock = listing.with_extension("lock");
    std::fs::remove_file(&lock).unwrap();
    std::fs::create_dir(&lock).unwrap();
    let source = renewed(folder.path(), &url, Refresh::Always).await.unwrap();
    let why = source.refresh_failed.unwrap();
    assert!(why.contains("could not be renewed") && why.contains(lock.to_str().unwrap()), "{why}");
    // Without one, there is nothing to serve.
    std::fs::remove_file(listing).unwrap();
    let error = renewed(folder.path(), &url, Refresh::Never).await.unwrap_err();
    assert!(matches!(error, SourceError::Home(_)), "{error}");
}

// SEMANTICS: V4
#[tokio::test(start_paused = true)]
async fn a_listing_that_another_process_renews_for_hours_is_served_as_it_is_and_says_why() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let (folder, url, listing) = listed().await;
    let held = KeptListing::at(listing.clone()).lock().await.unwrap();
    let source = tokio::time::timeout(DAY, renewed(folder.path(), &url, Refresh::Always)).await;
    let why = source.expect("not for ever").unwrap().refresh_failed.unwrap();
    assert!(why.contains("another process"), "{why}");
    drop(held);
    assert_eq!(renewed(folder.path(), &url, Refresh::Always).await.unwrap().refresh_failed, None);
}

// SEMANTICS: I9
#[tokio::test]
async fn a_prefix_without_keys_is_an_error_that_names_it_and_an_empty_bucket_or_folder_is_not() {
    let config = S3ServerConfig { buckets: vec!["bucket".into()], ..S3ServerConfig::default() };
    let server = S3Server::start(config).await.unwrap();
    let config = OriginConfig { env: server.env().into_iter().collect(), ..OriginConfig::default() };
    let folder = tempfile::tempdir().unwrap();
    let home = Home::new(folder.path().join("home"));
    let resolved = async |url: &str| resolve(url, &config, &home, Refresh::Always, &Here, &Silent).await;
    assert_eq!(resolved("s3://bucket").await.unwrap().manifest.totals().files, 0);
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    assert_eq!(resolved(&format!("file://{}", empty.display())).await.unwrap().manifest.totals().files, 0);
    server.put("bucket", "imagenet/a", b"1".to_vec());
    let error = resolved("s3://bucket/imagenets").await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, SourceError::Missing { .. }), "{text}");
    assert!(text.contains("s3://bucket/imagenets:") && text.contains("the key imagenets/ there"), "{text}");
    assert_eq!(resolved("s3://bucket/imagenet").await.unwrap().manifest.totals().files, 1);
    // A marker of the folder shows that it is meant. So does one that Azure would list, too.
    server.put("bucket", "imagenets/", b"".to_vec());
    assert_eq!(resolved("s3://bucket/imagenets").await.unwrap().manifest.totals().files, 0);
    server.put("bucket", "coco/.larder/empty", b"".to_vec());
    assert_eq!(resolved("s3://bucket/coco").await.unwrap().manifest.totals().files, 0);
    // A dataset whose objects are all gone is served as it was listed last.
    assert!(server.delete("bucket", "imagenet/a"));
    let old = resolved("s3://bucket/imagenet").await.unwrap();
    assert_eq!(old.manifest.totals().files, 1);
    assert!(old.refresh_failed.unwrap().contains("there is nothing below s3://bucket/imagenet"));
}
