//! Tests in which one or both processes are killed.

use std::time::Duration;

use larder_csi::mount_id::MountId;
use larder_csi::records::{Record, Records};
use rustix::mount::{MountFlags, UnmountFlags};
use tonic::Code;

use crate::fake::mount_of;
use crate::rig::{Rig, SOURCE, list, plain, request, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_new_larderd_is_offered_every_connection_with_the_same_init() {
    let mut rig = Rig::new();
    let driver = rig.driver().await;
    let target = rig.target("a");
    driver.publish(plain("v", &target)).await.unwrap();
    let first = rig.fake.offered();
    rig.fake.kill();
    // A reader waits while larderd is down, and the new larderd answers it.
    let path = target.clone();
    let reader = tokio::spawn(async move { list(&path).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!reader.is_finished());
    rig.fake.restart();
    assert_eq!(reader.await.unwrap().unwrap(), 0);
    assert_eq!(rig.fake.offered(), first);
    assert_eq!(first[0].dataset.as_ref().unwrap().snapshot, "5a".repeat(32));
    driver.unpublish("v", &target).await.unwrap();
    rig.assert_clean();
}

// SEMANTICS: K10
#[tokio::test(flavor = "multi_thread")]
async fn an_offer_that_waits_holds_up_neither_the_others_nor_a_new_mount() {
    const SOURCES: [&str; 3] = ["s3://bucket/one", "s3://bucket/two", "s3://bucket/three"];
    let mut rig = Rig::new();
    let driver = rig.driver().await;
    let targets = SOURCES.map(|source| rig.target(&source[12..]));
    let publish = |index: usize| request("v", &targets[index], &[("source", SOURCES[index])]);
    driver.publish(publish(0)).await.unwrap();
    driver.publish(publish(1)).await.unwrap();
    // Tests both orders in which the plugin may offer the two mounts.
    for waits in [0, 1] {
        rig.fake.restart_holding_up(&mount_of(SOURCES[waits]));
        assert_eq!(list(&targets[1 - waits]).await.unwrap(), 0);
        until("the driver is ready", || driver.driver.node.is_ready()).await;
        driver.publish(publish(2)).await.unwrap();
        assert_eq!(list(&targets[2]).await.unwrap(), 0);
        driver.unpublish("v", &targets[2]).await.unwrap();
        let mut holds = vec![mount_of(SOURCES[0]), mount_of(SOURCES[1])];
        holds.sort();
        assert_eq!(rig.fake.holds(), [holds], "larderd knew at once");
        rig.fake.let_through();
        assert_eq!(list(&targets[waits]).await.unwrap(), 0);
    }
    for target in &targets[..2] {
        driver.unpublish("v", target).await.unwrap();
    }
    rig.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_larderd_of_the_first_version_of_the_protocol_is_offered_every_connection() {
    const SOURCES: [&str; 2] = ["s3://bucket/one", "s3://bucket/two"];
    let mut rig = Rig::new();
    let driver = rig.driver().await;
    let targets = SOURCES.map(|source| rig.target(&source[12..]));
    for (target, source) in targets.iter().zip(SOURCES) {
        driver.publish(request("v", target, &[("source", source)])).await.unwrap();
    }
    rig.fake.restart_as_older();
    for target in &targets {
        assert_eq!(list(target).await.unwrap(), 0);
    }
    until("the driver is ready", || driver.driver.node.is_ready()).await;
    let mut rotated = request("v", &rig.target("again"), &[("source", SOURCES[0])]);
    rotated.secrets = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "s")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    driver.publish(rotated).await.unwrap();
    for target in targets.iter().chain([&rig.target("again")]) {
        driver.unpublish("v", target).await.unwrap();
    }
    rig.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_plugin_takes_over_what_larderd_holds() {
    let mut rig = Rig::new();
    let target = rig.target("a");
    let driver = rig.driver().await;
    driver.publish(plain("v", &target)).await.unwrap();
    let device = rig.mounted(&target).unwrap().device;
    driver.kill().await;
    assert_eq!(list(&target).await.unwrap(), 0);

    let driver = rig.driver().await;
    assert_eq!(driver.driver.counters.takeovers.load(std::sync::atomic::Ordering::Relaxed), 1);
    driver.publish(plain("v", &target)).await.unwrap();
    assert_eq!(driver.publish(plain("w", &target)).await.unwrap_err().code(), Code::AlreadyExists);
    driver.publish(plain("w", &rig.target("b"))).await.unwrap();
    assert_eq!(rig.mounted(&rig.target("b")).unwrap().device, device);
    // The plugin holds the credentials for the next larderd.
    rig.fake.restart();
    assert_eq!(list(&target).await.unwrap(), 0);
    driver.unpublish("v", &target).await.unwrap();
    driver.unpublish("w", &rig.target("b")).await.unwrap();
    rig.assert_clean();
}

// SEMANTICS: K2
#[tokio::test(flavor = "multi_thread")]
async fn when_both_died_new_pods_get_a_fresh_mount_and_a_repeated_call_repairs_the_old() {
    let mut rig = Rig::new();
    let (old, new) = (rig.target("old"), rig.target("new"));
    let driver = rig.driver().await;
    driver.publish(plain("v", &old)).await.unwrap();
    let dead = rig.mounted(&old).unwrap().device;
    rig.fake.kill();
    driver.kill().await;
    rig.fake.restart();
    let driver = rig.driver().await;
    assert_eq!(rig.fuse_mounts(), [], "the dead mount is removed");
    assert_eq!(rig.mounted(&old).unwrap().device, dead, "the pod keeps its dead mount");
    assert_eq!(list(&old).await.unwrap_err().raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()));

    driver.publish(plain("w", &new)).await.unwrap();
    assert_eq!(list(&new).await.unwrap(), 0);
    assert_ne!(rig.mounted(&new).unwrap().device, dead);
    driver.publish(plain("v", &old)).await.unwrap();
    assert_eq!(list(&old).await.unwrap(), 0);
    assert_eq!(rig.mounted(&old).unwrap().device, rig.mounted(&new).unwrap().device);
    driver.unpublish("v", &old).await.unwrap();
    driver.unpublish("w", &new).await.unwrap();
    rig.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_mount_is_unpublished_without_larderd() {
    let mut rig = Rig::new();
    let target = rig.target("a");
    let driver = rig.driver().await;
    driver.publish(plain("v", &target)).await.unwrap();
    rig.fake.kill();
    driver.kill().await;
    let driver = rig.driver_alone().await;
    driver.unpublish("v", &target).await.unwrap();
    rig.assert_clean();
    // A larderd that was only unreachable receives the change later.
    rig.fake.restart();
    until("the driver is ready", || driver.driver.node.is_ready()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_killed_between_record_and_bind_leaves_no_leak() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    driver.publish(plain("v", &rig.target("a"))).await.unwrap();
    driver.kill().await;
    // A killed process can leave a record without its bind, for a running pod and for a deleted pod, ...
    let records = Records::open(&rig.path("state/targets")).unwrap();
    let record = |target: &str| Record {
        volume_id: "w".to_owned(),
        target: rig.target(target),
        mount: MountId::try_from(mount_of(SOURCE)).unwrap(),
        arguments: String::new(),
        files: 0,
        bytes: 0,
        pod_namespace: String::new(),
        pod_uid: String::new(),
    };
    records.put(record("lives")).unwrap();
    records.put(record("gone/mount")).unwrap();
    drop(records);
    // ... and the folder of a mount that was not created yet.
    std::fs::create_dir(rig.kubelet().join("plugins/csi.larder.dev/mounts/abc")).unwrap();

    let driver = rig.driver().await;
    assert_eq!(std::fs::read_dir(rig.path("state/targets")).unwrap().count(), 2);
    assert_eq!(rig.fuse_mounts().len(), 1);
    // The kubelet got no answer and retries; only the retried request counts.
    driver.publish(plain("x", &rig.target("lives"))).await.unwrap();
    assert_eq!(list(&rig.target("lives")).await.unwrap(), 0);
    driver.unpublish("x", &rig.target("lives")).await.unwrap();
    driver.unpublish("v", &rig.target("a")).await.unwrap();
    rig.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_without_any_record_is_ended_with_its_connection() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    let target = rig.target("a");
    driver.publish(plain("v", &target)).await.unwrap();
    driver.kill().await;
    // The state folder is lost. The driver finds the bind when the kubelet unpublishes it.
    std::fs::remove_dir_all(rig.path("state")).unwrap();
    let driver = rig.driver().await;
    assert_eq!(rig.fuse_mounts(), []);
    assert_eq!(rig.fake.served(), [""; 0]);
    driver.unpublish("v", &target).await.unwrap();
    rig.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_plugin_waits_for_the_first() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    let config = rig.config();
    let second = tokio::task::spawn_blocking(move || larder_csi::Driver::open(config).map(drop));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!second.is_finished());
    driver.kill().await;
    second.await.unwrap().unwrap();
}

// SEMANTICS: C4
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_unpublished_from_a_state_folder_that_is_read_only() {
    let mut rig = Rig::new();
    let state = rig.path("state");
    std::fs::create_dir(&state).unwrap();
    rustix::mount::mount("larder-test", &state, "tmpfs", MountFlags::empty(), None).unwrap();
    let protect = |flags| rustix::mount::mount_remount(&state, flags, c"").unwrap();
    let driver = rig.driver().await;
    let (target, other) = (rig.target("a/mount"), rig.target("b/mount"));
    for target in [&target, &other] {
        std::fs::create_dir(target.parent().unwrap()).unwrap();
        driver.publish(plain("v", target)).await.unwrap();
    }
    protect(MountFlags::RDONLY);
    driver.unpublish("v", &target).await.unwrap();
    assert!(rig.mounted(&target).is_none());
    assert_eq!(list(&other).await.unwrap(), 0, "the other pod keeps its mount");
    std::fs::remove_dir(target.parent().unwrap()).unwrap();
    // The next process finds the record, but the pod's folder was deleted.
    driver.kill().await;
    let driver = rig.driver().await;
    assert_eq!(list(&other).await.unwrap(), 0);
    driver.unpublish("v", &other).await.unwrap();
    std::fs::remove_dir(other.parent().unwrap()).unwrap();
    assert_eq!(rig.fuse_mounts(), [], "the mount ends with its last pod");
    assert_eq!(std::fs::read_dir(state.join("targets")).unwrap().count(), 2);
    // Its sweep removes the records once the disk is writable.
    protect(MountFlags::empty());
    rig.fake.restart();
    until("the records are removed", || std::fs::read_dir(state.join("targets")).unwrap().count() == 0).await;
    rig.assert_clean();
    driver.kill().await;
    rustix::mount::unmount(&state, UnmountFlags::DETACH).unwrap();
}

/// A folder in the place of a file can be neither read nor removed as one.
// SEMANTICS: C4
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_cannot_be_read_costs_no_pod_its_mount() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    let (target, other) = (rig.target("a"), rig.target("b"));
    driver.publish(plain("v", &target)).await.unwrap();
    let record = std::fs::read_dir(rig.path("state/targets")).unwrap().next().unwrap().unwrap().path();
    driver.publish(plain("w", &other)).await.unwrap();
    driver.kill().await;
    std::fs::remove_file(&record).unwrap();
    std::fs::create_dir(&record).unwrap();
    let driver = rig.driver().await;
    driver.unpublish("w", &other).await.unwrap();
    assert_eq!(list(&target).await.unwrap(), 0, "it may be the only one that uses the mount");
    driver.unpublish("v", &target).await.unwrap();
    assert!(rig.mounted(&target).is_none());
    driver.kill().await;
    std::fs::remove_dir(&record).unwrap();
    // Once all records can be read, unused mounts end.
    let _driver = rig.driver().await;
    rig.assert_clean();
}
