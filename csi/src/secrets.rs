//! Checks a volume's Secret: the credentials that read its origin, and the token with which nodes share its blocks.
//!
//! Invariants: no error contains a value. The author of a Secret chooses the identity that reads, but cannot choose the
//! server, and cannot select the machine's own identity: to stores for which the Secret has no keys, requests are sent
//! without credentials.

use std::collections::{BTreeMap, HashMap};

use larder_daemon_api::v1::Credentials;
use larder_dataset::DatasetSpec;
use larder_dataset::environment::PEER_TOKEN;
use larder_dataset::written::is_mirror_name;

use crate::attributes::{AttributeError, printable};
use crate::pod_identity::TOKENS;

/// The keys that a Secret may have, and the variables that they set.
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

/// Variables that require another variable.
const NEEDS: [(&str, &str); 5] = [
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
    ("AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID"),
    ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCOUNT_NAME"),
    ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_ACCOUNT_NAME"),
];

/// The keys for a kind of store.
struct Keys {
    /// The prefix of the store's URLs.
    scheme: &'static str,
    /// One of these variables is enough, together with the variables that it requires.
    any: &'static [&'static str],
    /// The keys as text for error messages.
    words: &'static str,
    /// The variable that makes requests unsigned. Without it, the store's client would look for the machine's own
    /// identity.
    unsigned: &'static str,
}

const KEYS: [Keys; 3] = [
    Keys {
        scheme: "s3://",
        any: &["AWS_ACCESS_KEY_ID"],
        words: "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        unsigned: "AWS_SKIP_SIGNATURE",
    },
    Keys {
        scheme: "gs://",
        any: &["GOOGLE_SERVICE_ACCOUNT_KEY"],
        words: "GOOGLE_SERVICE_ACCOUNT_KEY",
        unsigned: "GOOGLE_SKIP_SIGNATURE",
    },
    Keys {
        scheme: "az://",
        any: &["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"],
        words: "AZURE_STORAGE_ACCOUNT_NAME, with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
        unsigned: "AZURE_SKIP_SIGNATURE",
    },
];

impl Keys {
    fn are_in(&self, given: &Credentials) -> bool {
        self.any.iter().any(|variable| given.variables.contains_key(*variable))
    }
}

/// Checks that a Secret has the keys that the origin of `spec` requires. With `must`, an empty Secret is an error as
/// well. A manifest at another store may describe an origin of another kind, which is then read without credentials.
pub fn check_keys(given: Option<&Credentials>, spec: &DatasetSpec, must: bool) -> Result<(), AttributeError> {
    let keys = KEYS.iter().find(|keys| spec.source.starts_with(keys.scheme));
    match (given, keys) {
        (None, _) if must => {
            let words = keys.map_or("keys", |keys| keys.words);
            Err(AttributeError::value(
                "identity",
                format!("is `secret`, and the volume's Secret is empty: put {words} there"),
            ))
        }
        (Some(given), Some(keys)) if !spec.anonymous && !keys.are_in(given) => {
            Err(AttributeError::MissingKeys { scheme: keys.scheme, missing: keys.words })
        }
        (None | Some(_), _) => Ok(()),
    }
}

/// Parses the node-publish secrets. `inline` is true if a pod author wrote them. Returns `None` if there are none;
/// larderd then uses its own identity. Keys of a mirror have its name and a dot before theirs, and so have the
/// variables that they set.
pub fn credentials(secrets: &HashMap<String, String>, inline: bool) -> Result<Option<Credentials>, AttributeError> {
    let mut own = HashMap::new();
    let mut of_mirrors: BTreeMap<&str, HashMap<String, String>> = BTreeMap::new();
    for (key, value) in secrets.iter().filter(|(key, _)| *key != TOKENS) {
        match key.split_once('.').filter(|(mirror, _)| !inline && is_mirror_name(mirror)) {
            Some((mirror, key)) => drop(of_mirrors.entry(mirror).or_default().insert(key.to_owned(), value.clone())),
            None => drop(own.insert(key.clone(), value.clone())),
        }
    }
    let mut given = one_store(&own, inline)?;
    for (mirror, secrets) in of_mirrors {
        let keys = one_store(&secrets, false).map_err(|error| match error {
            AttributeError::Secret { name, what } => AttributeError::Secret { name: format!("{mirror}.{name}"), what },
            error => error,
        })?;
        let variables = keys.into_iter().flat_map(|keys| keys.variables);
        let named = variables.map(|(name, value)| (format!("{mirror}.{name}"), value));
        given.get_or_insert_with(Credentials::default).variables.extend(named);
    }
    Ok(given)
}

/// The credentials for one store.
fn one_store(secrets: &HashMap<String, String>, inline: bool) -> Result<Option<Credentials>, AttributeError> {
    let mut variables = HashMap::new();
    for (key, value) in secrets {
        let secret = |what: String| AttributeError::Secret { name: printable(key), what };
        let Some((_, variable)) = SECRETS.iter().find(|(known, _)| known == key) else {
            let known: Vec<_> = SECRETS.iter().map(|(known, _)| *known).collect();
            return Err(secret(format!("is unknown; known are {}", known.join(", "))));
        };
        // Only the administrator sets the token: a pod author's token could only exclude other nodes.
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
        if *variable == "GOOGLE_SERVICE_ACCOUNT_KEY" {
            check_service_account(value).map_err(|what| secret(what.to_owned()))?;
        }
        // The account name becomes part of the server's host name, so it must not contain other characters.
        if *variable == "AZURE_STORAGE_ACCOUNT_NAME" && !is_account_name(value) {
            return Err(secret(
                "is not the name of a storage account: 3 to 24 lower-case letters and digits".to_owned(),
            ));
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
    // A token without keys would be an identity that cannot read anything.
    if variables.len() == 1 && variables.contains_key(PEER_TOKEN) {
        return needs(
            PEER_TOKEN,
            "requires keys for the origin; a volume without keys uses larderd's own token, from the Secret \
             larder-origin",
        );
    }
    if variables.is_empty() {
        return Ok(None);
    }
    let mut given = Credentials { variables };
    for keys in KEYS {
        if !keys.are_in(&given) {
            given.variables.insert(keys.unsigned.to_owned(), "true".to_owned());
        }
    }
    Ok(Some(given))
}

/// Rejects a service account key that chooses the server, or that disables authentication. The key must be a JSON
/// object: the client also accepts a JSON list, in which fields have no names and could not be checked.
fn check_service_account(key: &str) -> Result<(), &'static str> {
    let fields = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(key)
        .map_err(|_| "is not the key of a service account as Google writes it: a JSON object")?;
    if ["gcs_base_url", "disable_oauth"].iter().any(|field| fields.contains_key(*field)) {
        return Err("names a server of its own: set `endpoint` in the volume instead");
    }
    Ok(())
}

/// True for a valid Azure storage account name.
fn is_account_name(name: &str) -> bool {
    (3..=24).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
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

    // SEMANTICS: K18
    #[test]
    fn keys_of_a_mirror_are_checked_alike_and_keep_its_name() {
        let all = [
            ("accessKeyId", "ours"),
            ("secretAccessKey", "s"),
            ("eu.accessKeyId", "theirs"),
            ("eu.AWS_SECRET_ACCESS_KEY", "t"),
        ];
        let given = credentials(&map(&all), false).expect("good").expect("some").variables;
        assert_eq!((given["AWS_ACCESS_KEY_ID"].as_str(), given["eu.AWS_ACCESS_KEY_ID"].as_str()), ("ours", "theirs"));
        // Neither leads to the machine's identity.
        assert_eq!(
            (given["GOOGLE_SKIP_SIGNATURE"].as_str(), given["eu.GOOGLE_SKIP_SIGNATURE"].as_str()),
            ("true", "true")
        );
        let error = credentials(&map(&[("eu.accessKeyId", "hunter2")]), false).expect_err("half").to_string();
        assert!(error.contains("`eu.AWS_ACCESS_KEY_ID`") && !error.contains("hunter2"), "{error}");
        let error = credentials(&map(&[("eu.password", "hunter2")]), false).expect_err("unknown").to_string();
        assert!(error.contains("eu.password") && !error.contains("hunter2"), "{error}");
        credentials(&map(&all), true).expect_err("a pod author names no mirrors");
    }

    // SEMANTICS: K7
    #[test]
    fn a_token_is_for_the_administrators_volumes() {
        let secrets = map(&[("accessKeyId", "a"), ("secretAccessKey", "s"), ("LARDER_PEER_TOKEN", "hunter2\n")]);
        let got = credentials(&secrets, false).expect("good").expect("some");
        assert_eq!(got.variables["LARDER_PEER_TOKEN"], "hunter2");
        let error = credentials(&secrets, true).expect_err("a pod author's").to_string();
        assert!(error.contains("`LARDER_PEER_TOKEN` is not for inline volumes"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }

    // SEMANTICS: K18
    #[test]
    fn a_service_accounts_key_does_not_say_which_server_is_asked() {
        let sound = r#"{"client_email": "a@b", "private_key": "hunter2", "private_key_id": "1"}"#;
        credentials(&map(&[("GOOGLE_SERVICE_ACCOUNT_KEY", sound)]), true).expect("sound");
        let list = r#"["hunter2", "1", "a@b", "http://10.0.0.1", true]"#;
        let error = credentials(&map(&[("GOOGLE_SERVICE_ACCOUNT_KEY", list)]), true).expect_err("a list").to_string();
        assert!(error.contains("a JSON object") && !error.contains("hunter2"), "{error}");
        for field in [r#""gcs_base_url": "http://10.0.0.1""#, r#""disable_oauth": true"#] {
            let key = format!(r#"{{{field}, "private_key": "hunter2"}}"#);
            for inline in [true, false] {
                let error =
                    credentials(&map(&[("GOOGLE_SERVICE_ACCOUNT_KEY", &key)]), inline).expect_err(field).to_string();
                assert!(error.contains("a server of its own") && !error.contains("hunter2"), "{error}");
            }
        }
    }
    // SEMANTICS: K18
    #[test]
    fn a_secret_does_not_say_which_server_is_asked_by_an_accounts_name() {
        for name in ["evil.example/?", "a@evil.example/", "Upper", "ab", "-abc", &"a".repeat(25), "abc\nd"] {
            let secrets = [("AZURE_STORAGE_ACCOUNT_NAME", name), ("AZURE_STORAGE_ACCOUNT_KEY", "hunter2")];
            let error = credentials(&map(&secrets), false).expect_err(name).to_string();
            assert!(error.contains("`AZURE_STORAGE_ACCOUNT_NAME`") && !error.contains(name), "{error}");
        }
    }

    // SEMANTICS: K18
    #[test]
    fn a_secret_must_have_the_keys_of_its_origin_and_never_leads_to_the_machines_identity() {
        let given = |pairs: &[(&str, &str)]| credentials(&map(pairs), false).expect("good");
        let aws = given(&[("accessKeyId", "hunter2"), ("secretAccessKey", "hunter2")]);
        let account = given(&[("AZURE_STORAGE_ACCOUNT_NAME", "hunter2")]);
        let azure = given(&[("AZURE_STORAGE_ACCOUNT_NAME", "abc"), ("AZURE_STORAGE_SAS_TOKEN", "sig=hunter2")]);
        for (source, good, bad, words) in [
            ("s3://b", &aws, [&azure, &account], "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
            ("gs://b", &given(&[("GOOGLE_SERVICE_ACCOUNT_KEY", "{}")]), [&aws, &azure], "GOOGLE_SERVICE_ACCOUNT_KEY"),
            ("az://b", &azure, [&aws, &account], "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN"),
        ] {
            let spec = DatasetSpec::new(source);
            assert_eq!(check_keys(good.as_ref(), &spec, true), Ok(()));
            for bad in bad {
                let error = check_keys(bad.as_ref(), &spec, false).expect_err(source).to_string();
                assert!(error.contains(words) && !error.contains("hunter2"), "{error}");
                // A manifest that describes an origin of another kind does not lead to the machine's identity either.
                let unsigned = match &source[..2] {
                    "s3" => "AWS_SKIP_SIGNATURE",
                    "gs" => "GOOGLE_SKIP_SIGNATURE",
                    _ => "AZURE_SKIP_SIGNATURE",
                };
                assert_eq!(bad.as_ref().expect("some").variables[unsigned], "true");
                assert!(!good.as_ref().expect("some").variables.contains_key(unsigned));
            }
            let anonymous = DatasetSpec { anonymous: true, ..spec };
            assert_eq!(check_keys(account.as_ref(), &anonymous, false), Ok(()));
        }
    }

    // SEMANTICS: K18
    #[test]
    fn a_volume_that_must_be_read_with_its_secret_is_refused_without_keys() {
        for source in ["s3://b", "gs://b", "az://b", "file:///data"] {
            let spec = DatasetSpec::new(source);
            assert_eq!(check_keys(None, &spec, false), Ok(()));
            let error = check_keys(None, &spec, true).expect_err(source).to_string();
            assert!(error.contains("`identity`") && error.contains("is empty"), "{error}");
        }
    }
}
