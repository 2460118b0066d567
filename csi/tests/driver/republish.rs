//! Publishes that the kubelet repeats while a pod runs: they change nothing but the credentials of the mount.

use std::collections::HashMap;

use larder_csi_api::csi;
use larder_daemon_api::v1::Credentials;
use rustix::mount::UnmountFlags;
use tonic::{Code, Status};

use crate::fake::mount_of;
use crate::rig::{Rig, SOURCE, list, map, plain, request, until};

const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";
const ROLE: &str = "arn:aws:iam::111122223333:role/reader";

/// A PersistentVolume's publish request, with the keys of its Secret.
fn with_keys(rig: &Rig, volume: &str, target: &str, id: &str) -> csi::NodePublishVolumeRequest {
    let mut request = plain(volume, &rig.target(target));
    request.secrets = map(&[("AWS_ACCESS_KEY_ID", id), ("AWS_SECRET_ACCESS_KEY", "hunter2")]);
    request
}

/// The key with which the mount of [`SOURCE`] is read.
fn key(rig: &Rig) -> String {
    rig.fake.reads_with(&mount_of(SOURCE)).unwrap_or_default().variables["AWS_ACCESS_KEY_ID"].clone()
}

fn tokens(token: &str, minute: u32) -> String {
    format!(
        r#"{{"sts.amazonaws.com": {{"token": "{token}-hunter2", "expirationTimestamp": "2026-01-01T10:{minute:02}:30Z"}}}}"#
    )
}

/// A publish request of a volume that is read with the pod's identity.
fn of_pod(rig: &Rig, target: &str, token: &str, minute: u32) -> csi::NodePublishVolumeRequest {
    let context = [
        ("source", SOURCE),
        ("identity", "pod"),
        ("roleArn", ROLE),
        ("csi.storage.k8s.io/pod.namespace", "team-a"),
        ("csi.storage.k8s.io/serviceAccount.name", target),
    ];
    let mut request = request("v", &rig.target(target), &context);
    request.volume_context.insert(TOKENS.to_owned(), tokens(token, minute));
    request
}

fn variables(credentials: Option<Credentials>) -> HashMap<String, String> {
    credentials.unwrap_or_default().variables
}

/// The token with which the mount of [`SOURCE`] is read.
fn token(rig: &Rig) -> String {
    variables(rig.fake.reads_with(&mount_of(SOURCE)))["LARDER_IDENTITY_TOKEN"].trim_end_matches("-hunter2").to_owned()
}

// SEMANTICS: K25
#[tokio::test(flavor = "multi_thread")]
async fn a_publish_that_is_repeated_for_a_running_pod_asks_nobody_and_unmounts_nothing() {
    let rig = Rig::new();
    std::fs::write(rig.path("datasets.yaml"), format!("datasets: {{set: {{source: '{SOURCE}', namespaces: ['*']}}}}"))
        .unwrap();
    let driver = rig.driver().await;
    let inline = || {
        let context = [("csi.storage.k8s.io/ephemeral", "true"), ("dataset", "set")];
        let mut request = request("i", &rig.target("inline"), &context);
        request.secrets = map(&[("AWS_ACCESS_KEY_ID", "pod"), ("AWS_SECRET_ACCESS_KEY", "hunter2")]);
        request
    };
    rig.fake.set_trouble("of no concern to volumes without an identity");
    let all = [plain("p", &rig.target("plain")), with_keys(&rig, "k", "keys", "one"), inline()];
    for request in &all {
        driver.publish(request.clone()).await.unwrap();
    }
    let (mounts, asked, renewed) = (rig.mounts(), rig.fake.asked().len(), rig.fake.renewed().len());
    for round in 0..3 {
        for request in &all {
            let mut request = request.clone();
            // A token is passed for every volume, and another one every hour.
            request.volume_context.insert(TOKENS.to_owned(), tokens("any", round));
            driver.publish(request).await.unwrap();
        }
        // The grant is withdrawn, which running pods do not notice.
        std::fs::write(rig.path("datasets.yaml"), "datasets: {}").unwrap();
    }
    // The Secret of an inline volume has proved what it had to when the pod started.
    let mut other = inline();
    other.secrets = map(&[("password", "hunter2")]);
    driver.publish(other).await.unwrap();
    assert_eq!((rig.mounts(), rig.fake.asked().len(), rig.fake.renewed().len()), (mounts, asked, renewed));
    for (volume, target) in [("p", "plain"), ("k", "keys"), ("i", "inline")] {
        driver.unpublish(volume, &rig.target(target)).await.unwrap();
    }
    rig.assert_clean();
}

// SEMANTICS: K25
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_secret_reaches_running_pods_and_a_bad_one_takes_nothing_from_them() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    driver.publish(with_keys(&rig, "v", "a", "old")).await.unwrap();
    let mounts = rig.mounts();
    driver.publish(with_keys(&rig, "v", "a", "new")).await.unwrap();
    assert_eq!((key(&rig), rig.fake.renewed().len()), ("new".to_owned(), 1));
    let asked = variables(rig.fake.asked().pop().unwrap().credentials);
    assert_eq!(asked["AWS_ACCESS_KEY_ID"], "new", "checked before it is used");
    driver.publish(with_keys(&rig, "v", "a", "new")).await.unwrap();
    assert_eq!((rig.fake.asked().len(), rig.fake.renewed().len()), (2, 1));

    // Whatever is wrong, the kubelet must not take it for a reason to remove the target.
    let mut bad = with_keys(&rig, "v", "a", "bad");
    bad.secrets = map(&[("password", "hunter2")]);
    let refused = driver.publish(bad).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.message().contains("former credentials") && refused.message().contains("`password`"), "{refused}");
    rig.fake.answer(|_| Err(Status::permission_denied("access to the bucket is denied")));
    for _ in 0..2 {
        let refused = driver.publish(with_keys(&rig, "v", "a", "denied")).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        let said = refused.message();
        assert!(said.contains("the bucket is denied") && !said.contains("hunter2"), "{refused}");
    }
    assert_eq!((key(&rig), rig.mounts()), ("new".to_owned(), mounts));
    assert_eq!(list(&rig.target("a")).await.unwrap(), 0);
    driver.unpublish("v", &rig.target("a")).await.unwrap();
    rig.assert_clean();
}

// SEMANTICS: K25
#[tokio::test(flavor = "multi_thread")]
async fn of_two_volumes_with_one_mount_the_newest_keys_stay() {
    let rig = Rig::new();
    let mut driver = rig.driver().await;
    driver.publish(with_keys(&rig, "v", "a", "first")).await.unwrap();
    driver.publish(with_keys(&rig, "w", "b", "second")).await.unwrap();
    for _ in 0..2 {
        for (volume, target, id) in [("v", "a", "first"), ("w", "b", "second"), ("v", "a", "first")] {
            driver.publish(with_keys(&rig, volume, target, id)).await.unwrap();
            assert_eq!(key(&rig), "second");
        }
        driver.kill().await;
        driver = rig.driver().await;
    }
    driver.publish(with_keys(&rig, "v", "a", "first")).await.unwrap();
    driver.publish(with_keys(&rig, "v", "a", "third")).await.unwrap();
    assert_eq!(key(&rig), "third");
    driver.unpublish("w", &rig.target("b")).await.unwrap();
    // One volume is left, so a key that changed while the plugin was away is known to be newer.
    driver.kill().await;
    driver = rig.driver().await;
    driver.publish(with_keys(&rig, "v", "a", "fourth")).await.unwrap();
    assert_eq!(key(&rig), "fourth");
    driver.unpublish("v", &rig.target("a")).await.unwrap();
    rig.assert_clean();
}

// SEMANTICS: K25
#[tokio::test(flavor = "multi_thread")]
async fn a_larderd_that_did_not_hear_of_a_changed_secret_hears_of_it_again() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    driver.publish(with_keys(&rig, "v", "a", "old")).await.unwrap();
    rig.fake.renewals_wait(true);
    let refusing = async {
        until("larderd gets it", || rig.fake.renewed().len() == 1).await;
        rig.fake.renewals_wait(false);
    };
    let (refused, ()) = tokio::join!(driver.publish(with_keys(&rig, "v", "a", "new")), refusing);
    assert_eq!(refused.unwrap_err().code(), Code::Unavailable);
    assert_eq!(key(&rig), "old");
    driver.publish(with_keys(&rig, "v", "a", "new")).await.unwrap();
    assert_eq!(key(&rig), "new");
    driver.unpublish("v", &rig.target("a")).await.unwrap();
    rig.assert_clean();
}

// SEMANTICS: K23, K25
#[tokio::test(flavor = "multi_thread")]
async fn each_pods_token_is_checked_and_the_mount_is_read_with_the_newest() {
    let mut rig = Rig::new();
    let mut driver = rig.driver().await;
    driver.publish(of_pod(&rig, "a", "first", 10)).await.unwrap();
    let given = variables(rig.fake.reads_with(&mount_of(SOURCE)));
    assert_eq!((given["AWS_ROLE_ARN"].as_str(), given["AWS_ROLE_SESSION_NAME"].as_str()), (ROLE, "team-a.a"));
    assert!(given["LARDER_OWNER"].starts_with("role-"));
    let checked = |rig: &Rig| {
        let asked = rig.fake.asked().into_iter().map(|dataset| variables(dataset.credentials));
        asked.map(|given| given["LARDER_IDENTITY_TOKEN"].replace("-hunter2", "")).collect::<Vec<_>>()
    };
    // A second pod with the role shares the mount. Its token expires in the same minute.
    driver.publish(of_pod(&rig, "b", "second", 10)).await.unwrap();
    assert_eq!((token(&rig), rig.fuse_mounts().len()), ("first".to_owned(), 1));
    // Nothing has changed.
    driver.publish(of_pod(&rig, "a", "first", 10)).await.unwrap();
    assert_eq!(checked(&rig), ["first", "second"]);
    driver.publish(of_pod(&rig, "a", "third", 20)).await.unwrap();
    assert_eq!(token(&rig), "third");
    // A token may come in the secrets, too.
    let mut secret = of_pod(&rig, "b", "none", 0);
    secret.volume_context.remove(TOKENS);
    secret.secrets.insert(TOKENS.to_owned(), tokens("fourth", 30));
    driver.publish(secret.clone()).await.unwrap();
    assert_eq!((token(&rig), checked(&rig).len()), ("fourth".to_owned(), 4));
    // After a restart each is checked once more, and the mount keeps the token that is good for longest.
    driver.kill().await;
    driver = rig.driver().await;
    rig.fake.restart();
    until("larderd serves it", || rig.fake.served().len() == 1 && driver.driver.node.is_ready()).await;
    for _ in 0..2 {
        driver.publish(of_pod(&rig, "a", "third", 20)).await.unwrap();
        driver.publish(secret.clone()).await.unwrap();
        assert_eq!((token(&rig), checked(&rig)), ("fourth".to_owned(), vec!["third".to_owned()]));
    }
    // One that the STS refuses changes nothing.
    rig.fake.answer(|_| Err(Status::permission_denied("did not give the keys of the role: AccessDenied")));
    let refused = driver.publish(of_pod(&rig, "a", "fifth", 50)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.message().contains("AccessDenied") && !refused.message().contains("hunter2"), "{refused}");
    assert_eq!(token(&rig), "fourth");
    // Nothing is new, but larderd has no keys: the pod's events say so, as long as that is so.
    rig.fake.set_trouble("sts did not answer");
    for _ in 0..2 {
        let refused = driver.publish(of_pod(&rig, "a", "third", 20)).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(refused.message().contains("what is cached") && refused.message().contains("sts did not"), "{refused}");
    }
    rig.fake.set_trouble("");
    driver.publish(of_pod(&rig, "a", "third", 20)).await.unwrap();
    // A new pod is refused for good.
    let refused = driver.publish(of_pod(&rig, "c", "fifth", 50)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    for target in ["a", "b"] {
        driver.unpublish("v", &rig.target(target)).await.unwrap();
    }
    rig.assert_clean();
}

// SEMANTICS: K23
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_author_may_choose_the_pods_role_and_no_server() {
    let rig = Rig::new();
    std::fs::write(
        rig.path("datasets.yaml"),
        format!(
            "datasets: {{set: {{source: '{SOURCE}', namespaces: ['*']}}, gcs: {{source: 'gs://b', namespaces: ['*']}}}}"
        ),
    )
    .unwrap();
    let driver = rig.driver().await;
    let inline = |more: &[(&str, &str)]| {
        let context = [("csi.storage.k8s.io/ephemeral", "true"), ("identity", "pod"), ("roleArn", ROLE)];
        let mut request = request("i", &rig.target("a"), &[&context, more].concat());
        request.volume_context.insert(TOKENS.to_owned(), tokens("first", 10));
        request
    };
    let mut with_secret = inline(&[("dataset", "set")]);
    with_secret.secrets = map(&[("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "hunter2")]);
    for (bad, words) in [
        (inline(&[("dataset", "set"), ("stsEndpoint", "http://169.254.169.254")]), "unknown attribute `stsEndpoint`"),
        (inline(&[("dataset", "gcs")]), "`roleArn` names no identity of gs://"),
        (inline(&[("dataset", "set"), ("audience", "vault")]), "tokenRequests"),
        (with_secret, "nodePublishSecretRef"),
    ] {
        let refused = driver.publish(bad).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains(words) && !refused.message().contains("hunter2"), "{refused}");
    }
    assert_eq!(rig.fake.asked(), []);
    driver.publish(inline(&[("dataset", "set")])).await.unwrap();
    assert_eq!((token(&rig), rig.fake.asked().len()), ("first".to_owned(), 1), "not read with larderd's own keys");
    driver.unpublish("i", &rig.target("a")).await.unwrap();
    rig.assert_clean();
}

// SEMANTICS: K25
#[tokio::test(flavor = "multi_thread")]
async fn before_larderd_is_there_again_a_running_pods_mount_is_not_touched() {
    let mut rig = Rig::new();
    let driver = rig.driver().await;
    driver.publish(plain("v", &rig.target("a"))).await.unwrap();
    let mounts = rig.mounts();
    rig.fake.kill();
    driver.publish(plain("v", &rig.target("a"))).await.unwrap();
    driver.kill().await;
    let driver = rig.driver_alone().await;
    let refused = driver.publish(plain("v", &rig.target("a"))).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.message().contains("has not connected"), "{refused}");
    assert_eq!(rig.mounts(), mounts);
    rig.fake.restart();
    until("the driver is ready", || driver.driver.node.is_ready()).await;
    driver.publish(plain("v", &rig.target("a"))).await.unwrap();
    assert_eq!(list(&rig.target("a")).await.unwrap(), 0, "both had died: the mount is a new one");
    driver.unpublish("v", &rig.target("a")).await.unwrap();
    rig.assert_clean();
}

// SEMANTICS: K25
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_mount_is_not_taken_for_the_live_one_though_somebody_unmounted_the_folder_of_that() {
    let mut rig = Rig::new();
    let driver = rig.driver().await;
    driver.publish(plain("v", &rig.target("a"))).await.unwrap();
    let dead = rig.mounted(&rig.target("a"));
    driver.kill().await;
    rig.fake.kill();
    rig.fake.restart();
    let driver = rig.driver().await;
    // Another pod makes the mount anew.
    driver.publish(plain("w", &rig.target("b"))).await.unwrap();
    let live = rig.mounted(&rig.target("b")).unwrap();
    assert_eq!(rig.mounted(&rig.target("a")), dead);
    let folder = rig.fuse_mounts().pop().unwrap().path;
    rustix::mount::unmount(&folder, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).unwrap();
    driver.publish(plain("w", &rig.target("b"))).await.unwrap();
    assert_eq!(rig.mounted(&rig.target("b")).unwrap().device, live.device, "the other one reads on");
    let refused = driver.publish(plain("v", &rig.target("a"))).await.unwrap_err();
    assert!(refused.message().contains("once they have ended"), "{refused}");
    assert_eq!(rig.mounted(&rig.target("a")), None);
    driver.unpublish("w", &rig.target("b")).await.unwrap();
    driver.publish(plain("v", &rig.target("a"))).await.unwrap();
    assert_eq!(list(&rig.target("a")).await.unwrap(), 0);
    driver.unpublish("v", &rig.target("a")).await.unwrap();
    rig.assert_clean();
}

// SEMANTICS: K25
#[tokio::test(flavor = "multi_thread")]
async fn a_running_pod_keeps_its_mount_though_somebody_unmounted_the_folder_that_it_was_bound_from() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    driver.publish(plain("v", &rig.target("a"))).await.unwrap();
    let bound = rig.mounted(&rig.target("a"));
    let folder = rig.fuse_mounts().pop().unwrap().path;
    rustix::mount::unmount(&folder, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).unwrap();
    driver.publish(plain("v", &rig.target("a"))).await.unwrap();
    assert_eq!((rig.mounted(&rig.target("a")), rig.fake.forgotten()), (bound, vec![]));
    assert_eq!(list(&rig.target("a")).await.unwrap(), 0);
    driver.unpublish("v", &rig.target("a")).await.unwrap();
    rig.assert_clean();
}
