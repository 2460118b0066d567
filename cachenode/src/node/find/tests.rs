use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;

use larder_dataset::environment::OWNER;
use larder_import::Silent;
use larder_s3_server::{S3Server, S3ServerConfig};
use larder_store::Quota;
use larder_testkit::{FakeSts, Fault, FaultProxy, RequestHead, StsAnswer};
use rustix::mount::{MountFlags, UnmountFlags};

use super::*;
use crate::home::HomeLimits;
use crate::node::ErrorKind;
use crate::source::Here;

const WAIT: Duration = Duration::from_secs(60);

fn finder_in(folder: &std::path::Path, config: OriginConfig) -> Finder {
    Finder::new(Home::new(folder.join("home")), vec![folder.join("cache")], config, Importer::Here, Handle::current())
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
        for name in ["data", "other", "third"] {
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

    /// For another one.
    fn third_request(&self) -> DatasetRequest {
        DatasetSpec::new(format!("file://{}", self.folder.path().join("third").display())).into()
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
        (mount_id(&key_of(&source.manifest, request, config).unwrap(), &request.apart()), source)
    }
}

/// Begins a look-up, whose caller hears nothing of it; returns when it has ended.
async fn look_and_leave(finder: &Arc<Finder>, request: &DatasetRequest) {
    let key = LookUpKey::of(request, &finder.importer);
    drop(finder.look_up(&key, request));
    let runs = || finder.look_ups.lock().in_flight.contains_key(&key);
    while runs() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A bucket with 20 objects behind a proxy, and a finder.
struct Bucket {
    folder: tempfile::TempDir,
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
        Self { folder, server, proxy, finder: Arc::new(finder) }
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

// SEMANTICS: C4, I10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_home_on_a_disk_that_is_nearly_full_known_datasets_are_found_and_new_ones_name_the_flag() {
    let world = World::new();
    let disk = Disk::new(world.folder.path().join("home"), c"size=10m");
    let known = world.known().await;
    let limits = HomeLimits { keep_free_percent: 20, small_bytes: 0, ..HomeLimits::default() };
    let finder = |limits| {
        let home = Home::limited(world.folder.path().join("home"), limits);
        let (cache, config) = (world.folder.path().join("cache"), OriginConfig::default());
        Arc::new(Finder::new(home, vec![cache], config, Importer::Here, Handle::current()))
    };
    // Less than 20 % is free, as beside a cache that has taken all that it may, and more than 15 %.
    std::fs::write(disk.0.join("others"), vec![0; 8300 << 10]).unwrap();
    let near = finder(limits);
    assert!(matches!(near.prepare(&world.third_request(), WAIT).await.unwrap(), Prepared::Ready(_)));
    let cached = world.folder.path().join("home/manifests");
    std::fs::write(disk.0.join("more"), vec![0; 500 << 10]).unwrap();
    let names = || std::fs::read_dir(&cached).unwrap().map(|it| it.unwrap().file_name()).collect::<BTreeSet<_>>();
    let before = names();
    for finder in [&finder(limits), &finder(limits)] {
        world.assert_only_known_is_found(finder, &known, "--keep-free", "make room").await;
    }
    assert_eq!(std::fs::read_dir(disk.0.join("imports")).unwrap().count(), 0);
    let kept = |name: &&std::ffi::OsString| name.to_string_lossy().ends_with(".manifest");
    assert!(names().iter().filter(kept).eq(before.iter().filter(kept)), "nothing is written");
    // A small dataset harms no disk.
    let free = finder(HomeLimits { keep_free_percent: 20, ..HomeLimits::default() });
    assert!(matches!(free.prepare(&world.other_request(), WAIT).await.unwrap(), Prepared::Ready(_)));
}

/// No process is started for an import that its quota holds back: the program does not exist.
// SEMANTICS: K22
#[tokio::test]
async fn an_import_that_its_quota_holds_back_says_so_and_holds_up_no_other_namespace() {
    let world = World::new();
    let importer = Importer::process("/nonexistent", 512 << 20, Duration::from_secs(300));
    let finder = Finder { importer: importer.clone(), ..finder_in(world.folder.path(), OriginConfig::default()) };
    let finder = Arc::new(finder);
    let quota = |imports| Quota {
        name: "research".into(),
        namespaces: vec!["team-a".into(), "team-b".into()],
        imports: Some(imports),
        ..Quota::default()
    };
    let refused = async |payer: &str| {
        let request = DatasetRequest { payer: payer.into(), ..world.request(Refresh::Never) };
        loop {
            match finder.prepare(&request, Duration::from_millis(10)).await {
                Err(error) => return error,
                Ok(Prepared::Importing { .. }) => {}
                Ok(Prepared::Ready(_)) => panic!("nothing can import it"),
            }
        }
    };
    importer.limit(&[quota(0)]);
    for payer in ["team-a", "team-b"] {
        let error = refused(payer).await;
        let words =
            format!("the namespace {payer} (CacheQuota research) runs 0 of 0 imports on this node; this dataset");
        assert!(error.to_string().starts_with(&words) && error.kind() == ErrorKind::NoRoom, "{error}");
    }
    assert_eq!(finder.look_ups.lock().in_flight.len(), 1, "those of a quota wait together");
    let error = refused("team-c").await;
    assert!(Chain(&error).to_string().contains("start a process for an import"), "{error}");
    // Raised, the one that waits begins at once.
    importer.limit(&[quota(2)]);
    let error = refused("team-a").await;
    assert!(Chain(&error).to_string().contains("start a process for an import"), "{error}");
}

/// A look-up that nobody asks for any more ends, and the next one begins anew.
// SEMANTICS: I8
#[tokio::test(start_paused = true)]
async fn a_look_up_that_nobody_waits_for_ends_after_minutes_and_not_while_somebody_asks() {
    let world = World::new();
    let request = world.request(Refresh::Always);
    // Another process lists the origin, and does not end.
    let url = request.spec.source.clone();
    let kept = crate::source::local_manifest(&url, &OriginConfig::default(), &world.finder.home).unwrap();
    let held = crate::kept_listing::KeptListing::at(kept).lock().await.unwrap();
    let runs = || world.finder.look_ups.lock().in_flight.len();
    for _ in 0..30 {
        let waits = world.finder.prepare(&request, Duration::from_secs(20)).await.unwrap();
        assert!(matches!(waits, Prepared::Importing { .. }));
        tokio::time::sleep(Duration::from_secs(100)).await;
    }
    let look_up = world.finder.look_up(&LookUpKey::of(&request, &world.finder.importer), &request);
    tokio::time::sleep(wanted::UNWANTED_MOST - Duration::from_secs(1)).await;
    assert_eq!(runs(), 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(runs(), 0);
    let error = look_up.outcome.borrow().clone().unwrap().unwrap_err();
    assert!(matches!(*error, NodeError::Unwanted) && error.kind() == ErrorKind::Unavailable, "{error}");
    drop(held);
    assert_eq!(world.files(Refresh::Always).await, 1);
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
    let found = bucket.prepare(Refresh::Never).await.unwrap();
    let snapshot = found.key.snapshot();
    let earlier = |owner: &str| {
        let key = CacheKey::new(SnapshotId([1; 32]), "", owner);
        let found = Found { key, apart: owner.to_owned(), ..found.clone() };
        bucket.finder.earlier(&found, CacheKey::new(snapshot, "", owner).id(), snapshot).is_some()
    };
    assert_eq!([earlier("a"), earlier("c")], [true, false]);
    // A snapshot that was found at another URL is none, until it is found here.
    bucket.finder.found_at(CacheKey::new(snapshot, "", "a").id(), "s3://other");
    assert!(!earlier("a"));
    bucket.finder.forget_urls(|_| false);
    assert!(earlier("a"));
    // Of a snapshot that several had found, nobody knows who cached it, and one that finds it now proves nothing.
    let is_only = |kept: Vec<(String, SnapshotId)>| {
        let mut next = finder_in(bucket.folder.path(), OriginConfig::default());
        next.set_kept_before(kept);
        next.is_only_of(&found, snapshot)
    };
    assert!(bucket.finder.kept.all().len() > 1);
    assert!(!is_only(bucket.finder.kept.all()) && !is_only(Vec::new()));
    assert!(is_only(vec![(found.id.clone(), snapshot), (a.clone(), SnapshotId([1; 32]))]));
    // A peer that asks for a tenant's dataset learns of no other owner's snapshots.
    let origin = |request: &DatasetRequest| bucket.finder.origin_hash(&found.manifest, request).unwrap();
    let (of_a, of_all) = (origin(&request(Some("a"), "1")), origin(&Bucket::request(Refresh::Never)));
    assert!(of_a != of_all && of_a != origin(&request(Some("b"), "1")));
    assert_eq!((origin(&request(Some("a"), "2")), origin(&request(None, "1"))), (of_a, of_all));
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
        // Three of those that are looked at are left, then two.
        (|n| (n < 16).then_some(404), None),
        (|n| (n < 17).then_some(404), Some(ErrorKind::NotFound)),
        (|n| (n == 0).then_some(403), None),
    ] {
        bucket.answer(status);
        assert_eq!(bucket.prepare(Refresh::Never).await.err(), expected);
    }
}

// SEMANTICS: K7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_that_are_not_those_of_the_listing_prove_no_right_to_read_its_bytes() {
    let bucket = Bucket::new().await;
    bucket.prepare(Refresh::Never).await.unwrap();
    let replace = |n: u8, bytes: &[u8]| drop(bucket.server.put("bucket", &format!("data/{n:02}"), bytes.to_vec()));
    // A few replaced objects concern their readers only.
    (0..8).for_each(|n| replace(n, b"other"));
    bucket.prepare(Refresh::Never).await.unwrap();
    // The same names and sizes with other ETags, as in another tenant's bucket, and one object that all have.
    (0..20).for_each(|n| replace(n, &[n + 100; 100]));
    replace(3, &[3; 100]);
    assert_eq!(bucket.prepare(Refresh::Never).await.err(), Some(ErrorKind::NotFound));
    // The others need not be there: whoever makes a bucket of that name knows one object.
    (0..20).filter(|n| *n != 3).for_each(|n| assert!(bucket.server.delete("bucket", &format!("data/{n:02}"))));
    assert_eq!(bucket.prepare(Refresh::Never).await.err(), Some(ErrorKind::NotFound));
}

/// The requests differ only in that one has no credentials: where these decide which bucket it is, the objects differ.
// SEMANTICS: C19, K7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_without_credentials_has_a_listing_a_cache_and_a_mount_of_its_own() {
    let world = World::new();
    let own = world.request(Refresh::Never);
    let anonymous =
        DatasetRequest { spec: DatasetSpec { anonymous: true, ..own.spec.clone() }, ..DatasetRequest::default() };
    let found = async |request: &DatasetRequest| match world.finder.prepare(request, WAIT).await.unwrap() {
        Prepared::Ready(found) => found,
        importing => panic!("{importing:?}"),
    };
    let with_keys = found(&own).await;
    let without = found(&anonymous).await;
    assert_eq!(with_keys.key.snapshot(), without.key.snapshot());
    assert_ne!(with_keys.key.id(), without.key.id());
    assert_ne!(with_keys.id, without.id);
    assert_eq!((with_keys.key.owner(), without.key.owner()), ("", "anonymous"));
    world.add("second");
    let other = World::new();
    assert_eq!(other.files(Refresh::Never).await, 1);
    other.add("second");
    let spec = DatasetSpec { anonymous: true, ..other.request(Refresh::Never).spec };
    let Prepared::Ready(listed) = other.finder.prepare(&spec.into(), WAIT).await.unwrap() else { panic!("is listed") };
    assert_eq!(listed.manifest.totals().files, 2, "it does not take the listing that was made with keys");
    // A larderd that did not tell them apart named its mount as that of the others. The pod reads on, from its own cache.
    let again = world.next().find_again(&with_keys.id, &anonymous).await.unwrap();
    assert_eq!((again.id, again.key), (with_keys.id, without.key));
    let refused = world.next().find_again(&without.id, &own).await.unwrap_err();
    assert!(matches!(refused, NodeError::Snapshot { .. }), "{refused}");
}

// SEMANTICS: C19, K7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_tenant_lists_for_itself() {
    let bucket = Bucket::new().await;
    let request = |owner: &str| {
        let given = bucket.server.env().into_iter().map(|(name, value)| (name.to_owned(), value));
        let credentials = Some(given.chain([(OWNER.to_owned(), owner.to_owned())]).collect());
        DatasetRequest { credentials, ..Bucket::request(Refresh::Never) }
    };
    let files = async |owner: &str| match bucket.finder.prepare(&request(owner), WAIT).await.unwrap() {
        Prepared::Ready(found) => found.manifest.totals().files,
        importing => panic!("{importing:?}"),
    };
    assert_eq!(files("a").await, 20);
    // Where the credentials decide which bucket it is, the next tenant's has other objects.
    (1..20).for_each(|n| assert!(bucket.server.delete("bucket", &format!("data/{n:02}"))));
    assert_eq!(files("b").await, 1);
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

// SEMANTICS: K23
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pods_token_opens_nothing_by_the_keys_of_another_pods() {
    let bucket = Bucket::new().await;
    let env: BTreeMap<_, _> = bucket.server.env().into_iter().collect();
    let [id, secret] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"].map(|name| env[name].clone());
    let sts = FakeSts::start(move |request| match request.form["WebIdentityToken"].as_str() {
        "good" => StsAnswer::Keys { id: id.clone(), secret: secret.clone(), token: "t".to_owned(), seconds: 3600 },
        _ => StsAnswer::Refusal { status: 403, code: "AccessDenied", message: String::new() },
    });
    let sts = sts.await.unwrap();
    let request = |token: &str| {
        let variables = [
            ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r".to_owned()),
            ("AWS_ENDPOINT_URL_STS", sts.endpoint()),
            ("LARDER_IDENTITY_TOKEN", token.to_owned()),
            ("LARDER_OWNER", "role-1".to_owned()),
        ];
        let credentials = variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        DatasetRequest { credentials: Some(credentials), ..Bucket::request(Refresh::Never) }
    };
    let prepare = async |token: &str| match bucket.finder.prepare(&request(token), WAIT).await {
        Ok(Prepared::Ready(found)) => Ok(found),
        Ok(importing) => panic!("{importing:?}"),
        Err(error) => Err(error.kind()),
    };
    let found = prepare("good").await.unwrap();
    // The mount that is served has keys by now.
    let served = bucket.finder.origin(&found.id, &found.manifest, &request("good")).unwrap();
    served.head(b"00").await.unwrap();
    assert_eq!(prepare("bad").await.unwrap_err(), ErrorKind::Denied);
    // It keeps them with whatever token it goes on.
    let renewed = bucket.finder.origin(&found.id, &found.manifest, &request("bad")).unwrap();
    renewed.head(b"00").await.unwrap();
}
