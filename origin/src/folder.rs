//! A local folder as an origin.
//!
//! Own code over openat2, since a folder holds what an object store cannot: names that are not UTF-8, symbolic links,
//! pipes. [`FolderOrigin`] moves every call off the runtime; [`Tree`] does the work. The invariant: no call ever
//! follows a symbolic link below the root or leaves the root, and bytes are given out only if size and time of the
//! file were the same before and after they were read.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::config::OriginConfig;
use crate::error::{Key, OriginError};
use crate::url::OriginUrl;
use crate::{Depth, Listed, Origin, Page, Skipped, Version};

/// Files being written have names that begin like this; listings leave them out.
const UNFINISHED: &[u8] = b".larder-put-";

/// An origin that is a folder of this machine.
#[derive(Debug)]
pub(crate) struct FolderOrigin {
    url: OriginUrl,
    tree: Arc<Tree>,
    deadline: Duration,
}

impl FolderOrigin {
    pub(crate) fn open(url: &OriginUrl, config: &OriginConfig) -> Result<Self, OriginError> {
        let root =
            url.path().ok_or_else(|| OriginError::Invalid { what: format!("{url} is no folder") })?.to_path_buf();
        let tree = Arc::new(Tree { root, no_openat2: AtomicBool::new(false), puts: AtomicU64::new(0) });
        Ok(Self { url: url.clone(), tree, deadline: config.deadline })
    }

    /// Does blocking work. When a dead network filesystem holds it up, the caller is answered all the same and the
    /// thread is left behind.
    async fn blocking<T: Send + 'static>(
        &self,
        key: &[u8],
        work: impl FnOnce(&Tree) -> Result<T, OriginError> + Send + 'static,
    ) -> Result<T, OriginError> {
        let tree = Arc::clone(&self.tree);
        match tokio::time::timeout(self.deadline, tokio::task::spawn_blocking(move || work(&tree))).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => Err(OriginError::Unavailable { source: Box::new(error) }),
            Err(_) => Err(OriginError::TimedOut { key: Key::from(key), after: self.deadline }),
        }
    }
}

#[async_trait]
impl Origin for FolderOrigin {
    fn url(&self) -> &OriginUrl {
        &self.url
    }

    async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
        let (folder, after) = (prefix.to_vec(), after.map(<[u8]>::to_vec));
        self.blocking(prefix, move |tree| tree.list(&folder, after.as_deref(), depth)).await
    }

    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError> {
        let (name, version) = (key.to_vec(), version.cloned());
        self.blocking(key, move |tree| tree.read(&name, range, version.as_ref())).await
    }

    async fn head(&self, key: &[u8]) -> Result<Listed, OriginError> {
        let name = key.to_vec();
        self.blocking(key, move |tree| {
            let (_, stat) = tree.open_file(&name)?;
            Ok(listed(name, &stat))
        })
        .await
    }

    async fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError> {
        let name = key.to_vec();
        self.blocking(key, move |tree| tree.read_all(&name, limit)).await
    }

    async fn put(&self, key: &[u8], bytes: Bytes) -> Result<Version, OriginError> {
        self.put_stream(key, futures::stream::iter([Ok(bytes)]).boxed()).await
    }

    async fn put_stream(
        &self,
        key: &[u8],
        mut chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Version, OriginError> {
        let name = key.to_vec();
        let mut unfinished = self.blocking(key, move |tree| tree.begin_put(&name)).await?;
        while let Some(chunk) = chunks.next().await {
            // An error drops the unfinished file, which removes it.
            let chunk = chunk?;
            unfinished = self
                .blocking(key, move |_| {
                    unfinished.write(&chunk)?;
                    Ok(unfinished)
                })
                .await?;
        }
        self.blocking(key, |_| unfinished.finish()).await
    }
}

/// The folder, for blocking work.
#[derive(Debug)]
struct Tree {
    root: PathBuf,
    /// Set once the kernel has said that it has no openat2, which old container sandboxes say too.
    no_openat2: AtomicBool,
    puts: AtomicU64,
}

impl Tree {
    fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
        let mut page = Page::default();
        let folder = match self.open_folder(prefix) {
            Ok(folder) => folder,
            // As in a bucket, nothing is below a prefix that nothing has; but a root that is not there is a mistake.
            Err(OriginError::NotFound { .. }) if !prefix.is_empty() => {
                self.open_folder(b"")?;
                return Ok(page);
            }
            Err(error) => return Err(error),
        };
        let mut pending = Vec::new();
        self.read_folder(&folder, prefix, &mut page, &mut pending)?;
        match depth {
            Depth::One => page.prefixes = pending,
            Depth::All => {
                while let Some(below) = pending.pop() {
                    let result = self
                        .open_folder(&below)
                        .and_then(|folder| self.read_folder(&folder, &below, &mut page, &mut pending));
                    match result {
                        Ok(()) => {}
                        // Gone since it was listed.
                        Err(OriginError::NotFound { .. }) => {}
                        Err(OriginError::Denied { .. }) => {
                            page.skipped.push(Skipped { key: below, reason: "a folder that may not be read" });
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        let later = |key: &[u8]| after.is_none_or(|after| key > after);
        page.files.retain(|file| later(&file.key));
        page.prefixes.retain(|prefix| later(prefix));
        page.skipped.retain(|skipped| later(&skipped.key));
        page.files.sort_by(|a, b| a.key.cmp(&b.key));
        page.prefixes.sort();
        page.skipped.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(page)
    }

    /// Adds what is in one directory, in no order; the directories in it go to `below`.
    fn read_folder(
        &self,
        folder: &OwnedFd,
        prefix: &[u8],
        page: &mut Page,
        below: &mut Vec<Vec<u8>>,
    ) -> Result<(), OriginError> {
        let fail = |errno| failed(prefix, "list", errno);
        for entry in Dir::read_from(folder).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." || name.starts_with(UNFINISHED) {
                continue;
            }
            let mut key = [prefix, name].concat();
            let stat = match rustix::fs::statat(folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(_) => {
                    page.skipped.push(Skipped { key, reason: "an entry that cannot be looked at" });
                    continue;
                }
            };
            let reason = match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => {
                    page.files.push(listed(key, &stat));
                    continue;
                }
                FileType::Directory => {
                    key.push(b'/');
                    below.push(key);
                    continue;
                }
                FileType::Symlink => "a symbolic link",
                FileType::Fifo => "a pipe",
                FileType::Socket => "a socket",
                FileType::BlockDevice | FileType::CharacterDevice => "a device",
                FileType::Unknown => "neither a file nor a folder",
            };
            page.skipped.push(Skipped { key, reason });
        }
        Ok(())
    }

    fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let (file, before) = self.open_file(key)?;
        let found = version_of(&before);
        if let Some(expected) = version.filter(|expected| **expected != found) {
            return Err(OriginError::Stale { key: Key::from(key), expected: expected.clone(), got: Some(found) });
        }
        let expected = range.end - range.start;
        let size = before.st_size as u64;
        if range.end > size {
            return Err(OriginError::Truncated {
                key: Key::from(key),
                expected,
                got: size.saturating_sub(range.start),
            });
        }
        let bytes = pread(&file, key, range)?;
        // What was written meanwhile may be in the bytes in parts.
        let after = rustix::fs::fstat(&file).map_err(|errno| failed(key, "stat", errno))?;
        if version_of(&after) != found {
            return Err(OriginError::Stale { key: Key::from(key), expected: found, got: Some(version_of(&after)) });
        }
        if bytes.len() as u64 != expected {
            return Err(OriginError::Truncated { key: Key::from(key), expected, got: bytes.len() as u64 });
        }
        Ok(bytes)
    }

    fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError> {
        let (_, stat) = self.open_file(key)?;
        let size = stat.st_size as u64;
        if size > limit {
            return Err(OriginError::TooLarge { key: Key::from(key), size, limit });
        }
        let version = version_of(&stat);
        Ok((self.read(key, 0..size, Some(&version))?, version))
    }

    fn open_file(&self, key: &[u8]) -> Result<(OwnedFd, Stat), OriginError> {
        let root = self.open_root()?;
        // NONBLOCK: opening a pipe would otherwise wait for its writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.open_beneath(root.as_fd(), key, flags).map_err(|errno| failed(key, "open", errno))?;
        let stat = rustix::fs::fstat(&file).map_err(|errno| failed(key, "stat", errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(OriginError::NotFound { key: Key::from(key) });
        }
        Ok((file, stat))
    }

    fn open_root(&self) -> Result<OwnedFd, OriginError> {
        let key = self.root.as_os_str().as_bytes();
        rustix::fs::openat(CWD, &self.root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| failed(key, "open", errno))
    }

    /// Opens the directory of a prefix, which is empty or ends with `/`.
    fn open_folder(&self, prefix: &[u8]) -> Result<OwnedFd, OriginError> {
        let root = self.open_root()?;
        match prefix.strip_suffix(b"/") {
            Some(path) => self
                .open_beneath(root.as_fd(), path, OFlags::RDONLY | OFlags::DIRECTORY)
                .map_err(|errno| failed(prefix, "open", errno)),
            None if prefix.is_empty() => Ok(root),
            None => Err(OriginError::Invalid { what: format!("{}: a prefix ends with '/'", Key::from(prefix)) }),
        }
    }

    fn open_beneath(&self, root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        if !is_plain(path) {
            return Err(Errno::NOENT);
        }
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        if !self.no_openat2.load(Ordering::Relaxed) {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            match rustix::fs::openat2(root, OsStr::from_bytes(path), flags, Mode::empty(), resolve) {
                Err(Errno::NOSYS | Errno::PERM) => self.no_openat2.store(true, Ordering::Relaxed),
                // A rename or mount somewhere in the path; the kernel asks to be asked again.
                Err(Errno::AGAIN) => {}
                other => return other,
            }
        }
        open_by_parts(root, path, flags)
    }

    /// Makes the unfinished file for a put, with the folders above it.
    fn begin_put(&self, key: &[u8]) -> Result<Unfinished, OriginError> {
        if !is_plain(key) {
            return Err(OriginError::Invalid { what: format!("{}: cannot be the name of a file", Key::from(key)) });
        }
        let fail = |errno| failed(key, "write", errno);
        std::fs::create_dir_all(&self.root).map_err(|error| failed_io(key, error))?;
        let mut folder = self.open_root()?;
        let mut parts: Vec<&[u8]> = key.split(|byte| *byte == b'/').collect();
        let name = parts.pop().unwrap_or_default().to_vec();
        for part in parts {
            let part = OsStr::from_bytes(part);
            match rustix::fs::mkdirat(&folder, part, Mode::from_raw_mode(0o777)) {
                Ok(()) => rustix::fs::fsync(&folder).map_err(fail)?,
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(fail(errno)),
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            folder = rustix::fs::openat(&folder, part, flags, Mode::empty()).map_err(fail)?;
        }
        let number = self.puts.fetch_add(1, Ordering::Relaxed);
        // Another process, or this one in another container, may write here too.
        let nonce: u64 = rand::random();
        let mut unfinished = UNFINISHED.to_vec();
        unfinished.extend_from_slice(format!("{nonce:016x}-{number}").as_bytes());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&folder, OsStr::from_bytes(&unfinished), flags, Mode::from_raw_mode(0o666))
            .map_err(fail)?;
        Ok(Unfinished { key: key.to_vec(), folder, file: std::fs::File::from(file), unfinished, name, renamed: false })
    }
}

/// A file that is being written under a name of its own. Removed when dropped before its end.
struct Unfinished {
    key: Vec<u8>,
    folder: OwnedFd,
    file: std::fs::File,
    unfinished: Vec<u8>,
    name: Vec<u8>,
    renamed: bool,
}

impl Unfinished {
    fn write(&mut self, bytes: &[u8]) -> Result<(), OriginError> {
        std::io::Write::write_all(&mut self.file, bytes).map_err(|error| failed_io(&self.key, error))
    }

    fn finish(mut self) -> Result<Version, OriginError> {
        self.file.sync_all().map_err(|error| failed_io(&self.key, error))?;
        let (from, to) = (OsStr::from_bytes(&self.unfinished), OsStr::from_bytes(&self.name));
        rustix::fs::renameat(&self.folder, from, &self.folder, to)
            .map_err(|errno| failed(&self.key, "write", errno))?;
        self.renamed = true;
        rustix::fs::fsync(&self.folder).map_err(|errno| failed(&self.key, "write", errno))?;
        let stat = rustix::fs::fstat(&self.file).map_err(|errno| failed(&self.key, "stat", errno))?;
        Ok(version_of(&stat))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.renamed {
            // Should this fail too, a file is left that no listing shows.
            let _ = rustix::fs::unlinkat(&self.folder, OsStr::from_bytes(&self.unfinished), AtFlags::empty());
        }
    }
}

/// Opens a path part by part, none of which may be a symbolic link.
fn open_by_parts(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut parts = path.split(|byte| *byte == b'/').peekable();
    let mut folder: Option<OwnedFd> = None;
    while let Some(part) = parts.next() {
        let at = folder.as_ref().map_or(root, AsFd::as_fd);
        let part_flags = match parts.peek() {
            Some(_) => OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            None => flags,
        };
        folder = Some(rustix::fs::openat(at, OsStr::from_bytes(part), part_flags, Mode::empty())?);
    }
    folder.ok_or(Errno::NOENT)
}

/// Whether a key is a path that stays where it says: no empty part, no `.`, no `..`, no NUL.
fn is_plain(key: &[u8]) -> bool {
    !key.contains(&0) && key.split(|byte| *byte == b'/').all(|part| !matches!(part, b"" | b"." | b".."))
}

fn pread(file: &OwnedFd, key: &[u8], range: Range<u64>) -> Result<Bytes, OriginError> {
    let expected = (range.end - range.start) as usize;
    let mut bytes = BytesMut::zeroed(expected);
    let mut got = 0;
    while got < expected {
        match rustix::io::pread(file, &mut bytes[got..], range.start + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed(key, "read", errno)),
        }
    }
    bytes.truncate(got);
    Ok(bytes.freeze())
}

fn listed(key: Vec<u8>, stat: &Stat) -> Listed {
    Listed { key, size: stat.st_size as u64, mtime_ns: mtime_ns(stat), version: version_of(stat) }
}

fn version_of(stat: &Stat) -> Version {
    Version::MtimeSize { mtime_ns: mtime_ns(stat), size: stat.st_size as u64 }
}

fn mtime_ns(stat: &Stat) -> i64 {
    stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as i64)
}

fn failed(key: &[u8], verb: &'static str, errno: Errno) -> OriginError {
    let key = Key::from(key);
    match errno {
        // ELOOP and EXDEV are a symbolic link in the way and a way out of the root: what is behind is not ours to give.
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NAMETOOLONG | Errno::ISDIR => {
            OriginError::NotFound { key }
        }
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            OriginError::Denied { key, source: Box::new(std::io::Error::from(errno)) }
        }
        errno => OriginError::Unavailable { source: format!("{verb} {key}: {}", std::io::Error::from(errno)).into() },
    }
}

fn failed_io(key: &[u8], error: std::io::Error) -> OriginError {
    match Errno::from_io_error(&error) {
        Some(errno) => failed(key, "write", errno),
        None => OriginError::Unavailable { source: Box::new(error) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(root: &std::path::Path) -> FolderOrigin {
        let url = OriginUrl::folder(root).expect("a folder");
        FolderOrigin::open(&url, &OriginConfig::default()).expect("an origin")
    }

    /// A root with a file, beside a file that nothing below the root may reach.
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
            origin.tree.no_openat2.store(no_openat2, Ordering::Relaxed);
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
        assert_eq!(
            skipped,
            [
                (b"inner".as_slice(), "a symbolic link"),
                (b"link", "a symbolic link"),
                (b"out", "a symbolic link"),
                (b"pipe", "a pipe"),
                (b"sock", "a socket")
            ]
        );
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
        assert_eq!(deep.skipped, page.skipped);
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
}
