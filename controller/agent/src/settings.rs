//! The settings of a process: environment variables that the controller sets in the pods of a job.

use std::io::Read;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use crate::key::{Key, KeyError};

/// The settings of this process.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The port on which all agents of the job listen.
    pub(crate) port: u16,
    pub(crate) key: Key,
    /// The address on which the agent listens.
    pub(crate) address: IpAddr,
    /// A peer counts as lost after this long without any data.
    pub(crate) silence: Duration,
    /// How long `rsh` retries to reach a host.
    pub(crate) connect: Duration,
    /// How long `wait` waits for all hosts together.
    pub(crate) wait: Duration,
}

/// A missing or invalid setting. No variant contains any byte of the key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("{0} is not set: it is in the pods of a job whose type has a launcher")]
    Missing(&'static str),
    #[error("{name} is `{value}`: {must}")]
    Wrong { name: &'static str, value: String, must: &'static str },
    #[error("read the key of the job {path}: {source}")]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("the key of the job {path}: {source}")]
    Key { path: PathBuf, source: KeyError },
}

/// No valid key file is longer.
const KEY_BYTES_MOST: u64 = 4096;

impl Settings {
    /// Reads the settings from the environment.
    pub(crate) fn read() -> Result<Self, SettingsError> {
        Self::of(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn of(variable: impl Fn(&'static str) -> Option<String>) -> Result<Self, SettingsError> {
        let required = |name| variable(name).ok_or(SettingsError::Missing(name));
        let seconds = |name, default| match variable(name) {
            None => Ok(Duration::from_secs(default)),
            Some(value) => match value.parse() {
                Ok(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds)),
                _ => Err(SettingsError::Wrong { name, value, must: "give whole seconds, from 1 to 86400" }),
            },
        };
        let name = "LARDER_AGENT_PORT";
        let port = required(name)?;
        let port = port.parse().map_err(|_| SettingsError::Wrong { name, value: port, must: "give a port" })?;
        let address = match variable("LARDER_AGENT_ADDRESS") {
            None => Ipv6Addr::UNSPECIFIED.into(),
            Some(value) => value.parse().map_err(|_| SettingsError::Wrong {
                name: "LARDER_AGENT_ADDRESS",
                value,
                must: "give an IP address",
            })?,
        };
        let path = PathBuf::from(required("LARDER_AGENT_KEY")?);
        let mut secret = Vec::new();
        std::fs::File::open(&path)
            .and_then(|file| file.take(KEY_BYTES_MOST).read_to_end(&mut secret))
            .map_err(|source| SettingsError::Unreadable { path: path.clone(), source })?;
        Ok(Self {
            port,
            key: Key::new(&secret).map_err(|source| SettingsError::Key { path, source })?,
            address,
            silence: seconds("LARDER_AGENT_SILENCE_SECONDS", 30)?,
            connect: seconds("LARDER_AGENT_CONNECT_SECONDS", 30)?,
            wait: seconds("LARDER_AGENT_WAIT_SECONDS", 1800)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(changed: &[(&'static str, &str)]) -> Result<Settings, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, [7; 32]).unwrap();
        let defaults = [("LARDER_AGENT_PORT", "7422"), ("LARDER_AGENT_KEY", path.to_str().unwrap())];
        let variable = |name| {
            let found = changed.iter().chain(&defaults).find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned()).filter(|value| !value.is_empty())
        };
        Settings::of(variable).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_those_that_the_usage_tells() {
        let settings = settings(&[]).unwrap();
        assert_eq!((settings.port, settings.address.to_string().as_str()), (7422, "::"));
        for (name, value) in [("SILENCE", settings.silence), ("CONNECT", settings.connect), ("WAIT", settings.wait)] {
            let line = crate::USAGE.lines().find(|line| line.starts_with(&format!("LARDER_AGENT_{name}"))).unwrap();
            assert!(line.ends_with(&format!("({})", value.as_secs())), "{line}");
        }
    }

    #[test]
    fn an_error_names_the_missing_or_invalid_setting() {
        let error = |name, value| settings(&[(name, value)]).unwrap_err();
        assert!(error("LARDER_AGENT_PORT", "").starts_with("LARDER_AGENT_PORT is not set"));
        assert_eq!(error("LARDER_AGENT_PORT", "70000"), "LARDER_AGENT_PORT is `70000`: give a port");
        assert!(error("LARDER_AGENT_WAIT_SECONDS", "0").contains("LARDER_AGENT_WAIT_SECONDS is `0`"));
        assert!(error("LARDER_AGENT_ADDRESS", "here").contains("give an IP address"));
        assert!(error("LARDER_AGENT_KEY", "/nowhere/key").contains("read the key of the job /nowhere/key"));
        assert!(error("LARDER_AGENT_KEY", "/dev/null").contains("too short"));
    }
}
