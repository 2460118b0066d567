use std::collections::HashMap;
use std::sync::Mutex;

use larder_dataset::manifest::{Built, PackObject, PackedFile};
use larder_dataset::{ManifestBuilder, SnapshotId, VersionTag};
use larder_import::MANIFEST_KEY;
use tokio::time::Instant;

use super::*;
use crate::fetch::tests::manifest;

const OWN: &str = "s3://bucket/data";
const SIZE: u64 = 1000;

/// The behaviour of a scripted origin when it is called for objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Well,
    /// Gives nothing.
    Hangs,
    /// Gives this many bytes of each read, then nothing.
    StopsAfter(usize),
    Fails,
}

/// An origin in memory with a scripted behaviour.
#[derive(Debug)]
struct Scripted {
    url: OriginUrl,
    objects: Mutex<HashMap<Vec<u8>, (Bytes, Version)>>,
    mode: Mutex<Mode>,
    reads: AtomicU64,
}

impl Scripted {
    fn new(url: &str) -> Arc<Self> {
        Arc::new(Self {
            url: url.parse().unwrap(),
            objects: Mutex::default(),
            mode: Mutex::new(Mode::Well),
            reads: AtomicU64::new(0),
        })
    }

    fn put(&self, key: &[u8], bytes: impl Into<Bytes>, etag: &str) {
        self.objects.lock().unwrap().insert(key.to_vec(), (bytes.into(), Version::ETag(etag.into())));
    }

    fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
    }

    fn reads(&self) -> u64 {
        self.reads.load(Ordering::SeqCst)
    }

    /// How calls for a key go. Those for manifests always go well.
    fn mode(&self, key: &[u8]) -> Mode {
        if key.starts_with(b".larder/") { Mode::Well } else { *self.mode.lock().unwrap() }
    }

    fn get(&self, key: &[u8], version: Option<&Version>) -> Result<(Bytes, Version), OriginError> {
        let found = self.objects.lock().unwrap().get(key).cloned();
        let (bytes, there) = found.ok_or_else(|| not_found(key))?;
        match version.filter(|version| **version != there) {
            Some(expected) => {
                Err(OriginError::Stale { key: Key::from(key), expected: expected.clone(), got: Some(there) })
            }
            None => Ok((bytes, there)),
        }
    }
}

fn fails() -> OriginError {
    OriginError::Unavailable { source: "it fails on purpose".into() }
}

#[async_trait]
impl Origin for Scripted {
    fn url(&self) -> &OriginUrl {
        &self.url
    }

    async fn list(&self, _: &[u8], _: Option<&[u8]>, _: Depth) -> Result<Page, OriginError> {
        Err(fails())
    }

    async fn read(&self, key: &[u8], range: Range<u64>, version: Option<&Version>) -> Result<Bytes, OriginError> {
        let mut bytes = Vec::new();
        self.read_to(key, range, version, &mut |piece| bytes.extend_from_slice(piece)).await?;
        Ok(bytes.into())
    }

    async fn read_to(
        &self,
        key: &[u8],
        range: Range<u64>,
        version: Option<&Version>,
        sink: &mut Sink<'_>,
    ) -> Result<(), OriginError> {
        let mode = self.mode(key);
        if !key.starts_with(b".larder/") {
            self.reads.fetch_add(1, Ordering::SeqCst);
        }
        let (bytes, _) = self.get(key, version)?;
        let bytes = bytes.slice(range.start as usize..range.end as usize);
        match mode {
            Mode::Well => sink(&bytes),
            Mode::Fails => return Err(fails()),
            Mode::Hangs => return std::future::pending().await,
            Mode::StopsAfter(most) => {
                sink(&bytes[..most]);
                return std::future::pending().await;
            }
        }
        Ok(())
    }

    async fn head(&self, key: &[u8]) -> Result<ObjectInfo, OriginError> {
        match self.mode(key) {
            Mode::Well => {}
            Mode::Fails => return Err(fails()),
            Mode::Hangs | Mode::StopsAfter(_) => return std::future::pending().await,
        }
        let (bytes, version) = self.get(key, None)?;
        Ok(ObjectInfo { key: key.to_vec(), size: bytes.len() as u64, mtime_ns: 0, version })
    }

    async fn read_all(&self, key: &[u8], _: u64) -> Result<(Bytes, Version), OriginError> {
        self.get(key, None)
    }

    async fn put(&self, _: &[u8], _: Bytes) -> Result<Version, OriginError> {
        Err(fails())
    }

    async fn put_stream(&self, _: &[u8], _: BoxStream<'_, Result<Bytes, OriginError>>) -> Result<Version, OriginError> {
        Err(fails())
    }
}

fn contents(file: u8) -> Bytes {
    (0..SIZE).map(|at| (at as u8).wrapping_mul(7) ^ file).collect()
}

fn key(file: u8) -> Vec<u8> {
    format!("{file:06}").into_bytes()
}

/// The version of each file in the dataset's own origin.
fn version() -> Version {
    Version::ETag("\"0123456789abcdef0123456789abcdef\"".into())
}

/// A dataset of three files in its own origin and in two mirrors.
struct World {
    _folder: tempfile::TempDir,
    manifest: Arc<MappedManifest>,
    own: Arc<Scripted>,
    eu: Arc<Scripted>,
    us: Arc<Scripted>,
    around: Surroundings,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let manifest = manifest(folder.path(), &[SIZE; 3]);
        let own = Scripted::new(OWN);
        (0..3).for_each(|file| own.put(&key(file), contents(file), "\"0123456789abcdef0123456789abcdef\""));
        let around = Surroundings {
            home: Home::new(folder.path().join("home")),
            counters: Arc::default(),
            labels: Arc::default(),
            runtime: Handle::current(),
        };
        let (eu, us) = (Scripted::new("s3://eu/data"), Scripted::new("gs://us/data"));
        let world = Self { _folder: folder, manifest, own, eu, us, around };
        for mirror in [&world.eu, &world.us] {
            (0..3).for_each(|file| mirror.put(&key(file), contents(file), &format!("\"copy {file}\"")));
            world.publish(mirror, world.mirror_of(mirror));
        }
        world
    }

    fn mirror_of(&self, mirror: &Scripted) -> Built {
        let version = |row: u32| VersionTag::ETag(format!("\"copy {row}\"").into());
        self.manifest.mirrored_at::<Box<dyn std::error::Error>>(&mirror.url.to_string(), version).unwrap()
    }

    fn publish(&self, mirror: &Scripted, built: Built) {
        mirror.put(MANIFEST_KEY, built.to_bytes(), &format!("\"{}\"", built.snapshot));
    }

    fn mirrors_with(&self, before: Option<Arc<Places>>) -> Mirrors {
        let mirror = |name: &str, zone: &str, cost| MirrorRequest {
            name: name.into(),
            near: [("zone".to_owned(), zone.to_owned())].into(),
            cost,
            ..MirrorRequest::default()
        };
        let place = |mirror, origin: &Arc<Scripted>| PlaceConfig {
            mirror,
            origin: Arc::clone(origin) as Arc<dyn Origin>,
            place: String::new(),
        };
        let configs = vec![
            place(None, &self.own),
            place(Some(mirror("us", "u", 9)), &self.us),
            place(Some(mirror("eu", "e", 5)), &self.eu),
        ];
        Mirrors::new(&self.manifest, configs, before, self.around.clone())
    }

    /// The mirrors, once their manifests were read.
    async fn mirrors(&self) -> Mirrors {
        let mirrors = self.mirrors_with(None);
        for _ in 0..1000 {
            if mirrors.report().iter().all(|place| place.unused.is_none()) {
                return mirrors;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("{:?}", mirrors.report());
    }

    fn labels(&self, zone: &str) {
        self.around.labels.set([("zone".to_owned(), zone.to_owned())].into());
    }

    /// The reads of the own origin, of eu and of us.
    fn reads(&self) -> [u64; 3] {
        [&self.own, &self.eu, &self.us].map(|origin| origin.reads())
    }
}

async fn read(mirrors: &Mirrors, file: u8) -> Result<Bytes, OriginError> {
    mirrors.read(&key(file), 0..SIZE, Some(&version())).await
}

fn names(mirrors: &Mirrors) -> Vec<Option<String>> {
    mirrors.report().into_iter().map(|place| place.mirror).collect()
}

// SEMANTICS: M5
#[tokio::test(start_paused = true)]
async fn a_node_reads_the_nearest_then_the_cheapest_and_follows_its_labels() {
    let world = World::new();
    let mirrors = world.mirrors().await;
    let (eu, us) = (Some("eu".to_owned()), Some("us".to_owned()));
    assert_eq!(names(&mirrors), [None, eu.clone(), us.clone()], "by cost, where no mirror is near");
    assert_eq!(read(&mirrors, 0).await.unwrap(), contents(0));
    assert_eq!(world.reads(), [1, 0, 0]);
    world.labels("u");
    assert_eq!(names(&mirrors), [us.clone(), None, eu.clone()]);
    assert_eq!(read(&mirrors, 1).await.unwrap(), contents(1));
    assert_eq!(world.reads(), [1, 0, 1]);
    world.labels("e");
    assert_eq!(names(&mirrors), [eu, None, us]);
    assert_eq!(read(&mirrors, 2).await.unwrap(), contents(2));
    assert_eq!(world.reads(), [1, 1, 1]);
    assert!(!mirrors.is_costly());
}

// SEMANTICS: M6
#[tokio::test(start_paused = true)]
async fn an_origin_that_hangs_is_left_after_10_s_and_used_again_within_60_s_of_being_well() {
    let world = World::new();
    world.labels("e");
    let mirrors = world.mirrors().await;
    world.eu.set(Mode::Hangs);
    let began = Instant::now();
    let reading: Vec<_> = (0..3)
        .map(|file| {
            let mirrors = mirrors.clone();
            tokio::spawn(async move { read(&mirrors, file).await })
        })
        .collect();
    for (file, reading) in (0..3).zip(reading) {
        assert_eq!(reading.await.unwrap().unwrap(), contents(file));
    }
    let paused = began.elapsed();
    assert!((health::LEFT_AFTER..Duration::from_secs(15)).contains(&paused), "{paused:?}");
    assert!(mirrors.is_costly() && mirrors.report()[0].unused.is_some());
    let (began, before) = (Instant::now(), world.reads());
    assert_eq!(read(&mirrors, 0).await.unwrap(), contents(0));
    assert_eq!((began.elapsed(), world.reads()[1]), (Duration::ZERO, before[1]), "it is not asked by readers");
    // For longer than the pauses grow.
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.reads()[1], before[1]);
    world.eu.set(Mode::Well);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!mirrors.is_costly() && mirrors.report()[0].unused.is_none());
    read(&mirrors, 0).await.unwrap();
    assert_eq!(world.reads()[1], before[1] + 1);
}

// SEMANTICS: M6
#[tokio::test(start_paused = true)]
async fn a_read_goes_on_at_the_next_origin_where_it_stopped() {
    let world = World::new();
    world.labels("e");
    let mirrors = world.mirrors().await;
    world.eu.set(Mode::StopsAfter(300));
    let mut pieces = Vec::new();
    let listed = version();
    mirrors
        .read_to(&key(1), 100..900, Some(&listed), &mut |piece| pieces.push(Bytes::copy_from_slice(piece)))
        .await
        .unwrap();
    assert_eq!(pieces.iter().map(Bytes::len).collect::<Vec<_>>(), [300, 500], "no byte twice");
    assert_eq!(pieces.concat(), contents(1)[100..900]);
}

// SEMANTICS: M6
#[tokio::test(start_paused = true)]
async fn failures_go_to_the_next_origin_at_once_and_the_dataset_s_own_error_is_reported() {
    let world = World::new();
    world.labels("e");
    let mirrors = world.mirrors().await;
    world.eu.set(Mode::Fails);
    let began = Instant::now();
    for _ in 0..3 {
        read(&mirrors, 0).await.unwrap();
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(!mirrors.is_costly(), "it may be one object");
    tokio::time::sleep(health::LEFT_AFTER).await;
    read(&mirrors, 0).await.unwrap();
    assert!(mirrors.is_costly());
    world.us.set(Mode::Fails);
    world.own.objects.lock().unwrap().clear();
    let error = read(&mirrors, 0).await.unwrap_err();
    assert!(matches!(error, OriginError::NotFound { .. }), "{error:?}");
}

// SEMANTICS: M7
#[tokio::test(start_paused = true)]
async fn an_object_that_a_mirror_lacks_or_has_in_another_version_is_read_from_the_next() {
    let world = World::new();
    world.labels("e");
    let mirrors = world.mirrors().await;
    world.eu.objects.lock().unwrap().remove(&key(0));
    world.eu.put(&key(1), contents(9), "\"another\"");
    for file in 0..3 {
        assert_eq!(read(&mirrors, file).await.unwrap(), contents(file), "{file}");
    }
    let report = mirrors.report();
    assert_eq!((report[0].missing, report[0].bytes, report[1].missing), (2, SIZE, 0), "{report:?}");
    assert_eq!(world.around.counters.values()[2], ("fs_mirror_missing_total", 2));
    assert!(!mirrors.is_costly(), "it is well");
    let head = mirrors.head(&key(2)).await.unwrap();
    assert_eq!((head.size, head.version), (SIZE, version()), "as the dataset describes it");
}

// SEMANTICS: M7
#[tokio::test(start_paused = true)]
async fn a_mirror_of_another_snapshot_or_of_none_is_not_read_until_it_has_this_one() {
    let world = World::new();
    world.labels("e");
    let folder = tempfile::tempdir().unwrap();
    let other = manifest(folder.path(), &[SIZE; 2]);
    let version = |row: u32| VersionTag::ETag(format!("\"copy {row}\"").into());
    let of_other = other.mirrored_at::<Box<dyn std::error::Error>>("s3://eu/data", version).unwrap();
    world.publish(&world.eu, of_other);
    world.us.objects.lock().unwrap().remove(MANIFEST_KEY);
    let mirrors = world.mirrors_with(None);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let report = mirrors.report();
    let why = |at: usize| report[at].unused.clone().unwrap_or_default();
    assert!(why(0).contains("mirrors the snapshot") && why(0).contains(&other.snapshot().to_string()), "{report:?}");
    assert!(why(2).contains("larder sync"), "{report:?}");
    read(&mirrors, 0).await.unwrap();
    assert_eq!(world.reads(), [1, 0, 0]);
    world.publish(&world.eu, world.mirror_of(&world.eu));
    tokio::time::sleep(LOOK_EVERY).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    read(&mirrors, 0).await.unwrap();
    assert_eq!(world.reads(), [1, 1, 0]);
}

// SEMANTICS: M6
#[tokio::test(start_paused = true)]
async fn renewed_credentials_do_not_send_readers_back_to_an_origin_that_hangs() {
    let world = World::new();
    world.labels("e");
    let mirrors = world.mirrors().await;
    world.eu.set(Mode::Hangs);
    read(&mirrors, 0).await.unwrap();
    let renewed = world.mirrors_with(Some(Arc::clone(mirrors.known())));
    let (began, before) = (Instant::now(), world.reads()[1]);
    read(&renewed, 0).await.unwrap();
    assert_eq!((began.elapsed(), world.reads()[1]), (Duration::ZERO, before));
}

// SEMANTICS: M7
#[tokio::test(start_paused = true)]
async fn wrong_bytes_of_one_place_are_read_elsewhere() {
    let world = World::new();
    world.labels("e");
    let mirrors = world.mirrors().await;
    let elsewhere = mirrors.elsewhere().unwrap();
    elsewhere.read(&key(0), 0..SIZE, Some(&version())).await.unwrap();
    assert_eq!(world.reads(), [1, 0, 0]);
    let last = elsewhere.elsewhere().unwrap();
    last.read(&key(0), 0..SIZE, Some(&version())).await.unwrap();
    assert_eq!(world.reads(), [1, 0, 1]);
    assert!(last.elsewhere().is_none());
}

#[test]
fn files_of_a_plain_snapshot_are_found_in_a_mirror_of_packs() {
    let folder = tempfile::tempdir().unwrap();
    let snapshot = manifest(folder.path(), &[SIZE; 2]);
    let packed = |mirrored: SnapshotId| {
        let mut builder = ManifestBuilder::new();
        for (file, offset) in [(0, 0), (1, SIZE)] {
            let path = key(file);
            let row = PackedFile { path: &path, size: SIZE, mtime_ns: 0, pack: 0, offset, block_crcs: &[7] };
            builder.push_packed(&row).unwrap();
        }
        builder.set_packs(vec![PackObject { key: b"packs/0".to_vec(), size: 2 * SIZE, etag: "\"p\"".into() }]);
        builder.set_mirrored(mirrored, OWN);
        let path = folder.path().join(mirrored.to_string());
        std::fs::write(&path, builder.finish("data", "s3://packed", 0).unwrap().to_bytes()).unwrap();
        crate::manifest_file::open_manifest(&path).unwrap()
    };
    let copied = Copied::of(&snapshot, packed(snapshot.snapshot())).unwrap();
    let object = copied.object(&key(1), 10..20).unwrap();
    assert_eq!((object.key.as_slice(), object.range), (b"packs/0".as_slice(), SIZE + 10..SIZE + 20));
    assert_eq!(object.version, Some(Version::ETag("\"p\"".into())));
    assert!(copied.object(&key(1), 10..SIZE + 1).is_none() && copied.object(b"none", 0..1).is_none());
    let why = Copied::of(&snapshot, packed(SnapshotId([1; 32]))).unwrap_err();
    assert!(why.contains("mirrors the snapshot"), "{why}");
}
