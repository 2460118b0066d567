use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::poll;
use futures::stream::BoxStream;
use larder_import::{ImportOptions, Silent, import};
use larder_origin::{Depth, ObjectInfo, OriginConfig, OriginUrl, Page};
use tokio::sync::Semaphore;

use super::*;
use crate::manifest_file::open_manifest;

const KEY: &[u8] = b"m.manifest";

/// A folder in which manifests are published, and a copy of the newest.
struct Bed {
    folder: tempfile::TempDir,
    origin: Arc<dyn Origin>,
}

impl Bed {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["data", "published", "here"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let origin = open(&folder.path().join("published"));
        Self { folder, origin }
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
        let mut older = Box::pin(fetch(&late, KEY, &copy));
        tokio::select! {
            biased;
            _ = &mut older => panic!("it waits"),
            asked = late.asked.acquire() => asked.unwrap().forget(),
        }
        let second = bed.publish().await;
        let mut newer = Box::pin(fetch(&*bed.origin, KEY, &copy));
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
        assert!(fetch(&*bed.origin, KEY, &copy).await.unwrap());
        assert_eq!(bed.files(), Some(second));
        return;
    }
    panic!("no fetch was met between its copy and its note");
}

#[tokio::test]
async fn a_copy_of_the_published_version_is_not_fetched_again() {
    let bed = Bed::new();
    let (copy, files) = (bed.copy(), bed.publish().await);
    assert!(fetch(&*bed.origin, KEY, &copy).await.unwrap());
    let stamp = Stamp::of(&copy);
    assert!(fetch(&*bed.origin, KEY, &copy).await.unwrap());
    assert_eq!((bed.files(), Stamp::of(&copy)), (Some(files), stamp));
    // As an earlier version noted it.
    let version = bed.origin.head(KEY).await.unwrap().version;
    let note = copy.with_extension("version");
    let noted = std::fs::read_to_string(&note).unwrap();
    std::fs::write(&note, format!("{version:?}")).unwrap();
    assert!(fetch(&*bed.origin, KEY, &copy).await.unwrap());
    assert_eq!((bed.files(), Stamp::of(&copy)), (Some(files), stamp));
    assert_eq!(std::fs::read_to_string(&note).unwrap(), noted);
    let files = bed.publish().await;
    assert!(fetch(&*bed.origin, KEY, &copy).await.unwrap());
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
    let mut slow = Box::pin(fetch_order(&late, KEY, &copy));
    tokio::select! {
        biased;
        () = &mut slow => panic!("it waits"),
        asked = late.asked.acquire() => asked.unwrap().forget(),
    }
    fetch_order(&*bed.origin, KEY, &copy).await;
    assert!(std::fs::read(order_of(&copy)).unwrap() == list(b'a'));
    late.let_through.add_permits(2);
    slow.await;
    assert!(std::fs::read(order_of(&copy)).unwrap() == list(b'a'));
    let mut left: Vec<_> =
        std::fs::read_dir(copy.parent().unwrap()).unwrap().map(|it| it.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["copy.published.order", "copy.published.order-version"]);
    std::fs::remove_file(&published).unwrap();
    fetch_order(&*bed.origin, KEY, &copy).await;
    assert!(!order_of(&copy).exists());
}
