//! The shared AWS files: `~/.aws/credentials` and `~/.aws/config`.
//!
//! Reads only the settings that a data mount needs: keys, session token, region and endpoint. If the profile has no
//! keys but another way to get them (single sign-on, roles, helper programs), it is rejected by name instead of failing
//! later with a puzzling "access denied". The invariant: secrets are never printed.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::config::Env;
use crate::error::OriginError;

/// The settings of one profile.
#[derive(Default, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) keys: Option<Keys>,
    pub(crate) region: Option<String>,
    pub(crate) endpoint: Option<String>,
}

/// A key pair with its session token.
#[derive(PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) id: String,
    pub(crate) secret: String,
    pub(crate) token: Option<String>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("id", &self.id).finish_non_exhaustive()
    }
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile").field("keys", &self.keys).field("region", &self.region).finish_non_exhaustive()
    }
}

/// Unsupported settings through which a profile may get its keys.
const UNSUPPORTED: [&str; 6] =
    ["credential_process", "sso_session", "sso_start_url", "role_arn", "source_profile", "web_identity_token_file"];

type Sections = BTreeMap<String, BTreeMap<String, String>>;

/// Reads the profile that the environment names, or `default` if it names none. A missing file counts as empty.
///
/// # Errors
/// `Invalid` if a file cannot be read or parsed, or if no file has the profile that `AWS_PROFILE` names.
pub(crate) fn read(env: &Env) -> Result<Profile, OriginError> {
    let named = env.get("AWS_PROFILE");
    let name = named.unwrap_or("default");
    let credentials = sections(&file(env, "AWS_SHARED_CREDENTIALS_FILE", "credentials"))?;
    let config = sections(&file(env, "AWS_CONFIG_FILE", "config"))?;
    let in_credentials = credentials.get(name);
    // The config file names every profile except the default one "profile NAME".
    let in_config = config.get(&format!("profile {name}")).or_else(|| config.get(name).filter(|_| name == "default"));
    if named.is_some() && in_credentials.is_none() && in_config.is_none() {
        return Err(OriginError::Invalid {
            what: format!(
                "AWS_PROFILE names the profile {name:?}, which neither the credentials file nor the config file \
                 contains"
            ),
        });
    }
    let get = |key: &str| {
        in_credentials
            .and_then(|section| section.get(key))
            .or_else(|| in_config.and_then(|section| section.get(key)))
            .cloned()
    };
    let keys = match (get("aws_access_key_id"), get("aws_secret_access_key")) {
        (Some(id), Some(secret)) => Some(Keys { id, secret, token: get("aws_session_token") }),
        (None, None) => None,
        _ => {
            return Err(OriginError::Invalid {
                what: format!("the AWS profile {name:?} has only one of aws_access_key_id and aws_secret_access_key"),
            });
        }
    };
    if keys.is_none()
        && named.is_some()
        && let Some(how) = UNSUPPORTED.into_iter().find(|how| get(how).is_some())
    {
        return Err(OriginError::Invalid {
            what: format!(
                "the AWS profile {name:?} gets its keys by {how}, which is not supported: \
                 export the keys instead (aws configure export-credentials --format env)"
            ),
        });
    }
    Ok(Profile { keys, region: get("region"), endpoint: get("endpoint_url") })
}

fn file(env: &Env, variable: &str, name: &str) -> PathBuf {
    match (env.get(variable), env.get("HOME")) {
        (Some(path), _) => PathBuf::from(path),
        (None, Some(home)) => Path::new(home).join(".aws").join(name),
        (None, None) => PathBuf::new(),
    }
}

fn sections(path: &Path) -> Result<Sections, OriginError> {
    if path.as_os_str().is_empty() {
        return Ok(Sections::new());
    }
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text)
            .map_err(|line| OriginError::Invalid { what: format!("{}: line {line} cannot be parsed", path.display()) }),
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            Ok(Sections::new())
        }
        Err(error) => Err(OriginError::Invalid { what: format!("read {}: {error}", path.display()) }),
    }
}

/// Parses the files' INI dialect. The error is the line number. Indented lines are nested settings of the previous line
/// (`s3 =`); none of them is needed here.
fn parse(text: &str) -> Result<Sections, usize> {
    let mut sections = Sections::new();
    let mut current: Option<String> = None;
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(header) = trimmed.strip_prefix('[') {
            let (name, _) = header.split_once(']').ok_or(number + 1)?;
            let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
            sections.entry(name.clone()).or_default();
            current = Some(name);
            continue;
        }
        if line.starts_with([' ', '\t']) {
            continue;
        }
        let (key, value) = trimmed.split_once('=').ok_or(number + 1)?;
        let section = current.as_ref().and_then(|name| sections.get_mut(name)).ok_or(number + 1)?;
        // A comment within a line must follow a space, because secrets may contain '#'.
        let value = value.split(" #").next().unwrap_or(value).split(" ;").next().unwrap_or(value).trim();
        if !value.is_empty() {
            section.insert(key.trim().to_ascii_lowercase(), value.to_string());
        }
    }
    Ok(sections)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(folder: &Path, more: &[(&str, &str)]) -> Env {
        let file = |name| folder.join(name).to_string_lossy().into_owned();
        let mut env: Env = [("AWS_SHARED_CREDENTIALS_FILE", file("credentials")), ("AWS_CONFIG_FILE", file("config"))]
            .into_iter()
            .collect();
        more.iter().for_each(|(name, value)| env.set(*name, *value));
        env
    }

    fn folder(credentials: &str, config: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("credentials"), credentials).expect("write");
        std::fs::write(folder.path().join("config"), config).expect("write");
        folder
    }

    #[test]
    fn profile_is_put_together_from_both_files() {
        let folder = folder(
            "[default]\naws_access_key_id = A\naws_secret_access_key=B # mine\n\
             [lab]\nAWS_ACCESS_KEY_ID=LK\naws_secret_access_key = s#e=c\naws_session_token=T\n",
            "# comment\n[default]\nregion = eu-west-1\n\
             [profile  lab]\nregion=lab-1\nendpoint_url = http://rgw:7480\ns3 =\n  addressing_style = path\n",
        );
        let default = read(&env(folder.path(), &[])).expect("default");
        assert_eq!(default.keys, Some(Keys { id: "A".into(), secret: "B".into(), token: None }));
        assert_eq!(default.region.as_deref(), Some("eu-west-1"));
        let lab = read(&env(folder.path(), &[("AWS_PROFILE", "lab")])).expect("lab");
        assert_eq!(lab.keys, Some(Keys { id: "LK".into(), secret: "s#e=c".into(), token: Some("T".into()) }));
        assert_eq!((lab.region.as_deref(), lab.endpoint.as_deref()), (Some("lab-1"), Some("http://rgw:7480")));
        assert!(!format!("{lab:?}").contains("s#e=c"));
    }

    #[test]
    fn home_is_used_where_no_file_is_named_and_missing_files_are_empty() {
        let home = tempfile::tempdir().expect("a folder");
        let env: Env = [("HOME", home.path().to_string_lossy())].into_iter().collect();
        assert_eq!(read(&env).expect("empty"), Profile::default());
        std::fs::create_dir(home.path().join(".aws")).expect("mkdir");
        std::fs::write(home.path().join(".aws/config"), "[default]\nregion=r\n").expect("write");
        assert_eq!(read(&env).expect("config").region.as_deref(), Some("r"));
        assert_eq!(read(&Env::default()).expect("nothing"), Profile::default());
    }

    #[test]
    fn mistakes_are_refused_by_name() {
        let cases = [
            ("", "", "gone", "AWS_PROFILE"),
            ("[p]\naws_access_key_id=A\n", "", "p", "only one of"),
            ("", "[profile p]\ncredential_process = /bin/x\n", "p", "credential_process"),
            ("nonsense\n", "", "p", "line 1"),
            ("[p\n", "", "p", "line 1"),
        ];
        for (credentials, config, profile, expected) in cases {
            let folder = folder(credentials, config);
            let error = read(&env(folder.path(), &[("AWS_PROFILE", profile)])).expect_err(expected);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
