//! The shared AWS files: `~/.aws/credentials` and `~/.aws/config`.
//!
//! Reads only the settings that a data mount needs: keys and other ways to them, region and endpoint. A profile whose
//! way to keys is not supported is rejected by name instead of failing later with a puzzling "access denied". The
//! invariant: secrets are never printed.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::config::Env;
use crate::error::OriginError;
use crate::s3::sso::token_file;

/// The settings of one profile.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) way: Option<Way>,
    pub(crate) region: Option<String>,
    pub(crate) endpoint: Option<String>,
}

/// How a profile gets its keys.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It has them.
    Keys(Keys),
    /// A role that a token may assume.
    WebIdentity { role: String, session_name: String, token: PathBuf },
    /// A role that the keys of a profile may assume.
    Role { role: String, session_name: String, external_id: Option<String>, source: Box<Way> },
    /// A program prints them.
    Process { profile: String, words: Words },
    /// A role of an account, after single sign-on.
    SingleSignOn { profile: String, account: String, role: String, region: String, token: PathBuf },
}

/// The words of a command. `Debug` does not show them.
#[derive(PartialEq, Eq)]
pub(crate) struct Words(pub(crate) Vec<String>);

/// A key pair with its session token.
#[derive(PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) id: String,
    pub(crate) secret: String,
    pub(crate) token: Option<String>,
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Words").field(&self.0.len()).finish()
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Settings of a role that are not supported.
const UNSUPPORTED: [&str; 2] = ["credential_source", "mfa_serial"];

/// The session name of a role whose profile sets none.
const SESSION_NAME: &str = "larder";

/// The most profiles that lead to each other by `source_profile`.
const SOURCES_MOST: usize = 5;

type Sections = BTreeMap<String, BTreeMap<String, String>>;

/// Both files.
struct Files<'a> {
    credentials: Sections,
    config: Sections,
    env: &'a Env,
}

/// Reads the profile that the environment names, or `default` if it names none. A missing file counts as empty.
///
/// # Errors
/// `Invalid` if a file cannot be read or parsed, if no file has the profile that `AWS_PROFILE` names, or if its way to
/// keys is incomplete or not supported.
pub(crate) fn read(env: &Env) -> Result<Profile, OriginError> {
    let named = env.get("AWS_PROFILE");
    let name = named.unwrap_or("default");
    let files = Files {
        credentials: sections(&file(env, "AWS_SHARED_CREDENTIALS_FILE", "credentials"))?,
        config: sections(&file(env, "AWS_CONFIG_FILE", "config"))?,
        env,
    };
    if named.is_some() && !files.has(name) {
        return Err(OriginError::Invalid {
            what: format!(
                "AWS_PROFILE names the profile {name:?}, which neither the credentials file nor the config file \
                 contains"
            ),
        });
    }
    // Keys of the environment precede, whatever the profile has.
    let has_keys = env.get("AWS_ACCESS_KEY_ID").is_some();
    let way = if has_keys { None } else { files.way(name, SOURCES_MOST)? };
    Ok(Profile { way, region: files.get(name, "region"), endpoint: files.get(name, "endpoint_url") })
}

impl Files<'_> {
    fn in_config(&self, name: &str) -> Option<&BTreeMap<String, String>> {
        // The config file names every profile except the default one "profile NAME".
        let section = self.config.get(&format!("profile {name}"));
        section.or_else(|| self.config.get(name).filter(|_| name == "default"))
    }

    fn has(&self, name: &str) -> bool {
        self.credentials.contains_key(name) || self.in_config(name).is_some()
    }

    fn get(&self, name: &str, key: &str) -> Option<String> {
        let in_credentials = self.credentials.get(name).and_then(|section| section.get(key));
        in_credentials.or_else(|| self.in_config(name)?.get(key)).cloned()
    }

    /// How a profile gets its keys, in the order of the AWS command line. `None` if it has no way to them.
    fn way(&self, name: &str, sources: usize) -> Result<Option<Way>, OriginError> {
        let get = |key: &str| self.get(name, key);
        let invalid = |what: String| OriginError::Invalid { what: format!("the AWS profile {name:?} {what}") };
        let keys = match (get("aws_access_key_id"), get("aws_secret_access_key")) {
            (Some(id), Some(secret)) => Some(Way::Keys(Keys { id, secret, token: get("aws_session_token") })),
            (None, None) => None,
            _ => return Err(invalid("has only one of aws_access_key_id and aws_secret_access_key".to_owned())),
        };
        let unsupported = UNSUPPORTED.into_iter().find(|how| get("role_arn").is_some() && get(how).is_some());
        if let Some(how) = unsupported {
            return Err(invalid(format!(
                "gets its keys by {how}, which is not supported: \
                 export the keys instead (aws configure export-credentials --format env)"
            )));
        }
        let session_name = get("role_session_name").unwrap_or_else(|| SESSION_NAME.to_owned());
        if let (Some(role), Some(token)) = (get("role_arn"), get("web_identity_token_file")) {
            return Ok(Some(Way::WebIdentity { role, session_name, token: token.into() }));
        }
        if let (Some(role), Some(source)) = (get("role_arn"), get("source_profile")) {
            // A profile may be its own source if it has keys.
            let source = match (source == name, sources) {
                (true, _) => keys,
                (false, 0) => None,
                (false, _) => self.way(&source, sources - 1)?,
            };
            let source = source.ok_or_else(|| invalid("names a source_profile without keys".to_owned()))?;
            let external_id = get("external_id");
            return Ok(Some(Way::Role { role, session_name, external_id, source: Box::new(source) }));
        }
        if keys.is_some() {
            return Ok(keys);
        }
        if get("role_arn").is_some() {
            return Err(invalid("has a role_arn without source_profile or web_identity_token_file".to_owned()));
        }
        if let Some(session) = get("sso_session").or_else(|| get("sso_start_url")) {
            let named = get("sso_session").map(|named| format!("sso-session {named}"));
            let region = match named {
                Some(section) => self.config.get(&section).and_then(|section| section.get("sso_region")).cloned(),
                None => get("sso_region"),
            };
            let (Some(region), Some(account), Some(role)) = (region, get("sso_account_id"), get("sso_role_name"))
            else {
                let what = "has single sign-on without sso_region, sso_account_id or sso_role_name";
                return Err(invalid(what.to_owned()));
            };
            let home = Path::new(self.env.get("HOME").unwrap_or_default());
            let token = home.join(".aws/sso/cache").join(token_file(&session));
            return Ok(Some(Way::SingleSignOn { profile: name.to_owned(), account, role, region, token }));
        }
        let Some(command) = get("credential_process") else { return Ok(None) };
        // The author of a Secret must not choose a command that runs here.
        let chosen = ["AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"];
        if chosen.into_iter().any(|variable| self.env.is_file(variable)) {
            let what = "has a credential_process, which is not run if a file of --origin-credentials-dir names the \
                        profile";
            return Err(invalid(what.to_owned()));
        }
        let words = shlex::split(&command).filter(|words| !words.is_empty());
        let words =
            words.ok_or_else(|| invalid("has a credential_process with a quote that does not end".to_owned()))?;
        Ok(Some(Way::Process { profile: name.to_owned(), words: Words(words) }))
    }
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
        assert_eq!(default.way, Some(Way::Keys(Keys { id: "A".into(), secret: "B".into(), token: None })));
        assert_eq!(default.region.as_deref(), Some("eu-west-1"));
        let lab = read(&env(folder.path(), &[("AWS_PROFILE", "lab")])).expect("lab");
        let keys = Keys { id: "LK".into(), secret: "s#e=c".into(), token: Some("T".into()) };
        assert_eq!(lab.way, Some(Way::Keys(keys)));
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
            ("", "[profile p]\nrole_arn = r\ncredential_source = Environment\n", "p", "credential_source"),
            ("", "[profile p]\ncredential_process = '/bin/x\n", "p", "credential_process"),
            ("", "[profile p]\nrole_arn = r\nsource_profile = q\nmfa_serial = m\n", "p", "mfa_serial"),
            ("", "[profile p]\nrole_arn = r\n", "p", "role_arn without"),
            ("", "[profile p]\nrole_arn = r\nsource_profile = gone\n", "p", "source_profile"),
            ("", "[profile p]\nrole_arn = r\nsource_profile = p\n", "p", "source_profile"),
            (
                "",
                "[profile p]\nrole_arn = r\nsource_profile = q\n[profile q]\nrole_arn = r\nsource_profile = p\n",
                "p",
                "source_profile",
            ),
            ("", "[profile p]\nsso_session = s\nsso_account_id = 1\nsso_role_name = r\n", "p", "sso_region"),
            ("nonsense\n", "", "p", "line 1"),
            ("[p\n", "", "p", "line 1"),
        ];
        for (credentials, config, profile, expected) in cases {
            let folder = folder(credentials, config);
            let error = read(&env(folder.path(), &[("AWS_PROFILE", profile)])).expect_err(expected);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn a_role_comes_before_keys_and_leads_to_those_of_its_source() {
        let folder = folder(
            "[base]\naws_access_key_id=A\naws_secret_access_key=hunter2\n[own]\naws_access_key_id=O\n\
             aws_secret_access_key=hunter2\n[factor]\naws_access_key_id=F\naws_secret_access_key=hunter2\n\
             mfa_serial=m\n",
            "[profile far]\nrole_arn=far\nsource_profile=near\nexternal_id=e\n\
             [profile near]\nrole_arn=near\nsource_profile=base\nrole_session_name=me\n\
             [profile own]\nrole_arn=own\nsource_profile=own\n\
             [profile web]\nrole_arn=web\nweb_identity_token_file=/token\n",
        );
        let way = |name: &str| read(&env(folder.path(), &[("AWS_PROFILE", name)])).expect(name).way.expect(name);
        let keys = |id: &str| Way::Keys(Keys { id: id.into(), secret: "hunter2".into(), token: None });
        let role = |role: &str, session: &str, external_id: Option<&str>, source: Way| Way::Role {
            role: role.into(),
            session_name: session.into(),
            external_id: external_id.map(Into::into),
            source: Box::new(source),
        };
        assert_eq!(way("far"), role("far", "larder", Some("e"), role("near", "me", None, keys("A"))));
        assert_eq!(way("own"), role("own", "larder", None, keys("O")));
        // The keys of the environment, and keys that a program of Amazon asks a second factor for.
        let with_keys = env(folder.path(), &[("AWS_PROFILE", "far"), ("AWS_ACCESS_KEY_ID", "E")]);
        assert_eq!(read(&with_keys).expect("the environment's").way, None);
        assert_eq!(way("factor"), keys("F"));
        let web = Way::WebIdentity { role: "web".into(), session_name: "larder".into(), token: "/token".into() };
        assert_eq!(way("web"), web);
        assert!(!format!("{:?}", way("far")).contains("hunter2"));
    }

    #[test]
    fn single_sign_on_leads_to_the_file_that_the_command_line_wrote() {
        let folder = folder(
            "",
            "[sso-session corp]\nsso_region=eu-west-1\nsso_start_url=https://corp.awsapps.com/start\n\
             [profile new]\nsso_session=corp\nsso_account_id=1\nsso_role_name=Reader\n\
             [profile old]\nsso_start_url=https://corp.awsapps.com/start\nsso_region=eu-west-1\n\
             sso_account_id=1\nsso_role_name=Reader\n",
        );
        for (name, file) in
            // `printf %s NAME | sha1sum`
            [
                ("new", "ee0bfd2552fbd840c02cc48b6e823320543c450f"),
                ("old", "a51746d4aa793ae07b25e90c3a5db96fc7832bd7"),
            ]
        {
            let way = read(&env(folder.path(), &[("AWS_PROFILE", name), ("HOME", "/home/u")])).expect(name).way;
            let expected = Way::SingleSignOn {
                profile: name.into(),
                account: "1".into(),
                role: "Reader".into(),
                region: "eu-west-1".into(),
                token: format!("/home/u/.aws/sso/cache/{file}.json").into(),
            };
            assert_eq!(way, Some(expected));
        }
    }

    #[test]
    fn a_program_runs_only_if_the_user_chose_the_profile() {
        let config = "[profile p]\ncredential_process = /bin/helper --account 'a b'\n";
        let folder = folder("", config);
        let way = read(&env(folder.path(), &[("AWS_PROFILE", "p")])).expect("a profile").way;
        let words = Words(["/bin/helper", "--account", "a b"].map(str::to_owned).to_vec());
        assert_eq!(way, Some(Way::Process { profile: "p".into(), words }));
        let secret = tempfile::tempdir().expect("a folder");
        std::fs::write(secret.path().join("AWS_PROFILE"), "p").expect("write");
        let chosen = env(folder.path(), &[]).with_files(secret.path()).expect("a folder");
        let error = read(&chosen).expect_err("chosen by a Secret").to_string();
        assert!(error.contains("--origin-credentials-dir"), "{error}");
    }
}
