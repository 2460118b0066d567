use larder_dataset::{Placement, PolicyKind};
use serde_json::json;

use super::*;

fn checked(spec: serde_json::Value) -> Result<CheckedSpec, InvalidField> {
    serde_json::from_value::<DatasetSpec>(spec).expect("of the schema's form").check()
}

#[test]
fn a_full_spec_is_understood() {
    let id = "ab".repeat(32);
    let got = checked(json!({
        "origin": {
            "source": "s3://bucket/pets/", "endpoint": "https://s3:9000", "region": "eu-1",
            "secretRef": {"name": "keys"}
        },
        "snapshot": id,
        "cache": {"size": "100GiB", "policy": "lru", "placement": "replicated:2"},
        "nodes": {"selector": {"gpu": "a100"}, "count": "all"},
        "keep": {"unusedFor": "168h"},
        "namespaces": ["team-b"],
    }))
    .expect("valid");
    let dataset = larder_dataset::DatasetSpec {
        endpoint: Some("https://s3:9000".into()),
        region: Some("eu-1".into()),
        cache_bytes: Some(100 << 30),
        policy: Some(PolicyKind::Lru),
        placement: "replicated:2".parse::<Placement>().ok(),
        ..larder_dataset::DatasetSpec::new("s3://bucket/pets/")
    };
    assert_eq!(got.dataset, dataset);
    assert_eq!((got.secret.as_deref(), got.snapshot), (Some("keys"), id.parse().ok()));
    assert_eq!((got.count, got.keep), (NodeCount::All, Keeping::UnusedFor(Duration::from_secs(7 * 24 * 3600))));
    assert_eq!(got.manifest, "s3://bucket/pets/.larder/manifest");
    assert!(got.is_granted("team-a", "team-a") && got.is_granted("team-a", "team-b"));
    assert!(!got.is_granted("team-a", "team-c"));
}

#[test]
fn the_least_spec_has_defaults() {
    let got = checked(json!({"origin": {"source": "s3://b", "anonymous": true}})).expect("valid");
    assert_eq!((got.count, got.keep, got.refresh), (NodeCount::Number(0), Keeping::AsWanted, None));
    let latest =
        checked(json!({"origin": {"source": "s3://b"}, "snapshot": "latest", "refresh": "5m", "namespaces": ["*"]}));
    let latest = latest.expect("valid");
    assert_eq!((latest.snapshot, latest.refresh), (None, Some(REFRESH_MIN)));
    assert!(latest.is_granted("team-a", "anyone"));
    let weekly = checked(json!({"origin": {"source": "s3://b"}, "refresh": "7d", "keep": {"unusedFor": "30d"}}));
    let weekly = weekly.expect("days are times");
    let days = |days: u64| Duration::from_secs(days * 24 * 3600);
    assert_eq!((weekly.refresh, weekly.keep), (Some(days(7)), Keeping::UnusedFor(days(30))));
}

#[test]
fn a_bad_value_is_refused_by_its_field() {
    for (field, spec) in [
        ("spec.origin.source", json!({"origin": {"source": "http://h/x"}})),
        ("spec.origin.source", json!({"origin": {"source": "s3://b/../c"}})),
        ("spec.origin.endpoint", json!({"origin": {"source": "s3://b", "endpoint": "s3:9000"}})),
        ("spec.origin.region", json!({"origin": {"source": "s3://b", "region": "eu west"}})),
        (
            "spec.origin.secretRef",
            json!({"origin": {"source": "s3://b", "anonymous": true, "secretRef": {"name": "s"}}}),
        ),
        ("spec.snapshot", json!({"origin": {"source": "s3://b"}, "snapshot": "abc"})),
        ("spec.refresh", json!({"origin": {"source": "s3://b"}, "refresh": "299s"})),
        ("spec.refresh", json!({"origin": {"source": "s3://b"}, "refresh": "0d"})),
        ("spec.refresh", json!({"origin": {"source": "s3://b"}, "refresh": "1w"})),
        ("spec.refresh", json!({"origin": {"source": "s3://b"}, "refresh": "24h", "snapshot": "ab".repeat(32)})),
        ("spec.manifest", json!({"origin": {"source": "s3://b"}, "manifest": "http://h/m"})),
        ("spec.cache.size", json!({"origin": {"source": "s3://b"}, "cache": {"size": "0"}})),
        ("spec.cache.size", json!({"origin": {"source": "s3://b"}, "cache": {"size": "999999999999999TiB"}})),
        ("spec.cache.policy", json!({"origin": {"source": "s3://b"}, "cache": {"policy": "best"}})),
        ("spec.cache.placement", json!({"origin": {"source": "s3://b"}, "cache": {"placement": "everywhere"}})),
        ("spec.keep.pinned", json!({"origin": {"source": "s3://b"}, "keep": {"pinned": true, "unusedFor": "1h"}})),
        ("spec.keep.unusedFor", json!({"origin": {"source": "s3://b"}, "keep": {"unusedFor": "soon"}})),
        ("spec.namespaces", json!({"origin": {"source": "s3://b"}, "namespaces": ["Team A"]})),
    ] {
        let error = checked(spec.clone()).expect_err(field);
        assert_eq!(error.field, field, "{spec}: {error}");
    }
}
