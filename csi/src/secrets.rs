//! A volume's Secret, checked: the credentials that read its origin, and the token that gives its blocks to other
//! nodes.
//!
//! Invariant: no error contains a value.

use std::collections::HashMap;

use larder_daemon_api::v1::Credentials;
use larder_dataset::environment::PEER_TOKEN;

use crate::attributes::{AttributeError, printable};

/// The keys that a Secret may have, and the variables that they stand for.
const SECRETS: [(&str, &str); 11] = [
    ("AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID"),
    ("AWS_SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY"),
    ("AWS_SESSION_TOKEN", "AWS_SESSION_TOKEN"),
    ("accessKeyId", "AWS_ACCESS_KEY_ID"),
    ("secretAccessKey", "AWS_SECRET_ACCESS_KEY"),
    ("sessionToken", "AWS_SESSION_TOKEN"),
    ("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_SERVICE_ACCOUNT_KEY"),
    ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_NAME"),
    ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCOUNT_KEY"),
    ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_TOKEN"),
    (PEER_TOKEN, PEER_TOKEN),
];

/// Variables that are useless without another.
const NEEDS: [(&str, &str); 5] = [
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
    ("AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID"),
    ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCOUNT_NAME"),
    ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_ACCOUNT_NAME"),
];

/// Reads the node-publish secrets; `inline`: a pod author wrote them. `None`: there are none, and larderd uses its own
/// identity.
pub fn credentials(secrets: &HashMap<String, String>, inline: bool) -> Result<Option<Credentials>, AttributeError> {
    let mut variables = HashMap::new();
    for (key, value) in secrets {
        let secret = |what: String| AttributeError::Secret { name: printable(key), what };
        let Some((_, variable)) = SECRETS.iter().find(|(known, _)| known == key) else {
            let known: Vec<_> = SECRETS.iter().map(|(known, _)| *known).collect();
            return Err(secret(format!("is unknown; known are {}", known.join(", "))));
        };
        // The token is the administrator's: a pod author could only shut other nodes out with one.
        if *variable == PEER_TOKEN && inline {
            return Err(secret(
                "is not for inline volumes: these use larderd's own token, from the Secret larder-origin".to_owned(),
            ));
        }
        // `echo` and editors add newlines at the end.
        let value = value.trim_end_matches(['\n', '\r']);
        if value.is_empty() || value.len() > (16 << 10) {
            return Err(secret("is empty or too long".to_owned()));
        }
        if *variable == "GOOGLE_SERVICE_ACCOUNT_KEY" && names_a_server(value) {
            return Err(secret("names a server of its own: set `endpoint` in the volume instead".to_owned()));
        }
        if variables.insert((*variable).to_owned(), value.to_owned()).is_some() {
            return Err(secret(format!("is set twice, also as {variable}")));
        }
    }
    let needs = |has: &str, what: &str| Err(AttributeError::Secret { name: has.to_owned(), what: what.to_owned() });
    for (has, other) in NEEDS {
        if variables.contains_key(has) && !variables.contains_key(other) {
            return needs(has, &format!("requires {other}"));
        }
    }
    // A token alone would be an identity that may read nothing.
    if variables.len() == 1 && variables.contains_key(PEER_TOKEN) {
        return needs(
            PEER_TOKEN,
            "requires keys for the origin; a volume without keys uses larderd's own token, from the Secret \
             larder-origin",
        );
    }
    Ok((!variables.is_empty()).then_some(Credentials { variables }))
}

/// True if a service account's key decides which server is asked, or that nobody asks for a token. Whoever wrote a
/// Secret says who reads, and not from where.
fn names_a_server(key: &str) -> bool {
    let fields = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(key).unwrap_or_default();
    ["gcs_base_url", "disable_oauth"].iter().any(|field| fields.contains_key(*field))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn secrets_are_whole_and_known() {
        let good = credentials(&map(&[("accessKeyId", "a"), ("AWS_SECRET_ACCESS_KEY", "s\n")]), true).expect("good");
        assert_eq!(good.expect("some").variables["AWS_SECRET_ACCESS_KEY"], "s");
        assert_eq!(credentials(&map(&[]), false), Ok(None));
        for (name, pairs) in [
            ("password", [("password", "hunter2")].as_slice()),
            ("AWS_ACCESS_KEY_ID", &[("accessKeyId", "hunter2")]),
            ("AWS_SECRET_ACCESS_KEY", &[("secretAccessKey", "hunter2")]),
            ("AWS_SESSION_TOKEN", &[("sessionToken", "hunter2")]),
            ("AZURE_STORAGE_ACCOUNT_KEY", &[("AZURE_STORAGE_ACCOUNT_KEY", "hunter2")]),
            ("LARDER_PEER_TOKEN", &[("LARDER_PEER_TOKEN", "hunter2")]),
        ] {
            let error = credentials(&map(pairs), false).expect_err(name).to_string();
            assert!(error.contains(&format!("`{name}`")) && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_token_is_for_the_administrators_volumes() {
        let secrets = map(&[("accessKeyId", "a"), ("secretAccessKey", "s"), ("LARDER_PEER_TOKEN", "hunter2\n")]);
        let got = credentials(&secrets, false).expect("good").expect("some");
        assert_eq!(got.variables["LARDER_PEER_TOKEN"], "hunter2");
        let error = credentials(&secrets, true).expect_err("a pod author's").to_string();
        assert!(error.contains("`LARDER_PEER_TOKEN` is not for inline volumes"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn a_service_accounts_key_does_not_say_which_server_is_asked() {
        let sound = r#"{"client_email": "a@b", "private_key": "hunter2", "private_key_id": "1"}"#;
        credentials(&map(&[("GOOGLE_SERVICE_ACCOUNT_KEY", sound)]), true).expect("sound");
        for field in [r#""gcs_base_url": "http://10.0.0.1""#, r#""disable_oauth": true"#] {
            let key = format!(r#"{{{field}, "private_key": "hunter2"}}"#);
            for inline in [true, false] {
                let error =
                    credentials(&map(&[("GOOGLE_SERVICE_ACCOUNT_KEY", &key)]), inline).expect_err(field).to_string();
                assert!(error.contains("a server of its own") && !error.contains("hunter2"), "{error}");
            }
        }
    }
}
