//! The identity of a pod: its ServiceAccount token, as the kubelet passes it with each publish, in the form of
//! credentials. larderd exchanges it for the keys of the volume's role.
//!
//! Invariants: no error contains a token, and a token is held in memory only.

use std::collections::HashMap;

use larder_csi_api::csi;
use larder_daemon_api::v1::Credentials;
use larder_dataset::environment::{IDENTITY_EXPIRES, IDENTITY_TOKEN, OWNER};
use serde::Deserialize;

use crate::attributes::{AttributeError, Pod, Role};
use crate::json_dir::hex_hash;

/// The key of the tokens, in the volume context or, if the CSIDriver says so, in the secrets.
pub(crate) const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// The audience of AWS, which is used where the kubelet passes tokens for several.
const AUDIENCE: &str = "sts.amazonaws.com";

/// The longest token. Those of the kubelet have one or two KiB.
const TOKEN_BYTES: usize = 16 << 10;

/// The longest name of a session that STS accepts.
const SESSION_NAME_BYTES: usize = 64;

/// A token as the kubelet passes it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Token {
    token: String,
    #[serde(default)]
    expiration_timestamp: String,
}

/// The tokens of a request, as text. Empty if there are none.
pub(crate) fn tokens(request: &csi::NodePublishVolumeRequest) -> &str {
    request.secrets.get(TOKENS).or_else(|| request.volume_context.get(TOKENS)).map(String::as_str).unwrap_or_default()
}

/// The credentials of a pod for a role. `owner` is the owner of its volume.
pub(crate) fn credentials(
    tokens: &str,
    role: &Role,
    owner: Option<&str>,
    pod: &Pod,
) -> Result<Credentials, AttributeError> {
    let refuse = |what: String| Err(AttributeError::value("identity", format!("is `pod`, but {what}")));
    let mut all: HashMap<String, Token> = match tokens {
        "" => HashMap::new(),
        tokens => match serde_json::from_str(tokens) {
            Ok(all) => all,
            // The parser's own message may repeat a part of the text.
            Err(_) => return refuse("the kubelet passed tokens in a form that is not known".to_owned()),
        },
    };
    let audience = role.audience.as_deref().unwrap_or(AUDIENCE);
    let only = role.audience.is_none() && all.len() == 1;
    let token = if only { all.drain().next().map(|(_, token)| token) } else { all.remove(audience) };
    let Some(Token { token, expiration_timestamp }) = token else {
        return refuse(format!(
            "the kubelet passed no token for the audience {audience}: list it in spec.tokenRequests of the CSIDriver"
        ));
    };
    if token.is_empty() || token.len() > TOKEN_BYTES || expiration_timestamp.len() > 64 {
        return refuse("the kubelet passed a token that is empty or too long".to_owned());
    }
    let variables = [
        ("AWS_ROLE_ARN", Some(role.arn.clone())),
        ("AWS_ENDPOINT_URL_STS", role.sts_endpoint.clone()),
        ("AWS_ROLE_SESSION_NAME", Some(session_name(pod))),
        (IDENTITY_TOKEN, Some(token)),
        (IDENTITY_EXPIRES, Some(expiration_timestamp)),
        (OWNER, Some(role_owner(role, owner))),
        // To other stores, which a manifest may name, requests are sent without credentials.
        ("GOOGLE_SKIP_SIGNATURE", Some("true".to_owned())),
        ("AZURE_SKIP_SIGNATURE", Some("true".to_owned())),
    ];
    let given = variables.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Ok(Credentials { variables: given.collect() })
}

/// The owner of what is read with the keys of a role. Another STS may give keys for the same role name to anybody, so
/// it is part of the owner.
fn role_owner(role: &Role, owner: Option<&str>) -> String {
    let sts = role.sts_endpoint.as_deref().unwrap_or_default();
    let hash = hex_hash([owner.unwrap_or_default(), sts, &role.arn].join("\n").as_bytes());
    format!("role-{}", &hash[..32])
}

/// Names the pod's ServiceAccount in the logs of the STS.
fn session_name(pod: &Pod) -> String {
    let name = format!("{}.{}", pod.namespace, pod.service_account);
    let known = |c: &char| c.is_ascii_alphanumeric() || "_+=,.@-".contains(*c);
    let name: String = name.chars().filter(known).take(SESSION_NAME_BYTES).collect();
    if pod.namespace.is_empty() { "larder".to_owned() } else { name }
}

/// True if the token in `new` is to replace that in `held`: it expires in a later minute. So each of many pods with one
/// role renews its mount once a minute at most.
pub(crate) fn is_later(new: &Credentials, held: Option<&Credentials>) -> bool {
    // The kubelet writes times as 2006-01-02T15:04:05Z, which compare as texts.
    let minute =
        |of: &Credentials| of.variables.get(IDENTITY_EXPIRES).map(|end| end.chars().take(16).collect::<String>());
    held.and_then(minute) < minute(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLE: &str = "arn:aws:iam::111122223333:role/reader";

    fn role() -> Role {
        Role { arn: ROLE.to_owned(), sts_endpoint: None, audience: None }
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
            let role = Role { audience: audience.map(str::to_owned), ..role() };
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
        let owner = |role: &Role, owner: Option<&str>| role_owner(role, owner);
        let elsewhere = Role { sts_endpoint: Some("https://sts.example".to_owned()), ..role() };
        let other = Role { arn: format!("{ROLE}s"), ..role() };
        let all = [owner(&role(), None), owner(&elsewhere, None), owner(&other, None), owner(&role(), Some("uid"))];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), all.len());
        let another = Role { audience: Some("minio".to_owned()), ..role() };
        assert_eq!(owner(&another, None), all[0], "who is asked and for what decides, and not with which token");
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
        let manifest = include_str!("../../deploy/csidriver.yaml");
        assert!(manifest.contains(&format!("  tokenRequests:\n    - audience: {AUDIENCE}\n")), "{manifest}");
        assert!(manifest.contains("  requiresRepublish: true\n"), "{manifest}");
    }
}
