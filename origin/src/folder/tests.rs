use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::StreamExt;
use rustix::fs::{CWD, FileType, Mode};

use super::FolderOrigin;
use crate::config::OriginConfig;
use crate::error::OriginError;
use crate::listing::{Depth, Page};
use crate::origin::Origin;
use crate::url::OriginUrl;

fn origin(root: &std::path::Path) -> FolderOrigin {
    let url = OriginUrl::folder(root).expect("a folder");
    FolderOrigin::open(&url, &OriginConfig::default()).expect("an origin")
}

/// A root with a file, beside a file that must be unreachable.
fn trap() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir_all(folder.path().join("root/sub")).expect("mkdir");
    std::fs::write(folder.path().join("secret"), "secret").expect("write");
    std::fs::write(folder.path().join("root/sub/file"), "inside").expect("write");
    std::os::unix::fs::symlink(folder.path(), folder.path().join("root/out")).expect("symlink");
    std::os::unix::fs::symlink("../secret", folder.path().join("root/link")).expect("symlink");
    std::os::unix::fs::symlink("sub/file", folder.path().join("root/inner")).expect("symlink");
    folder
}

#[tokio::test]
async fn nothing_outside_of_the_root_is_read_with_and_without_openat2() {
    let folder = trap();
    for no_openat2 in [false, true] {
        let origin = origin(&folder.path().join("root"));
        origin.root.no_openat2.store(no_openat2, Ordering::Relaxed);
        assert_eq!(origin.read(b"sub/file", 0..6, None).await.expect("inside"), "inside");
        for key in [
            "../secret",
            "sub/../../secret",
            "/secret",
            "out/secret",
            "link",
            "inner",
            "sub",
            "",
            "sub//file",
            "./sub/file",
            "sub/file/",
        ] {
            let error = origin.read(key.as_bytes(), 0..1, None).await.expect_err(key);
            assert!(matches!(error, OriginError::NotFound { .. }), "{key}: {error:?}");
        }
        for prefix in ["out/", "../", "sub/../../"] {
            let page = origin.list(prefix.as_bytes(), None, Depth::All).await.expect(prefix);
            assert_eq!(page, Page::default(), "{prefix}");
        }
    }
}

#[tokio::test]
async fn puts_do_not_go_through_links() {
    let folder = trap();
    let origin = origin(&folder.path().join("root"));
    for key in ["../x", "out/x", "/x", "a//x", "sub/.", ""] {
        origin.put(key.as_bytes(), Bytes::from("x")).await.expect_err(key);
    }
    origin.put(b"link", Bytes::from("new")).await.expect("replaces the link itself");
    assert_eq!(std::fs::read(folder.path().join("secret")).expect("read"), b"secret");
    assert!(!folder.path().join("x").exists());
}

#[tokio::test]
async fn whatever_is_no_file_is_skipped_with_its_reason() {
    let folder = trap();
    let root = folder.path().join("root");
    let pipe = std::ffi::CString::new(root.join("pipe").as_os_str().as_bytes()).expect("no NUL");
    rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("mkfifo");
    let _socket = std::os::unix::net::UnixListener::bind(root.join("sock")).expect("bind");
    std::fs::write(root.join(OsStr::from_bytes(b"bad\xffname")), "x").expect("write");
    let origin = origin(&root);
    let page = origin.list(b"", None, Depth::One).await.expect("a page");
    let skipped: Vec<_> = page.skipped.iter().map(|skipped| (skipped.key.as_slice(), skipped.reason)).collect();
    assert_eq!(skipped, [(b"pipe".as_slice(), "a pipe"), (b"sock", "a socket")]);
    let links: Vec<_> = page.links.iter().map(|link| (link.key.as_slice(), link.target.as_slice())).collect();
    let out = folder.path().as_os_str().as_bytes();
    assert_eq!(links, [(b"inner".as_slice(), b"sub/file".as_slice()), (b"link", b"../secret"), (b"out", out)]);
    assert_eq!(page.files.len(), 1);
    assert_eq!(page.files[0].key, b"bad\xffname");
    assert_eq!(page.prefixes, [b"sub/"]);
    assert_eq!(origin.read(b"bad\xffname", 0..1, Some(&page.files[0].version)).await.expect("read"), "x");
    assert!(matches!(origin.read(b"pipe", 0..1, None).await, Err(OriginError::NotFound { .. })));
    let deep = origin.list(b"", None, Depth::All).await.expect("a page");
    assert_eq!(
        deep.files.iter().map(|file| file.key.as_slice()).collect::<Vec<_>>(),
        [b"bad\xffname".as_slice(), b"sub/file"]
    );
    assert_eq!((deep.skipped, deep.links), (page.skipped, page.links));
}

#[tokio::test]
async fn changed_file_is_stale_and_shortened_one_truncated() {
    let folder = tempfile::tempdir().expect("a folder");
    let origin = origin(folder.path());
    let version = origin.put(b"k", Bytes::from("hello")).await.expect("put");
    std::fs::write(folder.path().join("k"), "other!").expect("write");
    assert!(matches!(origin.read(b"k", 0..5, Some(&version)).await, Err(OriginError::Stale { got: Some(_), .. })));
    let error = origin.read(b"k", 4..10, None).await.expect_err("too short");
    assert!(matches!(error, OriginError::Truncated { expected: 6, got: 2, .. }), "{error:?}");
}

#[tokio::test]
async fn broken_stream_leaves_the_old_file_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let origin = origin(folder.path());
    origin.put(b"k", Bytes::from("old")).await.expect("put");
    let broken = [Ok(Bytes::from("ne")), Err(OriginError::Unavailable { source: "cut".into() })];
    origin.put_stream(b"k", futures::stream::iter(broken).boxed()).await.expect_err("cut");
    assert_eq!(origin.read_all(b"k", 10).await.expect("read").0, "old");
    assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 1);
}

#[tokio::test]
async fn missing_root_is_not_an_empty_dataset() {
    let folder = tempfile::tempdir().expect("a folder");
    let origin = origin(&folder.path().join("typo"));
    assert!(matches!(origin.list(b"", None, Depth::One).await, Err(OriginError::NotFound { .. })));
}

// SEMANTICS: I5
#[tokio::test]
async fn a_directory_of_many_entries_is_listed_page_by_page_and_each_entry_once() {
    let folder = tempfile::tempdir().expect("a folder");
    for n in 0..45_000 {
        std::fs::write(folder.path().join(format!("{n:05}")), "").expect("write");
    }
    for n in 0..10 {
        std::fs::create_dir(folder.path().join(format!("folder-{n}"))).expect("mkdir");
    }
    let origin = origin(folder.path());
    let (mut files, mut folders, mut pages, mut after) = (Vec::new(), 0, 0, None::<Vec<u8>>);
    loop {
        let page = origin.list(b"", after.as_deref(), Depth::One).await.expect("list");
        assert!(page.files.len() + page.prefixes.len() <= 20_000 && page.files.is_sorted_by(|a, b| a.key < b.key));
        files.extend(page.files.into_iter().map(|file| file.key));
        folders += page.prefixes.len();
        pages += 1;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    files.sort();
    let expected: Vec<_> = (0..45_000).map(|n| format!("{n:05}").into_bytes()).collect();
    assert!(
        files == expected && folders == 10 && pages == 3,
        "{} files, {folders} folders, {pages} pages",
        files.len()
    );
}
