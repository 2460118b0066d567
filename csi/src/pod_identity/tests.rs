use super::*;

const ROLE: &str = "arn:aws:iam::111122223333:role/reader";

const PROVIDER: &str = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q";

fn identity(principal: Principal) -> PodIdentity {
    PodIdentity { principal, sts_endpoint: None, audience: None }
}

fn role() -> PodIdentity {
    identity(Principal::Role(ROLE.to_owned()))
}

fn google(provider: &str, service_account: Option<&str>) -> PodIdentity {
    let service_account = service_account.map(str::to_owned);
    identity(Principal::Google { provider: provider.to_owned(), service_account })
}

fn azure(client: &str, tenant: &str) -> PodIdentity {
    identity(Principal::Azure { client: client.to_owned(), tenant: tenant.to_owned() })
}

fn pod() -> Pod {
    let (namespace, service_account) = ("team-a".to_owned(), "train".to_owned());
    Pod { namespace, service_account, ..Pod::default() }
}

fn passed(audiences: &[&str]) -> String {
    let token = |audience: &&str| {
        format!(r#""{audience}": {{"token": "hunter2-{audience}", "expirationTimestamp": "2026-01-01T10:20:30Z"}}"#)
    };
    format!("{{{}}}", audiences.iter().map(token).collect::<Vec<_>>().join(", "))
}

#[test]
fn the_token_of_the_volumes_audience_is_used() {
    let token = |audiences: &[&str], audience: Option<&str>| {
        let role = PodIdentity { audience: audience.map(str::to_owned), ..role() };
        credentials(&passed(audiences), &role, None, &pod()).map(|given| given.variables[IDENTITY_TOKEN].clone())
    };
    assert_eq!(token(&["minio"], None).unwrap(), "hunter2-minio");
    assert_eq!(token(&["minio", AUDIENCE], None).unwrap(), "hunter2-sts.amazonaws.com");
    assert_eq!(token(&["minio", AUDIENCE], Some("minio")).unwrap(), "hunter2-minio");
    for (audiences, audience) in [(&[][..], None), (&["minio"], Some("ceph")), (&["a", "b"], None)] {
        let error = token(audiences, audience).unwrap_err().to_string();
        assert!(error.contains("tokenRequests") && !error.contains("hunter2"), "{error}");
    }
    for text in ["hunter2", "[]", r#"{"a": "hunter2"}"#, r#"{"a": {"token": ""}}"#] {
        let error = credentials(text, &role(), None, &pod()).unwrap_err().to_string();
        assert!(error.contains("`identity` is `pod`, but the kubelet") && !error.contains("hunter2"), "{error}");
    }
}

#[test]
fn credentials_name_the_role_the_pod_and_never_the_machines_identity() {
    let given = credentials(&passed(&[AUDIENCE]), &role(), None, &pod()).unwrap().variables;
    assert_eq!((given["AWS_ROLE_ARN"].as_str(), given["AWS_ROLE_SESSION_NAME"].as_str()), (ROLE, "team-a.train"));
    assert_eq!((given["GOOGLE_SKIP_SIGNATURE"].as_str(), given["AZURE_SKIP_SIGNATURE"].as_str()), ("true", "true"));
    assert!(!given.contains_key("AWS_ENDPOINT_URL_STS"));
    let long = Pod { namespace: "n".repeat(63), service_account: "s".repeat(63), ..Pod::default() };
    assert_eq!(session_name(&long).len(), SESSION_NAME_BYTES);
    assert_eq!(session_name(&Pod::default()), "larder");
}

// SEMANTICS: K23
#[test]
fn role_sts_and_owner_each_make_another_owner_and_the_pod_does_not() {
    let owner = |identity: &PodIdentity, owner: Option<&str>| owner_of(identity, owner, &pod()).unwrap();
    let elsewhere = PodIdentity { sts_endpoint: Some("https://sts.example".to_owned()), ..role() };
    let other = identity(Principal::Role(format!("{ROLE}s")));
    let all = [owner(&role(), None), owner(&elsewhere, None), owner(&other, None), owner(&role(), Some("uid"))];
    assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), all.len());
    let another = PodIdentity { audience: Some("minio".to_owned()), ..role() };
    assert_eq!(owner(&another, None), all[0], "who is asked and for what decides, and not with which token");
}

// SEMANTICS: K23
#[test]
fn google_and_azure_get_the_token_of_their_own_audience_and_never_another() {
    let (provider, account) = (format!("https:{PROVIDER}"), Some("reader@p.iam.gserviceaccount.com"));
    let of_gke = google("identitynamespace:p.svc.id.goog:https://container.googleapis.com/v1/c", None);
    for (identity, expected) in [
        (google(PROVIDER, None), &*provider),
        (google(PROVIDER, account), &provider),
        (of_gke, "p.svc.id.goog"),
        (azure("client", "tenant"), AZURE_AUDIENCE),
    ] {
        let given = |audiences: &[&str], identity: &PodIdentity| {
            let given = credentials(&passed(audiences), identity, None, &pod());
            given.map(|given| given.variables[IDENTITY_TOKEN].clone()).map_err(|error| error.to_string())
        };
        let token = format!("hunter2-{expected}");
        assert_eq!(given(&[AUDIENCE, expected], &identity), Ok(token));
        // That of AWS, though it is the only one.
        let error = given(&[AUDIENCE], &identity).unwrap_err();
        assert!(error.contains(&format!("audience {expected}: list it in spec.tokenRequests")), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
        let named = PodIdentity { audience: Some("own".to_owned()), ..identity };
        assert_eq!(given(&[expected, "own"], &named).as_deref(), Ok("hunter2-own"));
    }
}

#[test]
fn credentials_of_a_cloud_name_its_principal_and_send_nothing_to_others() {
    let given = |identity: PodIdentity, audience: &str| {
        let identity = PodIdentity { sts_endpoint: Some("https://sts".to_owned()), ..identity };
        credentials(&passed(&[audience]), &identity, None, &pod()).unwrap().variables
    };
    let of_google = given(google(PROVIDER, Some("a@p")), &format!("https:{PROVIDER}"));
    for (name, value) in [
        ("GOOGLE_WORKLOAD_IDENTITY_PROVIDER", PROVIDER),
        ("GOOGLE_IMPERSONATE_SERVICE_ACCOUNT", "a@p"),
        ("GOOGLE_STS_ENDPOINT", "https://sts"),
        ("AWS_SKIP_SIGNATURE", "true"),
        ("AZURE_SKIP_SIGNATURE", "true"),
    ] {
        assert_eq!(of_google[name], value, "{name}");
    }
    assert!(!of_google.contains_key("GOOGLE_SKIP_SIGNATURE") && !of_google.contains_key("AWS_ROLE_ARN"));
    let of_azure = given(azure("client", "tenant"), AZURE_AUDIENCE);
    for (name, value) in [
        ("AZURE_CLIENT_ID", "client"),
        ("AZURE_TENANT_ID", "tenant"),
        ("AZURE_AUTHORITY_HOST", "https://sts"),
        ("AWS_SKIP_SIGNATURE", "true"),
        ("GOOGLE_SKIP_SIGNATURE", "true"),
    ] {
        assert_eq!(of_azure[name], value, "{name}");
    }
    assert!(!of_azure.contains_key("AZURE_SKIP_SIGNATURE"));
}

// SEMANTICS: K23
#[test]
fn each_principal_is_an_owner_and_so_is_each_service_account_where_the_token_names_the_principal() {
    let another = Pod { service_account: "other".to_owned(), ..pod() };
    let owner = |identity: &PodIdentity, pod: &Pod| owner_of(identity, None, pod).unwrap();
    let elsewhere = PodIdentity { sts_endpoint: Some("https://sts".to_owned()), ..azure("client", "tenant") };
    let all = [
        owner(&google(PROVIDER, None), &pod()),
        owner(&google(PROVIDER, None), &another),
        owner(&google(PROVIDER, Some("a@p")), &pod()),
        owner(&google(PROVIDER, Some("b@p")), &pod()),
        owner(&google("identitynamespace:p:c", None), &pod()),
        owner(&azure("client", "tenant"), &pod()),
        owner(&azure("other", "tenant"), &pod()),
        owner(&azure("client", "other"), &pod()),
        owner(&elsewhere, &pod()),
    ];
    assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), all.len());
    for shared in [google(PROVIDER, Some("a@p")), azure("client", "tenant")] {
        assert_eq!(owner(&shared, &pod()), owner(&shared, &another));
    }
    let unknown = credentials(
        &passed(&["own"]),
        &PodIdentity { audience: Some("own".to_owned()), ..google(PROVIDER, None) },
        None,
        &Pod::default(),
    );
    let error = unknown.unwrap_err().to_string();
    assert!(error.contains("podInfoOnMount") && !error.contains("hunter2"), "{error}");
}

#[test]
fn a_token_replaces_one_that_expires_in_an_earlier_minute() {
    let until = |end: &str| Credentials { variables: [(IDENTITY_EXPIRES.to_owned(), end.to_owned())].into() };
    let held = until("2026-01-01T10:20:30Z");
    assert!(is_later(&held, None) && is_later(&held, Some(&Credentials::default())));
    assert!(is_later(&until("2026-01-01T10:21:00Z"), Some(&held)));
    for earlier in ["2026-01-01T10:20:59Z", "2026-01-01T10:20:30Z", "2025-12-31T23:59:59Z", ""] {
        assert!(!is_later(&until(earlier), Some(&held)), "{earlier}");
    }
}

// SEMANTICS: K25
#[test]
fn the_kubelet_passes_tokens_of_the_default_audience_and_repeats_publishes() {
    let manifest = include_str!("../../../deploy/csidriver.yaml");
    assert!(manifest.contains(&format!("  tokenRequests:\n    - audience: {AUDIENCE}\n")), "{manifest}");
    assert!(manifest.contains("  requiresRepublish: true\n"), "{manifest}");
}
