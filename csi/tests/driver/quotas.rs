//! The namespaces that larderd's quotas count.

use std::collections::{BTreeMap, HashMap};

use larder_csi_api::csi;
use larder_daemon_api::v1::Pod;
use larder_daemon_api::v1::prepare_response::Outcome;
use rustix::mount::UnmountFlags;
use tonic::{Code, Status};

use crate::fake::mount_of;
use crate::rig::{Rig, SOURCE, map, request, until};

const NAMESPACE: &str = "csi.storage.k8s.io/pod.namespace";
const INLINE: (&str, &str) = ("csi.storage.k8s.io/ephemeral", "true");

/// A volume of a pod in this namespace.
fn volume(rig: &Rig, name: &str, namespace: &str, context: &[(&str, &str)]) -> csi::NodePublishVolumeRequest {
    request(name, &rig.target(name), &[context, &[(NAMESPACE, namespace)]].concat())
}

fn list_a_dataset(rig: &Rig) {
    let text = "datasets: {listed: {source: 's3://bucket/listed', namespaces: ['*']}}";
    std::fs::write(rig.path("datasets.yaml"), text).unwrap();
}

/// A pod of this namespace, beside these volumes.
fn pod(namespace: &str, volumes: &[(&str, u32)]) -> Option<Pod> {
    let volumes: HashMap<_, _> = volumes.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    Some(Pod { namespace: namespace.to_owned(), volumes })
}

/// The pod and the namespace that pays of the last Prepare.
fn last(rig: &Rig) -> (Option<Pod>, String) {
    (rig.fake.pods().pop().unwrap(), rig.fake.asked().pop().unwrap().payer)
}

// SEMANTICS: K22
#[tokio::test(flavor = "multi_thread")]
async fn larderd_learns_whose_pod_it_is_who_pays_and_the_volumes_of_all_namespaces() {
    let mut rig = Rig::new();
    list_a_dataset(&rig);
    let mut driver = rig.driver().await;
    driver.publish(volume(&rig, "a1", "team-a", &[("source", SOURCE)])).await.unwrap();
    assert_eq!(last(&rig), (pod("team-a", &[]), "team-a".to_owned()));
    let of_a_dataset = [("source", "s3://bucket/other"), ("datasetNamespace", "team-a")];
    driver.publish(volume(&rig, "b1", "team-b", &of_a_dataset)).await.unwrap();
    assert_eq!(last(&rig), (pod("team-b", &[("team-a", 1)]), "team-a".to_owned()));
    driver.publish(volume(&rig, "b2", "team-b", &[INLINE, ("dataset", "listed")])).await.unwrap();
    assert_eq!(last(&rig), (pod("team-b", &[("team-a", 1), ("team-b", 1)]), "larder-system".to_owned()));
    // A repeated call asks for nothing.
    driver.publish(volume(&rig, "a1", "team-a", &[("source", SOURCE)])).await.unwrap();
    assert_eq!(rig.fake.pods().len(), 3);

    let payers = |rig: &Rig| {
        let payer = |offered: larder_daemon_api::v1::Connection| (offered.mount, offered.dataset.unwrap().payer);
        rig.fake.offered().into_iter().map(payer).collect::<BTreeMap<_, _>>()
    };
    let before = payers(&rig);
    assert_eq!((&*before[&mount_of(SOURCE)], &*before[&mount_of("s3://bucket/listed")]), ("team-a", "larder-system"));
    for _ in 0..2 {
        rig.fake.restart();
        until("larderd serves them", || rig.fake.served().len() == 3).await;
        assert_eq!(payers(&rig), before);
        driver.kill().await;
        driver = rig.driver().await;
    }
    driver.publish(volume(&rig, "c1", "team-c", &[("source", SOURCE)])).await.unwrap();
    assert_eq!(last(&rig).0, pod("team-c", &[("team-a", 1), ("team-b", 2)]));
    driver.unpublish("a1", &rig.target("a1")).await.unwrap();
    driver.publish(volume(&rig, "c2", "team-c", &[("source", SOURCE)])).await.unwrap();
    assert_eq!(last(&rig).0, pod("team-c", &[("team-b", 2), ("team-c", 1)]));
    for name in ["b1", "b2", "c1", "c2"] {
        driver.unpublish(name, &rig.target(name)).await.unwrap();
    }
    rig.assert_clean();
}

// SEMANTICS: K22
#[tokio::test(flavor = "multi_thread")]
async fn neither_a_secret_nor_a_pod_author_says_who_pays() {
    let rig = Rig::new();
    list_a_dataset(&rig);
    let driver = rig.driver().await;
    let keys = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "hunter2")];
    for name in ["payer", "LARDER_PAYER", "LARDER_OWNER", "datasetNamespace", NAMESPACE] {
        let mut hostile = volume(&rig, "a", "team-a", &[("source", SOURCE)]);
        hostile.secrets = map(&[&keys[..], &[(name, "team-b")]].concat());
        let refused = driver.publish(hostile).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        if name != NAMESPACE {
            let hostile = [INLINE, ("dataset", "listed"), (name, "team-b")];
            let refused = driver.publish(volume(&rig, "a", "team-a", &hostile)).await.unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        }
    }
    assert_eq!(rig.fake.asked(), []);
    // The name of a dataset chooses the namespace, and only what is granted is mounted.
    let refused =
        driver.publish(volume(&rig, "a", "team-a", &[INLINE, ("dataset", "team-b/listed")])).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    rig.assert_clean();
}

// SEMANTICS: K6, K22
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_volume_is_an_error_in_larderds_words_and_counts_for_nothing() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    let words = "the namespace team-a (CacheQuota team-a) has 8 of 8 mounts on this node; end another pod or ask an \
                 administrator for more";
    rig.fake.answer(move |_| Err(Status::resource_exhausted(words)));
    for _ in 0..2 {
        let refused = driver.publish(volume(&rig, "a", "team-a", &[("source", SOURCE)])).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, words));
    }
    rig.assert_clean();
    rig.fake.answer(|dataset| {
        Ok(Outcome::Prepared(larder_daemon_api::v1::Prepared {
            mount: mount_of(&dataset.source),
            name: "a set".to_owned(),
            snapshot: "5a".repeat(32),
            files: 7,
            bytes: 7_000,
            served: false,
        }))
    });
    driver.publish(volume(&rig, "b", "team-a", &[("source", SOURCE)])).await.unwrap();
    assert_eq!(last(&rig).0, pod("team-a", &[]));
    // The state after a kill between writing the record and binding the mount: the volume was admitted.
    rustix::mount::unmount(rig.target("b"), UnmountFlags::DETACH).unwrap();
    driver.publish(volume(&rig, "b", "team-a", &[("source", SOURCE)])).await.unwrap();
    assert_eq!(last(&rig).0, None);
    driver.unpublish("b", &rig.target("b")).await.unwrap();
    rig.assert_clean();
}
