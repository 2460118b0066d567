//! The S3 origin against the embedded server: hostile keys, credentials, settings.

use std::collections::BTreeSet;
use std::sync::Arc;

use larder_origin::{Depth, Env, Md5Answer, Origin, OriginConfig, OriginError, Version, open};
use larder_s3_server::{S3Server, S3ServerConfig};

async fn server() -> S3Server {
    S3Server::start(S3ServerConfig { buckets: vec!["bucket".into()], ..S3ServerConfig::default() })
        .await
        .expect("server")
}

fn config(server: &S3Server) -> OriginConfig {
    OriginConfig {
        env: server.env().into_iter().collect(),
        deadline: std::time::Duration::from_secs(20),
        ..OriginConfig::default()
    }
}

fn origin(url: &str, config: &OriginConfig) -> Arc<dyn Origin> {
    open(&url.parse().expect(url), config).expect(url)
}

/// Keys of which some cannot be file names. The importer decides about them, but none may hide another.
const HOSTILE: [&str; 16] = [
    "/",
    "//",
    "/leading",
    "a",
    "a/",
    "a/b",
    "a//b",
    "..",
    "../etc/passwd",
    "a/../b",
    ".",
    "a/./b",
    "ctrl\u{1}\u{7f}\n\r\tx",
    "nul\u{0}",
    "\u{10FFFF}\u{FFFD}",
    "trailing ",
];

#[tokio::test]
async fn hostile_keys_are_all_listed_raw() {
    let server = server().await;
    let too_long = "l".repeat(1000);
    let keys: BTreeSet<&str> = HOSTILE.into_iter().chain([too_long.as_str()]).collect();
    for prefix in ["", "pre/"] {
        keys.iter().for_each(|key| {
            server.put("bucket", &format!("{prefix}{key}"), format!("at {prefix}{key}"));
        });
    }
    let origin = origin("s3://bucket/pre", &config(&server));
    let page = origin.list(b"", None, Depth::All).await.expect("a page");
    let listed: Vec<&[u8]> = page.files.iter().map(|file| file.key.as_slice()).collect();
    assert_eq!(listed, keys.iter().map(|key| key.as_bytes()).collect::<Vec<_>>());

    let one = origin.list(b"", None, Depth::One).await.expect("a page");
    assert_eq!(one.prefixes, [b"../".as_slice(), b"/", b"a/"]);
    assert!(one.files.iter().any(|file| file.key == b"a") && one.files.iter().any(|file| file.key == b".."));
    let below = origin.list(b"a/", None, Depth::One).await.expect("a page");
    assert_eq!(below.files.iter().map(|file| file.key.as_slice()).collect::<Vec<_>>(), [b"a/".as_slice(), b"a/b"]);
    assert_eq!(below.prefixes, [b"a/../".as_slice(), b"a/./", b"a//"]);

    // Each key is read as itself, or rejected if HTTP cannot express it, but never as another object.
    for file in page.files {
        let name = String::from_utf8(file.key.clone()).expect("UTF-8");
        match origin.read(&file.key, 0..file.size, Some(&file.version)).await {
            Ok(bytes) => assert_eq!(bytes, format!("at pre/{name}"), "{name:?}"),
            Err(OriginError::Invalid { .. }) => {
                assert!(name.split('/').any(|part| part == "." || part == ".."), "{name:?}");
            }
            Err(error) => panic!("{name:?}: {error:?}"),
        }
    }
}

#[tokio::test]
async fn prefix_is_a_folder_and_not_a_beginning_of_names() {
    let server = server().await;
    for key in ["data/x", "database/y", "data", "data/"] {
        server.put("bucket", key, "x");
    }
    let origin = origin("s3://bucket/data", &config(&server));
    let page = origin.list(b"", None, Depth::All).await.expect("a page");
    assert_eq!(page.files.iter().map(|file| file.key.as_slice()).collect::<Vec<_>>(), [b"".as_slice(), b"x"]);
}

#[tokio::test]
async fn prefix_with_an_empty_part_is_read_but_not_written() {
    let server = server().await;
    server.put("bucket", "odd//one/k", "x");
    let origin = origin("s3://bucket/odd//one", &config(&server));
    let page = origin.list(b"", None, Depth::One).await.expect("a page");
    assert_eq!(page.files.iter().map(|file| file.key.as_slice()).collect::<Vec<_>>(), [b"k"]);
    assert_eq!(origin.read(b"k", 0..1, Some(&page.files[0].version)).await.expect("read"), "x");
    let put = origin.put(b"k", "y".into()).await;
    assert!(matches!(put, Err(OriginError::Invalid { .. })), "{put:?}");
    let put = origin.put_with_md5(b"k", "hello".into(), &MD5_OF_HELLO).await;
    assert!(matches!(put, Err(OriginError::Invalid { .. })), "{put:?}");
}

/// The MD5 of "hello".
const MD5_OF_HELLO: [u8; 16] =
    [0x5d, 0x41, 0x40, 0x2a, 0xbc, 0x4b, 0x2a, 0x76, 0xb9, 0x71, 0x9d, 0x91, 0x10, 0x17, 0xc5, 0x92];

#[tokio::test]
async fn a_server_stores_bytes_only_under_their_own_md5() {
    let server = server().await;
    let origin = origin("s3://bucket/pre fix+%", &config(&server));
    let refused = origin.put_with_md5(b"a b/c", "hellO".into(), &MD5_OF_HELLO).await.expect("an answer");
    assert_eq!(refused, Md5Answer::Differs);
    assert!(matches!(origin.head(b"a b/c").await, Err(OriginError::NotFound { .. })), "nothing was stored");
    let stored = origin.put_with_md5(b"a b/c", "hello".into(), &MD5_OF_HELLO).await.expect("an answer");
    let version = Version::ETag("\"5d41402abc4b2a76b9719d911017c592\"".into());
    assert_eq!(stored, Md5Answer::Stored(version.clone()));
    assert_eq!(origin.read(b"a b/c", 0..5, Some(&version)).await.expect("read"), "hello");
}

#[tokio::test]
async fn objects_that_need_headers_of_object_store_are_not_written_without_them() {
    let server = server().await;
    for (name, value) in [
        ("AWS_SERVER_SIDE_ENCRYPTION", "AES256"),
        ("AWS_CHECKSUM_ALGORITHM", "sha256"),
        ("AWS_DEFAULT_CONTENT_TYPE", "image/jpeg"),
    ] {
        let mut config = config(&server);
        config.env.set(name, value);
        let stored = origin("s3://bucket", &config).put_with_md5(b"k", "hello".into(), &MD5_OF_HELLO).await;
        assert!(matches!(stored, Ok(Md5Answer::Refused)), "{name}: {stored:?}");
    }
    assert_eq!(server.counters().puts, 0);
}

#[tokio::test]
async fn one_read_is_one_request() {
    let server = server().await;
    let etag = server.put("bucket", "k", vec![7; 100_000]);
    let origin = origin("s3://bucket", &config(&server));
    let version = Version::ETag(format!("\"{etag}\""));
    assert_eq!(origin.read(b"k", 0..100_000, Some(&version)).await.expect("read").len(), 100_000);
    assert_eq!(server.counters(), larder_s3_server::Counters { gets: 1, get_bytes: 100_000, ..Default::default() });
    assert_eq!(server.gets_of("bucket", "k"), 1);
}

#[tokio::test]
async fn files_are_served_as_objects() {
    let server = server().await;
    let tree = larder_testkit::TempTree::new(3, [5_000_000, 10]).expect("a tree");
    for (number, (path, size)) in tree.files().iter().enumerate() {
        server.put_file("bucket", &number.to_string(), tree.path().join(path), *size, None).await.expect("put");
    }
    let origin = origin("s3://bucket", &config(&server));
    assert_eq!(origin.read_all(b"0", 10_000_000).await.expect("read").0, tree.bytes(0));
    assert_eq!(origin.read(b"0", 999_999..4_000_001, None).await.expect("read"), tree.bytes(0)[999_999..4_000_001]);
    assert_eq!(origin.read(b"1", 3..10, None).await.expect("read"), tree.bytes(1)[3..]);
    assert!(server.delete("bucket", "1") && !server.delete("bucket", "1"));
    assert!(matches!(origin.head(b"1").await, Err(OriginError::NotFound { .. })));
}

#[tokio::test]
async fn mistakes_are_told_by_name_and_without_secrets() {
    let server = server().await;
    server.put("bucket", "k", "x");
    let good = config(&server);

    let mut wrong = good.clone();
    wrong.env.set("AWS_SECRET_ACCESS_KEY", "hunter2");
    let denied = origin("s3://bucket", &wrong).read(b"k", 0..1, None).await.expect_err("wrong secret");
    let OriginError::Denied { source, .. } = &denied else { panic!("{denied:?}") };
    assert!(source.to_string().contains("SignatureDoesNotMatch"), "{source}");
    assert!(!format!("{denied:?} {source:?} {wrong:?} {:?}", origin("s3://bucket", &wrong)).contains("hunter2"));

    let anonymous = OriginConfig { anonymous: true, ..good.clone() };
    let denied = origin("s3://bucket", &anonymous).read(b"k", 0..1, None).await.expect_err("anonymous");
    assert!(matches!(denied, OriginError::Denied { .. }), "{denied:?}");

    let missing = origin("s3://other", &good).list(b"", None, Depth::One).await.expect_err("no bucket");
    assert!(missing.to_string().contains("no such bucket"), "{missing}");

    let mut half: Env = Env::default();
    half.set("AWS_ACCESS_KEY_ID", "only");
    let cases = [
        (OriginConfig { endpoint: Some("127.0.0.1:9000".into()), ..good.clone() }, "--endpoint"),
        (
            OriginConfig { endpoint: Some("http://me:hunter2@127.0.0.1".into()), ..good.clone() },
            "credentials do not belong",
        ),
        (OriginConfig { endpoint: Some("ftp://127.0.0.1".into()), ..good.clone() }, "--endpoint"),
        (OriginConfig { region: Some("eu west".into()), ..good.clone() }, "--region"),
        (OriginConfig { env: half, ..good }, "SecretAccessKey"),
    ];
    for (config, expected) in cases {
        let error = open(&"s3://bucket".parse().expect("a URL"), &config).expect_err(expected);
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
}

#[tokio::test]
async fn profile_and_flag_find_the_server() {
    let server = server().await;
    server.put("bucket", "k", "x");
    let home = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(home.path().join(".aws")).expect("mkdir");
    let keys =
        format!("[lab]\naws_access_key_id={}\naws_secret_access_key={}\n", server.access_key(), server.secret_key());
    std::fs::write(home.path().join(".aws/credentials"), keys).expect("write");
    let settings = format!("[profile lab]\nregion=lab-1\nendpoint_url={}/\n", server.endpoint());
    std::fs::write(home.path().join(".aws/config"), settings).expect("write");
    let home = home.path().to_string_lossy().into_owned();
    let by_profile: Env = [("HOME", home.as_str()), ("AWS_PROFILE", "lab")].into_iter().collect();
    let config = OriginConfig { env: by_profile.clone(), ..OriginConfig::default() };
    assert_eq!(origin("s3://bucket", &config).read(b"k", 0..1, None).await.expect("read"), "x");

    // The flag overrides the variable, and the variable overrides the profile. The profile's keys are not combined with
    // remaining variables of other keys.
    let mut env = by_profile;
    env.set("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
    env.set("AWS_SESSION_TOKEN", "left over");
    let config = OriginConfig { env, endpoint: Some(server.endpoint()), ..OriginConfig::default() };
    assert_eq!(origin("s3://bucket", &config).read(b"k", 0..1, None).await.expect("read"), "x");
}
