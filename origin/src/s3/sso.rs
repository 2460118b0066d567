//! Single sign-on: the token that `aws sso login` left in the cache of the AWS command line, exchanged for keys.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use async_trait::async_trait;
use aws_lc_rs::digest;
use chrono::{DateTime, Utc};
use http::HeaderValue;
use object_store::aws::AwsCredential;
use serde_json::Value;
use url::form_urlencoded;

use crate::key_server::KeyServer;
use crate::keys::{Exchange, Fresh, SessionError};

/// A role of an account that a user may have after single sign-on.
pub(crate) struct SingleSignOn {
    /// The server, `https://portal.sso.REGION.amazonaws.com`.
    pub(crate) portal: KeyServer,
    pub(crate) profile: String,
    pub(crate) account: String,
    pub(crate) role: String,
    /// The file with the token.
    pub(crate) token: PathBuf,
}

impl fmt::Debug for SingleSignOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleSignOn").field("profile", &self.profile).field("role", &self.role).finish_non_exhaustive()
    }
}

/// The name of the file that has the token of a session, or of a start URL for profiles without a session.
pub(crate) fn token_file(session_or_url: &str) -> String {
    let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, session_or_url.as_bytes());
    let hex: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{hex}.json")
}

impl SingleSignOn {
    fn log_in(&self) -> String {
        format!("run `aws sso login --profile {}`", self.profile)
    }

    /// The token, if it is valid.
    async fn token(&self) -> Result<HeaderValue, SessionError> {
        let path = self.token.clone();
        let read = tokio::task::spawn_blocking(move || std::fs::read(path)).await;
        let none = || SessionError::Refused(format!("there is no valid token of single sign-on: {}", self.log_in()));
        let text = read.ok().and_then(Result::ok).ok_or_else(none)?;
        let kept: Value = serde_json::from_slice(&text).map_err(|_| none())?;
        let end = kept["expiresAt"].as_str().and_then(|end| DateTime::parse_from_rfc3339(end).ok()).ok_or_else(none)?;
        if end.with_timezone(&Utc) <= DateTime::<Utc>::from(SystemTime::now()) {
            return Err(none());
        }
        let mut token =
            kept["accessToken"].as_str().and_then(|token| HeaderValue::try_from(token).ok()).ok_or_else(none)?;
        token.set_sensitive(true);
        Ok(token)
    }
}

#[async_trait]
impl Exchange for SingleSignOn {
    async fn obtain(&self) -> Result<Fresh, SessionError> {
        let failed = |what: &str| self.portal.failed(what);
        let query = form_urlencoded::Serializer::new(String::new())
            .extend_pairs([("role_name", &self.role), ("account_id", &self.account)])
            .finish();
        let mut request = self.portal.request(&format!("/federation/credentials?{query}"))?;
        request.headers_mut().insert("x-amz-sso_bearer_token", self.token().await?);
        let (parts, text) = self.portal.ask(request).await?;
        if parts.status.is_client_error() {
            return Err(SessionError::Refused(format!(
                "{} refuses the role {} of the account {} ({}): {}",
                self.portal.url,
                self.role,
                self.account,
                parts.status,
                self.log_in()
            )));
        }
        let answer: Value = serde_json::from_slice(&text).unwrap_or_default();
        let keys = &answer["roleCredentials"];
        let text = |name: &str| keys[name].as_str().map(str::to_owned);
        let (Some(key_id), Some(secret_key)) = (text("accessKeyId"), text("secretAccessKey")) else {
            return Err(failed("answered without keys"));
        };
        let end = keys["expiration"].as_i64().and_then(DateTime::from_timestamp_millis);
        let left = end.map(|end| end.signed_duration_since(DateTime::<Utc>::from(SystemTime::now())));
        let credential = AwsCredential { key_id, secret_key, token: text("sessionToken") };
        Fresh::new(credential, left).map_err(|what| failed(&what))
    }
}
