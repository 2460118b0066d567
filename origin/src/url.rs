//! The URL of an origin: which store, which bucket, which prefix.
//!
//! Everything after the bucket is taken literally, as by `aws s3`: without percent-decoding, query or fragment, since
//! `%`, `?` and `#` are valid characters in a key. The invariant: an [`OriginUrl`] never contains credentials, so it
//! may be printed, logged and stored.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::OriginError;
use crate::key::Key;

/// The kind of store behind a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// `s3://`: Amazon S3 and servers that speak its protocol (Ceph RGW, MinIO).
    S3,
    /// `gs://`: Google Cloud Storage.
    Gcs,
    /// `az://`: Azure Blob Storage; the account comes from `AZURE_STORAGE_ACCOUNT_NAME`.
    Azure,
    /// `file://`: a folder of this machine.
    Folder,
}

impl Scheme {
    /// The scheme's name in a URL, without `://`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Gcs => "gs",
            Self::Azure => "az",
            Self::Folder => "file",
        }
    }
}

/// The location of a dataset's objects. Parse one with [`str::parse`], or create one from a path with
/// [`OriginUrl::folder`].
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct OriginUrl {
    scheme: Scheme,
    bucket: String,
    /// The prefix without the trailing `/`. For a folder, the whole path.
    prefix: Vec<u8>,
}

impl OriginUrl {
    /// The URL of a local folder. A relative path is resolved against the process's working directory.
    ///
    /// # Errors
    /// `Invalid` if the path is empty or contains a NUL byte.
    pub fn folder(path: impl Into<PathBuf>) -> Result<Self, OriginError> {
        let path = std::path::absolute(path.into())
            .map_err(|error| OriginError::Invalid { what: format!("not a usable folder: {error}") })?;
        let prefix = path.into_os_string().into_vec();
        if prefix.contains(&0) {
            return Err(OriginError::Invalid { what: "the name of a folder cannot contain a NUL byte".into() });
        }
        Ok(Self { scheme: Scheme::Folder, bucket: String::new(), prefix })
    }

    /// The kind of store.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The bucket or container; empty for a folder.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The prefix without the trailing `/`; empty for a whole bucket. For a folder this is its path.
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// The folder's path. `None` for object stores.
    pub fn path(&self) -> Option<&Path> {
        (self.scheme == Scheme::Folder).then(|| Path::new(OsStr::from_bytes(&self.prefix)))
    }

    /// The text that precedes every relative key: empty, or the prefix and a `/`.
    pub(crate) fn key_prefix(&self) -> Vec<u8> {
        let mut prefix = self.prefix.clone();
        if !prefix.is_empty() {
            prefix.push(b'/');
        }
        prefix
    }
}

impl FromStr for OriginUrl {
    type Err = OriginError;

    fn from_str(text: &str) -> Result<Self, OriginError> {
        let invalid = |what: String| Err(OriginError::Invalid { what });
        // Errors do not repeat the text before it is known to contain no credentials.
        let Some((scheme, rest)) = text.split_once("://") else {
            return invalid(
                "an origin is a URL: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///folder"
                    .into(),
            );
        };
        let scheme = match scheme {
            "s3" => Scheme::S3,
            "gs" => Scheme::Gcs,
            "az" => Scheme::Azure,
            "file" => Scheme::Folder,
            _ => return invalid("unknown kind of origin: use s3://, gs://, az:// or file://".into()),
        };
        if rest.bytes().any(|byte| byte.is_ascii_control()) {
            return invalid("the URL of the origin contains a control character".into());
        }
        if scheme == Scheme::Folder {
            return match rest.strip_prefix("localhost").unwrap_or(rest) {
                path if path.starts_with('/') => Self::folder(path),
                _ => invalid("the URL of a folder is file:// followed by an absolute path: file:///data/images".into()),
            };
        }
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.contains('@') || bucket.contains(':') {
            return invalid(format!(
                "credentials do not belong in a URL: pass them in the environment or a profile, and the server by \
                 --endpoint, and write the origin as {}://bucket/prefix",
                scheme.as_str()
            ));
        }
        if bucket.is_empty() {
            return invalid(format!("the URL names no bucket: {}://bucket/prefix", scheme.as_str()));
        }
        if !bucket.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._$".contains(&byte))
            || bucket.starts_with('.')
        {
            return invalid(format!("{:?} is not a valid bucket name", Key::from(bucket.as_bytes())));
        }
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        Ok(Self { scheme, bucket: bucket.to_string(), prefix: prefix.as_bytes().to_vec() })
    }
}

impl fmt::Display for OriginUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.as_str(), self.bucket)?;
        if self.scheme != Scheme::Folder && !self.prefix.is_empty() {
            f.write_str("/")?;
        }
        write!(f, "{}", Key::from(self.prefix.as_slice()))
    }
}

impl fmt::Debug for OriginUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OriginUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> OriginUrl {
        text.parse().expect(text)
    }

    #[test]
    fn every_scheme_comes_back_as_it_was_written() {
        for text in [
            "s3://bucket",
            "s3://bucket/a/b c%20?x#y",
            "gs://b/p",
            "az://container/p",
            "file:///data/images",
            "s3://b//x",
        ] {
            assert_eq!(parsed(text).to_string(), text);
        }
        assert_eq!(parsed("s3://bucket/a/").to_string(), "s3://bucket/a");
        assert_eq!(parsed("s3://bucket/a/").key_prefix(), b"a/");
        assert_eq!(parsed("s3://bucket/").key_prefix(), b"");
        assert_eq!(parsed("file:///data/a%20b").path(), Some(Path::new("/data/a%20b")));
    }

    #[test]
    fn folder_names_need_not_be_utf8() {
        let path = PathBuf::from(OsStr::from_bytes(b"/data/\xff"));
        let url = OriginUrl::folder(&path).expect("a folder");
        assert_eq!(url.path(), Some(path.as_path()));
        assert_eq!(url.to_string(), "file:///data/\\xff");
    }

    #[test]
    fn credentials_in_a_url_are_refused_and_not_repeated() {
        for text in ["s3://AKIAKEY:hunter2@bucket/x", "s3://hunter2@bucket", "gs://u:hunter2@b/p", "az://hunter2:b"] {
            let error = text.parse::<OriginUrl>().expect_err(text);
            assert!(error.to_string().contains("credentials do not belong"), "{error}");
            assert!(!format!("{error:?} {error}").contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn other_texts_are_refused_with_a_hint() {
        for text in [
            "bucket/x",
            "ftp://h/x",
            "s3://",
            "s3:///x",
            "file://host/x",
            "file:x",
            "s3://b ad/x",
            "s3://b/\u{7}",
            "s3://../x",
        ] {
            let error = text.parse::<OriginUrl>().expect_err(text);
            assert!(matches!(error, OriginError::Invalid { .. }), "{text}: {error}");
        }
    }
}
