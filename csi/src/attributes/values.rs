//! Checks the values that describe a dataset, from a volume's attributes or from an entry of the administrator's file, and
//! turns them into a [`DatasetSpec`]: the only place where the plugin parses them.

use std::path::{Component, Path, PathBuf};

use larder_dataset::DatasetSpec;
use larder_dataset::size::parse_bytes;

use crate::attributes::error::AttributeError;

/// The longest value of an attribute.
const VALUE_BYTES: usize = 1024;

/// What a snapshot must be.
const SNAPSHOT: &str = "must be 64 lower-case hex digits";

/// What the administrator allows.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// The folders that `file://` may name.
    pub file_roots: Vec<PathBuf>,
}

/// The values of a dataset as they were written; empty where nothing was.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawSpec<'a> {
    pub(crate) source: &'a str,
    pub(crate) endpoint: &'a str,
    pub(crate) region: &'a str,
    pub(crate) anonymous: bool,
    pub(crate) snapshot: &'a str,
    pub(crate) cache_size: Option<&'a str>,
    pub(crate) policy: &'a str,
    pub(crate) placement: &'a str,
}

impl RawSpec<'_> {
    /// Checks every value.
    pub(crate) fn check(self, rules: &Rules) -> Result<DatasetSpec, AttributeError> {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        check_source(self.source, rules)?;
        check_endpoint(self.endpoint)?;
        check_region(self.region)?;
        let invalid = |name, what: &str| AttributeError::value(name, what);
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
            policy: optional(self.policy).map_err(|()| invalid("policy", "must be nr, lru, fifo or random"))?,
            placement: optional(self.placement).map_err(|()| {
                invalid("placement", "must be local, partitioned or replicated:N (N copies, 1 to 255)")
            })?,
        })
    }
}

fn optional<T: std::str::FromStr>(text: &str) -> Result<Option<T>, ()> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(|_| ()) }
}

fn check_text(name: &'static str, value: &str) -> Result<(), AttributeError> {
    if value.len() > VALUE_BYTES {
        return Err(AttributeError::value(name, format!("is longer than {VALUE_BYTES} bytes")));
    }
    if value.chars().any(char::is_control) {
        return Err(AttributeError::value(name, "contains a control character"));
    }
    Ok(())
}

fn check_source(source: &str, rules: &Rules) -> Result<(), AttributeError> {
    let refuse = |what: &str| Err(AttributeError::value("source", what));
    check_text("source", source)?;
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
            // The value is not repeated: users have put keys before an `@`.
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

fn check_endpoint(endpoint: &str) -> Result<(), AttributeError> {
    if endpoint.is_empty() {
        return Ok(());
    }
    let refuse = |what: &str| Err(AttributeError::value("endpoint", what));
    check_text("endpoint", endpoint)?;
    let host = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
    match host {
        None | Some("") => refuse("must be a server's URL, such as https://s3.example.org:9000"),
        // The value is not repeated: it may contain a password.
        Some(host) if host.contains(['@', '?', '#', ' ', '\\']) || host.split('/').any(|part| part == "..") => {
            refuse("must consist of a scheme, a host and a port only")
        }
        Some(_) => Ok(()),
    }
}

fn check_region(region: &str) -> Result<(), AttributeError> {
    let region_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if region.len() > 64 || !region.bytes().all(region_byte) {
        return Err(AttributeError::value("region", "is not the name of a region"));
    }
    Ok(())
}

/// A size with its unit.
pub(crate) fn cache_size(value: &str) -> Result<u64, AttributeError> {
    check_text("cacheSize", value)?;
    match parse_bytes(value) {
        Ok(0) => Err(AttributeError::value("cacheSize", "must not be 0; leave it out to cache the whole dataset")),
        Ok(bytes) => Ok(bytes),
        Err(what) => Err(AttributeError::value("cacheSize", format!("is invalid: {what}"))),
    }
}

/// The name of an entry of the administrator's file.
pub(crate) fn entry_name(name: &str) -> Result<String, AttributeError> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if name.is_empty() || name.len() > 128 || !name.bytes().all(good) || name.starts_with('.') {
        return Err(AttributeError::value("dataset", "must be a name of letters, digits, `-`, `_` and `.`"));
    }
    Ok(name.to_owned())
}

/// The name of a namespace, or `*`.
pub(crate) fn namespace(name: &str) -> Result<String, AttributeError> {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name != "*" && (name.is_empty() || name.len() > 63 || !name.bytes().all(good)) {
        return Err(AttributeError::value("namespaces", "must be a comma-separated list of namespaces, or `*`"));
    }
    Ok(name.to_owned())
}
