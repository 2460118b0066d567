use std::collections::BTreeMap;
use std::ffi::CStr;

use larder_dataset::environment::OWNER;
use larder_import::Silent;
use larder_s3_server::{S3Server, S3ServerConfig};
use larder_testkit::{Fault, FaultProxy, RequestHead};
use rustix::mount::{MountFlags, UnmountFlags};

use super::*;
use crate::node::ErrorKind;
use crate::source::Here;

const WAIT: Duration = Duration::from_secs(60);

fn finder_in(folder: &std::path::Path, config: OriginConfig) -> Finder {
    Finder::new(Home::new(folder.join("home")), folder.join("cache"), config, Importer::Here, Handle::current())
}

/// A folder as an origin, and a finder.
struct World {
    folder: tempfile::TempDir,
    finder: Arc<Finder>,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let finder = finder_in(folder.path(), OriginConfig::default());
        let world = Self { folder, finder: Arc::new(finder) };
        for name in ["data", "other"] {
            std::fs::create_dir(world.folder.path().join(name)).unwrap();
        }
        world.add("first");
        world
    }

    fn add(&self, name: &str) {
        std::fs::write(self.folder.path().join("data").join(name), name).unwrap();
    }

    fn request(&self, refresh: Refresh) -> DatasetRequest {
        let source = format!("file://{}", self.folder.path().join("data").display());
        DatasetSpec { refresh: Some(refresh), ..DatasetSpec::new(source) }.into()
    }

    async fn files(&self, refresh: Refresh) -> u32 {
        match self.finder.prepare(&self.request(refresh), WAIT).await.unwrap() {
            Prepared::Ready(found) => found.manifest.totals().files,
            importing => panic!("{importing:?}"),
        }
    }

    async fn look_and_leave(&self, refresh: Refresh) {
        look_and_leave(&self.finder, &self.request(refresh)).await;
    }

    /// For a dataset that is new to the node.
    fn other_request(&self) -> DatasetRequest {
        DatasetSpec::new(format!("file://{}", self.folder.path().join("other").display())).into()
    }

    /// Finds the dataset, which has another file from then on.
    async fn known(&self) -> Found {
        let Prepared::Ready(known) = self.finder.prepare(&self.request(Refresh::Always), WAIT).await.unwrap() else {
            panic!("it is listed")
        };
        self.add("second");
        known
    }

    /// Asserts that a finder whose home cannot be written to finds the known dataset and refuses a new one.
    async fn assert_only_known_is_found(&self, finder: &Arc<Finder>, known: &Found, error: &str, remedy: &str) {
        let request = self.request(Refresh::Always);
        let again = finder.find_again(&known.id, &request).await.unwrap();
        assert_eq!(again.manifest.snapshot(), known.manifest.snapshot());
        // One more mount of it, which would list the origin again if that could be kept.
        let Prepared::Ready(found) = finder.prepare(&request, WAIT).await.unwrap() else { panic!("it is there") };
        assert_eq!(found.id, known.id);
        let failed = found.refresh_failed.unwrap();
        assert!(failed.contains(error), "{failed}");
        let other = self.other_request();
        for refused in [finder.prepare(&other, WAIT).await.map(drop), finder.find(&other).await.map(drop)] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Precondition);
            let message = Chain(&refused).to_string();
            for part in [self.finder.home.dir().to_str().unwrap(), "--home", remedy] {
                assert!(message.contains(part), "{message}");
            }
        }
    }

    /// The finder of the next process.
    fn next(&self) -> Finder {
        finder_in(self.folder.path(), OriginConfig::default())
    }

    /// The source that the mounts of this request are served from now, and the name of the dataset.
    async fn resolved(&self, request: &DatasetRequest) -> (String, ResolvedSource) {
        let (spec, config) = (&request.spec, OriginConfig::default());
        let source = resolve(&spec.source, &config, &self.finder.home, Refresh::Never, &Here, &Silent).await.unwrap();
        (dataset_id(&source.manifest, request, config).unwrap(), source)
    }
}

/// Begins a look-up, whose caller hears nothing of it; returns when it has ended.
async fn look_and_leave(finder: &Arc<Finder>, request: &DatasetRequest) {
    drop(finder.look_up(request));
    let key = LookUpKey::of(request);
    let runs = || finder.look_ups.lock().in_flight.contains_key(&key);
    while runs() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A bucket with 20 objects behind a proxy, and a finder.
struct Bucket {
    _folder: tempfile::TempDir,
    server: S3Server,
    proxy: FaultProxy,
    finder: Arc<Finder>,
}

impl Bucket {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = S3ServerConfig { buckets: vec!["bucket".into()], ..S3ServerConfig::default() };
        let server = S3Server::start(config).await.unwrap();
        for n in 0..20 {
            server.put("bucket", &format!("data/{n:02}"), vec![n; 100]);
        }
        let proxy = FaultProxy::start(server.address(), |_| Fault::None).await.unwrap();
        let config = OriginConfig {
            endpoint: Some(proxy.endpoint()),
            env: server.env().into_iter().collect(),
            ..OriginConfig::default()
        };
        let finder = finder_in(folder.path(), config);
        Self { _folder: folder, server, proxy, finder: Arc::new(finder) }
    }

    fn request(refresh: Refresh) -> DatasetRequest {
        DatasetSpec { refresh: Some(refresh), ..DatasetSpec::new("s3://bucket/data") }.into()
    }

    /// Answers the question for object `n` with this status, where there is one.
    fn answer(&self, status: impl Fn(u32) -> Option<u16> + Send + Sync + 'static) {
        self.proxy.set_hook(move |request: &RequestHead| {
            let n = request.path.strip_prefix("/bucket/data/").and_then(|n| n.parse().ok());
            let status = n.filter(|_| request.method == "HEAD").and_then(&status);
            status.map_or(Fault::None, |status| Fault::Status { status, code: "Refused" })
        });
    }

    async fn prepare(&self, refresh: Refresh) -> Result<Found, ErrorKind> {
        match self.finder.prepare(&Self::request(refresh), WAIT).await {
            Ok(Prepared::Ready(found)) => Ok(found),
            Ok(importing) => panic!("{importing:?}"),
            Err(error) => Err(error.kind()),
        }
    }
}

// SEMANTICS: V4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undelivered_listing_goes_to_the_next_caller_only() {
    let world = World::new();
    world.look_and_leave(Refresh::Always).await;
    world.add("second");
    assert_eq!(world.files(Refresh::Always).await, 1, "a caller that always lists again would never be done");
    assert_eq!(world.files(Refresh::Always).await, 2);
    world.add("third");
    assert_eq!(world.files(Refresh::Never).await, 2);
    assert_eq!(world.files(Refresh::After(WAIT)).await, 2);
    assert_eq!(world.files(Refresh::Always).await, 3);
    world.look_and_leave(Refresh::Always).await;
    assert_eq!(world.finder.look_ups.lock().undelivered.len(), 1);
    world
        .finder
        .look_ups
        .lock()
        .undelivered
        .values_mut()
        .for_each(|it| *it = it.checked_sub(UNDELIVERED_MOST).unwrap());
    world.add("fourth");
    assert_eq!(world.files(Refresh::Always).await, 4, "after a while it is for nobody");
    assert!(world.finder.look_ups.lock().undelivered.is_empty());
}

// SEMANTICS: V4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_that_fails_leaves_the_old_one_and_its_reason_survives_a_restart() {
    let world = World::new();
    assert_eq!(world.files(Refresh::Always).await, 1);
    let (data, away) = (world.folder.path().join("data"), world.folder.path().join("away"));
    std::fs::rename(&data, &away).unwrap();
    let request = world.request(Refresh::Always);
    let Prepared::Ready(found) = world.finder.prepare(&request, WAIT).await.unwrap() else { panic!("it is listed") };
    let why = found.refresh_failed.unwrap();
    assert!(why.contains("could not be renewed"), "{why}");
    let next = world.next();
    let again = next.find_again(&found.id, &request).await.unwrap();
    assert_eq!(again.refresh_failed, Some(why));
    std::fs::rename(&away, &data).unwrap();
    let Prepared::Ready(found) = world.finder.prepare(&request, WAIT).await.unwrap() else { panic!("it is listed") };
    assert_eq!(found.refresh_failed, None);
    let again = next.find_again(&found.id, &request).await.unwrap();
    assert_eq!(again.refresh_failed, None);
}

// SEMANTICS: V4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_up_that_listed_nothing_saves_the_next_caller_no_listing() {
    let world = World::new();
    assert_eq!(world.files(Refresh::Always).await, 1);
    world.look_and_leave(Refresh::After(WAIT)).await;
    let (data, away) = (world.folder.path().join("data"), world.folder.path().join("away"));
    std::fs::rename(&data, &away).unwrap();
    world.look_and_leave(Refresh::Always).await;
    std::fs::rename(&away, &data).unwrap();
    world.add("second");
    assert_eq!(world.files(Refresh::Always).await, 2);
}

/// A file system for a folder, unmounted at the end.
struct Disk(PathBuf);

impl Disk {
    fn new(dir: PathBuf, options: &CStr) -> Self {
        std::fs::create_dir_all(&dir).unwrap();
        rustix::mount::mount("larder-test", &dir, "tmpfs", MountFlags::empty(), options).unwrap();
        Self(dir)
    }

    fn remount(&self, flags: MountFlags) {
        rustix::mount::mount_remount(&self.0, flags, c"").unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

// SEMANTICS: C4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_home_that_became_read_only_known_datasets_are_found_and_new_ones_name_the_remedy() {
    let world = World::new();
    let disk = Disk::new(world.folder.path().join("home"), c"");
    let known = world.known().await;
    disk.remount(MountFlags::RDONLY);
    // What is mounted, in this process and the next one.
    for finder in [&world.finder, &Arc::new(world.next())] {
        let remedy = "its disk is read-only: mount it writable";
        world.assert_only_known_is_found(finder, &known, "Read-only file system", remedy).await;
    }
    disk.remount(MountFlags::empty());
    assert!(matches!(world.finder.prepare(&world.other_request(), WAIT).await.unwrap(), Prepared::Ready(_)));
    assert_eq!(world.files(Refresh::Always).await, 2);
}

// SEMANTICS: C4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_home_on_a_full_disk_known_datasets_are_found_and_new_ones_name_the_remedy() {
    let world = World::new();
    let disk = Disk::new(world.folder.path().join("home"), c"nr_inodes=100");
    let known = world.known().await;
    // There, a link needs an inode as well.
    let full = (0..100).find(|n| std::fs::write(disk.0.join(n.to_string()), b"").is_err());
    assert!(full.is_some());
    for finder in [&world.finder, &Arc::new(world.next())] {
        let remedy = "its disk is full: make room";
        world.assert_only_known_is_found(finder, &known, "No space left on device", remedy).await;
    }
}

/// As root: the next process runs as another user, to whom the home is readable only.
// SEMANTICS: C4
#[test]
fn with_a_home_of_another_user_known_datasets_are_found_and_new_ones_name_the_remedy() {
    use std::os::unix::fs::PermissionsExt;
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let before = runtime();
    let (world, known) = before.block_on(async {
        let world = World::new();
        let known = world.known().await;
        (world, known)
    });
    std::fs::set_permissions(world.folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let next_process = || {
        let (root, other) = (rustix::process::getuid(), rustix::process::Uid::from_raw(65534));
        // Only this thread becomes the other user, and all threads that it starts.
        rustix::thread::set_thread_res_uid(root, other, root).unwrap();
        runtime().block_on(async {
            let remedy = "it must belong to user 65534";
            world.assert_only_known_is_found(&Arc::new(world.next()), &known, "Permission denied", remedy).await;
        });
    };
    std::thread::scope(|scope| scope.spawn(next_process).join().unwrap());
}

// SEMANTICS: K7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undelivered_listing_grants_nothing_to_revoked_credentials() {
    let bucket = Bucket::new().await;
    look_and_leave(&bucket.finder, &Bucket::request(Refresh::Always)).await;
    bucket.answer(|_| Some(403));
    let refused = bucket.prepare(Refresh::Always).await;
    assert!(matches!(refused, Err(ErrorKind::Denied)), "{refused:?}");
    bucket.answer(|_| None);
    bucket.server.reset_counters();
    bucket.prepare(Refresh::Always).await.unwrap();
    assert_eq!(bucket.server.counters().lists, 0, "a refusal does not use the listing up");
    bucket.prepare(Refresh::Always).await.unwrap();
    assert_eq!(bucket.server.counters().lists, 1);
}

// SEMANTICS: K11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_with_the_same_data_have_mounts_of_their_own_whatever_becomes_of_their_keys() {
    let bucket = Bucket::new().await;
    let request = |owner: Option<&str>, id: &str| {
        let given = bucket.server.env().into_iter().map(|(name, value)| (name.to_owned(), value));
        let mut variables: BTreeMap<String, String> = given.collect();
        variables.insert("LARDER_TEST_KEY".into(), id.into());
        variables.extend(owner.map(|owner| (OWNER.to_owned(), owner.to_owned())));
        let credentials = Some(Credentials::from_iter(variables));
        DatasetRequest { credentials, ..Bucket::request(Refresh::Never) }
    };
    let id = async |request: &DatasetRequest| match bucket.finder.prepare(request, WAIT).await.unwrap() {
        Prepared::Ready(found) => {
            let again = bucket.finder.find_again(&found.id, request).await.unwrap();
            assert_eq!(again.manifest.snapshot(), found.manifest.snapshot());
            found.id
        }
        importing => panic!("{importing:?}"),
    };
    let (a, b) = (id(&request(Some("a"), "1")).await, id(&request(Some("b"), "1")).await);
    assert_ne!(a, b);
    assert_eq!(id(&request(Some("a"), "2")).await, a, "a rotated key");
    // Volumes of the administrator share one, as before.
    let shared = id(&request(None, "1")).await;
    assert!(shared != a && shared != b);
    assert_eq!(id(&request(None, "2")).await, shared);
    assert_eq!(id(&Bucket::request(Refresh::Never)).await, shared);
    // What a tenant's new snapshot adopts is looked up under the tenant's name.
    let manifest = bucket.prepare(Refresh::Never).await.unwrap().manifest;
    let earlier = |request: &DatasetRequest| {
        bucket.finder.earlier(&manifest, request, std::iter::once(manifest.snapshot())).len()
    };
    assert_eq!([earlier(&request(Some("a"), "1")), earlier(&request(Some("c"), "1"))], [1, 0]);
}

// SEMANTICS: K7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_is_gone_proves_no_right_to_read_the_others() {
    let bucket = Bucket::new().await;
    bucket.prepare(Refresh::Never).await.unwrap();
    for (status, expected) in [
        ((|n| Some(if n < 5 { 404 } else { 403 })) as fn(u32) -> Option<u16>, Some(ErrorKind::Denied)),
        (|n| Some(if n == 1 { 403 } else { 404 }), Some(ErrorKind::Denied)),
        (|_| Some(404), Some(ErrorKind::NotFound)),
        (|n| (n < 10).then_some(404), None),
        (|n| (n == 0).then_some(403), None),
    ] {
        bucket.answer(status);
        assert_eq!(bucket.prepare(Refresh::Never).await.err(), expected);
    }
}

// SEMANTICS: K1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_keeps_its_own_manifest_when_others_list_meanwhile() {
    let world = World::new();
    let request = world.request(Refresh::Always);
    assert_eq!(world.files(Refresh::Never).await, 1);
    let (id, first) = world.resolved(&request).await;
    // Once before anything was kept under its name, and once when its file has no other name any more.
    for _ in 0..2 {
        world.add("second");
        assert_eq!(world.files(Refresh::Always).await, 2);
        world.finder.kept.keep(&id, &first).unwrap();
        assert_eq!(
            world.next().find_again(&id, &request).await.unwrap().manifest.snapshot(),
            first.manifest.snapshot()
        );
        std::fs::remove_file(world.finder.kept.path(&id).unwrap()).unwrap();
    }
    for entry in std::fs::read_dir(world.finder.home.sub_folder("mounts").unwrap()).unwrap() {
        let name = entry.unwrap().file_name();
        assert!(name == ".lock" || name.to_str().unwrap().ends_with(".manifest"), "{name:?} was left");
    }
}

// SEMANTICS: K1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_whose_kept_manifest_is_anothers_is_found_again_at_its_source() {
    let world = World::new();
    let request = world.request(Refresh::Never);
    assert_eq!(world.files(Refresh::Never).await, 1);
    let (id, source) = world.resolved(&request).await;
    let kept = world.finder.kept.path(&id).unwrap();
    std::fs::remove_file(&kept).unwrap();
    let elsewhere = World::new();
    let (_, other) = elsewhere.resolved(&elsewhere.request(Refresh::Never)).await;
    std::fs::copy(other.path, &kept).unwrap();
    let again = world.next().find_again(&id, &request).await.unwrap();
    assert_eq!(again.manifest.snapshot(), source.manifest.snapshot());
    assert_eq!(open_manifest(&kept).unwrap().snapshot(), source.manifest.snapshot(), "the next start finds it here");
}
