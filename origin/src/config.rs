//! How to reach an origin: the flags, and the environment as a value.
//!
//! The invariant: this module does not read the process's environment unless asked. A caller that wants the usual
//! `AWS_*` variables passes [`Env::of_process`]. Tests pass their own, so that no test affects another.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use larder_dataset::larder_command;

/// Environment variables as a value. `Debug` prints only their number.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Env(BTreeMap<String, String>);

impl Env {
    /// The environment of this process, without variables that are not UTF-8.
    pub fn of_process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    /// The value of a variable. An empty value counts as not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Sets a variable.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.insert(name.into(), value.into());
    }

    /// All variables that are set, sorted by name. Their values may be secrets.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str())).filter(|(_, value)| !value.is_empty())
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Env {
    fn from_iter<T: IntoIterator<Item = (N, V)>>(variables: T) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Env({} variables)", self.0.len())
    }
}

/// How to reach an origin.
#[derive(Debug, Clone)]
pub struct OriginConfig {
    /// The URL of the server, for example `http://127.0.0.1:9000`. Overrides `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`
    /// and the profile.
    pub endpoint: Option<String>,
    /// The region. Overrides `AWS_REGION`, `AWS_DEFAULT_REGION` and the profile. If none of these is set, it is
    /// `us-east-1`.
    pub region: Option<String>,
    /// True to send requests without credentials, for public buckets.
    pub anonymous: bool,
    /// An attempt that makes no progress for this long is cancelled and retried.
    pub attempt_timeout: Duration,
    /// How long a connection may take to open.
    pub connect_timeout: Duration,
    /// The limit for one call, including all of its attempts. Its wait for a permit is limited to the same time again.
    pub deadline: Duration,
    /// The most calls in flight; other calls wait. The limit decreases for an object store that refuses requests or
    /// slows down.
    pub concurrency: usize,
    /// The variables that supply credentials and settings, such as `AWS_ACCESS_KEY_ID`.
    pub env: Env,
}

impl OriginConfig {
    /// The settings that determine which store `url` refers to: the server, and for Azure the account. If the texts
    /// differ, the origins are different.
    pub fn place(&self, url: &str) -> String {
        let endpoint = self.endpoint.clone().unwrap_or_default();
        match self.env.get("AZURE_STORAGE_ACCOUNT_NAME") {
            Some(account) if url.starts_with("az://") => format!("{endpoint} {account}"),
            _ => endpoint,
        }
    }

    /// A `larder` command with the flags of these settings, ready to be pasted into a shell.
    pub fn command(&self, words: &[&str]) -> String {
        let mut words = words.to_vec();
        for (flag, value) in [("--endpoint", &self.endpoint), ("--region", &self.region)] {
            words.extend(value.iter().flat_map(|value| [flag, value]));
        }
        words.extend(self.anonymous.then_some("--anonymous"));
        larder_command(&words)
    }
}

impl Default for OriginConfig {
    /// The documented defaults and an empty environment.
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            anonymous: false,
            attempt_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            deadline: Duration::from_secs(60),
            concurrency: 64,
            env: Env::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_of_a_config_shows_no_variables() {
        let env: Env = [("AWS_SECRET_ACCESS_KEY", "hunter2")].into_iter().collect();
        let shown = format!("{:?}", OriginConfig { env, ..OriginConfig::default() });
        assert!(shown.contains("1 variables") && !shown.contains("AWS_") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn a_command_has_the_flags_that_were_given_and_words_that_a_shell_does_not_split() {
        let config = OriginConfig {
            endpoint: Some("http://h:9000".to_owned()),
            region: Some("eu".to_owned()),
            anonymous: true,
            ..OriginConfig::default()
        };
        let command = config.command(&["mount", "s3://b/it's mine", "DIR"]);
        let flags = "--endpoint http://h:9000 --region eu --anonymous";
        assert_eq!(command, format!(r"larder mount 's3://b/it'\''s mine' DIR {flags}"));
        assert_eq!(OriginConfig::default().command(&["import", ""]), "larder import ''");
    }

    #[test]
    fn one_url_in_two_accounts_or_on_two_servers_is_two_places() {
        let config = |endpoint: Option<&str>, account: Option<&str>| OriginConfig {
            endpoint: endpoint.map(str::to_owned),
            env: account.map(|account| ("AZURE_STORAGE_ACCOUNT_NAME", account)).into_iter().collect(),
            ..OriginConfig::default()
        };
        let (ours, theirs) = (config(None, Some("ours")), config(None, Some("theirs")));
        assert_ne!(ours.place("az://container/set"), theirs.place("az://container/set"));
        assert_eq!(ours.place("s3://bucket/set"), theirs.place("s3://bucket/set"), "S3 has no accounts");
        assert_eq!(config(None, None).place("s3://bucket/set"), "");
        assert_eq!(config(Some("http://a"), None).place("s3://bucket/set"), "http://a");
    }
}
