//! How to reach an origin: the flags, and the environment as a value.
//!
//! The invariant: nothing here reads the process's environment on its own. A caller that wants the usual `AWS_*`
//! variables passes [`Env::of_process`]; tests pass their own, so that no test affects another.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Environment variables as a value; only their number is ever printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Env(BTreeMap<String, String>);

impl Env {
    /// The variables of this process, except those that are not UTF-8.
    pub fn of_process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    /// The variable's value; an empty value counts as not set.
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
    /// The server, such as `http://127.0.0.1:9000`; overrides `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL` and the
    /// profile.
    pub endpoint: Option<String>,
    /// The region; overrides `AWS_REGION`, `AWS_DEFAULT_REGION` and the profile. Without any of these it is
    /// `us-east-1`.
    pub region: Option<String>,
    /// Sends no credentials, for public buckets.
    pub anonymous: bool,
    /// An attempt that makes no progress for this long is cancelled and retried.
    pub attempt_timeout: Duration,
    /// How long a connection may take to open.
    pub connect_timeout: Duration,
    /// How long one call may take, including all of its attempts. Its wait for a permit is bounded by the same time
    /// again.
    pub deadline: Duration,
    /// How many calls may be in flight; the others wait. An object store that refuses requests or slows down gets
    /// fewer.
    pub concurrency: usize,
    /// The variables that supply credentials and settings.
    pub env: Env,
}

impl OriginConfig {
    /// The settings that decide whose objects `url` names: the server, and for Azure the account. Texts that differ are
    /// of different origins.
    pub fn place(&self, url: &str) -> String {
        let endpoint = self.endpoint.clone().unwrap_or_default();
        match self.env.get("AZURE_STORAGE_ACCOUNT_NAME") {
            Some(account) if url.starts_with("az://") => format!("{endpoint} {account}"),
            _ => endpoint,
        }
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
