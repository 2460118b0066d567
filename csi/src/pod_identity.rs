//! The identity of a pod: its ServiceAccount token, as the kubelet passes it with each publish, in the form of
//! credentials. larderd exchanges it for the keys of the principal that the volume names.
//!
//! Invariants: no error contains a token, and a token is held in memory only.

use std::collections::HashMap;

use larder_csi_api::csi;
use larder_daemon_api::v1::Credentials;
use larder_dataset::environment::{IDENTITY_EXPIRES, IDENTITY_TOKEN, OWNER};
use serde::Deserialize;

use crate::attributes::{AttributeError, Pod, PodIdentity, Principal};
use crate::json_dir::hex_hash;

/// The key of the tokens, in the volume context or, if the CSIDriver says so, in the secrets.
pub(crate) const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// The audience of AWS, which is used where the kubelet passes tokens for several.
const AUDIENCE: &str = "sts.amazonaws.com";

/// The audience of Azure.
const AZURE_AUDIENCE: &str = "api://AzureADTokenExchange";

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

/// The credentials of a pod. `owner` is the owner of its volume.
pub(crate) fn credentials(
    tokens: &str,
    identity: &PodIdentity,
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
    let PodIdentity { principal, audience, .. } = identity;
    let expected = audience.clone().unwrap_or_else(|| audience_of(principal));
    // The S3 servers of others than AWS have no usual audience.
    let only = audience.is_none() && all.len() == 1 && matches!(principal, Principal::Role(_));
    let token = if only { all.drain().next().map(|(_, token)| token) } else { all.remove(&expected) };
    let Some(Token { token, expiration_timestamp }) = token else {
        return refuse(format!(
            "the kubelet passed no token for the audience {expected}: list it in spec.tokenRequests of the CSIDriver"
        ));
    };
    if token.is_empty() || token.len() > TOKEN_BYTES || expiration_timestamp.len() > 64 {
        return refuse("the kubelet passed a token that is empty or too long".to_owned());
    }
    let Some(owner) = owner_of(identity, owner, pod) else {
        return refuse(
            "the kubelet did not name the pod's ServiceAccount: set podInfoOnMount in the CSIDriver".to_owned(),
        );
    };
    let common = [(IDENTITY_TOKEN, Some(token)), (IDENTITY_EXPIRES, Some(expiration_timestamp)), (OWNER, Some(owner))];
    let variables = principal_variables(identity, pod).into_iter().chain(common);
    let given = variables.filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Ok(Credentials { variables: given.collect() })
}

/// The audience of tokens that a cloud expects.
fn audience_of(principal: &Principal) -> String {
    match principal {
        Principal::Role(_) => AUDIENCE.to_owned(),
        Principal::Azure { .. } => AZURE_AUDIENCE.to_owned(),
        Principal::Google { provider, .. } => {
            let of_gke = provider.strip_prefix("identitynamespace:").and_then(|rest| rest.split_once(':'));
            of_gke.map_or_else(|| format!("https:{provider}"), |(pool, _)| pool.to_owned())
        }
    }
}

/// The variables that name a principal and the server that exchanges its tokens. To stores of other kinds, which a
/// manifest may name, requests are sent without credentials.
fn principal_variables(identity: &PodIdentity, pod: &Pod) -> [(&'static str, Option<String>); 5] {
    let sts = identity.sts_endpoint.clone();
    let unsigned = |name| (name, Some("true".to_owned()));
    match identity.principal.clone() {
        Principal::Role(arn) => [
            ("AWS_ROLE_ARN", Some(arn)),
            ("AWS_ENDPOINT_URL_STS", sts),
            ("AWS_ROLE_SESSION_NAME", Some(session_name(pod))),
            unsigned("GOOGLE_SKIP_SIGNATURE"),
            unsigned("AZURE_SKIP_SIGNATURE"),
        ],
        Principal::Google { provider, service_account } => [
            ("GOOGLE_WORKLOAD_IDENTITY_PROVIDER", Some(provider)),
            ("GOOGLE_IMPERSONATE_SERVICE_ACCOUNT", service_account),
            ("GOOGLE_STS_ENDPOINT", sts),
            unsigned("AWS_SKIP_SIGNATURE"),
            unsigned("AZURE_SKIP_SIGNATURE"),
        ],
        Principal::Azure { client, tenant } => [
            ("AZURE_CLIENT_ID", Some(client)),
            ("AZURE_TENANT_ID", Some(tenant)),
            ("AZURE_AUTHORITY_HOST", sts),
            unsigned("AWS_SKIP_SIGNATURE"),
            unsigned("GOOGLE_SKIP_SIGNATURE"),
        ],
    }
}

/// The owner of what is read with the keys of a principal. Another server may give keys of the same name to anybody, so
/// it is part of the owner. So is the pod's ServiceAccount where its token alone names the principal; `None` if the
/// kubelet did not name it.
fn owner_of(identity: &PodIdentity, owner: Option<&str>, pod: &Pod) -> Option<String> {
    let principal = match &identity.principal {
        Principal::Role(arn) => arn.clone(),
        Principal::Azure { client, tenant } => [&**tenant, client].join("\n"),
        Principal::Google { provider, service_account: Some(email) } => [&**provider, email].join("\n"),
        Principal::Google { .. } if pod.namespace.is_empty() || pod.service_account.is_empty() => return None,
        Principal::Google { provider, service_account: None } => {
            [&**provider, &pod.namespace, &pod.service_account].join("\n")
        }
    };
    let sts = identity.sts_endpoint.as_deref().unwrap_or_default();
    let hash = hex_hash([owner.unwrap_or_default(), sts, &principal].join("\n").as_bytes());
    Some(format!("role-{}", &hash[..32]))
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
mod tests;
