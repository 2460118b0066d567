//! Publishing and unpublishing while both processes run.

use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use larder_csi_api::csi;
use larder_csi_api::csi::volume_capability::{AccessType, BlockVolume};
use larder_daemon_api::v1::Importing;
use larder_daemon_api::v1::prepare_response::Outcome;
use rustix::mount::{MountFlags, UnmountFlags};
use tonic::{Code, Status};

use crate::fake::{BYTES, FILES, mount_of};
use crate::rig::{Rig, SOURCE, list, map, plain, request, until};

// SEMANTICS: K8
#[tokio::test(flavor = "multi_thread")]
async fn published_once_and_again_is_one_mount_and_unpublished_is_none() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    let target = rig.target("a");
    driver.publish(plain("v", &target)).await.unwrap();
    assert_eq!(list(&target).await.unwrap(), 0);
    let entry = rig.mounted(&target).unwrap();
    assert_eq!((entry.source.as_str(), entry.fs_type.as_str()), ("larder:a_set", "fuse"));
    let knob = format!("/sys/class/bdi/{}:{}/read_ahead_kb", entry.device.major, entry.device.minor);
    assert_eq!(std::fs::read_to_string(knob).unwrap().trim(), "2048");

    driver.publish(plain("v", &target)).await.unwrap();
    assert_eq!((rig.mounts().len(), rig.fake.offered().len()), (2, 1));

    let mut other = plain("v", &target);
    other.readonly = false;
    assert_eq!(driver.publish(other).await.unwrap_err().code(), Code::AlreadyExists);
    assert_eq!(driver.publish(plain("w", &target)).await.unwrap_err().code(), Code::AlreadyExists);

    let stats = driver.stats("v", &target).await.unwrap();
    let numbers: Vec<_> = stats.usage.iter().map(|usage| (usage.total, usage.used, usage.available)).collect();
    assert_eq!(numbers, [(BYTES as i64, BYTES as i64, 0), (FILES as i64, FILES as i64, 0)]);

    driver.unpublish("v", &target).await.unwrap();
    assert!(!target.exists());
    rig.assert_clean();
    assert_eq!(rig.fake.forgotten(), [mount_of(SOURCE)]);
    driver.unpublish("v", &target).await.unwrap();
    driver.unpublish("never", &rig.target("never")).await.unwrap();
}

// SEMANTICS: K3
#[tokio::test(flavor = "multi_thread")]
async fn pods_share_one_file_system_until_the_last_is_gone() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    let (one, two, other) = (rig.target("1"), rig.target("2"), rig.target("3"));
    driver.publish(plain("v", &one)).await.unwrap();
    driver.publish(plain("w", &two)).await.unwrap();
    driver.publish(request("x", &other, &[("source", "s3://bucket/other")])).await.unwrap();
    assert_eq!(rig.mounted(&one).unwrap().device, rig.mounted(&two).unwrap().device);
    assert_ne!(rig.mounted(&one).unwrap().device, rig.mounted(&other).unwrap().device);
    driver.unpublish("v", &one).await.unwrap();
    assert_eq!(list(&two).await.unwrap(), 0);
    assert_eq!(rig.fuse_mounts().len(), 2);
    driver.unpublish("w", &two).await.unwrap();
    assert_eq!(rig.fuse_mounts().len(), 1);
    driver.unpublish("x", &other).await.unwrap();
    rig.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_that_are_not_folders_are_refused_and_left() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    let outside = rig.path("outside");
    std::fs::create_dir(&outside).unwrap();
    symlink(&outside, rig.target("link")).unwrap();
    symlink(&outside, rig.target("way")).unwrap();
    std::fs::write(rig.target("file"), b"").unwrap();
    for name in ["link", "way/x", "file", "file/x"] {
        let error = driver.publish(plain("v", &rig.target(name))).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{name}: {error}");
    }
    for path in [outside.join("x"), rig.target("../../x"), "relative".into()] {
        let error = driver.publish(plain("v", &path)).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{path:?}: {error}");
    }
    let orphan = driver.publish(plain("v", &rig.target("no/parent"))).await.unwrap_err();
    assert_eq!(orphan.code(), Code::FailedPrecondition, "{orphan}");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    assert_eq!(rig.mounts(), []);
    for name in ["link", "way", "file"] {
        std::fs::remove_file(rig.target(name)).unwrap();
    }
    rig.assert_clean();
}

// SEMANTICS: K8
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_mount_at_the_target_stays() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    let target = rig.target("a");
    std::fs::create_dir(&target).unwrap();
    rustix::mount::mount("none", &target, "tmpfs", MountFlags::empty(), None).unwrap();
    std::fs::write(target.join("precious"), b"").unwrap();
    let error = driver.publish(plain("v", &target)).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.message().contains("tmpfs"), "{error}");
    driver.unpublish("v", &target).await.unwrap();
    assert!(target.join("precious").exists());
    rustix::mount::unmount(&target, UnmountFlags::empty()).unwrap();

    // A foreign mount on top of ours is not removed either, and the record stays.
    driver.publish(plain("v", &target)).await.unwrap();
    rustix::mount::mount("none", &target, "tmpfs", MountFlags::empty(), None).unwrap();
    assert_eq!(driver.unpublish("v", &target).await.unwrap_err().code(), Code::FailedPrecondition);
    rustix::mount::unmount(&target, UnmountFlags::empty()).unwrap();
    driver.unpublish("v", &target).await.unwrap();
    rig.assert_clean();
}

// SEMANTICS: K8
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_cannot_be_looked_at_is_not_reported_as_unpublished() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    // The kernel's error for a name that is too long stands for a disk error, or for a process that has no descriptors
    // left.
    let error = driver.unpublish("v", &rig.target(&"x".repeat(300))).await.unwrap_err();
    assert_eq!(error.code(), Code::Internal, "{error}");
    driver.unpublish("v", &rig.target("never published")).await.unwrap();
    rig.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_with_files_is_not_removed_and_the_call_can_be_repeated() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    let target = rig.target("a");
    driver.publish(plain("v", &target)).await.unwrap();
    rustix::mount::unmount(&target, UnmountFlags::empty()).unwrap();
    std::fs::write(target.join("precious"), b"").unwrap();
    assert_eq!(driver.unpublish("v", &target).await.unwrap_err().code(), Code::Internal);
    assert!(target.join("precious").exists());
    std::fs::remove_file(target.join("precious")).unwrap();
    driver.unpublish("v", &target).await.unwrap();
    rig.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_in_use_goes_out_of_sight() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    let target = rig.target("a");
    driver.publish(plain("v", &target)).await.unwrap();
    let folder = target.clone();
    let open = tokio::task::spawn_blocking(move || std::fs::File::open(folder)).await.unwrap().unwrap();
    driver.unpublish("v", &target).await.unwrap();
    rig.assert_clean();
    // The same dataset gets a new mount; the detached one is not shared.
    driver.publish(plain("v", &target)).await.unwrap();
    assert_eq!(list(&target).await.unwrap(), 0);
    drop(open);
    driver.unpublish("v", &target).await.unwrap();
    rig.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_at_once_share_one_mount_and_leave_none() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    for _ in 0..3 {
        let targets: Vec<_> = (0..16).map(|index| rig.target(&index.to_string())).collect();
        let calls = targets.iter().map(|target| driver.publish(plain("v", target)));
        for outcome in join(calls).await {
            outcome.unwrap();
        }
        assert_eq!((rig.mounts().len(), rig.fuse_mounts().len()), (17, 1));
        let calls = targets.iter().map(|target| driver.unpublish("v", target));
        for outcome in join(calls).await {
            outcome.unwrap();
        }
        rig.assert_clean();
    }
}

// SEMANTICS: K8
#[tokio::test(flavor = "multi_thread")]
async fn the_same_target_at_once_is_mounted_once() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    let target = rig.target("a");
    for _ in 0..3 {
        let outcomes = join((0..16).map(|_| driver.publish(plain("v", &target)))).await;
        assert!(outcomes.iter().any(Result::is_ok));
        for error in outcomes.into_iter().filter_map(Result::err) {
            assert_eq!(error.code(), Code::Aborted, "{error}");
        }
        assert_eq!(rig.mounts().len(), 2);
        let outcomes = join((0..16).map(|_| driver.unpublish("v", &target))).await;
        assert!(outcomes.iter().any(Result::is_ok));
        assert!(outcomes.into_iter().filter_map(Result::err).all(|error| error.code() == Code::Aborted));
        rig.assert_clean();
    }
}

async fn join<T>(calls: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut calls: Vec<_> = calls.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<T>> = calls.iter().map(|_| None).collect();
    std::future::poll_fn(move |context| {
        for (call, done) in calls.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(value) = call.as_mut().poll(context)
            {
                *done = Some(value);
            }
        }
        if done.iter().all(Option::is_some) {
            return std::task::Poll::Ready(done.iter_mut().filter_map(Option::take).collect());
        }
        std::task::Poll::Pending
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_larderd_says_reaches_the_pods_events() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    let target = rig.target("a");
    rig.fake.answer(|_| Ok(Outcome::Importing(Importing { files_listed: 42 })));
    let error = driver.publish(plain("v", &target)).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unavailable, "the origin is being listed: 42 files so far"));
    for code in [Code::NotFound, Code::PermissionDenied, Code::ResourceExhausted, Code::FailedPrecondition] {
        rig.fake.answer(move |_| Err(Status::new(code, "in words")));
        let error = driver.publish(plain("v", &target)).await.unwrap_err();
        assert_eq!((error.code(), error.message()), (code, "in words"));
    }
    assert!(!target.exists());
    rig.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offer_that_larderd_refuses_leaves_nothing() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    rig.fake.refuse_offers(true);
    let error = driver.publish(plain("v", &rig.target("a"))).await.unwrap_err();
    assert!(error.message().contains("no room"), "{error}");
    rig.assert_clean();
    rig.fake.refuse_offers(false);
    driver.publish(plain("v", &rig.target("a"))).await.unwrap();
    driver.unpublish("v", &rig.target("a")).await.unwrap();
    rig.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_larderd_a_publish_says_so_and_the_rest_works() {
    let mut rig = Rig::new();
    let driver = rig.driver().await;
    let (one, two) = (rig.target("1"), rig.target("2"));
    driver.publish(plain("v", &one)).await.unwrap();
    rig.fake.kill();
    let error = driver.publish(plain("w", &two)).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(
        error.message().contains("larderd does not answer at") && error.message().contains("larderd.sock"),
        "{error}"
    );
    let started = Instant::now();
    driver.publish(plain("v", &one)).await.unwrap();
    driver.stats("v", &one).await.unwrap();
    assert_eq!(driver.stats("v", &two).await.unwrap_err().code(), Code::NotFound);
    driver.unpublish("v", &one).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(2));
    rig.assert_clean();
    rig.fake.restart();
    until("the driver is ready", || driver.driver.node.is_ready()).await;
    assert_eq!(rig.fake.offered(), []);
}

// SEMANTICS: K6
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_make_no_sense_are_refused_in_words() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    let good = || plain("v", &rig.target("a"));
    let refused = async |change: &dyn Fn(&mut csi::NodePublishVolumeRequest), words: &str| {
        let mut request = good();
        change(&mut request);
        let error = driver.publish(request).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().contains(words), "{error}");
    };
    refused(&|request| request.volume_id.clear(), "volume_id").await;
    refused(&|request| request.target_path.clear(), "target_path").await;
    refused(&|request| request.volume_capability = None, "volume_capability").await;
    refused(
        &|request| {
            let capability = request.volume_capability.as_mut().unwrap();
            capability.access_type = Some(AccessType::Block(BlockVolume {}));
        },
        "block device",
    )
    .await;
    refused(
        &|request| match &mut request.volume_capability.as_mut().unwrap().access_type {
            Some(AccessType::Mount(mount)) => mount.mount_flags.push("suid".to_owned()),
            other => panic!("{other:?}"),
        },
        "`suid`",
    )
    .await;
    refused(&|request| request.volume_context = map(&[("sauce", "s3://b")]), "`sauce`").await;
    refused(&|request| request.volume_context = map(&[("source", SOURCE), ("cacheSize", "big")]), "`cacheSize`").await;
    refused(&|request| request.secrets = map(&[("password", "hunter2")]), "`password`").await;
    assert_eq!(rig.fake.asked(), []);
    rig.assert_clean();
}

// SEMANTICS: K7
#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_says_how_nodes_share_a_dataset_and_a_pod_author_does_not() {
    let rig = Rig::new();
    std::fs::write(
        rig.path("datasets.yaml"),
        "datasets: {imagenet: {source: 's3://sets/imagenet', namespaces: ['*'], placement: 'replicated:2'}}",
    )
    .unwrap();
    let driver = rig.driver().await;
    let keys = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "s"), ("LARDER_PEER_TOKEN", "hunter2")];

    let (volume, inline) = (rig.target("volume"), rig.target("inline"));
    let mut shared = request("v", &volume, &[("source", SOURCE), ("placement", "partitioned")]);
    shared.secrets = map(&keys);
    driver.publish(shared).await.unwrap();
    let offered = rig.fake.offered().pop().unwrap().dataset.unwrap();
    assert_eq!(offered.placement, "partitioned");
    assert_eq!(offered.credentials.unwrap().variables["LARDER_PEER_TOKEN"], "hunter2");
    let mut other = request("v", &volume, &[("source", SOURCE), ("placement", "local")]);
    other.secrets = map(&keys);
    assert_eq!(driver.publish(other).await.unwrap_err().code(), Code::AlreadyExists);

    let listed = |more: &[(&str, &str)]| {
        let context = [("csi.storage.k8s.io/ephemeral", "true"), ("dataset", "imagenet")];
        request("csi-0123", &inline, &[&context, more].concat())
    };
    let mut token = listed(&[]);
    token.secrets = map(&keys);
    for (refused, words) in [
        (listed(&[("placement", "local")]), "unknown attribute `placement`"),
        (token, "`LARDER_PEER_TOKEN` is not for inline volumes"),
    ] {
        let error = driver.publish(refused).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().contains(words) && !error.message().contains("hunter2"), "{error}");
    }
    driver.publish(listed(&[])).await.unwrap();
    let offered = rig.fake.offered().pop().unwrap().dataset.unwrap();
    assert_eq!((offered.placement.as_str(), offered.credentials), ("replicated:2", None));
    driver.unpublish("v", &volume).await.unwrap();
    driver.unpublish("csi-0123", &inline).await.unwrap();
    rig.assert_clean();
}

// SEMANTICS: K7
#[tokio::test(flavor = "multi_thread")]
async fn an_inline_volume_gets_what_its_namespace_was_granted() {
    let rig = Rig::new();
    std::fs::write(
        rig.path("datasets.yaml"),
        "datasets: {imagenet: {source: 's3://sets/imagenet', namespaces: [team-a], cacheSize: 1GiB}}",
    )
    .unwrap();
    let driver = rig.driver().await;
    let inline = |name: &str, dataset: &str, namespace: &str| {
        let context = [
            ("csi.storage.k8s.io/ephemeral", "true"),
            ("csi.storage.k8s.io/pod.namespace", namespace),
            ("csi.storage.k8s.io/pod.uid", "u"),
            ("dataset", dataset),
        ];
        request("csi-0123", &rig.target(name), &context)
    };
    driver.publish(inline("a", "imagenet", "team-a")).await.unwrap();
    let asked = rig.fake.asked().pop().unwrap();
    assert_eq!(
        (asked.source.as_str(), asked.cache_bytes, asked.credentials),
        ("s3://sets/imagenet", Some(1 << 30), None)
    );
    for wish in ["1", "100GiB"] {
        let mut wishing = inline(wish, "imagenet", "team-a");
        wishing.volume_context.insert("cacheSize".to_owned(), wish.to_owned());
        driver.publish(wishing).await.unwrap();
        assert_eq!(rig.fake.asked().pop().unwrap().cache_bytes, Some(1 << 30), "the administrator's size");
        driver.unpublish("csi-0123", &rig.target(wish)).await.unwrap();
    }
    for (dataset, namespace) in [("imagenet", "team-b"), ("imagine", "team-a"), ("imagenet", "")] {
        let error = driver.publish(inline("b", dataset, namespace)).await.unwrap_err();
        assert_eq!(error.code(), Code::PermissionDenied, "{error}");
    }
    let mut url = inline("b", "imagenet", "team-a");
    url.volume_context.insert("source".to_owned(), "s3://anything".to_owned());
    assert_eq!(driver.publish(url).await.unwrap_err().code(), Code::InvalidArgument);
    // The grant is withdrawn: running pods keep the mount, new pods are refused.
    std::fs::write(rig.path("datasets.yaml"), "datasets: {}").unwrap();
    driver.publish(inline("a", "imagenet", "team-a")).await.unwrap();
    assert_eq!(driver.publish(inline("b", "imagenet", "team-a")).await.unwrap_err().code(), Code::PermissionDenied);
    driver.unpublish("csi-0123", &rig.target("a")).await.unwrap();
    rig.assert_clean();
}
