//! Keys of object stores: they must be UTF-8, and for object_store also valid paths.

use object_store::path::Path;

use crate::error::OriginError;
use crate::key::Key;
use crate::url::OriginUrl;

/// The text that precedes every relative key of an origin.
pub(crate) fn prefix(url: &OriginUrl) -> Result<String, OriginError> {
    String::from_utf8(url.key_prefix())
        .map_err(|_| OriginError::Invalid { what: "the prefix of the URL is not UTF-8".into() })
}

/// The whole key for a key relative to the prefix.
pub(crate) fn full(prefix: &str, key: &[u8]) -> Result<String, OriginError> {
    match std::str::from_utf8(key) {
        Ok(key) => Ok(format!("{prefix}{key}")),
        Err(_) => {
            Err(OriginError::Invalid { what: format!("{}: a key of an object store must be UTF-8", Key::from(key)) })
        }
    }
}

/// The object_store path of a whole key. An error if the path would differ from the key.
pub(crate) fn path(key: &[u8], full: &str) -> Result<Path, OriginError> {
    match Path::parse(full) {
        Ok(_) if full.is_empty() => Err(OriginError::Invalid { what: "the empty key names no object".into() }),
        Ok(path) if path.as_ref() == full => Ok(path),
        Ok(_) => Err(OriginError::Invalid {
            what: format!("{}: a key of this store cannot begin or end with '/'", Key::from(key)),
        }),
        Err(error) => Err(OriginError::Invalid { what: format!("{}: {error}", Key::from(key)) }),
    }
}
