//! Volumes of Google and Azure that are read with the pod's own identity.

use std::collections::HashMap;

use larder_csi_api::csi;
use tonic::{Code, Status};

use crate::fake::mount_of;
use crate::rig::{Rig, map, request};

const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";
const GOOGLE: &str = "gs://bucket/set";
const AZURE: &str = "az://container/set";
const PROVIDER: &str = "projects/1/locations/global/workloadIdentityPools/p/providers/q";
const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";
const ENDPOINT: (&str, &str) = ("endpoint", "https://account.blob.core.windows.net");

/// The audiences for which the kubelet passes tokens.
const ALL: [&str; 3] = ["sts.amazonaws.com", "api://AzureADTokenExchange", GOOGLES];
const GOOGLES: &str = "https://iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q";

fn tokens(audiences: &[&str], pod: &str) -> String {
    let token = |audience: &&str| {
        let token = format!("hunter2 of {pod} for {audience}");
        format!(r#""{audience}": {{"token": "{token}", "expirationTimestamp": "2026-01-01T10:10:00Z"}}"#)
    };
    format!("{{{}}}", audiences.iter().map(token).collect::<Vec<_>>().join(","))
}

/// The publish request of a pod with a ServiceAccount of this name, at a target of the same name.
fn of_pod(rig: &Rig, pod: &str, audiences: &[&str], context: &[(&str, &str)]) -> csi::NodePublishVolumeRequest {
    let common = [
        ("identity", "pod"),
        ("csi.storage.k8s.io/pod.namespace", "team-a"),
        ("csi.storage.k8s.io/serviceAccount.name", pod),
    ];
    let mut request = request("v", &rig.target(pod), &[&common[..], context].concat());
    request.volume_context.insert(TOKENS.to_owned(), tokens(audiences, pod));
    request
}

/// The variables with which larderd was asked last.
fn last(rig: &Rig) -> HashMap<String, String> {
    rig.fake.asked().pop().unwrap().credentials.unwrap().variables
}

// SEMANTICS: K23
#[tokio::test(flavor = "multi_thread")]
async fn the_token_of_the_clouds_audience_and_the_principal_reach_larderd() {
    let rig = Rig::new();
    let driver = rig.driver().await;
    let google = [("source", GOOGLE), ("workloadIdentityProvider", PROVIDER)];
    driver.publish(of_pod(&rig, "a", &ALL, &google)).await.unwrap();
    let of_a = last(&rig);
    assert_eq!(of_a["LARDER_IDENTITY_TOKEN"], format!("hunter2 of a for {GOOGLES}"));
    assert_eq!(of_a["GOOGLE_WORKLOAD_IDENTITY_PROVIDER"], format!("//iam.googleapis.com/{PROVIDER}"));
    assert!(!of_a.contains_key("GOOGLE_SKIP_SIGNATURE"));
    assert_eq!(rig.fake.reads_with(&mount_of(GOOGLE)).unwrap().variables, of_a);
    driver.unpublish("v", &rig.target("a")).await.unwrap();
    // Another ServiceAccount is another principal, unless both impersonate one service account.
    driver.publish(of_pod(&rig, "b", &ALL, &google)).await.unwrap();
    assert_ne!(last(&rig)["LARDER_OWNER"], of_a["LARDER_OWNER"]);
    driver.unpublish("v", &rig.target("b")).await.unwrap();
    let mut owners = Vec::new();
    for pod in ["a", "b"] {
        let account = ("serviceAccount", "reader@p.iam.gserviceaccount.com");
        driver.publish(of_pod(&rig, pod, &ALL, &[google[0], google[1], account])).await.unwrap();
        assert_eq!(last(&rig)["GOOGLE_IMPERSONATE_SERVICE_ACCOUNT"], account.1);
        owners.push(last(&rig)["LARDER_OWNER"].clone());
        driver.unpublish("v", &rig.target(pod)).await.unwrap();
    }
    assert_eq!(owners[0], owners[1]);

    let azure = [("source", AZURE), ENDPOINT, ("clientID", UUID), ("tenantID", UUID)];
    driver.publish(of_pod(&rig, "c", &ALL, &azure)).await.unwrap();
    let of_c = last(&rig);
    assert_eq!(of_c["LARDER_IDENTITY_TOKEN"], "hunter2 of c for api://AzureADTokenExchange");
    assert_eq!((of_c["AZURE_CLIENT_ID"].as_str(), of_c["AZURE_TENANT_ID"].as_str()), (UUID, UUID));
    assert!(!of_c.contains_key("AZURE_SKIP_SIGNATURE") && of_c.contains_key("AWS_SKIP_SIGNATURE"));
    driver.unpublish("v", &rig.target("c")).await.unwrap();
    rig.assert_clean();
}

// SEMANTICS: K23
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_attribute_and_a_missing_audience_are_named_and_larderd_is_not_asked() {
    let rig = Rig::new();
    std::fs::write(rig.path("datasets.yaml"), format!("datasets: {{set: {{source: '{AZURE}', namespaces: ['*']}}}}"))
        .unwrap();
    let driver = rig.driver().await;
    let role = ("roleArn", "arn:aws:iam::111122223333:role/reader");
    let provider = ("workloadIdentityProvider", PROVIDER);
    let (client, tenant) = (("clientID", UUID), ("tenantID", UUID));
    let inline = [("csi.storage.k8s.io/ephemeral", "true"), ("dataset", "set")];
    let aws: &[&str] = &["sts.amazonaws.com"];
    for (audiences, context, words) in [
        (&ALL[..], &[("source", GOOGLE)][..], "for gs:// `workloadIdentityProvider`"),
        (&ALL, &[("source", GOOGLE), role], "`roleArn` names no identity of gs:// origins"),
        (&ALL, &[("source", AZURE), role], "set `clientID` and `tenantID` instead"),
        (&ALL, &[("source", AZURE), ENDPOINT, client], "`tenantID` is missing"),
        (&ALL, &[("source", AZURE), client, tenant], "no `endpoint`"),
        (&ALL, &[("source", GOOGLE), provider, client], "cannot be combined"),
        (aws, &[("source", GOOGLE), provider], "https://iam.googleapis.com/projects/1"),
        (aws, &[("source", GOOGLE), provider], "tokenRequests of the CSIDriver"),
        (aws, &[("source", AZURE), ENDPOINT, client, tenant], "audience api://AzureADTokenExchange"),
        // Neither the account nor the server that exchanges tokens is chosen by the pod's author.
        (&ALL, &[inline[0], inline[1], client, tenant], "no `endpoint`"),
        (&ALL, &[inline[0], inline[1], client, tenant, ENDPOINT], "unknown attribute `endpoint`"),
        (
            &ALL,
            &[inline[0], inline[1], client, tenant, ("stsEndpoint", "https://h")],
            "unknown attribute `stsEndpoint`",
        ),
    ] {
        let refused: Status = driver.publish(of_pod(&rig, "a", audiences, context)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains(words) && !refused.message().contains("hunter2"), "{words}: {refused}");
    }
    let mut with_secret = of_pod(&rig, "a", &ALL, &[("source", GOOGLE), provider]);
    with_secret.secrets = map(&[("GOOGLE_SERVICE_ACCOUNT_KEY", "{}")]);
    let refused = driver.publish(with_secret).await.unwrap_err();
    assert!(refused.message().contains("nodePublishSecretRef"), "{refused}");
    assert_eq!(rig.fake.asked(), []);
    driver.publish(of_pod(&rig, "a", &ALL, &[("source", GOOGLE), provider])).await.unwrap();
    driver.unpublish("v", &rig.target("a")).await.unwrap();
    rig.assert_clean();
}
