//! CacheQuotas at apply: their own mistakes, two for a namespace, and Datasets that request more than theirs has.

use larder_api::CacheQuotaSpec;
use serde_json::{Value, json};

use crate::{Server, TIMEOUT, dataset, said};

const NAMESPACE: &str = "quotas";

fn quota(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "larder.dev/v1alpha1", "kind": "CacheQuota", "metadata": {"name": name}, "spec": spec})
}

fn sized(name: &str, size: Option<&str>) -> Value {
    let mut spec = json!({"origin": {"source": "s3://b", "anonymous": true}});
    if let Some(size) = size {
        spec["cache"] = json!({"size": size});
    }
    dataset(NAMESPACE, name, spec)
}

/// The quotas of a test, which are deleted after it: they count in the whole cluster.
struct Quotas<'a>(&'a Server, &'a [&'a str]);

impl Drop for Quotas<'_> {
    fn drop(&mut self) {
        self.0.cluster.kubectl(&[&["delete", "cachequota", "--ignore-not-found"], self.1].concat());
    }
}

#[test]
fn a_bad_quota_is_refused_at_apply_by_its_field() {
    let server = Server::start(NAMESPACE);
    for (field, what, spec) in [
        ("spec.namespaces", "Required value", json!({})),
        ("spec.namespaces", "at least 1", json!({"namespaces": []})),
        ("spec.namespaces", "names of namespaces", json!({"namespaces": ["*"]})),
        ("spec.namespaces", "Duplicate value", json!({"namespaces": ["a", "a"]})),
        ("spec.promisedBytes", "such as 2TiB", json!({"namespaces": ["a"], "promisedBytes": "much"})),
        ("spec.promisedBytes", "such as 2TiB", json!({"namespaces": ["a"], "promisedBytes": "2Xi"})),
        ("spec.reservedBytesPerNode", "such as 200GiB", json!({"namespaces": ["a"], "reservedBytesPerNode": "-1GiB"})),
        ("spec.datasets", "greater than or equal to 0", json!({"namespaces": ["a"], "datasets": -1})),
        ("spec.mounts", "unknown field", json!({"namespaces": ["a"], "mounts": 1})),
    ] {
        let output = server.try_apply(&quota("bad", spec.clone()));
        let said = said(&output);
        assert!(!output.status.success() && said.contains(field) && said.contains(what), "{spec}: {said}");
    }
    for spec in [
        json!({"namespaces": ["a"]}),
        json!({"namespaces": ["a"], "promisedBytes": "2Ti", "reservedBytesPerNode": "500G"}),
        json!({
            "namespaces": ["a", "b"], "promisedBytes": "1.5 TiB", "reservedBytesPerNode": "0", "datasets": 0,
            "mountsPerNode": 4, "imports": 2,
        }),
    ] {
        let output = server.try_apply(&quota("good", spec.clone()));
        assert!(output.status.success(), "{spec}: {}", said(&output));
        let spec: CacheQuotaSpec = serde_json::from_value(spec).expect("of the schema's form");
        spec.check().expect("valid");
    }
}

// SEMANTICS: K20
#[test]
fn a_second_quota_for_a_namespace_is_refused() {
    let server = Server::start(NAMESPACE);
    let _quotas = Quotas(&server, &["first", "second"]);
    server.apply(&quota("first", json!({"namespaces": ["taken-a", "taken-b"]})));
    let clash = quota("second", json!({"namespaces": ["other", "taken-b"]}));
    // A policy sees a new quota after a moment.
    let message = "spec.namespaces: the CacheQuota first already names taken-b, and a namespace has at most one quota";
    server.cluster.wait_for("the second is refused", TIMEOUT, || {
        let output = server.try_apply(&clash);
        !output.status.success() && said(&output).contains(message)
    });
    // The first can be applied again and changed, and a second one for other namespaces is accepted.
    for good in [
        quota("first", json!({"namespaces": ["taken-a", "taken-b"], "datasets": 3})),
        quota("second", json!({"namespaces": ["other"]})),
    ] {
        let output = server.try_apply(&good);
        assert!(output.status.success(), "{good}: {}", said(&output));
    }
}

// SEMANTICS: K20
#[test]
fn a_dataset_that_requests_more_than_its_quota_is_refused() {
    let server = Server::start(NAMESPACE);
    let _quotas = Quotas(&server, &["sizes"]);
    let spec =
        json!({"namespaces": [NAMESPACE], "promisedBytes": "2TiB", "reservedBytesPerNode": "100 gib", "datasets": 2});
    server.apply(&quota("sizes", spec));
    let refused = |object: &Value, message: &str| {
        let output = server.try_apply(object);
        !output.status.success() && said(&output).contains(message)
    };
    let per_node = "the CacheQuota sizes allows quotas to have 100 gib on each node (reservedBytesPerNode)";
    let promised = "the CacheQuota sizes allows quotas to have 2TiB promised (promisedBytes)";
    server.cluster.wait_for("the quota counts", TIMEOUT, || refused(&sized("d", Some("101GiB")), per_node));
    for size in ["100.5GiB", "101 gib", "107374182401", "107374183KB", "0.2TiB", "200GB"] {
        assert!(refused(&sized("d", Some(size)), &format!("spec.cache.size is {size}, and {per_node}")), "{size}");
    }
    assert!(refused(&sized("d", Some("3TiB")), promised) && refused(&sized("d", Some("2.1TB")), per_node));
    for size in [None, Some("100GiB"), Some("107374182400B"), Some("100GB"), Some("1KiB"), Some("5MB"), Some("0.09TiB")]
    {
        let output = server.try_apply(&sized("d", size));
        assert!(output.status.success(), "{size:?}: {}", said(&output));
    }
    // Of another namespace.
    let mut elsewhere = sized("d", Some("3TiB"));
    elsewhere["metadata"]["namespace"] = "default".into();
    let output = server.try_apply(&elsewhere);
    assert!(output.status.success(), "{}", said(&output));

    // The status has the number of Datasets, as the controller counts them.
    server.apply(&sized("there", None));
    let status = |datasets: u32| {
        let used = json!({"status": {"used": {"promisedBytes": 0, "datasets": datasets, "imports": 0}}}).to_string();
        let args = ["patch", "cachequota", "sizes", "--subresource=status", "--type=merge", "-p", &used];
        server.cluster.kubectl_ok(&args);
    };
    status(2);
    let message = "the CacheQuota sizes allows 2 Datasets, and there are 2";
    server.cluster.wait_for("one more is refused", TIMEOUT, || refused(&sized("d", None), message));
    // Those that exist can be changed, within the sizes.
    let output = server.try_apply(&sized("there", Some("50GiB")));
    assert!(output.status.success(), "{}", said(&output));
    assert!(refused(&sized("there", Some("101GiB")), per_node));
    status(1);
    server.cluster.wait_for("there is a place", TIMEOUT, || server.try_apply(&sized("d", None)).status.success());
    server.cluster.kubectl_ok(&["delete", "dset", "there", "-n", NAMESPACE]);
}
