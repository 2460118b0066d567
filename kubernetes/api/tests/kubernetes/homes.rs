//! The account of a home writes jobs of homes and its lease, and nobody else makes a job one of a home.

use larder_api::names::{HERE, SYSTEM_NAMESPACE};
use larder_testkit::repository;
use serde_json::{Value, json};

use crate::{TIMEOUT, bad_jobs, said};

const ACCOUNT: &str = "home-test";

/// The copy of a job of a home.
fn copy(namespace: &str, fields: Value) -> Value {
    let mut job = bad_jobs::job(namespace, fields);
    job["metadata"]["labels"] = json!({"larder.dev/home": "test_h", "larder.dev/home-job": "u"});
    job
}

// SEMANTICS: J20
#[test]
fn a_home_writes_its_jobs_and_its_lease_and_nobody_else_makes_a_job_one_of_a_home() {
    const NAMESPACE: &str = "homes";
    let server = bad_jobs::start(NAMESPACE);
    server.cluster.kubectl_ok(&["wait", "--for=condition=Established", "crd/clusters.larder.dev"]);
    let file = repository().join("deploy/components/clusters/base/policies.yaml").display().to_string();
    server.cluster.kubectl_ok(&["apply", "-f", &file]);
    server.apply(&json!({
        "apiVersion": "larder.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": HERE}, "spec": {},
    }));
    server.cluster.kubectl(&["create", "serviceaccount", ACCOUNT, "-n", SYSTEM_NAMESPACE]);
    let _granted = ["trainingjobs", "clusters"].map(|resource| server.grant(ACCOUNT, "larder.dev", resource));
    let token = server.token(ACCOUNT, None);
    let own = "TrainingJobs whose label larder.dev/home begins with test_ and no others";
    let others = "larder.dev/home, larder.dev/home-job are set by the home of a job alone";
    // A policy takes effect some time after it was applied.
    server.cluster.wait_for("the policies about homes count", TIMEOUT, || {
        let plain = server.with_file(&bad_jobs::job(NAMESPACE, json!({})), |file| {
            server.cluster.kubectl(&["--token", &token, "create", "--dry-run=server", "-f", file])
        });
        said(&plain).contains(own) && said(&server.try_apply(&copy(NAMESPACE, json!({})))).contains(others)
    });
    let creates = |object: &Value, args: &[&str], refused: Option<&str>| {
        server.with_file(object, |file| {
            server.expect(&token, &[&["create", "-f", file], args].concat(), refused);
        });
    };
    let spread = copy(NAMESPACE, json!({"clusters": [HERE]}));
    creates(&spread, &["--dry-run=server"], Some("the copy of a TrainingJob has no spec.clusters"));
    creates(&copy(NAMESPACE, json!({})), &[], None);
    let labels = "of the labels of a TrainingJob of a home, a home changes larder.dev/home and larder.dev/home-job";
    let lease = "a home changes the annotation home.larder.dev/test_UID with its lease and nothing else";
    // A job and a lease of another home, with a name that begins like the account's.
    let mut theirs = copy(NAMESPACE, json!({}));
    theirs["metadata"]["labels"]["larder.dev/home"] = "test.b_h".into();
    creates(&theirs, &["--dry-run=server"], Some(own));
    for (args, refused) in [
        (&["label", "tj", "j", "--overwrite", "larder.dev/home=other_h"][..], Some(own)),
        (&["label", "tj", "j", "--overwrite", "larder.dev/home=test_other"], None),
        (&["label", "tj", "j", "a=b"], Some(labels)),
        (&["label", "tj", "j", "larder.dev/home-"], Some(own)),
        (&["patch", "tj", "j", "--type=merge", "-p", r#"{"spec":{"suspend":true}}"#], None),
        (&["annotate", "clusters.larder.dev", HERE, "--overwrite", "home.larder.dev/test_h=17"], None),
        (&["annotate", "clusters.larder.dev", HERE, "--overwrite", "home.larder.dev/other_h=17"], Some(lease)),
        (&["annotate", "clusters.larder.dev", HERE, "--overwrite", "home.larder.dev/test.b_h=17"], Some(lease)),
        (&["annotate", "clusters.larder.dev", HERE, "a=b"], Some(lease)),
        (&["patch", "clusters.larder.dev", HERE, "--type=merge", "-p", r#"{"spec":{"cost":7}}"#], Some(lease)),
        (&["delete", "clusters.larder.dev", HERE], Some(lease)),
    ] {
        server.expect(&token, &[&["-n", NAMESPACE], args].concat(), refused);
    }
    let stolen = server.cluster.kubectl(&["label", "tj", "j", "-n", NAMESPACE, "--overwrite", "larder.dev/home=mine"]);
    assert!(said(&stolen).contains("larder.dev/home is set by the home of a job alone"), "{}", said(&stolen));
    server.expect(&token, &["-n", NAMESPACE, "delete", "tj", "j"], None);
}
