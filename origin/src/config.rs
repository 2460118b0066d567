//! How to reach an origin: the flags, and the environment as a value.
//!
//! The invariant: this module does not read the process's environment unless asked. A caller that wants the usual
//! `AWS_*` variables passes [`Env::of_process`], and [`Env::with_files`] adds those that are files. Tests pass their
//! own, so that no test affects another.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use larder_dataset::environment::{ANONYMOUS, IDENTITY_TOKEN, OWNER, is_of_origins};
use larder_dataset::larder_command;
use tracing::warn;

use crate::clients::SharedClients;
use crate::session::Sessions;
use crate::shared_limits::{CONCURRENCY, SharedLimits};

/// The longest content of a variable's file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Environment variables as a value. `Debug` prints only their number.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Env {
    variables: BTreeMap<String, String>,
    files: Option<Files>,
}

/// The variables of a folder with one file for each, as Kubernetes mounts a Secret.
#[derive(Clone, PartialEq, Eq)]
struct Files {
    folder: PathBuf,
    /// How the names of the files begin, before the names of the variables.
    prefix: String,
    variables: BTreeMap<String, String>,
    /// Why files were left out: their names, without their content.
    left_out: Vec<String>,
}

impl Env {
    /// The environment of this process, without variables that are not UTF-8.
    pub fn of_process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    /// These variables and those of a folder that has one file for each, its name that of the variable. The files
    /// precede. A file is left out if it is not one of an origin's variables, cannot be read, is longer than 1 MiB or
    /// not UTF-8. Blocks on the disk. Errors: the folder cannot be read.
    pub fn with_files(self, folder: &Path) -> io::Result<Self> {
        self.with_files_of(folder, "")
    }

    /// As [`Self::with_files`], of the files whose names begin with `prefix` and go on with that of a variable.
    pub fn with_files_of(self, folder: &Path, prefix: &str) -> io::Result<Self> {
        Ok(Self { variables: self.variables, files: Some(Files::read(folder, prefix)?) })
    }

    /// These variables without those that give access to an origin.
    pub fn without_origins(self) -> Self {
        Self { variables: self.variables.into_iter().filter(|(name, _)| !is_of_origins(name)).collect(), files: None }
    }

    /// The same with the files as they are now; `None` if they have not changed. Blocks on the disk. Errors: as
    /// [`Self::with_files`].
    pub fn reread(&self) -> io::Result<Option<Self>> {
        let Some(files) = &self.files else { return Ok(None) };
        let now = self.clone().with_files_of(&files.folder, &files.prefix)?;
        Ok((now != *self).then_some(now))
    }

    /// True if there is a folder of [`Self::with_files`], which may be empty.
    pub fn has_folder(&self) -> bool {
        self.files.is_some()
    }

    /// True if that folder has variables.
    pub fn has_files(&self) -> bool {
        self.files.as_ref().is_some_and(|files| !files.variables.is_empty())
    }

    /// True if a variable's value is from a file of [`Self::with_files`].
    pub fn is_file(&self, name: &str) -> bool {
        self.files.as_ref().is_some_and(|files| files.variables.contains_key(name))
    }

    /// The files that were left out, each with the reason.
    pub fn left_out(&self) -> &[String] {
        self.files.as_ref().map_or(&[], |files| &files.left_out)
    }

    /// Logs the files of credentials that are not used.
    pub fn warn_of_left_out(&self) {
        for file in self.left_out() {
            warn!(file, "a file of --origin-credentials-dir is not used");
        }
    }

    /// The value of a variable. An empty value counts as not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        let file = self.files.as_ref().and_then(|files| files.variables.get(name));
        file.or_else(|| self.variables.get(name)).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The token of a pod, which is exchanged for keys, unless `unsigned` is set: the pod's identity is then one of
    /// another cloud.
    pub(crate) fn pod_token(&self, unsigned: &str) -> Option<&str> {
        self.get(IDENTITY_TOKEN).filter(|_| self.get(unsigned).is_none())
    }

    /// The variables for the mirror `name`: those of its own, whose names begin with its name and a dot, in place of
    /// all others that give access to origins. If it has none, those of the dataset.
    pub fn of_mirror(&self, name: &str) -> Self {
        let prefix = format!("{name}.");
        let own = self.iter().filter_map(|(name, value)| Some((name.strip_prefix(&*prefix)?, value)));
        let own: Vec<_> = own.filter(|(name, _)| is_of_origins(name)).collect();
        if own.is_empty() {
            return self.clone();
        }
        let others = self.iter().filter(|(name, _)| !is_of_origins(name) && !name.contains('.'));
        others.chain(own).collect()
    }

    /// Sets a variable.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.variables.insert(name.into(), value.into());
    }

    /// All variables that are set, sorted by name. Their values may be secrets.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut all: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, value) in self.variables.iter().chain(self.files.iter().flat_map(|files| &files.variables)) {
            all.insert(name, value);
        }
        all.into_iter().filter(|(_, value)| !value.is_empty())
    }
}

impl Files {
    /// Names that begin with a dot are the kubelet's own: it replaces all files at once by pointing the link `..data`
    /// to another folder, so they are read where that link points.
    fn read(folder: &Path, prefix: &str) -> io::Result<Self> {
        let data = folder.join("..data");
        let now = data.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let read = match Self::read_at(&now, prefix) {
            // The link was changed and the folder removed meanwhile.
            Err(_) if data.canonicalize().is_ok_and(|later| later != now) => {
                Self::read_at(&data.canonicalize()?, prefix)
            }
            read => read,
        };
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
        Ok(Self { folder: folder.to_owned(), ..read.map_err(named)? })
    }

    fn read_at(folder: &Path, prefix: &str) -> io::Result<Self> {
        let mut files = Self {
            folder: folder.to_owned(),
            prefix: prefix.to_owned(),
            variables: BTreeMap::new(),
            left_out: Vec::new(),
        };
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // Those of a mirror have its name before that of the variable: they are not for this origin.
            let is_of_mirror = |name: &str| name.split_once('.').is_some_and(|(_, variable)| is_of_origins(variable));
            let Some(variable) = name.strip_prefix(prefix).filter(|name| !name.starts_with('.') && !is_of_mirror(name))
            else {
                continue;
            };
            match value_of(variable, &entry.path()) {
                Ok(value) => drop(files.variables.insert(variable.to_owned(), value)),
                // The folder itself is gone.
                Err(error) if error.kind() == io::ErrorKind::NotFound && !folder.exists() => return Err(error),
                Err(error) => files.left_out.push(format!("{name}: {error}")),
            }
        }
        files.left_out.sort();
        Ok(files)
    }
}

/// The value of the variable in a file.
fn value_of(name: &str, path: &Path) -> io::Result<String> {
    let invalid = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, what));
    if !is_of_origins(name) {
        return invalid("only AWS_*, GOOGLE_*, AZURE_* and LARDER_PEER_TOKEN are read from files");
    }
    let mut value = String::new();
    if std::fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut value)? as u64 > FILE_BYTES_MAX {
        return invalid("is longer than 1 MiB");
    }
    // `echo` and editors add newlines at the end.
    value.truncate(value.trim_end_matches(['\n', '\r']).len());
    Ok(value)
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Env {
    fn from_iter<T: IntoIterator<Item = (N, V)>>(variables: T) -> Self {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Self { variables, files: None }
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Env({} variables", self.variables.len())?;
        if let Some(files) = &self.files {
            write!(f, ", {} files in {}", files.variables.len(), files.folder.display())?;
        }
        write!(f, ")")
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
    /// The limit for one call, including all of its attempts. Its waits for keys and for a permit are each limited to
    /// the same time again.
    pub deadline: Duration,
    /// The most calls in flight of this opened origin; other calls wait. Those of all that share `limits` are limited
    /// beside that.
    pub concurrency: usize,
    /// The limits of the process. Origins of one bucket with the same limits share the requests and bytes.
    pub limits: SharedLimits,
    /// The variables that supply credentials and settings, such as `AWS_ACCESS_KEY_ID`.
    pub env: Env,
    /// The keys of the identities of pods. Origins with the same sessions share them.
    pub sessions: Sessions,
    /// The HTTP clients. Origins with the same settings share one.
    pub clients: SharedClients,
}

impl OriginConfig {
    /// The settings that determine which store `url` refers to: the server, and for Azure the account. If the texts
    /// differ, the origins are different.
    pub fn place(&self, url: &str) -> String {
        let endpoint = self.endpoint.clone().unwrap_or_default();
        match self.env.get("AZURE_STORAGE_ACCOUNT_NAME") {
            Some(account) if url.starts_with("az://") => format!("{endpoint} {account}"),
            _ if endpoint.is_empty() && url.starts_with("s3://") => {
                self.region.as_deref().and_then(partition).unwrap_or_default().to_owned()
            }
            _ => endpoint,
        }
    }

    /// The [`place`](Self::place), and the tenant whose credentials these are, or that there are none. Where
    /// credentials decide which bucket a name refers to (tenants of Ceph RGW, namespaces of ECS), tenants see different
    /// objects at one place, and so does a request without credentials.
    pub fn listing_place(&self, url: &str) -> String {
        let place = self.place(url);
        match self.env.get(OWNER).or(self.anonymous.then_some(ANONYMOUS)) {
            Some(owner) => format!("{place} owner {owner}"),
            None => place,
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

/// The partition of AWS that a region is in, unless it is the usual one. Buckets of the same name in different
/// partitions are different.
fn partition(region: &str) -> Option<&'static str> {
    [
        ("cn-", "aws-cn"),
        ("us-gov-", "aws-us-gov"),
        ("us-iso", "aws-iso"),
        ("eu-isoe-", "aws-iso"),
        ("eusc-", "aws-eusc"),
    ]
    .into_iter()
    .find_map(|(prefix, partition)| region.starts_with(prefix).then_some(partition))
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
            concurrency: CONCURRENCY,
            limits: SharedLimits::default(),
            env: Env::default(),
            sessions: Sessions::default(),
            clients: SharedClients::default(),
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
    fn files_precede_variables_and_a_change_of_all_at_once_is_seen() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let process = || [("AWS_ACCESS_KEY_ID", "own"), ("HOME", "/h")].into_iter().collect::<Env>();
        let empty = process().with_files(folder.path()).expect("an empty folder");
        assert_eq!(empty.iter().collect::<Vec<_>>(), process().iter().collect::<Vec<_>>());
        // As the kubelet mounts a Secret.
        for (version, key) in [("..1", "first\n"), ("..2", "second")] {
            std::fs::create_dir(path(version)).expect("a folder");
            std::fs::write(path(version).join("AWS_ACCESS_KEY_ID"), key).expect("a file");
        }
        std::os::unix::fs::symlink("..1", path("..data")).expect("a link");
        std::os::unix::fs::symlink("..data/AWS_ACCESS_KEY_ID", path("AWS_ACCESS_KEY_ID")).expect("a link");
        let first = empty.reread().expect("good").expect("changed");
        let expected = [("AWS_ACCESS_KEY_ID", "first"), ("HOME", "/h")];
        assert_eq!(first.iter().collect::<Vec<_>>(), expected);
        assert_eq!((first.get("AWS_ACCESS_KEY_ID"), first.get("HOME")), (Some("first"), Some("/h")));
        assert_eq!(first.reread().expect("good"), None);
        std::os::unix::fs::symlink("..2", path("..new")).expect("a link");
        std::fs::rename(path("..new"), path("..data")).expect("renamed");
        let second = first.reread().expect("good").expect("changed");
        assert_eq!(second.get("AWS_ACCESS_KEY_ID"), Some("second"));
        assert!(!format!("{second:?}").contains("second"));
        std::fs::remove_file(path("..data")).expect("removed");
        std::fs::remove_dir_all(folder.path()).expect("removed");
        let gone = second.reread().expect_err("no folder").to_string();
        assert!(gone.contains(folder.path().to_str().expect("UTF-8")), "{gone}");
    }

    #[test]
    fn a_file_that_is_no_variable_of_an_origin_is_left_out_by_name_and_not_by_content() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = [
            ("HTTPS_PROXY", b"hunter2".to_vec()),
            ("AWS_BINARY", b"hunter2\xff".to_vec()),
            ("AWS_LONG", vec![b'a'; 1 << 21]),
            ("AWS_GOOD", b"a".to_vec()),
        ];
        for (name, content) in files {
            std::fs::write(folder.path().join(name), content).expect("a file");
        }
        let env = Env::default().with_files(folder.path()).expect("a folder");
        assert_eq!(env.iter().collect::<Vec<_>>(), [("AWS_GOOD", "a")]);
        let said = env.left_out().join(", ");
        assert_eq!(env.left_out().len(), 3, "{said}");
        assert!(["HTTPS_PROXY", "AWS_BINARY", "AWS_LONG"].iter().all(|name| said.contains(name)), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }

    #[test]
    fn the_keys_of_a_mirror_have_its_name_and_are_not_those_of_the_origin() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, key) in [("AWS_ACCESS_KEY_ID", "ours"), ("eu.AWS_ACCESS_KEY_ID", "theirs"), ("us.AWS_PROFILE", "x")]
        {
            std::fs::write(folder.path().join(name), key).expect("a file");
        }
        let own: Env = [("HOME", "/h"), ("AWS_REGION", "here")].into_iter().collect();
        let ours = own.clone().with_files(folder.path()).expect("a folder");
        assert_eq!(ours.get("AWS_ACCESS_KEY_ID"), Some("ours"));
        let of_mirror = own.without_origins().with_files_of(folder.path(), "eu.").expect("a folder");
        assert_eq!(of_mirror.iter().collect::<Vec<_>>(), [("AWS_ACCESS_KEY_ID", "theirs"), ("HOME", "/h")]);
        assert!(ours.left_out().is_empty() && of_mirror.left_out().is_empty());
        std::fs::write(folder.path().join("eu.AWS_ACCESS_KEY_ID"), "renewed").expect("a file");
        let renewed = of_mirror.reread().expect("good").expect("changed");
        assert_eq!(renewed.get("AWS_ACCESS_KEY_ID"), Some("renewed"));
        assert_eq!(ours.reread().expect("good"), None);
    }

    #[test]
    fn a_mirror_has_its_own_keys_or_those_of_its_dataset() {
        let all: Env = [
            ("AWS_ACCESS_KEY_ID", "ours"),
            ("AWS_SESSION_TOKEN", "ours"),
            ("LARDER_OWNER", "uid"),
            ("eu.AWS_ACCESS_KEY_ID", "theirs"),
            ("eu.AZURE_SKIP_SIGNATURE", "true"),
        ]
        .into_iter()
        .collect();
        let eu = all.of_mirror("eu");
        let expected = [("AWS_ACCESS_KEY_ID", "theirs"), ("AZURE_SKIP_SIGNATURE", "true"), ("LARDER_OWNER", "uid")];
        assert_eq!(eu.iter().collect::<Vec<_>>(), expected);
        assert_eq!(all.of_mirror("us").get("AWS_ACCESS_KEY_ID"), Some("ours"));
        assert_eq!(all.of_mirror("e").get("AWS_ACCESS_KEY_ID"), Some("ours"));
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
        let in_region = |endpoint: Option<&str>, region: &str| {
            let config = OriginConfig { region: Some(region.to_owned()), ..config(endpoint, None) };
            config.place("s3://bucket/set")
        };
        assert_eq!(in_region(None, "us-gov-west-1"), "aws-us-gov");
        assert_eq!(in_region(None, "eu-central-1"), "", "one partition has each bucket once");
        assert_eq!(in_region(Some("http://a"), "us-gov-west-1"), "http://a", "the server's own regions");
    }

    #[test]
    fn requests_with_the_nodes_own_keys_with_a_tenants_and_with_none_list_for_themselves() {
        let env: Env = [(OWNER, "uid")].into_iter().collect();
        let own = OriginConfig::default();
        let (tenant, anonymous) =
            (OriginConfig { env, ..own.clone() }, OriginConfig { anonymous: true, ..own.clone() });
        let places = [&own, &tenant, &anonymous].map(|config| config.listing_place("s3://bucket/set"));
        assert_eq!(places, ["", " owner uid", " owner anonymous"]);
        assert_eq!(anonymous.place("s3://bucket/set"), "");
    }
}
