use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use larder_dataset::manifest::{PackObject, PackedFile};
use larder_dataset::{FileIndex, Location, ManifestBuilder};
use larder_origin::{
    Depth, Faulty, InjectedFault, Md5Answer, ObjectInfo, Operation, OriginError, OriginUrl, Page, Version,
};

use super::*;
use crate::import::{ImportOptions, import};
use crate::memory::MemoryOrigin;
use crate::pack::{PackOptions, pack};
use crate::progress::Silent;
use crate::publish::MANIFEST_KEY;

const SRC: &str = "s3://bucket/set";
const DST: &str = "s3://other/copy";

type Files = [(&'static str, usize)];

const FILES: &Files = &[("a/1", 400), ("a/2", 0), ("a/huge", 20 << 20), ("b/1", 1000), ("b/c/2", 1), ("d", 999)];

fn contents(name: &str, len: usize) -> Vec<u8> {
    let seed = larder_dataset::crc32c(name.as_bytes());
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
}

fn source(files: &Files) -> Arc<MemoryOrigin> {
    let origin = MemoryOrigin::new(SRC, 100);
    for (name, len) in files {
        origin.set(name, contents(name, *len));
    }
    Arc::new(origin)
}

fn destination() -> Arc<MemoryOrigin> {
    Arc::new(MemoryOrigin::new(DST, 100))
}

async fn snapshot(origin: &Arc<MemoryOrigin>) -> Arc<Manifest<Vec<u8>>> {
    let dir = tempfile::tempdir().unwrap();
    let options = ImportOptions::new("data", dir.path());
    let imported = import(Arc::clone(origin) as Arc<dyn Origin>, options, &Silent).await.unwrap();
    Arc::new(Manifest::open(imported.manifest.read().unwrap()).unwrap())
}

async fn stored(origin: &MemoryOrigin, key: &[u8]) -> Option<Manifest<Vec<u8>>> {
    let (bytes, _) = origin.read_all(key, u64::MAX).await.ok()?;
    Some(Manifest::open(bytes.to_vec()).unwrap())
}

async fn before(dst: &MemoryOrigin) -> Option<Before<Vec<u8>>> {
    let mirror = stored(dst, MANIFEST_KEY).await?;
    let mirrored = mirror.mirrored().unwrap().map(|mirrored| mirrored.snapshot);
    let source = match mirrored {
        Some(snapshot) => stored(dst, &source_manifest_key(snapshot)).await,
        None => None,
    };
    Some(Before { mirror, source })
}

/// A source and a mirror, and where the journal is.
struct World {
    src: Arc<MemoryOrigin>,
    dst: Arc<MemoryOrigin>,
    dir: tempfile::TempDir,
}

impl World {
    fn new(files: &Files) -> Self {
        Self { src: source(files), dst: destination(), dir: tempfile::tempdir().unwrap() }
    }

    fn options(&self) -> SyncOptions {
        SyncOptions { concurrency: 4, ..SyncOptions::new(self.dir.path()) }
    }

    async fn sync_between(
        &self,
        src: Arc<dyn Origin>,
        dst: Arc<dyn Origin>,
        manifest: &Arc<Manifest<Vec<u8>>>,
        options: SyncOptions,
    ) -> Result<Synced, SyncError> {
        sync(Arc::clone(manifest), src, dst, before(&self.dst).await, options, &Silent).await
    }

    async fn sync(&self, manifest: &Arc<Manifest<Vec<u8>>>, options: SyncOptions) -> Result<Synced, SyncError> {
        let (src, dst) = (Arc::clone(&self.src) as Arc<dyn Origin>, Arc::clone(&self.dst) as Arc<dyn Origin>);
        self.sync_between(src, dst, manifest, options).await
    }

    /// How often each key of the mirror was written.
    fn writes(&self) -> HashMap<Vec<u8>, usize> {
        let mut writes = HashMap::new();
        self.dst.written.lock().unwrap().iter().for_each(|key| *writes.entry(key.clone()).or_default() += 1);
        writes
    }

    /// Checks that the mirror has a manifest of this snapshot, and reads it back by that.
    async fn check(&self, manifest: &Manifest<Vec<u8>>) {
        let mirror = stored(&self.dst, MANIFEST_KEY).await.expect("a manifest");
        mirror.verify().unwrap();
        assert_eq!(mirror.mirrored().unwrap().unwrap().snapshot, manifest.snapshot());
        assert_eq!(mirror.totals(), manifest.totals());
        let source = stored(&self.dst, &source_manifest_key(manifest.snapshot())).await.expect("the source's");
        assert_eq!(source.snapshot(), manifest.snapshot());
        for index in (0..manifest.totals().files).map(FileIndex) {
            let file = mirror.file(index).unwrap();
            let path = mirror.file_path(&file).unwrap();
            assert_eq!(path, manifest.file_path(&manifest.file(index).unwrap()).unwrap());
            let object = crate::object_range(&mirror, &file, 0..file.size).unwrap();
            let bytes = self.dst.read(&object.key, object.range.clone(), object.version.as_ref()).await.unwrap();
            assert!(bytes == contents(std::str::from_utf8(&path).unwrap(), file.size as usize), "{object:?}");
        }
    }

    fn has_manifest(&self) -> bool {
        self.dst.keys().iter().any(|key| key == MANIFEST_KEY)
    }
}

// SEMANTICS: M1
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_has_every_file_and_its_manifest_is_written_last_and_a_second_run_writes_nothing() {
    let world = World::new(FILES);
    let manifest = snapshot(&world.src).await;
    let done = world.sync(&manifest, world.options()).await.unwrap();
    assert_eq!((done.objects, done.objects_copied), (FILES.len() as u64, FILES.len() as u64));
    assert_eq!((done.bytes_copied, done.published), (manifest.totals().bytes, true));
    world.check(&manifest).await;
    let written = world.dst.written.lock().unwrap().clone();
    assert_eq!(written[written.len() - 2..], [source_manifest_key(manifest.snapshot()), MANIFEST_KEY.to_vec()]);
    assert_eq!(std::fs::read_dir(world.dir.path()).unwrap().count(), 0, "the journal is gone");

    let reads = world.src.reads.load(Ordering::SeqCst);
    let again = world.sync(&manifest, world.options()).await.unwrap();
    assert_eq!((again.objects_copied, again.published, again.snapshot), (0, false, done.snapshot));
    assert_eq!(*world.dst.written.lock().unwrap(), written);
    assert_eq!(world.src.reads.load(Ordering::SeqCst), reads, "nothing was read");
}

// SEMANTICS: M2
#[tokio::test(flavor = "multi_thread")]
async fn a_later_snapshot_costs_only_its_changes_and_nothing_is_removed_unless_said() {
    let world = World::new(FILES);
    let first = snapshot(&world.src).await;
    world.sync(&first, world.options()).await.unwrap();
    world.dst.set("extra", "of somebody else");
    world.src.remove(b"d");
    world.src.set("a/new", contents("a/new", 77));
    let second = snapshot(&world.src).await;
    let done = world.sync(&second, world.options()).await.unwrap();
    assert_eq!((done.objects_copied, done.bytes_copied, done.objects_deleted), (1, 77, 0));
    // The file that is gone, that of somebody else, and the manifest of the first snapshot.
    assert_eq!(done.objects_other, 3);
    world.check(&second).await;
    assert!(world.dst.keys().contains(&b"d".to_vec()));

    let options = SyncOptions { delete: true, ..world.options() };
    let dry = world.sync(&second, SyncOptions { dry_run: true, ..options.clone() }).await.unwrap();
    assert_eq!((dry.objects_deleted, dry.objects_copied, dry.published), (3, 0, false));
    assert!(world.dst.keys().contains(&b"extra".to_vec()), "a dry run removes nothing");
    let deleted = world.sync(&second, options).await.unwrap();
    assert_eq!((deleted.objects_deleted, deleted.objects_copied), (3, 0));
    world.check(&second).await;
    assert_eq!(world.dst.keys().len(), FILES.len() + 2, "the files and two manifests: {:?}", world.dst.keys());
}

// SEMANTICS: M2
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_ended_early_is_continued_and_writes_each_object_once() {
    let files: Vec<(String, usize)> = (0..40).map(|n| (format!("f/{n:02}"), n * 13)).collect();
    let world = World::new(&[]);
    files.iter().for_each(|(name, len)| world.src.set(name, contents(name, *len)));
    let manifest = snapshot(&world.src).await;
    for allowed in [3, 11, 25] {
        world.dst.puts_allowed.store(allowed, Ordering::SeqCst);
        let error = world.sync(&manifest, world.options()).await.unwrap_err();
        assert!(matches!(error, SyncError::Write { .. }), "{error:?}");
        assert!(!world.has_manifest(), "no manifest of a part");
    }
    world.dst.puts_allowed.store(u64::MAX, Ordering::SeqCst);
    world.sync(&manifest, world.options()).await.unwrap();
    world.check(&manifest).await;
    assert!(world.writes().values().all(|writes| *writes == 1), "{:?}", world.writes());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_says_what_is_missing_and_leaves_no_trace() {
    let world = World::new(FILES);
    let manifest = snapshot(&world.src).await;
    let dry = world.sync(&manifest, SyncOptions { dry_run: true, ..world.options() }).await.unwrap();
    assert_eq!((dry.objects_copied, dry.bytes_copied, dry.published), (6, manifest.totals().bytes, true));
    assert!(world.dst.keys().is_empty());
    assert_eq!(world.src.reads.load(Ordering::SeqCst), 0);
    assert_eq!(std::fs::read_dir(world.dir.path()).unwrap().count(), 0);
}

// SEMANTICS: M3
#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_byte_at_the_source_is_named_and_not_copied() {
    for name in ["b/1", "a/huge"] {
        let world = World::new(FILES);
        let manifest = snapshot(&world.src).await;
        let len = FILES.iter().find(|(file, _)| *file == name).unwrap().1;
        let mut rotten = contents(name, len);
        rotten[len - 1] ^= 1;
        world.src.rot(name.as_bytes(), rotten);
        let error = world.sync(&manifest, world.options()).await.unwrap_err();
        assert!(matches!(&error, SyncError::CorruptSource { key, .. } if key == name.as_bytes()), "{error:?}");
        assert!(error.to_string().contains(name), "{error}");
        assert!(!world.dst.keys().contains(&name.as_bytes().to_vec()) && !world.has_manifest());
    }
    // An entity tag that is no MD5 says nothing about the bytes.
    let world = World::new(FILES);
    let manifest = snapshot(&world.src).await;
    world.src.rot(b"b/1", contents("b/1!", 1000));
    world.src.encrypted.store(true, Ordering::SeqCst);
    world.sync(&manifest, world.options()).await.unwrap();
}

// SEMANTICS: M3
#[tokio::test(flavor = "multi_thread")]
async fn a_byte_that_is_flipped_on_its_way_from_the_source_is_read_again() {
    let world = World::new(FILES);
    let manifest = snapshot(&world.src).await;
    let flips = AtomicU64::new(0);
    let src = Faulty::new(Arc::clone(&world.src) as Arc<dyn Origin>, move |call| {
        let is_first = call.operation == Operation::Read && call.key == b"b/1";
        match is_first && flips.fetch_add(1, Ordering::SeqCst) == 0 {
            true => InjectedFault::FlipBit,
            false => InjectedFault::None,
        }
    });
    let dst = Arc::clone(&world.dst) as Arc<dyn Origin>;
    let done = world.sync_between(Arc::new(src), dst, &manifest, world.options()).await.unwrap();
    assert_eq!(done.objects_repeated, 1);
    world.check(&manifest).await;
}

/// A mirror that gets some objects with a flipped byte, and stores them under the entity tag of what it got.
#[derive(Debug)]
struct Flipping {
    inner: Arc<MemoryOrigin>,
    key: &'static [u8],
    /// How many puts of the key are still flipped.
    left: AtomicU64,
    /// True if it compares bytes with their MD5.
    compares: bool,
    /// The keys of which it does not answer writes with an MD5.
    down: Range<&'static [u8]>,
    /// Those that it did not answer.
    unanswered: AtomicU64,
}

impl Flipping {
    /// The mirror of this world, which flips a byte of so many puts of the key.
    fn new(world: &World, key: &'static [u8], flips: u64) -> Self {
        let (left, unanswered) = (AtomicU64::new(flips), AtomicU64::new(0));
        Self { inner: Arc::clone(&world.dst), key, left, compares: true, down: Range::default(), unanswered }
    }

    fn flipped(&self, key: &[u8], bytes: Bytes) -> Bytes {
        let flips = key == self.key
            && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        let mut bytes = bytes.to_vec();
        if flips {
            bytes[0] ^= 1;
        }
        bytes.into()
    }
}

#[async_trait]
impl Origin for Flipping {
    fn url(&self) -> &OriginUrl {
        self.inner.url()
    }

    async fn list(&self, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
        self.inner.list(prefix, after, depth).await
    }

    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError> {
        self.inner.read(key, range, version).await
    }

    async fn head(&self, key: &[u8]) -> Result<ObjectInfo, OriginError> {
        self.inner.head(key).await
    }

    async fn read_all(&self, key: &[u8], limit: u64) -> Result<(Bytes, Version), OriginError> {
        self.inner.read_all(key, limit).await
    }

    async fn put(&self, key: &[u8], bytes: Bytes) -> Result<Version, OriginError> {
        self.inner.put(key, self.flipped(key, bytes)).await
    }

    async fn put_with_md5(&self, key: &[u8], bytes: Bytes, md5: &[u8; 16]) -> Result<Md5Answer, OriginError> {
        if !self.compares {
            return Ok(Md5Answer::Refused);
        }
        if self.down.contains(&key) {
            self.unanswered.fetch_add(1, Ordering::SeqCst);
            return Err(OriginError::Unavailable { source: "down".into() });
        }
        self.inner.put_with_md5(key, self.flipped(key, bytes), md5).await
    }

    async fn put_stream(
        &self,
        key: &[u8],
        chunks: BoxStream<'_, Result<Bytes, OriginError>>,
    ) -> Result<Version, OriginError> {
        self.inner.put_stream(key, chunks).await
    }
}

// SEMANTICS: M3
#[tokio::test(flavor = "multi_thread")]
async fn a_byte_that_is_flipped_in_the_mirror_is_written_again_or_named() {
    for (flips, is_healed) in [(1, true), (2, false)] {
        let world = World::new(FILES);
        let manifest = snapshot(&world.src).await;
        let dst = Flipping { compares: false, ..Flipping::new(&world, b"b/1", flips) };
        let src = Arc::clone(&world.src) as Arc<dyn Origin>;
        let done = world.sync_between(src, Arc::new(dst), &manifest, world.options()).await;
        if is_healed {
            assert_eq!(done.unwrap().objects_repeated, 1);
            world.check(&manifest).await;
        } else {
            let error = done.unwrap_err();
            assert!(matches!(&error, SyncError::CorruptCopy { key, .. } if key == b"b/1"), "{error:?}");
            assert!(error.to_string().contains("b/1") && !world.has_manifest(), "{error}");
        }
    }
}

/// Forty files, which are copied one by one: after the first, the mirror is known to compare MD5s.
async fn forty() -> (World, Arc<Manifest<Vec<u8>>>, SyncOptions) {
    let world = World::new(&[]);
    (0..40).map(numbered).for_each(|(name, len)| world.src.set(&name, contents(&name, len)));
    let manifest = snapshot(&world.src).await;
    let options = SyncOptions { concurrency: 1, ..world.options() };
    (world, manifest, options)
}

fn numbered(n: usize) -> (String, usize) {
    (format!("f/{n:02}"), 100 + n)
}

// SEMANTICS: M3
#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_that_refuses_a_wrong_md5_is_sent_the_others_with_theirs() {
    let (world, manifest, options) = forty().await;
    let done = world.sync(&manifest, options).await.unwrap();
    assert_eq!((done.objects_copied, done.objects_repeated), (40, 0));
    world.check(&manifest).await;
    assert_eq!(world.dst.md5_puts.load(Ordering::SeqCst), 40, "the first with a wrong one, all others with theirs");
    assert!(world.writes().values().all(|writes| *writes == 1), "{:?}", world.writes());
}

// SEMANTICS: M3
#[tokio::test(flavor = "multi_thread")]
async fn wrong_bytes_of_the_source_are_refused_by_the_mirror_and_read_again_or_named() {
    for (flips, is_healed) in [(1, true), (2, false)] {
        let (world, manifest, options) = forty().await;
        let left = AtomicU64::new(flips);
        let src = Faulty::new(Arc::clone(&world.src) as Arc<dyn Origin>, move |call| {
            let flips = call.operation == Operation::Read
                && call.key == b"f/20"
                && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            if flips { InjectedFault::FlipBit } else { InjectedFault::None }
        });
        let dst = Arc::clone(&world.dst) as Arc<dyn Origin>;
        let done = world.sync_between(Arc::new(src), dst, &manifest, options).await;
        if is_healed {
            assert_eq!(done.unwrap().objects_repeated, 1);
            world.check(&manifest).await;
            assert_eq!(world.writes()[&b"f/20"[..]], 1, "no wrong byte was shown");
        } else {
            let error = done.unwrap_err();
            assert!(matches!(&error, SyncError::CorruptSource { key, .. } if key == b"f/20"), "{error:?}");
            assert!(!world.dst.keys().contains(&b"f/20".to_vec()) && !world.has_manifest());
        }
    }
}

// SEMANTICS: M3
#[tokio::test(flavor = "multi_thread")]
async fn a_byte_that_is_flipped_on_its_way_to_the_mirror_is_refused_there_and_sent_again() {
    let (world, manifest, options) = forty().await;
    let dst = Arc::new(Flipping::new(&world, b"f/20", 1));
    let src = Arc::clone(&world.src) as Arc<dyn Origin>;
    world.sync_between(src, Arc::clone(&dst) as Arc<dyn Origin>, &manifest, options).await.unwrap();
    assert_eq!(dst.left.load(Ordering::SeqCst), 0, "a byte was flipped");
    world.check(&manifest).await;
    assert_eq!(world.writes()[&b"f/20"[..]], 1, "no wrong byte was shown");
}

// SEMANTICS: M3
#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_that_ignores_md5s_shows_no_bytes_that_were_not_compared() {
    let (world, manifest, options) = forty().await;
    world.dst.ignores_md5.store(true, Ordering::SeqCst);
    world.src.rot(b"f/20", contents("f/20!", 120));
    let error = world.sync(&manifest, options.clone()).await.unwrap_err();
    assert!(matches!(&error, SyncError::CorruptSource { key, .. } if key == b"f/20"), "{error:?}");
    assert!(!world.dst.keys().contains(&b"f/20".to_vec()) && !world.has_manifest());
    assert_eq!(world.dst.md5_puts.load(Ordering::SeqCst), 1);
    world.src.rot(b"f/20", contents("f/20", 120));
    world.sync(&manifest, options).await.unwrap();
    world.check(&manifest).await;
}

// SEMANTICS: M3
#[tokio::test(flavor = "multi_thread")]
async fn entity_tags_that_only_look_like_md5s_are_sent_for_a_few_objects_and_all_are_copied() {
    let (world, _, options) = forty().await;
    world.src.encrypted.store(true, Ordering::SeqCst);
    for (name, len) in (0..40).map(numbered) {
        world.src.set(&name, contents("an encrypted form", len));
        world.src.rot(name.as_bytes(), contents(&name, len));
    }
    let manifest = snapshot(&world.src).await;
    let done = world.sync(&manifest, options).await.unwrap();
    assert_eq!((done.objects_copied, done.objects_repeated), (40, 0));
    world.check(&manifest).await;
    assert!(world.writes().values().all(|writes| *writes == 1), "{:?}", world.writes());
    let sent = world.dst.md5_puts.load(Ordering::SeqCst);
    assert!((2..30).contains(&sent), "{sent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn entity_tags_of_every_other_object_that_are_no_md5s_cost_a_few_uploads() {
    let (world, _, options) = forty().await;
    world.src.encrypted.store(true, Ordering::SeqCst);
    for (name, len) in (1..40).step_by(2).map(numbered) {
        world.src.set(&name, contents("an encrypted form", len));
        world.src.rot(name.as_bytes(), contents(&name, len));
    }
    let manifest = snapshot(&world.src).await;
    world.sync(&manifest, options).await.unwrap();
    world.check(&manifest).await;
    let sent = world.dst.md5_puts.load(Ordering::SeqCst);
    assert_eq!(sent, 32, "the first with a wrong one, and the next until 16 were refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_outage_objects_are_sent_with_their_md5s_again() {
    // Five before the outage and ten after it; then the 16th and all after it, since the 8th was sent in the outage; then
    // the 1st, 2nd, 4th, 8th, 16th and 32nd.
    for (down, unanswered, sent) in [("f/05".."f/30", 25, 15), ("f/00".."f/10", 4, 25), ("f".."g", 6, 0)] {
        let (world, manifest, options) = forty().await;
        let down = down.start.as_bytes()..down.end.as_bytes();
        let dst = Arc::new(Flipping { down, ..Flipping::new(&world, b"", 0) });
        let src = Arc::clone(&world.src) as Arc<dyn Origin>;
        world.sync_between(src, Arc::clone(&dst) as Arc<dyn Origin>, &manifest, options).await.unwrap();
        world.check(&manifest).await;
        let counts = (dst.unanswered.load(Ordering::SeqCst), world.dst.md5_puts.load(Ordering::SeqCst));
        assert_eq!(counts, (unanswered, sent));
    }
}

// SEMANTICS: M4
#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_changes_meanwhile_is_an_error_and_the_mirror_keeps_its_manifest() {
    let world = World::new(FILES);
    let first = snapshot(&world.src).await;
    world.sync(&first, world.options()).await.unwrap();
    world.src.set("a/1", contents("a/1", 401));
    world.src.set("b/1", contents("b/1", 1001));
    let second = snapshot(&world.src).await;
    world.src.set("b/1", contents("b/1", 1002));
    let error = world.sync(&second, world.options()).await.unwrap_err();
    assert!(matches!(&error, SyncError::SourceChanged { key, .. } if key == b"b/1"), "{error:?}");
    let mirror = stored(&world.dst, MANIFEST_KEY).await.unwrap();
    assert_eq!(mirror.mirrored().unwrap().unwrap().snapshot, first.snapshot());
    let third = snapshot(&world.src).await;
    world.sync(&third, world.options()).await.unwrap();
    world.check(&third).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_of_its_own_and_a_mirror_of_another_source_are_left_alone() {
    let world = World::new(FILES);
    let manifest = snapshot(&world.src).await;
    world.dst.set("mine", "x");
    let own = snapshot(&world.dst).await;
    world.dst.set(MANIFEST_KEY, own.holder().clone());
    let error = world.sync(&manifest, world.options()).await.unwrap_err();
    assert!(matches!(&error, SyncError::NotAMirror { origin } if origin == DST), "{error:?}");

    let other = Arc::new(MemoryOrigin::new("s3://elsewhere/set", 100));
    other.set("x", "y");
    let of_other = snapshot(&other).await.mirrored_at::<SyncError>(DST, |_| VersionTag::ETag("\"1\"".into())).unwrap();
    world.dst.set(MANIFEST_KEY, of_other.to_bytes());
    let error = world.sync(&manifest, world.options()).await.unwrap_err();
    assert!(matches!(&error, SyncError::OtherSource { origin } if origin == "s3://elsewhere/set"), "{error:?}");
    assert_eq!(world.dst.written.lock().unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_another_tool_copied_are_not_copied_again() {
    let world = World::new(FILES);
    let manifest = snapshot(&world.src).await;
    world.dst.set("b/1", contents("b/1", 1000));
    world.dst.set("d", "other bytes");
    let done = world.sync(&manifest, world.options()).await.unwrap();
    assert_eq!(done.objects_copied, FILES.len() as u64 - 1);
    world.check(&manifest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn within_one_store_the_store_copies_by_itself() {
    let world = World::new(FILES);
    let manifest = snapshot(&world.src).await;
    *world.dst.beside.lock().unwrap() = Some(Arc::clone(&world.src));
    let options = SyncOptions { same_store: true, ..world.options() };
    let done = world.sync(&manifest, options).await.unwrap();
    assert_eq!((done.objects_by_store, done.objects_copied), (6, 6));
    assert_eq!(world.src.reads.load(Ordering::SeqCst), 0, "no byte passed this machine");
    world.check(&manifest).await;
}

// SEMANTICS: M3
#[tokio::test(flavor = "multi_thread")]
async fn packs_are_copied_as_they_are_and_a_flipped_byte_in_one_names_its_file() {
    let (world, plain, dir) = (World::new(&[]), source(FILES), tempfile::tempdir().unwrap());
    let options = PackOptions { pack_bytes: 1000, ..PackOptions::new(dir.path()) };
    let (from, to) = (Arc::clone(&plain) as Arc<dyn Origin>, Arc::clone(&world.src) as Arc<dyn Origin>);
    let packed = pack(snapshot(&plain).await, from, to, options, &Silent).await.unwrap();
    let manifest = Arc::new(Manifest::open(packed.built.to_bytes()).unwrap());
    let done = world.sync(&manifest, world.options()).await.unwrap();
    assert_eq!(done.objects, u64::from(manifest.totals().packs));
    world.check(&manifest).await;

    let world = World { dst: destination(), ..world };
    let Location::Pack { pack, offset } = manifest.file(FileIndex(1)).unwrap().location else {
        panic!("a packed file")
    };
    let key = manifest.pack(pack).unwrap().key.to_vec();
    let mut rotten = world.src.read_all(&key, u64::MAX).await.unwrap().0.to_vec();
    rotten[offset as usize] ^= 1;
    world.src.rot(&key, rotten);
    // So that the blocks alone can show it.
    world.src.encrypted.store(true, Ordering::SeqCst);
    let error = world.sync(&manifest, world.options()).await.unwrap_err();
    let path = manifest.file_path(&manifest.file(FileIndex(1)).unwrap()).unwrap();
    assert!(error.to_string().contains(std::str::from_utf8(&path).unwrap()), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn packing_on_the_way_makes_a_mirror() {
    let world = World::new(FILES);
    let manifest = snapshot(&world.src).await;
    let options = PackOptions { pack_bytes: 1000, mirror: true, ..PackOptions::new(world.dir.path()) };
    let (from, to) = (Arc::clone(&world.src) as Arc<dyn Origin>, Arc::clone(&world.dst) as Arc<dyn Origin>);
    pack(Arc::clone(&manifest), from, to, options, &Silent).await.unwrap();
    let mirror = stored(&world.dst, MANIFEST_KEY).await.unwrap();
    assert!(mirror.is_packed());
    let (rows, of) = (mirror.totals(), manifest.totals());
    assert_eq!((rows.files, rows.dirs, rows.blocks, rows.bytes), (of.files, of.dirs, of.blocks, of.bytes));
    assert_eq!(mirror.mirrored().unwrap().unwrap().snapshot, manifest.snapshot());
    for index in (0..of.files).map(FileIndex) {
        let (ours, theirs) = (mirror.file(index).unwrap(), manifest.file(index).unwrap());
        assert_eq!(mirror.file_path(&ours).unwrap(), manifest.file_path(&theirs).unwrap());
        assert_eq!(ours.first_block, theirs.first_block);
    }
    assert!(stored(&world.dst, &source_manifest_key(manifest.snapshot())).await.is_some());
}

#[tokio::test]
async fn a_snapshot_that_names_larder_s_own_objects_is_refused() {
    let mut builder = ManifestBuilder::new();
    let file = PackedFile { path: b"x", size: 1, mtime_ns: 0, pack: 0, offset: 0, block_crcs: &[0] };
    builder.push_packed(&file).unwrap();
    let pack = PackObject { key: MANIFEST_KEY.to_vec(), size: 1, etag: String::new() };
    builder.set_packs(vec![pack]);
    let built = builder.finish("data", SRC, 0).unwrap();
    let (world, manifest) = (World::new(&[]), Arc::new(Manifest::open(built.to_bytes()).unwrap()));
    let error = world.sync(&manifest, world.options()).await.unwrap_err();
    assert!(matches!(error, SyncError::Reserved { .. }), "{error:?}");
}
