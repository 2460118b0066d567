//! AWS Security Token Service, and servers that answer as it does (MinIO, Ceph RGW): tokens and keys are exchanged for
//! the keys of a role.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use http::StatusCode;
use object_store::aws::{AwsAuthorizer, AwsCredential, AwsCredentialProvider};
use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::Event;

use crate::key_server::{KeyServer, is_busy, remaining, shown};
use crate::keys::{Exchange, Fresh, SessionError};

/// The longest token that is read from a file.
const TOKEN_BYTES: u64 = 64 << 10;

/// A server that gives out the keys of roles.
#[derive(Clone, Debug)]
pub(crate) struct Sts {
    pub(crate) server: KeyServer,
    pub(crate) region: String,
}

/// The role whose keys are requested.
#[derive(Clone, Debug)]
pub(crate) struct Role {
    pub(crate) arn: String,
    /// Names the session in the logs of the server.
    pub(crate) session_name: String,
}

/// The token of a web identity.
pub(crate) enum Token {
    Given(String),
    /// Read for each exchange, because its owner renews it.
    File(PathBuf),
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given(_) => f.write_str("Given"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

/// A token exchanged by `AssumeRoleWithWebIdentity`.
#[derive(Debug)]
pub(crate) struct WebIdentity {
    pub(crate) sts: Sts,
    pub(crate) role: Role,
    pub(crate) token: Token,
}

/// Keys exchanged by `AssumeRole`.
#[derive(Debug)]
pub(crate) struct AssumedRole {
    pub(crate) sts: Sts,
    pub(crate) role: Role,
    pub(crate) external_id: Option<String>,
    /// The keys that may assume the role.
    pub(crate) source: AwsCredentialProvider,
}

#[async_trait]
impl Exchange for WebIdentity {
    async fn obtain(&self) -> Result<Fresh, SessionError> {
        let token = match &self.token {
            Token::Given(token) => token.clone(),
            Token::File(path) => read_token(path.clone()).await?,
        };
        let form = [
            ("Action", "AssumeRoleWithWebIdentity"),
            ("RoleArn", &*self.role.arn),
            ("RoleSessionName", &*self.role.session_name),
            ("WebIdentityToken", &*token),
        ];
        self.sts.assume(&self.role, &form, None, &token).await
    }
}

#[async_trait]
impl Exchange for AssumedRole {
    async fn obtain(&self) -> Result<Fresh, SessionError> {
        let keys = self.source.get_credential().await.map_err(|error| {
            if let object_store::Error::Generic { source, .. } = &error
                && let Some(error) = source.downcast_ref::<SessionError>()
            {
                return error.clone();
            }
            SessionError::failed_by(format!("there are no keys to assume {}", self.role.arn), error)
        })?;
        let mut form =
            vec![("Action", "AssumeRole"), ("RoleArn", &*self.role.arn), ("RoleSessionName", &*self.role.session_name)];
        form.extend(self.external_id.as_deref().map(|id| ("ExternalId", id)));
        self.sts.assume(&self.role, &form, Some(&keys), &keys.secret_key).await
    }
}

async fn read_token(path: PathBuf) -> Result<String, SessionError> {
    let read = tokio::task::spawn_blocking(move || {
        use std::io::Read;
        let mut token = String::new();
        let opened = std::fs::File::open(&path);
        let read = opened.and_then(|file| file.take(TOKEN_BYTES).read_to_string(&mut token));
        read.map_err(|error| SessionError::failed_by(format!("read the token {}", path.display()), error))?;
        Ok(token.trim().to_owned())
    });
    read.await.unwrap_or_else(|error| Err(SessionError::failed_by("read the token", error)))
}

impl Sts {
    /// Requests the keys of a role. An error never repeats `secret`, even if the server does.
    async fn assume(
        &self,
        role: &Role,
        form: &[(&str, &str)],
        keys: Option<&Arc<AwsCredential>>,
        secret: &str,
    ) -> Result<Fresh, SessionError> {
        let failed = |what: String| self.server.failed(what);
        let mut request = self.server.form("/", &[&[("Version", "2011-06-15")][..], form].concat())?;
        if let Some(keys) = keys {
            let signed = AwsAuthorizer::new(keys, "sts", &self.region).try_authorize(&mut request, None);
            signed
                .map_err(|_| failed("cannot be asked: the keys contain characters that no header can have".into()))?;
        }
        let (parts, text) = self.server.ask(request).await?;
        let answer = Answer::parse(&String::from_utf8_lossy(&text));
        if !parts.status.is_success() {
            return Err(self.refusal(role, parts.status, &answer, secret));
        }
        let (Some(key_id), Some(secret_key), Some(expiration)) = (answer.key_id, answer.secret_key, answer.expiration)
        else {
            return Err(failed("answered without keys: it is not an STS".to_owned()));
        };
        let left = remaining(&expiration, &parts.headers).map_err(failed)?;
        let credential = AwsCredential { key_id, secret_key, token: answer.session_token };
        Fresh::new(credential, Some(left)).map_err(failed)
    }

    fn refusal(&self, role: &Role, status: StatusCode, answer: &Answer, secret: &str) -> SessionError {
        let shown = |text: &Option<String>| shown(text.as_deref().unwrap_or_default(), secret);
        let (code, message) = (shown(&answer.code), shown(&answer.message));
        let colon = if message.is_empty() { "" } else { ": " };
        let hint = match code.trim_end_matches("Exception") {
            "AccessDenied" => {
                "; the role's trust policy must name the ServiceAccount \
                 (system:serviceaccount:NAMESPACE:NAME) and the audience of the token"
            }
            "InvalidIdentityToken" => {
                "; the issuer of the cluster's tokens must be a provider there, and the token's audience one of its \
                 clients (tokenRequests of the CSIDriver, attribute `audience`)"
            }
            "ExpiredToken" => "; a new token is used as soon as there is one; are the clocks right?",
            _ => "",
        };
        let said =
            format!("{} did not give the keys of {}: {status} {code}{colon}{message}{hint}", self.server.url, role.arn);
        let busy = ["Throttling", "RequestLimitExceeded", "IDPCommunicationError", "ServiceUnavailable", "SlowDown"];
        match is_busy(status) || busy.iter().any(|busy| code.starts_with(busy)) {
            true => SessionError::failed(said),
            false => SessionError::Refused(said),
        }
    }
}

/// The parts of an answer that matter, whatever elements they are in.
#[derive(Default)]
struct Answer {
    key_id: Option<String>,
    secret_key: Option<String>,
    session_token: Option<String>,
    expiration: Option<String>,
    code: Option<String>,
    message: Option<String>,
}

impl Answer {
    /// Parses an answer as far as it is XML.
    fn parse(text: &str) -> Self {
        let mut answer = Self::default();
        let mut reader = Reader::from_str(text);
        let mut value = String::new();
        while let Ok(event) = reader.read_event() {
            match event {
                Event::Start(_) => value.clear(),
                Event::Text(piece) => value.push_str(&piece.decode().unwrap_or_default()),
                Event::CData(piece) => value.push_str(&piece.decode().unwrap_or_default()),
                Event::GeneralRef(entity) => match entity.resolve_char_ref() {
                    Ok(Some(character)) => value.push(character),
                    Ok(None) | Err(_) => {
                        let name = entity.decode().unwrap_or_default();
                        value.push_str(resolve_predefined_entity(&name).unwrap_or_default());
                    }
                },
                Event::End(end) => {
                    let part = match end.local_name().as_ref() {
                        b"AccessKeyId" => &mut answer.key_id,
                        b"SecretAccessKey" => &mut answer.secret_key,
                        b"SessionToken" => &mut answer.session_token,
                        b"Expiration" => &mut answer.expiration,
                        b"Code" => &mut answer.code,
                        b"Message" => &mut answer.message,
                        _ => continue,
                    };
                    let text = std::mem::take(&mut value);
                    let text = text.trim();
                    if !text.is_empty() {
                        *part = Some(text.to_owned());
                    }
                }
                Event::Eof => break,
                Event::Empty(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
            }
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_an_answer_are_found_wherever_they_are() {
        let answer = Answer::parse(
            "<?xml version=\"1.0\"?><x:R xmlns:x=\"u\"><x:C><AccessKeyId> A&amp;&#66; </AccessKeyId>\
             <SecretAccessKey><![CDATA[s/e+c]]></SecretAccessKey><SessionToken/>\
             <Expiration>2026-01-01T00:00:00Z</Expiration></x:C></x:R>",
        );
        assert_eq!((answer.key_id.as_deref(), answer.secret_key.as_deref()), (Some("A&B"), Some("s/e+c")));
        assert_eq!((answer.session_token, answer.expiration.as_deref()), (None, Some("2026-01-01T00:00:00Z")));
        for junk in ["", "<", "{}", "<a><AccessKeyId>", "<html><b>no</html>", "\0\u{ffff}"] {
            assert!(Answer::parse(junk).key_id.is_none(), "{junk}");
        }
    }

    #[test]
    fn a_token_is_not_shown() {
        assert!(!format!("{:?}", Token::Given("hunter2".to_owned())).contains("hunter2"));
    }
}
