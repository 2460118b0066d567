//! The values of a dataset as text, as users wrote them in the attributes of a volume, in an entry of the
//! administrator's file or in a Dataset object, and the checks that convert them to a [`DatasetSpec`]. All of these
//! sources share one set of checks, so each accepts the same values.
//!
//! All values come from outside. An error names the value without repeating it, because users have put keys into URLs.

use std::path::{Component, Path, PathBuf};

use crate::ownership::{Ownership, parse_id, parse_mode};
use crate::size::parse_bytes;
use crate::spec::DatasetSpec;

/// The length of the longest value, in bytes.
pub const VALUE_BYTES: usize = 1024;

/// The form of a snapshot's id, for error messages.
const SNAPSHOT: &str = "must be 64 lower-case hex digits";

/// The limits that the administrator sets.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The folders that `file://` URLs may be in.
    pub file_roots: Vec<PathBuf>,
}

/// A value that was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` {what}")]
pub struct InvalidValue {
    /// The name of the value, as in the attributes of a volume.
    pub name: &'static str,
    /// The mistake and the accepted values.
    pub what: String,
}

impl InvalidValue {
    /// An error about the value `name`.
    pub fn new(name: &'static str, what: impl Into<String>) -> Self {
        Self { name, what: what.into() }
    }
}

/// The values of a dataset as text. A value that was not set is empty.
///
/// ```
/// use larder_dataset::written::{Rules, WrittenSpec};
///
/// let written = WrittenSpec { source: "s3://bucket/pets", cache_size: Some("0"), ..WrittenSpec::default() };
/// assert_eq!(written.check(&Rules::default()).unwrap_err().name, "cacheSize");
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct WrittenSpec<'a> {
    /// The URL of the origin.
    pub source: &'a str,
    /// The URL of the S3 server.
    pub endpoint: &'a str,
    /// The region of the bucket.
    pub region: &'a str,
    /// True to send requests without credentials.
    pub anonymous: bool,
    /// The only snapshot that is accepted.
    pub snapshot: &'a str,
    /// The size of the cache on each node.
    pub cache_size: Option<&'a str>,
    /// What happens when the cache is full.
    pub policy: &'a str,
    /// Which nodes cache which blocks.
    pub placement: &'a str,
    /// When the origin is listed again.
    pub refresh: &'a str,
}

impl WrittenSpec<'_> {
    /// Checks every value. The ownership is not among them: it belongs to a mount. Errors: the first value that is
    /// rejected.
    pub fn check(self, rules: &Rules) -> Result<DatasetSpec, InvalidValue> {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        check_source("source", self.source, rules)?;
        check_endpoint(self.endpoint)?;
        check_region(self.region)?;
        let invalid = InvalidValue::new;
        if self.snapshot.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(invalid("snapshot", SNAPSHOT));
        }
        Ok(DatasetSpec {
            source: self.source.to_owned(),
            endpoint: given(self.endpoint),
            region: given(self.region),
            anonymous: self.anonymous,
            snapshot: optional(self.snapshot).map_err(|()| invalid("snapshot", SNAPSHOT))?,
            cache_bytes: self.cache_size.map(cache_size).transpose()?,
            policy: optional(self.policy)
                .map_err(|()| invalid("policy", "must be nr, smallest, lru, fifo or random"))?,
            placement: optional(self.placement).map_err(|()| {
                invalid("placement", "must be local, partitioned or replicated:N (N copies, 1 to 255)")
            })?,
            refresh: optional(self.refresh).map_err(|()| {
                invalid("refresh", "must be always, never, or an age with its unit, such as 24h or 7d")
            })?,
            ownership: Ownership::default(),
        })
    }
}

fn optional<T: std::str::FromStr>(text: &str) -> Result<Option<T>, ()> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(|_| ()) }
}

fn check_text(name: &'static str, value: &str) -> Result<(), InvalidValue> {
    if value.len() > VALUE_BYTES {
        return Err(InvalidValue::new(name, format!("is longer than {VALUE_BYTES} bytes")));
    }
    if value.chars().any(char::is_control) {
        return Err(InvalidValue::new(name, "contains a control character"));
    }
    Ok(())
}

/// Checks the owner and the modes that a mount shows. Errors: the first value that is rejected.
pub fn ownership(
    uid: Option<&str>,
    gid: Option<&str>,
    file_mode: Option<&str>,
    dir_mode: Option<&str>,
) -> Result<Ownership, InvalidValue> {
    let id = |name, text| parse_id(text).map_err(|what| InvalidValue::new(name, what));
    let mode = |name, text| parse_mode(text).map_err(|what| InvalidValue::new(name, what));
    Ok(Ownership {
        uid: uid.map(|text| id("uid", text)).transpose()?,
        gid: gid.map(|text| id("gid", text)).transpose()?,
        file_mode: file_mode.map(|text| mode("fileMode", text)).transpose()?,
        dir_mode: dir_mode.map(|text| mode("dirMode", text)).transpose()?,
    })
}

/// Checks the URL of an origin, or of an object in one. `name` is the value's name in an error.
pub fn check_source(name: &'static str, source: &str, rules: &Rules) -> Result<(), InvalidValue> {
    let refuse = |what: &str| Err(InvalidValue::new(name, what));
    check_text(name, source)?;
    let Some((scheme, rest)) = source.split_once("://") else {
        return refuse("must be a URL: s3://bucket/prefix, gs://, az:// or file:///folder");
    };
    if rest.split('/').any(|part| part == "..") {
        return refuse("must not contain `..`");
    }
    match scheme {
        "s3" | "gs" | "az" => {
            let bucket = rest.split('/').next().unwrap_or_default();
            let bucket_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._$".contains(&byte);
            // The error does not repeat the value: users have put keys before an `@`.
            if bucket.is_empty() || !bucket.bytes().all(bucket_byte) {
                return refuse("names no bucket: write s3://bucket/prefix, without keys or a server");
            }
            Ok(())
        }
        "file" => {
            let folder = Path::new(rest);
            let plain = folder.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
            if plain && folder.is_absolute() && rules.file_roots.iter().any(|root| folder.starts_with(root)) {
                return Ok(());
            }
            refuse("names a folder outside those that the administrator allows (--file-root)")
        }
        _ => refuse("must begin with s3://, gs://, az:// or file://"),
    }
}

/// Checks the URL of an S3 server. An empty one stands for AWS.
pub fn check_endpoint(endpoint: &str) -> Result<(), InvalidValue> {
    if endpoint.is_empty() { Ok(()) } else { check_server("endpoint", endpoint) }
}

/// Checks the URL of a server that exchanges tokens.
pub fn sts_endpoint(endpoint: &str) -> Result<(), InvalidValue> {
    check_server("stsEndpoint", endpoint)
}

fn check_server(name: &'static str, endpoint: &str) -> Result<(), InvalidValue> {
    let refuse = |what: &str| Err(InvalidValue::new(name, what));
    check_text(name, endpoint)?;
    let host = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
    match host {
        None | Some("") => refuse("must be a server's URL, such as https://s3.example.org:9000"),
        // The error does not repeat the value: it may contain a password.
        Some(host) if host.contains(['@', '?', '#', ' ', '\\']) || host.split('/').any(|part| part == "..") => {
            refuse("must consist of a scheme, a host and a port only")
        }
        Some(_) => Ok(()),
    }
}

fn check_region(region: &str) -> Result<(), InvalidValue> {
    let region_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if region.len() > 64 || !region.bytes().all(region_byte) {
        return Err(InvalidValue::new("region", "is not a valid region name"));
    }
    Ok(())
}

/// Parses the size of a cache, with its unit.
pub fn cache_size(value: &str) -> Result<u64, InvalidValue> {
    check_text("cacheSize", value)?;
    match parse_bytes(value) {
        Ok(0) => Err(InvalidValue::new("cacheSize", "must not be 0; leave it out to cache the whole dataset")),
        Ok(bytes) => Ok(bytes),
        Err(what) => Err(InvalidValue::new("cacheSize", format!("is invalid: {what}"))),
    }
}

/// True for a name that a mirror may have: it begins the names of its credentials.
pub fn is_mirror_name(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(good) && !name.starts_with('-') && !name.ends_with('-')
}

/// Checks the name of a namespace. `*` stands for all namespaces.
pub fn namespace(name: &str) -> Result<String, InvalidValue> {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name != "*" && (name.is_empty() || name.len() > 63 || !name.bytes().all(good)) {
        return Err(InvalidValue::new("namespaces", "must be a comma-separated list of namespaces, or `*`"));
    }
    Ok(name.to_owned())
}
