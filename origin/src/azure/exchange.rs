//! Microsoft Entra Workload ID: the token of a pod is exchanged for an access token of an application or of a managed
//! identity that has a federated credential for the pod's ServiceAccount.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use chrono::TimeDelta;
use http::{HeaderValue, StatusCode};
use larder_dataset::environment::OWNER;
use object_store::azure::authority_hosts::AZURE_PUBLIC_CLOUD;
use serde_json::Value;

use crate::bearer::{BearerSession, header};
use crate::config::OriginConfig;
use crate::error::OriginError;
use crate::key_server::{KeyServer, refusal, shown};
use crate::keys::{Exchange, Fresh, SessionError};
use crate::object::settings::client_options;
use crate::session::Identity;

/// The rights that the identity has at storage accounts.
const STORAGE: &str = "https://storage.azure.com/.default";

/// The beginnings of messages, by their codes, and what to do.
const HINTS: [(&str, &str); 6] = [
    ("AADSTS70021", FEDERATED),
    ("AADSTS700211", FEDERATED),
    ("AADSTS700212", FEDERATED),
    ("AADSTS700213", FEDERATED),
    ("AADSTS700016", "; is there such an application in the tenant (attributes `clientID` and `tenantID`)?"),
    ("AADSTS90002", "; is there such a tenant (attributes `tenantID` and `stsEndpoint`)?"),
];
const FEDERATED: &str = "; a federated credential of the identity must name the issuer of the cluster's tokens, \
                         the subject system:serviceaccount:NAMESPACE:NAME and the audience of the token";

/// The identity of a pod at Microsoft Entra.
struct Federated {
    server: KeyServer,
    tenant: String,
    client: String,
    /// The token of the pod.
    token: String,
}

impl fmt::Debug for Federated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Federated").field("server", &self.server).field("client", &self.client).finish_non_exhaustive()
    }
}

/// The session of the pod whose token is `token`. Variables name its client, its tenant and, if it is not that of the
/// public cloud, the server that exchanges tokens.
pub(super) fn session(config: &OriginConfig, token: &str) -> Result<Arc<BearerSession>, OriginError> {
    let env = &config.env;
    let (Some(client), Some(tenant)) = (env.get("AZURE_CLIENT_ID"), env.get("AZURE_TENANT_ID")) else {
        let what = "a pod's identity has no client: set the attributes `clientID` and `tenantID` of the volume";
        return Err(OriginError::Invalid { what: what.to_owned() });
    };
    let url = env.get("AZURE_AUTHORITY_HOST").unwrap_or(AZURE_PUBLIC_CLOUD);
    let server = KeyServer::new(config, client_options(config), url)?;
    let owner = env.get(OWNER).unwrap_or_default().to_owned();
    let identity = Identity { sts: server.url.clone(), role: [tenant, client].join(" "), owner };
    let (tenant, client, token) = (tenant.to_owned(), client.to_owned(), token.to_owned());
    let exchange: Arc<dyn Exchange<HeaderValue>> = Arc::new(Federated { server, tenant, client, token });
    Ok(config.sessions.of(identity, exchange))
}

#[async_trait]
impl Exchange<HeaderValue> for Federated {
    async fn obtain(&self) -> Result<Fresh<HeaderValue>, SessionError> {
        let fields = [
            ("client_id", &*self.client),
            ("scope", STORAGE),
            ("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"),
            ("client_assertion", &*self.token),
            ("grant_type", "client_credentials"),
        ];
        let request = self.server.form(&format!("/{}/oauth2/v2.0/token", self.tenant), &fields)?;
        let (parts, text) = self.server.ask(request).await?;
        let answer: Value = serde_json::from_slice(&text).unwrap_or_default();
        if !parts.status.is_success() {
            return Err(self.refusal(parts.status, &answer));
        }
        let token = answer["access_token"].as_str().and_then(header);
        let left = answer["expires_in"].as_i64().and_then(TimeDelta::try_seconds);
        let (Some(token), Some(left)) = (token, left) else {
            return Err(self.server.failed("answered without a token: it is not Microsoft Entra"));
        };
        Fresh::new(token, Some(left)).map_err(|what| self.server.failed(what))
    }
}

impl Federated {
    fn refusal(&self, status: StatusCode, answer: &Value) -> SessionError {
        let text = |name: &str| shown(answer[name].as_str().unwrap_or_default(), &self.token);
        let (code, message) = (text("error"), text("error_description"));
        let begins = |code: &str| message.split(|c: char| !c.is_ascii_alphanumeric()).next() == Some(code);
        let hint = HINTS.iter().find_map(|&(code, hint)| begins(code).then_some(hint)).unwrap_or_default();
        let Self { server, client, tenant, .. } = self;
        let said = format!("{} did not give a token of {client} of the tenant {tenant}: {status} {code}", server.url);
        refusal(status, &said, &message, hint)
    }
}
