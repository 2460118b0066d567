//! How an origin is reached: the flags, and the environment as a value.
//!
//! The invariant: nothing here reads the process by itself. Who wants the usual `AWS_*` variables passes
//! [`Env::of_process`]; tests pass their own, so no test changes what another sees.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::pace::Pace;
use crate::retry::Patience;

/// Environment variables as a value; only their names are ever printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Env(BTreeMap<String, String>);

impl Env {
    /// The variables of this process, without those that are not UTF-8.
    pub fn of_process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    /// The variable's value; an empty one counts as not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Sets a variable.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.insert(name.into(), value.into());
    }

    /// All variables that are set, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
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
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// How an origin is reached.
#[derive(Debug, Clone)]
pub struct OriginConfig {
    /// The server, as in `http://127.0.0.1:9000`; goes before `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL` and the profile.
    pub endpoint: Option<String>,
    /// The region; goes before `AWS_REGION`, `AWS_DEFAULT_REGION` and the profile. Without any it is `us-east-1`.
    pub region: Option<String>,
    /// Sends no credentials, for public buckets.
    pub anonymous: bool,
    /// An attempt without any progress for this long is cut and made again.
    pub attempt_timeout: Duration,
    /// How long a connection may take to open.
    pub connect_timeout: Duration,
    /// How long one call may take over all of its attempts. Waiting for one's turn is bounded by the same time again.
    pub deadline: Duration,
    /// How many calls are under way at most; the others wait. Of an object store fewer, if it refuses or slows down.
    pub concurrency: usize,
    /// The variables that credentials and settings are taken from.
    pub env: Env,
}

impl Default for OriginConfig {
    /// The stated defaults and an empty environment.
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

impl OriginConfig {
    pub(crate) fn patience(&self, pace: &Arc<Pace>) -> Patience {
        Patience { pace: Arc::clone(pace), attempt: self.attempt_timeout, deadline: self.deadline }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_of_a_config_shows_no_values_of_variables() {
        let env: Env = [("AWS_SECRET_ACCESS_KEY", "hunter2")].into_iter().collect();
        let shown = format!("{:?}", OriginConfig { env, ..OriginConfig::default() });
        assert!(shown.contains("AWS_SECRET_ACCESS_KEY") && !shown.contains("hunter2"), "{shown}");
    }
}
