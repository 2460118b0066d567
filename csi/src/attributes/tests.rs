use larder_dataset::PolicyKind;

use super::*;

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn parse(pairs: &[(&str, &str)]) -> Result<Attributes, AttributeError> {
    Attributes::parse(&map(pairs), &Rules { file_roots: vec!["/data".into()] })
}

const INLINE: (&str, &str) = ("csi.storage.k8s.io/ephemeral", "true");

#[test]
fn a_full_volume_is_understood() {
    let snapshot = "ab".repeat(32);
    let got = parse(&[
        ("source", "s3://bucket/a/b"),
        ("endpoint", "https://s3.example.org:9000"),
        ("region", "eu-1"),
        ("anonymous", "true"),
        ("snapshot", &snapshot),
        ("cacheSize", "100GiB"),
        ("policy", "lru"),
        ("placement", "replicated:2"),
        ("refresh", "24h"),
        ("namespaces", "team-a, team-b"),
        ("csi.storage.k8s.io/pod.namespace", "team-a"),
        ("csi.storage.k8s.io/serviceAccount.tokens", "{}"),
        ("storage.kubernetes.io/csiProvisionerIdentity", "x"),
    ])
    .expect("good");
    assert_eq!(got.namespaces, Some(vec!["team-a".to_owned(), "team-b".to_owned()]));
    assert_eq!(got.pod.namespace, "team-a");
    let expected = DatasetSpec {
        source: "s3://bucket/a/b".to_owned(),
        endpoint: Some("https://s3.example.org:9000".to_owned()),
        region: Some("eu-1".to_owned()),
        anonymous: true,
        snapshot: Some(snapshot.parse().expect("hex digits")),
        cache_bytes: Some(100 << 30),
        policy: Some(PolicyKind::Lru),
        placement: Some("replicated:2".parse().expect("a placement")),
        refresh: Some("24h".parse().expect("an age")),
    };
    assert_eq!(got.selection, Selection::Spec(expected));
}

#[test]
fn every_bad_value_is_refused_by_its_name() {
    let upper = "AB".repeat(32);
    let long = format!("s3://b/{}", "a".repeat(2000));
    let bad: [(&str, &[(&str, &str)]); 38] = [
        ("source", &[]),
        ("sauce", &[("sauce", "s3://b")]),
        ("source", &[("source", "bucket/x")]),
        ("source", &[("source", "http://h/x")]),
        ("source", &[("source", "s3://")]),
        ("source", &[("source", "s3://key:hunter2@b/x")]),
        ("source", &[("source", "s3://b/a/../c")]),
        ("source", &[("source", "s3://b/a\nb")]),
        ("source", &[("source", &long)]),
        ("source", &[("source", "file:///etc")]),
        ("source", &[("source", "file:///data/../etc")]),
        ("source", &[("source", "file://data")]),
        ("endpoint", &[("source", "s3://b"), ("endpoint", "s3.example.org")]),
        ("endpoint", &[("source", "s3://b"), ("endpoint", "http://u:hunter2@h")]),
        ("region", &[("source", "s3://b"), ("region", "eu west")]),
        ("anonymous", &[("source", "s3://b"), ("anonymous", "yes")]),
        ("snapshot", &[("source", "s3://b"), ("snapshot", "abc")]),
        ("snapshot", &[("source", "s3://b"), ("snapshot", &upper)]),
        ("cacheSize", &[("source", "s3://b"), ("cacheSize", "lots")]),
        ("cacheSize", &[("source", "s3://b"), ("cacheSize", "-1")]),
        ("cacheSize", &[("source", "s3://b"), ("cacheSize", "0")]),
        ("policy", &[("source", "s3://b"), ("policy", "best")]),
        ("placement", &[("source", "s3://b"), ("placement", "everywhere")]),
        ("placement", &[("source", "s3://b"), ("placement", "replicated")]),
        ("placement", &[("source", "s3://b"), ("placement", "replicated:0")]),
        ("placement", &[("dataset", "d"), ("placement", "partitioned")]),
        ("refresh", &[("source", "s3://b"), ("refresh", "often")]),
        ("refresh", &[("source", "s3://b"), ("refresh", "0h")]),
        ("refresh", &[("source", "s3://b"), ("refresh", "24")]),
        ("refresh", &[("dataset", "d"), ("refresh", "24h")]),
        ("namespaces", &[("source", "s3://b"), ("namespaces", "a,,b")]),
        ("identity", &[("source", "s3://b"), ("identity", "larderd")]),
        ("identity", &[("source", "s3://b"), ("identity", "")]),
        ("owner", &[("source", "s3://b"), ("owner", "")]),
        ("owner", &[("source", "s3://b"), ("owner", "a b")]),
        ("dataset", &[("source", "s3://b"), ("dataset", "d")]),
        ("dataset", &[("dataset", "../d")]),
        ("endpoint", &[("dataset", "d"), ("endpoint", "http://h")]),
    ];
    for (name, pairs) in bad {
        let error = parse(pairs).expect_err(name).to_string();
        assert!(error.contains(&format!("`{name}`")) && !error.contains("hunter2"), "{pairs:?}: {error}");
    }
    parse(&[("source", "file:///data/set")]).expect("below the root");
}

#[test]
fn a_dataset_is_a_name_or_a_namespace_and_a_name() {
    let named = |name: &str| parse(&[INLINE, ("dataset", name)]).map(|got| got.selection);
    for name in ["imagenet", "image_net.v2", "team-a/imagenet", "team-a/v2..x", &"n".repeat(128)] {
        assert_eq!(named(name), Ok(Selection::Entry { name: name.to_owned(), cache_bytes: None }), "{name}");
    }
    let long = format!("{}/x", "n".repeat(127));
    for name in [
        "", "/", "//", "/x", "x/", "a/b/c", "a//b", "../x", "x/..", "x/.", "./x", ".x", "a/.x", ".a/x", "a b", "a\nb",
        "a\\b", "a%2fb", "\u{e4}/b", "a\0", &long,
    ] {
        let error = named(name).expect_err(name).to_string();
        assert!(error.contains("`dataset`") && error.contains("NAMESPACE/NAME"), "{name:?}: {error}");
    }
}

#[test]
fn a_pod_author_names_a_dataset_and_nothing_else() {
    let got = parse(&[INLINE, ("dataset", "imagenet"), ("cacheSize", "1GiB")]).expect("good");
    let entry = Selection::Entry { name: "imagenet".to_owned(), cache_bytes: Some(1 << 30) };
    assert!(got.inline && got.selection == entry);
    for name in KNOWN.iter().filter(|name| !KNOWN_INLINE.contains(name)) {
        let error = parse(&[INLINE, ("dataset", "d"), (name, "x")]).expect_err(name).to_string();
        assert!(error.contains(&format!("unknown attribute `{name}`")), "{error}");
    }
}
