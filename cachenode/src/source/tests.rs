use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_dataset::Entry;
use larder_import::Silent;
use larder_s3_server::{S3Server, S3ServerConfig};
use larder_testkit::{Fault, FaultProxy};

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

// SEMANTICS: V4
#[tokio::test(start_paused = true)]
async fn a_refresh_uses_what_others_list_meanwhile_unless_they_continue_what_began_hours_before() {
    const HOUR_NS: i64 = 3600 * 1_000_000_000;
    let (folder, url, listing) = listed().await;
    for (hours, files) in [(0, 0), (20, 1)] {
        let held = KeptListing::at(listing.clone()).lock().await.unwrap();
        let others = async {
            // By then the request waits for the lock.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let empty = larder_dataset::ManifestBuilder::new().finish("data", &url, now_ns() - hours * HOUR_NS);
            let new = folder.path().join("new");
            std::fs::write(&new, empty.unwrap().to_bytes()).unwrap();
            std::fs::rename(new, &listing).unwrap();
            drop(held);
        };
        let (source, ()) = tokio::join!(renewed(folder.path(), &url, Refresh::Always), others);
        assert_eq!(source.unwrap().manifest.totals().files, files, "{hours}");
    }
}

// SEMANTICS: V4
#[tokio::test]
async fn a_refresh_continues_no_listing_that_is_older_than_it_accepts() {
    const SECOND_NS: i64 = 1_000_000_000;
    let config = S3ServerConfig { buckets: vec!["bucket".into()], ..S3ServerConfig::default() };
    let server = S3Server::start(config).await.unwrap();
    for n in 0..2500 {
        server.put("bucket", &format!("data/{n:04}"), b"1".to_vec());
    }
    // The import fails after the first page, of 1,000 keys.
    let pages = AtomicU64::new(0);
    let after_the_first = move |is_list: bool| is_list && pages.fetch_add(1, Ordering::SeqCst) > 0;
    let hook = move |request: &larder_testkit::RequestHead| match after_the_first(request.path.contains("list-type=2"))
    {
        true => Fault::Status { status: 403, code: "AccessDenied" },
        false => Fault::None,
    };
    let proxy = FaultProxy::start(server.address(), hook).await.unwrap();
    let config = OriginConfig {
        endpoint: Some(proxy.endpoint()),
        env: server.env().into_iter().collect(),
        ..OriginConfig::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let home = Home::new(folder.path().join("home"));
    let resolved = async |refresh: Refresh| resolve("s3://bucket/data", &config, &home, refresh, &Here, &Silent).await;
    resolved(Refresh::Never).await.unwrap_err();
    proxy.set_hook(|_| Fault::None);
    server.put("bucket", "data/0001", b"replaced".to_vec());
    server.put("bucket", "data/0001a", b"added".to_vec());

    // It began two minutes ago.
    let mut journals = std::fs::read_dir(home.sub_folder(IMPORTS).unwrap()).unwrap();
    let path = journals.next().unwrap().unwrap().path();
    let mut journal = std::fs::read(&path).unwrap();
    let begun_ns = now_ns() - 120 * SECOND_NS;
    journal[48..56].copy_from_slice(&begun_ns.to_le_bytes());
    let crc = larder_dataset::crc32c(&journal[..60]).to_le_bytes();
    journal[60..64].copy_from_slice(&crc);

    for (refresh, continues) in [
        (Refresh::Never, true),
        (Refresh::After(Duration::from_secs(3600)), true),
        (Refresh::After(Duration::from_secs(100)), false),
        (Refresh::Always, false),
    ] {
        std::fs::write(&path, &journal).unwrap();
        let source = resolved(refresh).await.unwrap();
        let manifest = &source.manifest;
        assert_eq!(manifest.totals().files, if continues { 2500 } else { 2501 }, "{refresh}");
        assert_eq!(manifest.created_ns() == begun_ns, continues, "{refresh}: it has the time at which it began");
        let Some(Entry::File(index)) = manifest.resolve(b"0001").unwrap() else { panic!("0001 is missing") };
        assert_eq!(manifest.file(index).unwrap().size, if continues { 1 } else { 8 }, "{refresh}");
        std::fs::remove_file(&source.path).unwrap();
    }
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
