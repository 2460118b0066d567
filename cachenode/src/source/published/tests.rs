use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::poll;
use futures::stream::BoxStream;
use larder_import::{ImportOptions, Silent, import};
use larder_origin::{Depth, ObjectInfo, OriginConfig, OriginUrl, Page};
use tokio::sync::Semaphore;

use super::*;
use crate::home::HomeLimits;
use crate::manifest_file::open_manifest;
use crate::node::{ErrorKind, NodeError};

const KEY: &[u8] = b"m.manifest";

/// A folder in which manifests are published, and a copy of the newest.
struct Bed {
    folder: tempfile::TempDir,
    origin: Arc<dyn Origin>,
    home: Home,
}

impl Bed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["data", "published", "here"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let origin = open(&folder.path().join("published"));
        let home = Home::new(folder.path());
        Self { folder, origin, home }
    }

    fn copy(&self) -> PathBuf {
        self.folder.path().join("here/copy.published")
    }

    /// Publishes a manifest of one more file, and returns how many it has.
    async fn publish(&self) -> u32 {
        let data = self.folder.path().join("data");
        let file = data.join(std::fs::read_dir(&data).unwrap().count().to_string());
        std::fs::write(file, b"bytes").unwrap();
        let options = ImportOptions::new("n", self.folder.path().join("imports"));
        let manifest = import(open(&data), options, &Silent).await.unwrap().manifest;
        let files = manifest.totals().files;
        manifest.write(&self.folder.path().join("published/m.manifest")).unwrap();
        files
    }

    /// The files of the copy.
    fn files(&self) -> Option<u32> {
        open_manifest(&self.copy()).ok().map(|manifest| manifest.totals().files)
    }
}

fn open(folder: &Path) -> Arc<dyn Origin> {
    larder_origin::open(&OriginUrl::folder(folder).unwrap(), &OriginConfig::default()).unwrap()
}

/// An origin whose bytes arrive when they are let through.
#[derive(Debug)]
struct Late {
    inner: Arc<dyn Origin>,
    asked: Semaphore,
    let_through: Semaphore,
}

#[async_trait]
impl Origin for Late {
    fn url(&self) -> &OriginUrl {
        self.inner.url()
    }

    async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
        self.inner.list(prefix, after, depth).await
    }

    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError> {
        let bytes = self.inner.read(key, range, version).await;
        self.asked.add_permits(1);
        self.let_through.acquire().await.unwrap().forget();
        bytes
    }

    async fn head(&self, key: &[u8]) -> Result<ObjectInfo, OriginError> {
        self.inner.head(key).await
    }

    async fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError> {
        self.inner.read_all(key, limit).await
    }

    async fn put(&self, key: &[u8], bytes: Bytes) -> Result<Version, OriginError> {
        self.inner.put(key, bytes).await
    }

    async fn put_stream(
        &self,
        key: &[u8],
        chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Version, OriginError> {
        self.inner.put_stream(key, chunks).await
    }
}

/// The newer of two fetches has put its copy in place and not noted its version yet, when the older one ends.
// SEMANTICS: V5
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_fetches_the_older_one_that_ends_last_is_not_taken_for_the_newer() {
    for _ in 0..100 {
        let bed = Bed::new();
        let first = bed.publish().await;
        let copy = bed.copy();
        let inner = Arc::clone(&bed.origin);
        let late = Late { inner, asked: Semaphore::new(0), let_through: Semaphore::new(0) };
        let mut older = Box::pin(fetch(&late, KEY, &copy, &bed.home));
        tokio::select! {
            biased;
            _ = &mut older => panic!("it waits"),
            asked = late.asked.acquire() => asked.unwrap().forget(),
        }
        let second = bed.publish().await;
        let mut newer = Box::pin(fetch(&*bed.origin, KEY, &copy, &bed.home));
        let mut noted = false;
        while !noted && bed.files() != Some(second) {
            noted = poll!(&mut newer).is_ready();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if noted {
            continue;
        }
        late.let_through.add_permits(1);
        assert!(older.await.unwrap());
        assert!(newer.await.unwrap());
        assert_eq!(bed.files(), Some(first), "the older one came last");
        assert!(fetch(&*bed.origin, KEY, &copy, &bed.home).await.unwrap());
        assert_eq!(bed.files(), Some(second));
        return;
    }
    panic!("no fetch was met between its copy and its note");
}

#[tokio::test]
async fn a_copy_of_the_published_version_is_not_fetched_again() {
    let bed = Bed::new();
    let (copy, files) = (bed.copy(), bed.publish().await);
    assert!(fetch(&*bed.origin, KEY, &copy, &bed.home).await.unwrap());
    let stamp = Stamp::of(&copy);
    assert!(fetch(&*bed.origin, KEY, &copy, &bed.home).await.unwrap());
    assert_eq!((bed.files(), Stamp::of(&copy)), (Some(files), stamp));
    // As an earlier version noted it.
    let version = bed.origin.head(KEY).await.unwrap().version;
    let note = copy.with_extension("version");
    let noted = std::fs::read_to_string(&note).unwrap();
    std::fs::write(&note, format!("{version:?}")).unwrap();
    assert!(fetch(&*bed.origin, KEY, &copy, &bed.home).await.unwrap());
    assert_eq!((bed.files(), Stamp::of(&copy)), (Some(files), stamp));
    assert_eq!(std::fs::read_to_string(&note).unwrap(), noted);
    let files = bed.publish().await;
    assert!(fetch(&*bed.origin, KEY, &copy, &bed.home).await.unwrap());
    assert_eq!(bed.files(), Some(files));
}

// SEMANTICS: C7
#[tokio::test]
async fn orders_fetched_concurrently_are_complete_and_leave_no_drafts() {
    let bed = Bed::new();
    let list = |letter: u8| vec![letter; 3 * ORDER_PIECE_BYTES as usize / 2];
    let published = bed.folder.path().join("published/m.manifest.order");
    std::fs::write(&published, list(b'a')).unwrap();
    let copy = bed.copy();
    let inner = Arc::clone(&bed.origin);
    let late = Late { inner, asked: Semaphore::new(0), let_through: Semaphore::new(0) };
    let mut slow = Box::pin(fetch_order(&late, KEY, &copy, &bed.home));
    tokio::select! {
        biased;
        () = &mut slow => panic!("it waits"),
        asked = late.asked.acquire() => asked.unwrap().forget(),
    }
    fetch_order(&*bed.origin, KEY, &copy, &bed.home).await;
    assert!(std::fs::read(order_of(&copy)).unwrap() == list(b'a'));
    late.let_through.add_permits(2);
    slow.await;
    assert!(std::fs::read(order_of(&copy)).unwrap() == list(b'a'));
    let mut left: Vec<_> =
        std::fs::read_dir(copy.parent().unwrap()).unwrap().map(|it| it.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["copy.published.order", "copy.published.order-version"]);
    std::fs::remove_file(&published).unwrap();
    fetch_order(&*bed.origin, KEY, &copy, &bed.home).await;
    assert!(!order_of(&copy).exists());
}

/// An origin that reports another size for every object, and counts the reads.
#[derive(Debug)]
struct Boasting {
    inner: Arc<dyn Origin>,
    size: u64,
    reads: AtomicU64,
}

#[async_trait]
impl Origin for Boasting {
    fn url(&self) -> &OriginUrl {
        self.inner.url()
    }

    async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
        self.inner.list(prefix, after, depth).await
    }

    async fn read(&self, _: &[u8], range: Range<u64>, _: Option<&Version>) -> Result<Bytes, OriginError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        Ok(vec![b'x'; (range.end - range.start) as usize].into())
    }

    async fn head(&self, key: &[u8]) -> Result<ObjectInfo, OriginError> {
        Ok(ObjectInfo { size: self.size, ..self.inner.head(key).await? })
    }

    async fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError> {
        self.inner.read_all(key, limit).await
    }

    async fn put(&self, key: &[u8], bytes: Bytes) -> Result<Version, OriginError> {
        self.inner.put(key, bytes).await
    }

    async fn put_stream(
        &self,
        key: &[u8],
        chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Version, OriginError> {
        self.inner.put_stream(key, chunks).await
    }
}

impl Bed {
    /// An origin whose objects have this size, of which it has any number of bytes.
    fn boasting(&self, size: u64) -> Boasting {
        Boasting { inner: Arc::clone(&self.origin), size, reads: AtomicU64::new(0) }
    }

    /// The files on this machine.
    fn here(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path().join("here")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

// SEMANTICS: I10
#[tokio::test]
async fn an_order_of_3_tb_is_refused_before_it_is_read_and_one_of_64_mib_is_taken() {
    let bed = Bed::new();
    std::fs::write(bed.folder.path().join("published/m.manifest.order"), "a").unwrap();
    let (copy, home) = (bed.copy(), bed.home.clone());
    for size in [3_000_000_000_000, (64 << 20) + 1] {
        let origin = bed.boasting(size);
        let refused = try_to_fetch_order(&origin, KEY, &copy, &home).await.unwrap_err().to_string();
        let shown = larder_dataset::size::show_bytes(size);
        assert!([&shown, "m.manifest.order", "64MiB"].iter().all(|part| refused.contains(*part)), "{refused}");
        // It costs the order, and no mount.
        fetch_order(&origin, KEY, &copy, &home).await;
        assert_eq!((origin.reads.load(Ordering::SeqCst), bed.here()), (0, Vec::new()));
    }
    fetch_order(&bed.boasting(64 << 20), KEY, &copy, &home).await;
    assert_eq!(std::fs::metadata(order_of(&copy)).unwrap().len(), 64 << 20);
}

// SEMANTICS: I10
#[tokio::test]
async fn neither_a_manifest_nor_an_order_is_written_to_a_home_below_what_is_to_stay_free() {
    let bed = Bed::new();
    let files = bed.publish().await;
    std::fs::write(bed.folder.path().join("published/m.manifest.order"), "a").unwrap();
    let copy = bed.copy();
    // More than all of the disk is to stay free.
    let full = Home::limited(
        bed.folder.path(),
        HomeLimits { keep_free_percent: 200, small_bytes: 0, ..HomeLimits::default() },
    );
    let refused = fetch(&*bed.origin, KEY, &copy, &full).await.unwrap_err();
    let text = Chain(&refused).to_string();
    assert!(text.contains("--keep-free") && text.contains(full.dir().to_str().unwrap()), "{text}");
    assert_eq!(NodeError::from(refused).kind(), ErrorKind::Precondition);
    fetch_order(&*bed.origin, KEY, &copy, &full).await;
    assert_eq!(bed.here(), Vec::<String>::new());
    let small = Home::limited(bed.folder.path(), HomeLimits { listing_bytes: 100, ..HomeLimits::default() });
    let refused = fetch(&*bed.origin, KEY, &copy, &small).await.unwrap_err();
    assert!(Chain(&refused).to_string().contains("--listing-size"), "{refused}");
    assert_eq!(NodeError::from(refused).kind(), ErrorKind::Precondition);
    assert!(fetch(&*bed.origin, KEY, &copy, &bed.home).await.unwrap());
    assert_eq!(bed.files(), Some(files));
}
