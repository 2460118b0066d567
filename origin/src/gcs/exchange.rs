//! Google's Workload Identity Federation: the token of a pod is exchanged for an access token, either of the principal
//! that the token names, or of a service account that this principal may impersonate.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use chrono::TimeDelta;
use http::header::AUTHORIZATION;
use http::response::Parts;
use http::{HeaderValue, StatusCode};
use larder_dataset::environment::OWNER;
use serde_json::{Value, json};

use crate::bearer::{BearerSession, header};
use crate::config::OriginConfig;
use crate::error::OriginError;
use crate::key_server::{KeyServer, refusal, remaining, shown};
use crate::keys::{Exchange, Fresh, SessionError};
use crate::object::settings::client_options;
use crate::session::Identity;

const STS: &str = "https://sts.googleapis.com";
const IAM: &str = "https://iamcredentials.googleapis.com";

/// The right that reads objects, and the one that a service account is impersonated with.
const READ: &str = "https://www.googleapis.com/auth/devstorage.read_only";
const IMPERSONATE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// The identity of a pod at Google.
struct Federated {
    sts: KeyServer,
    /// The full name of the workload identity provider.
    provider: String,
    account: Option<ServiceAccount>,
    /// The token of the pod.
    token: String,
}

/// A service account that is impersonated.
struct ServiceAccount {
    server: KeyServer,
    email: String,
}

impl fmt::Debug for Federated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Federated").field("sts", &self.sts).field("provider", &self.provider).finish_non_exhaustive()
    }
}

/// The session of the pod whose token is `token`. Variables name its provider, its service account and, if it is not
/// Google's, the server that exchanges tokens.
pub(super) fn session(config: &OriginConfig, token: &str) -> Result<Arc<BearerSession>, OriginError> {
    let env = &config.env;
    let provider = env.get("GOOGLE_WORKLOAD_IDENTITY_PROVIDER").ok_or_else(|| OriginError::Invalid {
        what: "a pod's identity has no provider: set the attribute `workloadIdentityProvider` of the volume".to_owned(),
    })?;
    let email = env.get("GOOGLE_IMPERSONATE_SERVICE_ACCOUNT");
    let server = |own| KeyServer::new(config, client_options(config), env.get("GOOGLE_STS_ENDPOINT").unwrap_or(own));
    let sts = server(STS)?;
    let account = match email {
        Some(email) => Some(ServiceAccount { server: server(IAM)?, email: email.to_owned() }),
        None => None,
    };
    let role = [provider, email.unwrap_or_default()].join(" ");
    let owner = env.get(OWNER).unwrap_or_default().to_owned();
    let identity = Identity { sts: sts.url.clone(), role, owner };
    let exchange: Arc<dyn Exchange<HeaderValue>> =
        Arc::new(Federated { sts, provider: provider.to_owned(), account, token: token.to_owned() });
    Ok(config.sessions.of(identity, exchange))
}

#[async_trait]
impl Exchange<HeaderValue> for Federated {
    async fn obtain(&self) -> Result<Fresh<HeaderValue>, SessionError> {
        let fields = [
            ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
            ("audience", &*self.provider),
            ("scope", if self.account.is_some() { IMPERSONATE } else { READ }),
            ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
            ("subject_token_type", "urn:ietf:params:oauth:token-type:jwt"),
            ("subject_token", &*self.token),
        ];
        let (parts, text) = self.sts.ask(self.sts.form("/v1/token", &fields)?).await?;
        let answer: Value = serde_json::from_slice(&text).unwrap_or_default();
        if !parts.status.is_success() {
            return Err(self.refusal(parts.status, &answer));
        }
        let token = answer["access_token"].as_str().and_then(header);
        let left = answer["expires_in"].as_i64().and_then(TimeDelta::try_seconds);
        match (token, left, &self.account) {
            (Some(token), _, Some(account)) => account.impersonate(token).await,
            (Some(token), Some(left), None) => Fresh::new(token, Some(left)).map_err(|what| self.sts.failed(what)),
            (None, _, _) | (_, None, None) => {
                Err(self.sts.failed("answered without a token: it is not Google's Security Token Service"))
            }
        }
    }
}

impl Federated {
    fn refusal(&self, status: StatusCode, answer: &Value) -> SessionError {
        let text = |name: &str| shown(answer[name].as_str().unwrap_or_default(), &self.token);
        let (code, message) = (text("error"), text("error_description"));
        let hint = match &*code {
            "invalid_grant" => {
                "; the provider must know the issuer of the cluster's tokens, and the token's audience must be one of \
                 those that it allows (tokenRequests of the CSIDriver, attribute `audience`)"
            }
            "invalid_target" => "; is there such a provider, and is it enabled (attribute `workloadIdentityProvider`)?",
            "unauthorized_client" => "; the provider's attribute condition must admit the pod's ServiceAccount",
            _ => "",
        };
        let said = format!("{} did not exchange the token for {}: {status} {code}", self.sts.url, self.provider);
        refusal(status, &said, &message, hint)
    }
}

impl ServiceAccount {
    /// The access token of the service account. `token` is that of the pod's principal.
    async fn impersonate(&self, token: HeaderValue) -> Result<Fresh<HeaderValue>, SessionError> {
        let path = format!("/v1/projects/-/serviceAccounts/{}:generateAccessToken", self.email);
        let mut request = self.server.post(&path, "application/json", json!({"scope": [READ]}).to_string())?;
        let secret = token.to_str().unwrap_or_default().trim_start_matches("Bearer ").to_owned();
        request.headers_mut().insert(AUTHORIZATION, token);
        let (parts, text) = self.server.ask(request).await?;
        let answer: Value = serde_json::from_slice(&text).unwrap_or_default();
        if !parts.status.is_success() {
            return Err(self.refusal(parts.status, &answer, &secret));
        }
        self.granted(&parts, &answer).map_err(|what| self.server.failed(what))
    }

    /// The error continues a sentence that begins with the server's URL.
    fn granted(&self, parts: &Parts, answer: &Value) -> Result<Fresh<HeaderValue>, String> {
        let (Some(token), Some(end)) = (answer["accessToken"].as_str().and_then(header), answer["expireTime"].as_str())
        else {
            return Err("answered without a token: it is not Google's IAM".to_owned());
        };
        Fresh::new(token, Some(remaining(end, &parts.headers)?))
    }

    fn refusal(&self, status: StatusCode, answer: &Value, secret: &str) -> SessionError {
        let text = |name: &str| shown(answer["error"][name].as_str().unwrap_or_default(), secret);
        let (code, message) = (text("status"), text("message"));
        let hint = match &*code {
            "PERMISSION_DENIED" => {
                "; the ServiceAccount's principal needs the role roles/iam.workloadIdentityUser on the service account"
            }
            "NOT_FOUND" => "; is there such a service account (attribute `serviceAccount`)?",
            _ => "",
        };
        let said = format!("{} did not give a token of {}: {status} {code}", self.server.url, self.email);
        refusal(status, &said, &message, hint)
    }
}
