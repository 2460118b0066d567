//! The credentials with which a dataset is read while volumes are added and removed and processes restart.

use std::collections::HashMap;
use std::time::Duration;

use larder_csi_api::csi;
use larder_daemon_api::v1::Credentials;
use larder_daemon_api::v1::prepare_response::Outcome;
use rustix::mount::UnmountFlags;
use tonic::{Code, Status};

use crate::fake::mount_of;
use crate::rig::{Rig, map, request, until};

const SOURCES: [&str; 2] = ["s3://bucket/one", "s3://bucket/two"];

/// The keys of a Secret.
fn secret(id: &str) -> HashMap<String, String> {
    map(&[("AWS_ACCESS_KEY_ID", id), ("AWS_SECRET_ACCESS_KEY", "hunter2")])
}

/// The credentials that the keys set. They also make requests to other stores unsigned, so that the machine's identity
/// is not used.
fn keys(id: &str) -> Option<Credentials> {
    let mut variables = secret(id);
    variables.extend(map(&[("GOOGLE_SKIP_SIGNATURE", "true"), ("AZURE_SKIP_SIGNATURE", "true")]));
    Some(Credentials { variables })
}

/// A PersistentVolume's publish request, with the keys of its Secret.
fn volume(rig: &Rig, name: &str, source: &str, id: &str) -> csi::NodePublishVolumeRequest {
    let mut request = request(name, &rig.target(name), &[("source", source)]);
    request.secrets = secret(id);
    request
}

/// An inline volume's publish request. `id` is the key in the Secret that its author names.
fn inline(rig: &Rig, name: &str, id: Option<&str>) -> csi::NodePublishVolumeRequest {
    let context = [("csi.storage.k8s.io/ephemeral", "true"), ("dataset", "listed")];
    let mut request = request(name, &rig.target(name), &context);
    request.secrets = id.map(secret).unwrap_or_default();
    request
}

fn list_a_dataset(rig: &Rig) {
    let text = format!("datasets: {{listed: {{source: '{}', namespaces: ['*']}}}}", SOURCES[0]);
    std::fs::write(rig.path("datasets.yaml"), text).unwrap();
}

/// larderd's answer for a dataset that is ready.
fn prepared(mount: String) -> Outcome {
    Outcome::Prepared(larder_daemon_api::v1::Prepared {
        mount,
        name: "a set".to_owned(),
        snapshot: "5a".repeat(32),
        files: 7,
        bytes: 7_000,
        served: false,
    })
}

// SEMANTICS: K11
#[tokio::test(flavor = "multi_thread")]
async fn rotated_credentials_outlive_larderd_and_the_plugin() {
    let mut rig = Rig::new();
    let mut driver = rig.driver().await;
    let mounts = SOURCES.map(mount_of);
    driver.publish(volume(&rig, "a1", SOURCES[0], "old-a")).await.unwrap();
    driver.publish(volume(&rig, "b1", SOURCES[1], "b")).await.unwrap();
    driver.publish(volume(&rig, "a2", SOURCES[0], "new-a")).await.unwrap();
    let check = |rig: &Rig| {
        assert_eq!(rig.fake.reads_with(&mounts[0]), keys("new-a"));
        assert_eq!(rig.fake.reads_with(&mounts[1]), keys("b"));
    };
    check(&rig);
    // A second pod with the same keys causes no renewal.
    driver.publish(volume(&rig, "a3", SOURCES[0], "new-a")).await.unwrap();
    assert_eq!(rig.fake.renewed(), [(mounts[0].clone(), keys("new-a"))]);
    for _ in 0..2 {
        rig.fake.restart();
        until("larderd serves both", || rig.fake.served().len() == 2).await;
        check(&rig);
        driver.kill().await;
        driver = rig.driver().await;
    }
    rig.fake.restart();
    until("larderd serves both", || rig.fake.served().len() == 2).await;
    check(&rig);
    for volume in ["a1", "a2", "a3", "b1"] {
        driver.unpublish(volume, &rig.target(volume)).await.unwrap();
    }
    rig.assert_clean();
}

// SEMANTICS: K11
#[tokio::test(flavor = "multi_thread")]
async fn a_larderd_that_did_not_hear_of_new_credentials_is_told_again() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    let mount = mount_of(SOURCES[0]);
    driver.publish(volume(&rig, "a1", SOURCES[0], "old")).await.unwrap();
    rig.fake.die_of_renewal(true);
    let error = driver.publish(volume(&rig, "a2", SOURCES[0], "new")).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert_eq!(rig.fake.reads_with(&mount), keys("old"));
    rig.fake.die_of_renewal(false);
    until("larderd has heard", || rig.fake.reads_with(&mount) == keys("new")).await;
    until("the driver is ready", || driver.driver.node.is_ready()).await;
    driver.publish(volume(&rig, "a2", SOURCES[0], "new")).await.unwrap();
    for volume in ["a1", "a2"] {
        driver.unpublish(volume, &rig.target(volume)).await.unwrap();
    }
    rig.assert_clean();
}

// SEMANTICS: K11
#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_larderd_refused_once_are_told_again_until_it_uses_them() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    let mounts = SOURCES.map(mount_of);
    driver.publish(volume(&rig, "a1", SOURCES[0], "old-a")).await.unwrap();
    driver.publish(volume(&rig, "b1", SOURCES[1], "b")).await.unwrap();
    rig.fake.renewals_wait(true);
    let refusing = async {
        until("larderd is told", || rig.fake.renewed().len() == 1).await;
        rig.fake.renewals_wait(false);
    };
    let (refused, ()) = tokio::join!(driver.publish(volume(&rig, "a2", SOURCES[0], "new-a")), refusing);
    assert!(refused.unwrap_err().message().contains("no room"));
    assert_eq!(rig.fake.reads_with(&mounts[0]), keys("old-a"));
    // The kubelet tries again.
    driver.publish(volume(&rig, "a2", SOURCES[0], "new-a")).await.unwrap();
    assert_eq!(mounts.map(|mount| rig.fake.reads_with(&mount)), [keys("new-a"), keys("b")]);
    driver.publish(volume(&rig, "a3", SOURCES[0], "new-a")).await.unwrap();
    assert_eq!(rig.fake.renewed().len(), 2, "now it is no news");
    for volume in ["a1", "a2", "a3", "b1"] {
        driver.unpublish(volume, &rig.target(volume)).await.unwrap();
    }
    rig.assert_clean();
}

// SEMANTICS: K7
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_authors_credentials_are_checked_and_used_for_nothing_else() {
    let mut rig = Rig::new();
    list_a_dataset(&rig);
    let mut driver = rig.driver().await;
    let mount = mount_of(SOURCES[0]);
    let asked = |rig: &Rig| rig.fake.asked().into_iter().map(|dataset| dataset.credentials).collect::<Vec<_>>();
    // For the first pod of the node, larderd's own credentials must be able to read the dataset.
    driver.publish(inline(&rig, "first", Some("pod"))).await.unwrap();
    assert_eq!(asked(&rig), [keys("pod"), None]);
    assert_eq!(rig.fake.reads_with(&mount), None);
    // Each further pod is checked with its own key, and changes nothing for the others.
    driver.publish(inline(&rig, "second", Some("another"))).await.unwrap();
    driver.publish(inline(&rig, "third", None)).await.unwrap();
    assert_eq!(asked(&rig), [keys("pod"), None, keys("another"), None]);
    assert_eq!((rig.fake.renewed(), rig.fake.reads_with(&mount)), (vec![], None));
    // The administrator's volume changes the credentials, and later pods do not change them back.
    driver.publish(volume(&rig, "volume", SOURCES[0], "admin")).await.unwrap();
    assert_eq!(rig.fake.reads_with(&mount), keys("admin"));
    driver.publish(inline(&rig, "fourth", Some("pod"))).await.unwrap();
    driver.publish(inline(&rig, "fifth", None)).await.unwrap();
    rig.fake.restart();
    until("larderd serves it", || rig.fake.served().len() == 1).await;
    driver.kill().await;
    driver = rig.driver().await;
    assert_eq!(rig.fake.reads_with(&mount), keys("admin"));
    for volume in ["first", "second", "third", "volume", "fourth", "fifth"] {
        driver.unpublish(volume, &rig.target(volume)).await.unwrap();
    }
    rig.assert_clean();
}

/// From now on, larderd's own credentials cannot read anything, and all others can.
fn deny_larderds_own(rig: &Rig) {
    rig.fake.answer(|dataset| match &dataset.credentials {
        None => Err(Status::permission_denied("access to the bucket is denied")),
        Some(_) => Ok(prepared(mount_of(&dataset.source))),
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_may_read_what_larderd_may_not_is_refused_in_words() {
    let rig = Rig::new();
    list_a_dataset(&rig);
    let driver = rig.driver().await;
    deny_larderds_own(&rig);
    let refused = driver.publish(inline(&rig, "a", Some("pod"))).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    assert!(
        refused.message().contains("larder-origin") && refused.message().contains("the bucket is denied"),
        "{refused}"
    );
    // If an administrator's volume has already mounted the dataset, the pod may join the mount.
    driver.publish(volume(&rig, "volume", SOURCES[0], "admin")).await.unwrap();
    driver.publish(inline(&rig, "a", Some("pod"))).await.unwrap();
    assert_eq!(rig.fake.reads_with(&mount_of(SOURCES[0])), keys("admin"));
    for volume in ["volume", "a"] {
        driver.unpublish(volume, &rig.target(volume)).await.unwrap();
    }
    rig.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pods_key_for_another_account_opens_no_mount() {
    let rig = Rig::new();
    list_a_dataset(&rig);
    let driver = rig.driver().await;
    // With the pod's key, this URL leads to different data than with larderd's own credentials.
    rig.fake.answer(|dataset| {
        let place = if dataset.credentials.is_some() { "elsewhere" } else { "" };
        Ok(prepared(mount_of(&format!("{}{place}", dataset.source))))
    });
    let refused = driver.publish(inline(&rig, "a", Some("pod"))).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    assert!(refused.message().contains("another account"), "{refused}");
    rig.assert_clean();
}

// SEMANTICS: K11
#[tokio::test(flavor = "multi_thread")]
async fn a_publish_that_is_repeated_after_a_kill_makes_no_mount_that_larderd_cannot_read() {
    let rig = Rig::new();
    list_a_dataset(&rig);
    let mut driver = rig.driver().await;
    deny_larderds_own(&rig);
    for (name, source) in [("volume", SOURCES[0]), ("other", SOURCES[1])] {
        driver.publish(volume(&rig, name, source, "admin")).await.unwrap();
    }
    for restart in [false, true] {
        driver.publish(inline(&rig, "pod", Some("pod"))).await.unwrap();
        // The state after a kill between writing the record and binding the mount.
        rustix::mount::unmount(rig.target("pod"), UnmountFlags::DETACH).unwrap();
        if restart {
            driver.kill().await;
            driver = rig.driver().await;
        }
        driver.unpublish("volume", &rig.target("volume")).await.unwrap();
        let refused = driver.publish(inline(&rig, "pod", Some("pod"))).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        assert!(refused.message().contains("larder-origin"), "{refused}");
        assert_eq!(rig.fake.served(), [mount_of(SOURCES[1])], "the other dataset stays");
        driver.publish(volume(&rig, "volume", SOURCES[0], "admin")).await.unwrap();
    }
    for volume in ["volume", "other"] {
        driver.unpublish(volume, &rig.target(volume)).await.unwrap();
    }
    rig.assert_clean();
}

// SEMANTICS: K11
#[tokio::test(flavor = "multi_thread")]
async fn a_mount_that_ends_while_pods_are_checked_is_not_made_again_for_them_unchecked() {
    let rig = Rig::new();
    list_a_dataset(&rig);
    let driver = rig.driver().await;
    let mount = mount_of(SOURCES[0]);
    deny_larderds_own(&rig);
    driver.publish(volume(&rig, "volume", SOURCES[0], "admin")).await.unwrap();
    driver.publish(volume(&rig, "other", SOURCES[1], "admin")).await.unwrap();
    // A publish that larderd does not answer holds the mount's lock, while the last volume that uses the mount is
    // removed and pods arrive.
    rig.fake.renewals_wait(true);
    let holding = driver.publish(volume(&rig, "holding", SOURCES[0], "newer"));
    let going = async {
        until("larderd is told of the newer key", || rig.fake.renewed().len() == 1).await;
        driver.unpublish("volume", &rig.target("volume")).await
    };
    let coming = async |name: &str| {
        until("the volume is gone", || rig.mounted(&rig.target("volume")).is_none()).await;
        driver.publish(inline(&rig, name, Some(name))).await
    };
    let letting = async {
        let asked = |key: &str| rig.fake.asked().iter().any(|dataset| dataset.credentials == keys(key));
        until("both pods were checked", || asked("pod 1") && asked("pod 2")).await;
        // Give them time to queue for the mount's lock, behind the volume that is being removed.
        tokio::time::sleep(Duration::from_millis(200)).await;
        rig.fake.renewals_wait(false);
    };
    let (held, gone, first, second, ()) = tokio::join!(holding, going, coming("pod 1"), coming("pod 2"), letting);
    assert!(held.unwrap_err().message().contains("no room"));
    gone.unwrap();
    // A pod that got the lock before the volume was removed shares the mount unchanged. The other pods are rejected.
    if rig.fake.served().contains(&mount) {
        assert_eq!(rig.fake.reads_with(&mount), keys("admin"), "a mount that larderd's own credentials cannot read");
    }
    for (name, pod) in [("pod 1", first), ("pod 2", second)] {
        match pod {
            Ok(()) => driver.unpublish(name, &rig.target(name)).await.unwrap(),
            Err(refused) => assert!(refused.message().contains("Secret"), "{refused}"),
        }
    }
    assert!(!rig.fake.served().contains(&mount));
    for name in ["pod 1", "pod 2"] {
        // The kubelet retries, and the error has the reason.
        let refused = driver.publish(inline(&rig, name, Some(name))).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        assert!(refused.message().contains("larder-origin"), "{refused}");
    }
    driver.unpublish("other", &rig.target("other")).await.unwrap();
    rig.assert_clean();
}

// SEMANTICS: K18
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_without_the_keys_of_the_origin_is_refused_and_larderd_not_asked() {
    let rig = Rig::new();
    list_a_dataset(&rig);
    let driver = rig.driver().await;
    let azure = map(&[("AZURE_STORAGE_ACCOUNT_NAME", "hunter2"), ("AZURE_STORAGE_ACCOUNT_KEY", "hunter2")]);
    let with = |name: &str, context: &[(&str, &str)], secrets: &HashMap<String, String>| {
        let mut request = request(name, &rig.target(name), context);
        request.secrets = secrets.clone();
        request
    };
    let inline = [("csi.storage.k8s.io/ephemeral", "true"), ("dataset", "listed")];
    for (context, secrets, words) in [
        ([("source", SOURCES[0]), ("identity", "secret")], HashMap::new(), "`identity` is `secret`"),
        ([("dataset", "listed"), ("identity", "secret")], HashMap::new(), "`identity` is `secret`"),
        ([("source", SOURCES[0]), ("region", "eu-1")], azure.clone(), "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        (inline, azure, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    ] {
        let refused = driver.publish(with("a", &context, &secrets)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains(words) && !refused.message().contains("hunter2"), "{refused}");
    }
    assert_eq!(rig.fake.asked(), []);
    let context = [("source", SOURCES[0]), ("identity", "secret")];
    driver.publish(with("a", &context, &secret("a"))).await.unwrap();
    assert_eq!(rig.fake.reads_with(&mount_of(SOURCES[0])), keys("a"));
    driver.unpublish("a", &rig.target("a")).await.unwrap();
    rig.assert_clean();
}

// SEMANTICS: K11
#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_volumes_are_read_with_its_own_keys_and_change_nothing_for_others() {
    let rig = Rig::new();
    let mut driver = rig.driver().await;
    let owner_of = |credentials: Option<&Credentials>| {
        credentials.and_then(|given| given.variables.get("LARDER_OWNER")).cloned().unwrap_or_default()
    };
    // Names mounts as larderd does.
    let mount = move |owner: &str| mount_of(&format!("{}{owner}", SOURCES[0]));
    rig.fake.answer(move |dataset| Ok(prepared(mount(&owner_of(dataset.credentials.as_ref())))));
    let owned = |name: &str, owner: &str, id: Option<&str>| {
        let mut request = request(name, &rig.target(name), &[("source", SOURCES[0]), ("owner", owner)]);
        request.secrets = id.map(secret).unwrap_or_default();
        request
    };
    let keys_of = |owner: &str, id: &str| {
        let mut credentials = keys(id).unwrap();
        credentials.variables.insert("LARDER_OWNER".to_owned(), owner.to_owned());
        Some(credentials)
    };
    driver.publish(volume(&rig, "admin", SOURCES[0], "admin")).await.unwrap();
    driver.publish(owned("a1", "uid-a", Some("old-a"))).await.unwrap();
    driver.publish(owned("b1", "uid-b", Some("b"))).await.unwrap();
    driver.publish(owned("a2", "uid-a", Some("new-a"))).await.unwrap();
    // A Dataset without a Secret.
    driver.publish(owned("anyone", "uid-c", None)).await.unwrap();
    for _ in 0..2 {
        assert_eq!(rig.fake.reads_with(&mount("uid-a")), keys_of("uid-a", "new-a"));
        assert_eq!(rig.fake.reads_with(&mount("uid-b")), keys_of("uid-b", "b"));
        assert_eq!(rig.fake.reads_with(&mount("")), keys("admin"));
        driver.kill().await;
        driver = rig.driver().await;
    }
    for volume in ["admin", "a1", "b1", "a2", "anyone"] {
        driver.unpublish(volume, &rig.target(volume)).await.unwrap();
    }
    rig.assert_clean();
}
