//! A volume's Secret, checked: the credentials that read its origin, and the token that opens its dataset to other nodes.
//!
//! Invariant: no value is in an error.

use std::collections::HashMap;

use larder_daemon_api::v1::Credentials;

use crate::attributes::{AttributeError, printable};

/// What opens a dataset to the nodes that show the same. It is the administrator's: in an inline volume the Secret is the
/// pod author's, who could only shut the others out by it.
const PEER_TOKEN: &str = "LARDER_PEER_TOKEN";

/// The variables that a secret may hold, and the other names of some.
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

/// What is no use without something else.
const NEEDS: [(&str, &str); 5] = [
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
    ("AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID"),
    ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCOUNT_NAME"),
    ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_ACCOUNT_NAME"),
];

/// Reads the node-publish secrets; `inline`: of a pod author. `None`: there are none, and larderd uses its own identity.
pub fn credentials(secrets: &HashMap<String, String>, inline: bool) -> Result<Option<Credentials>, AttributeError> {
    let mut variables = HashMap::new();
    for (key, value) in secrets {
        let secret = |what: String| AttributeError::Secret { name: printable(key), what };
        let Some((_, variable)) = SECRETS.iter().find(|(known, _)| known == key) else {
            let known: Vec<_> = SECRETS.iter().map(|(known, _)| *known).collect();
            return Err(secret(format!("is unknown; known are {}", known.join(", "))));
        };
        if *variable == PEER_TOKEN && inline {
            return Err(secret(
                "is not for inline volumes: the token of a listed dataset is larderd's own, in the Secret larder-origin"
                    .to_owned(),
            ));
        }
        // Line ends at the end come from `echo` and editors.
        let value = value.trim_end_matches(['\n', '\r']);
        if value.is_empty() || value.len() > (16 << 10) {
            return Err(secret("is empty or too long".to_owned()));
        }
        if variables.insert((*variable).to_owned(), value.to_owned()).is_some() {
            return Err(secret(format!("is given twice, also as {variable}")));
        }
    }
    let needs = |has: &str, what: &str| Err(AttributeError::Secret { name: has.to_owned(), what: what.to_owned() });
    for (has, other) in NEEDS {
        if variables.contains_key(has) && !variables.contains_key(other) {
            return needs(has, &format!("is no use without {other}"));
        }
    }
    // It would stand for an identity that may read nothing.
    if variables.len() == 1 && variables.contains_key(PEER_TOKEN) {
        return needs(
            PEER_TOKEN,
            "is no use without keys for the origin; what larderd reads with its own has larderd's own token, in the \
             Secret larder-origin",
        );
    }
    Ok((!variables.is_empty()).then_some(Credentials { variables }))
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
}
