//! Every mistake is rejected at apply, with the name of its field, and also by the controller's checks.

use larder_api::names::{DatasetKey, SYSTEM_NAMESPACE};
use larder_api::rights::{self, Endpoints};
use larder_api::{DatasetSpec, InvalidField};
use serde_json::{Value, json};

use crate::{LISTED, Server, dataset, said};

const NAMESPACE: &str = "bad-datasets";

/// A spec with a valid origin and these fields.
fn with(fields: Value) -> Value {
    let mut spec = json!({"origin": {"source": "s3://bucket/pets", "anonymous": true}});
    spec.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    spec
}

fn origin(origin: Value) -> Value {
    json!({"origin": origin})
}

/// An origin that is valid in `larder-system`, except for its source.
fn source(source: &str) -> Value {
    origin(json!({"source": source, "anonymous": true}))
}

/// A spec that is read with a Secret, and these fields.
fn with_keys(fields: Value) -> Value {
    let mut spec = with(fields);
    spec["origin"] = json!({"source": "s3://bucket/pets", "secretRef": {"name": "keys"}});
    spec
}

fn mirror(name: &str, origin: Value) -> Value {
    json!({"mirrors": [{"name": name, "origin": origin}]})
}

/// Checks a spec as the controller does.
fn checked(namespace: &str, spec: &Value) -> Result<(), InvalidField> {
    let spec: DatasetSpec = serde_json::from_value(spec.clone()).expect("of the schema's form");
    rights::check(&DatasetKey::new(namespace, "d"), &spec, &Endpoints::new(vec![LISTED.to_owned()]))?;
    spec.check().map(drop)
}

#[test]
fn a_bad_dataset_is_refused_at_apply_by_its_field() {
    let server = Server::start(NAMESPACE);
    let id = "ab".repeat(32);
    let long = format!("s3://b/{}", "a".repeat(1100));
    // The field, and a part of the error message.
    let bad: &[(&str, &str, Value)] = &[
        ("spec.origin.source", "must be a URL", source("bucket/pets")),
        ("spec.origin.source", "must be a URL", source("http://h/pets")),
        ("spec.origin.source", "names no bucket", source("s3://")),
        ("spec.origin.source", "names no bucket", source("s3://AKIA:hunter2@bucket/pets")),
        ("spec.origin.source", "must not contain `..`", source("s3://bucket/a/../b")),
        ("spec.origin.source", "must not contain `..`", source("s3://bucket/..")),
        ("spec.origin.source", "1024", source(&long)),
        ("spec.origin.source", "names a folder (file://)", source("file:///data")),
        ("spec.origin.source", "whole path", source("file://data")),
        (
            "spec.origin.endpoint",
            "server's URL",
            origin(json!({"source": "s3://b", "anonymous": true, "endpoint": "s3:9000"})),
        ),
        (
            "spec.origin.endpoint",
            "without keys",
            origin(json!({"source": "s3://b", "anonymous": true, "endpoint": "http://u:hunter2@h"})),
        ),
        (
            "spec.origin.endpoint",
            "is not listed",
            origin(json!({"source": "s3://b", "anonymous": true, "endpoint": "http://elsewhere:9000"})),
        ),
        (
            "spec.origin.region",
            "name of a region",
            origin(json!({"source": "s3://b", "anonymous": true, "region": "eu west"})),
        ),
        (
            "spec.origin.secretRef",
            "cannot be combined",
            origin(json!({"source": "s3://b", "anonymous": true, "secretRef": {"name": "s"}})),
        ),
        ("spec.origin.secretRef", "larderd's own identity", origin(json!({"source": "s3://b"}))),
        ("spec.snapshot", "64 lower-case hex digits", with(json!({"snapshot": "newest"}))),
        ("spec.snapshot", "64 lower-case hex digits", with(json!({"snapshot": id.to_uppercase()}))),
        ("spec.refresh", "at least 5m", with(json!({"refresh": "299s"}))),
        ("spec.refresh", "at least 5m", with(json!({"refresh": "often"}))),
        ("spec.refresh", "at least 5m", with(json!({"refresh": "0d"}))),
        ("spec.refresh", "at least 5m", with(json!({"refresh": "1w"}))),
        ("spec.refresh", "needs spec.snapshot to be latest", with(json!({"refresh": "24h", "snapshot": id}))),
        ("spec.manifest", "must be a URL", with(json!({"manifest": "http://h/m"}))),
        ("spec.manifest", "must not contain `..`", with(json!({"manifest": "s3://b/../m"}))),
        ("spec.manifest", "names a folder (file://)", with(json!({"manifest": "file:///m"}))),
        ("spec.cache.size", "must not be 0", with(json!({"cache": {"size": "0"}}))),
        ("spec.cache.size", "must not be 0", with(json!({"cache": {"size": "0.0GiB"}}))),
        ("spec.cache.size", "such as 100GiB", with(json!({"cache": {"size": "much"}}))),
        ("spec.cache.size", "such as 100GiB", with(json!({"cache": {"size": "-1GiB"}}))),
        ("spec.cache.policy", "supported values", with(json!({"cache": {"policy": "best"}}))),
        ("spec.cache.placement", "replicated:N", with(json!({"cache": {"placement": "everywhere"}}))),
        ("spec.cache.placement", "replicated:N", with(json!({"cache": {"placement": "replicated:256"}}))),
        ("spec.cache.placement", "replicated:N", with(json!({"cache": {"placement": "replicated:0"}}))),
        ("spec.keep.pinned", "cannot be combined", with(json!({"keep": {"pinned": true, "unusedFor": "24h"}}))),
        ("spec.keep.unusedFor", "such as 7d", with(json!({"keep": {"unusedFor": "0h"}}))),
        ("spec.keep.unusedFor", "such as 7d", with(json!({"keep": {"unusedFor": "00d"}}))),
        ("spec.namespaces", "names of namespaces", with(json!({"namespaces": ["Team A"]}))),
        ("spec.mirrors", "needs spec.origin.secretRef", with(mirror("eu", json!({"source": "s3://c"})))),
        ("spec.mirrors", "lower-case letters", with_keys(mirror("E U", json!({"source": "s3://c"})))),
        ("spec.mirrors", "own URL", with_keys(mirror("eu", json!({"source": "s3://bucket/pets"})))),
        ("spec.mirrors", "must be a URL", with_keys(mirror("eu", json!({"source": "file:///copy"})))),
        ("spec.mirrors", "must be a URL", with_keys(mirror("eu", json!({"source": "s3://AKIA:hunter2@c"})))),
        ("spec.mirrors", "must not contain `..`", with_keys(mirror("eu", json!({"source": "s3://c/../d"})))),
        ("spec.mirrors", "server's URL", with_keys(mirror("eu", json!({"source": "s3://c", "endpoint": "c:9000"})))),
        (
            "spec.mirrors",
            "without keys",
            with_keys(mirror("eu", json!({"source": "s3://c", "endpoint": "http://u:hunter2@h"}))),
        ),
        ("spec.mirrors", "is not listed", with_keys(mirror("eu", json!({"source": "s3://c", "endpoint": "http://h"})))),
        ("spec.mirrors", "name of a region", with_keys(mirror("eu", json!({"source": "s3://c", "region": "e u"})))),
    ];
    for (field, what, spec) in bad {
        let output = server.try_apply(&dataset(NAMESPACE, "d", spec.clone()));
        let said = said(&output);
        assert!(!output.status.success() && said.contains(field) && said.contains(what), "{spec}: {said}");
        assert!(!said.contains("hunter2"), "{said}");
        assert!(checked(NAMESPACE, spec).is_err(), "the checks accept {spec}");
    }
    // These cannot even be parsed as the types.
    for (field, spec) in [
        ("spec.nodes.count", with(json!({"nodes": {"count": "some"}}))),
        ("spec.nodes.count", with(json!({"nodes": {"count": -1}}))),
        ("spec.orign", json!({"orign": {}, "origin": {"source": "s3://b", "anonymous": true}})),
        ("spec.origin.key", origin(json!({"source": "s3://b", "anonymous": true, "key": "AKIA"}))),
        ("spec.origin", json!({})),
    ] {
        let output = server.try_apply(&dataset(NAMESPACE, "d", spec.clone()));
        assert!(!output.status.success() && said(&output).contains(field), "{spec}: {}", said(&output));
    }
    // A namespace and a name may have 62 characters together in a label.
    for (len, accepted) in [(62 - NAMESPACE.len(), true), (63 - NAMESPACE.len(), false)] {
        let output = server.try_apply(&dataset(NAMESPACE, &"n".repeat(len), with(json!({}))));
        let named = said(&output).contains("metadata.name and metadata.namespace have 63 characters together");
        assert_eq!((output.status.success(), named), (accepted, !accepted), "{}", said(&output));
    }
}

#[test]
fn a_good_dataset_is_accepted_by_schema_and_checks() {
    const NAMESPACE: &str = "good-datasets";
    let server = Server::start(NAMESPACE);
    let id = "ab".repeat(32);
    let good: &[(&str, Value)] = &[
        (NAMESPACE, with(json!({}))),
        (
            NAMESPACE,
            origin(json!({"source": "s3://b", "secretRef": {"name": "keys"}, "endpoint": LISTED, "region": "eu-1"})),
        ),
        (
            NAMESPACE,
            with(json!({"snapshot": "latest", "refresh": "5m", "manifest": "gs://other/m", "namespaces": ["*"]})),
        ),
        (NAMESPACE, with(json!({"snapshot": id, "namespaces": ["team-b", "c"], "keep": {"pinned": true}}))),
        (NAMESPACE, with(json!({"cache": {"size": "1.5TiB", "policy": "lru", "placement": "replicated:255"}}))),
        (NAMESPACE, with(json!({"cache": {"size": "100 gb"}, "nodes": {"count": "all", "selector": {"gpu": "a100"}}}))),
        (
            NAMESPACE,
            with(json!({"cache": {"placement": "partitioned"}, "nodes": {"count": 3}, "keep": {"unusedFor": "168h"}})),
        ),
        (NAMESPACE, with(json!({"refresh": "7d", "keep": {"unusedFor": "30d"}}))),
        (NAMESPACE, source("az://container/a..b/c")),
        (
            NAMESPACE,
            with_keys(json!({"mirrors": [
                {"name": "eu", "origin": {"source": "gs://copy/pets"}, "kept": true, "cost": 2},
                {"name": "near", "origin": {"source": "s3://pets", "endpoint": LISTED}, "near": {"site": "b"}},
            ]})),
        ),
        (SYSTEM_NAMESPACE, origin(json!({"source": "file:///data/set"}))),
        (SYSTEM_NAMESPACE, origin(json!({"source": "s3://b", "endpoint": "http://elsewhere:9000"}))),
    ];
    for (namespace, spec) in good {
        let output = server.try_apply(&dataset(namespace, "d", spec.clone()));
        assert!(output.status.success(), "{spec}: {}", said(&output));
        checked(namespace, spec).unwrap_or_else(|error| panic!("{spec}: {error}"));
    }
    // kubectl prints no warnings about the definitions, such as an unknown format.
    let applied = server.try_apply(&dataset(NAMESPACE, "d", with(json!({}))));
    assert!(applied.stderr.is_empty(), "{}", said(&applied));
}

#[test]
fn a_stored_dataset_keeps_its_source_and_can_always_be_finalized() {
    const NAMESPACE: &str = "stored-datasets";
    let server = Server::start(NAMESPACE);
    let with_endpoint = |source: &str| json!({"source": source, "anonymous": true, "endpoint": LISTED});
    server.apply(&dataset(NAMESPACE, "d", origin(with_endpoint("s3://b"))));
    let moved = server.try_apply(&dataset(NAMESPACE, "d", origin(with_endpoint("s3://c"))));
    assert!(said(&moved).contains("spec.origin.source cannot be changed"), "{}", said(&moved));

    // The administrator removes the endpoint from the list.
    server.list_endpoints(&["https://other"]);
    let patch = |kind: &str, patch: Value| {
        server.cluster.kubectl(&["patch", "dset", "d", "-n", NAMESPACE, "--type", kind, "-p", &patch.to_string()])
    };
    server.cluster.wait_for("the endpoint is refused", crate::TIMEOUT, || {
        let changed = patch("merge", json!({"spec": {"nodes": {"count": 1}}}));
        patch("merge", json!({"spec": {"nodes": null}}));
        said(&changed).contains("spec.origin.endpoint is not listed")
    });
    let finalized = patch("merge", json!({"metadata": {"finalizers": ["larder.dev/dataset"]}}));
    assert!(finalized.status.success(), "{}", said(&finalized));
    let freed = patch("merge", json!({"metadata": {"finalizers": null}}));
    assert!(freed.status.success(), "{}", said(&freed));
    server.cluster.kubectl_ok(&["delete", "dset", "d", "-n", NAMESPACE]);
}
