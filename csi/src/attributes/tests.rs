use larder_dataset::PolicyKind;

use super::*;

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn parse(pairs: &[(&str, &str)]) -> Result<Attributes, AttributeError> {
    Attributes::parse(&map(pairs), &Rules { file_roots: vec!["/data".into()] })
}

const ROLE: &str = "arn:aws:iam::111122223333:role/reader";
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
        ("datasetNamespace", "team-b"),
        ("uid", "1000"),
        ("fileMode", "0440"),
        ("csi.storage.k8s.io/pod.namespace", "team-a"),
        ("csi.storage.k8s.io/serviceAccount.tokens", "{}"),
        ("storage.kubernetes.io/csiProvisionerIdentity", "x"),
    ])
    .expect("good");
    assert_eq!(got.namespaces, Some(vec!["team-a".to_owned(), "team-b".to_owned()]));
    assert_eq!((&*got.pod.namespace, got.payer()), ("team-a", "team-b"));
    assert_eq!(got.ownership.to_string(), "uid=1000 fileMode=440");
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
        ownership: Ownership::default(),
    };
    assert_eq!(got.selection, Selection::Spec(expected));
}

#[test]
fn every_bad_value_is_refused_by_its_name() {
    let upper = "AB".repeat(32);
    let long = format!("s3://b/{}", "a".repeat(2000));
    let bad: [(&str, &[(&str, &str)]); 58] = [
        ("uid", &[("source", "s3://b"), ("uid", "-1")]),
        ("gid", &[("source", "s3://b"), ("gid", "users")]),
        ("fileMode", &[("source", "s3://b"), ("fileMode", "0644")]),
        ("dirMode", &[("source", "s3://b"), ("dirMode", "755")]),
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
        ("roleArn", &[("source", "s3://b"), ("identity", "pod")]),
        ("roleArn", &[("source", "s3://b"), ("roleArn", ROLE)]),
        ("roleArn", &[("source", "s3://b"), ("identity", "secret"), ("roleArn", ROLE)]),
        ("roleArn", &[("source", "s3://b"), ("identity", "pod"), ("roleArn", "reader")]),
        ("roleArn", &[("source", "s3://b"), ("identity", "pod"), ("roleArn", "arn:aws:iam::1:user/u")]),
        ("roleArn", &[("source", "s3://b"), ("identity", "pod"), ("roleArn", "arn:aws:iam::1:role/a b")]),
        ("stsEndpoint", &[("source", "s3://b"), ("stsEndpoint", "https://sts")]),
        (
            "stsEndpoint",
            &[("source", "s3://b"), ("identity", "pod"), ("roleArn", ROLE), ("stsEndpoint", "http://u:hunter2@h")],
        ),
        ("audience", &[("source", "s3://b"), ("audience", "minio")]),
        ("audience", &[("source", "s3://b"), ("identity", "pod"), ("roleArn", ROLE), ("audience", "")]),
        ("mirrors", &[("source", "s3://b"), ("mirrors", "s3://hunter2@c")]),
        ("mirrors", &[("source", "s3://b"), ("mirrors", r#"[{"name":"eu","source":"s3://key:hunter2@c"}]"#)]),
        ("mirrors", &[("source", "s3://b"), ("mirrors", r#"[{"name":"eu","source":"s3://b"}]"#)]),
        ("mirrors", &[("dataset", "d"), ("mirrors", r#"[{"name":"eu","source":"s3://c"}]"#)]),
        ("owner", &[("source", "s3://b"), ("owner", "")]),
        ("datasetNamespace", &[("source", "s3://b"), ("datasetNamespace", "*")]),
        ("datasetNamespace", &[("source", "s3://b"), ("datasetNamespace", "")]),
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
    let got = parse(&[INLINE, ("dataset", "imagenet"), ("gid", "100"), ("dirMode", "0550")]).expect("good");
    assert_eq!(got.ownership.to_string(), "gid=100 dirMode=550");
    for name in KNOWN.iter().filter(|name| !KNOWN_INLINE.contains(name)) {
        let error = parse(&[INLINE, ("dataset", "d"), (name, "x")]).expect_err(name).to_string();
        assert!(error.contains(&format!("unknown attribute `{name}`")), "{error}");
    }
}

// SEMANTICS: K22
#[test]
fn the_namespace_of_the_dataset_pays_or_else_that_of_the_pod_and_no_pod_author_says_which() {
    let pod = ("csi.storage.k8s.io/pod.namespace", "team-a");
    let payer = |pairs: &[(&str, &str)]| parse(&[pairs, &[pod]].concat()).map(|got| got.payer().to_owned());
    for (pairs, pays) in [
        (&[("source", "s3://b")][..], "team-a"),
        (&[("source", "s3://b"), ("datasetNamespace", "team-b")], "team-b"),
        (&[INLINE, ("dataset", "team-b/imagenet")], "team-b"),
        (&[INLINE, ("dataset", "imagenet")], "larder-system"),
        (&[("dataset", "imagenet")], "larder-system"),
        (&[INLINE, ("dataset", "imagenet"), ("identity", "pod"), ("roleArn", ROLE)], "team-a"),
    ] {
        assert_eq!(payer(pairs), Ok(pays.to_owned()), "{pairs:?}");
    }
    // A pod author names no namespace: neither as an attribute nor, since the kubelet's value wins, as a pod's.
    let error = payer(&[INLINE, ("dataset", "d"), ("datasetNamespace", "team-b")]).expect_err("refused").to_string();
    assert!(error.contains("unknown attribute `datasetNamespace`"), "{error}");
    for name in ["payer", "namespace", "LARDER_PAYER"] {
        for pairs in [&[("source", "s3://b"), (name, "team-b")][..], &[INLINE, ("dataset", "d"), (name, "team-b")]] {
            payer(pairs).expect_err(name);
        }
    }
}

#[test]
fn the_identity_of_a_pod_is_a_role_and_perhaps_a_server_and_an_audience() {
    let source = [("source", "s3://b"), ("identity", "pod"), ("roleArn", ROLE)];
    let identity = |pairs: &[(&str, &str)]| parse(pairs).expect("good").identity;
    let role = PodIdentity { principal: Principal::Role(ROLE.to_owned()), sts_endpoint: None, audience: None };
    assert_eq!(identity(&source), Identity::Pod(role.clone()));
    let more = [("stsEndpoint", "https://minio.example:9000"), ("audience", "minio")];
    let (sts_endpoint, audience) = (Some(more[0].1.to_owned()), Some(more[1].1.to_owned()));
    let full = PodIdentity { sts_endpoint, audience, ..role.clone() };
    assert_eq!(identity(&[&source[..], &more].concat()), Identity::Pod(full));
    let inline = [INLINE, ("dataset", "d"), ("identity", "pod"), ("roleArn", ROLE)];
    assert_eq!(identity(&inline), Identity::Pod(role));
    // The roles of MinIO and of Ceph.
    for arn in ["arn:minio:iam:::role/dUoyXHxy-1lp", "arn:aws:iam::RGW11111111111111111:role/application/reader"] {
        let identity = identity(&[("source", "s3://b"), ("identity", "pod"), ("roleArn", arn)]);
        assert!(matches!(identity, Identity::Pod(PodIdentity { principal: Principal::Role(role), .. }) if role == arn));
    }
    let error = parse(&[INLINE, ("dataset", "d"), ("identity", "secret")]).expect_err("a pod author's").to_string();
    assert!(error.contains("`identity` must be `pod`"), "{error}");
}

const PROVIDER: &str = "projects/1/locations/global/workloadIdentityPools/p/providers/q";
const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";

#[test]
fn the_identity_of_a_pod_is_one_of_google_or_of_azure() {
    let principal = |pairs: &[(&str, &str)]| {
        let parsed = parse(&[pairs, &[("source", "gs://b"), ("identity", "pod")]].concat());
        parsed.map(|got| match got.identity {
            Identity::Pod(identity) => identity.principal,
            identity => panic!("{identity:?}"),
        })
    };
    let google = |provider: &str, service_account: Option<&str>| Principal::Google {
        provider: provider.to_owned(),
        service_account: service_account.map(str::to_owned),
    };
    let full = format!("//iam.googleapis.com/{PROVIDER}");
    for written in [PROVIDER, &full, &format!("https:{full}")] {
        assert_eq!(principal(&[("workloadIdentityProvider", written)]), Ok(google(&full, None)));
    }
    let account = "reader@p.iam.gserviceaccount.com";
    let both = [("workloadIdentityProvider", PROVIDER), ("serviceAccount", account)];
    assert_eq!(principal(&both), Ok(google(&full, Some(account))));
    let of_gke =
        "identitynamespace:p.svc.id.goog:https://container.googleapis.com/v1/projects/p/locations/l/clusters/c";
    assert_eq!(principal(&[("workloadIdentityProvider", of_gke)]), Ok(google(of_gke, None)));
    let (client, tenant) = (UUID.to_owned(), UUID.to_owned());
    let azure = principal(&[("clientID", &UUID.to_uppercase()), ("tenantID", UUID)]);
    assert_eq!(azure, Ok(Principal::Azure { client, tenant }));
    for (name, pairs) in [
        ("workloadIdentityProvider", &[("workloadIdentityProvider", "projects/1")][..]),
        ("workloadIdentityProvider", &[("workloadIdentityProvider", "identitynamespace:p")]),
        ("workloadIdentityProvider", &[("serviceAccount", account)]),
        ("serviceAccount", &[("workloadIdentityProvider", PROVIDER), ("serviceAccount", "a/../b@p")]),
        ("serviceAccount", &[("workloadIdentityProvider", PROVIDER), ("serviceAccount", "reader")]),
        ("tenantID", &[("clientID", UUID)]),
        ("clientID", &[("tenantID", UUID)]),
        ("tenantID", &[("clientID", UUID), ("tenantID", "../common")]),
        ("clientID", &[("roleArn", ROLE), ("clientID", UUID), ("tenantID", UUID)]),
        ("workloadIdentityProvider", &[("roleArn", ROLE), ("workloadIdentityProvider", PROVIDER)]),
        ("identity", &[]),
    ] {
        let error = principal(pairs).expect_err(name).to_string();
        assert!(error.contains(&format!("attribute `{name}`")), "{pairs:?}: {error}");
    }
    for name in ["workloadIdentityProvider", "serviceAccount", "clientID", "tenantID"] {
        let error = parse(&[("source", "gs://b"), (name, "x")]).expect_err(name).to_string();
        assert!(error.contains(&format!("`{name}` belongs to `identity: pod`")), "{error}");
    }
}

#[test]
fn an_identity_reads_stores_of_its_own_cloud() {
    let role = ("roleArn", ROLE);
    let provider = ("workloadIdentityProvider", PROVIDER);
    let azure = [("clientID", UUID), ("tenantID", UUID)];
    let endpoint = ("endpoint", "https://account.blob.core.windows.net");
    let checked = |pairs: &[(&str, &str)], has_secret| {
        let got = parse(&[pairs, &[("identity", "pod")]].concat()).expect("good");
        let (Identity::Pod(identity), Selection::Spec(spec)) = (got.identity, got.selection) else {
            panic!("{pairs:?}");
        };
        identity.check(&spec, has_secret).map_err(|error| error.to_string())
    };
    assert_eq!(checked(&[("source", "s3://b"), role], false), Ok(()));
    assert_eq!(checked(&[("source", "gs://b"), provider], false), Ok(()));
    assert_eq!(checked(&[("source", "az://c"), azure[0], azure[1], endpoint], false), Ok(()));
    for (pairs, has_secret, words) in [
        (&[("source", "az://c"), role][..], false, "`roleArn` names no identity of az:// origins"),
        (&[("source", "az://c"), role], false, "set `clientID` and `tenantID` instead"),
        (&[("source", "gs://b"), role], false, "set `workloadIdentityProvider` instead"),
        (&[("source", "s3://b"), provider], false, "`workloadIdentityProvider` names no identity of s3://"),
        (&[("source", "s3://b"), azure[0], azure[1]], false, "`clientID` names no identity of s3://"),
        (&[("source", "file:///data/set"), role], false, "only s3://, gs:// and az:// origins"),
        (&[("source", "gs://b"), provider, ("anonymous", "true")], false, "remove one of them"),
        (&[("source", "gs://b"), provider], true, "nodePublishSecretRef"),
        (&[("source", "az://c"), azure[0], azure[1]], false, "no `endpoint`"),
    ] {
        let error = checked(pairs, has_secret).expect_err(words);
        assert!(error.contains(words), "{pairs:?}: {error}");
    }
}
