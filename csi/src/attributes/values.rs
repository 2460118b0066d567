//! Checks of values that only volumes have. Those that describe a dataset are larder-dataset's.

use larder_dataset::written::InvalidValue;

use crate::attributes::error::AttributeError;

impl From<InvalidValue> for AttributeError {
    fn from(InvalidValue { name, what }: InvalidValue) -> Self {
        Self::Value { name, what }
    }
}

/// The name of an entry of the file of datasets: `NAME`, or for a Dataset outside of `larder-system` `NAMESPACE/NAME`.
pub(crate) fn entry_name(name: &str) -> Result<String, AttributeError> {
    let good = |part: &str| {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        !part.is_empty() && part.bytes().all(known) && !part.starts_with('.')
    };
    let (namespace, entry) = name.split_once('/').map_or((None, name), |(namespace, entry)| (Some(namespace), entry));
    if name.len() > 128 || !good(entry) || !namespace.is_none_or(good) {
        let what = "must be a name of letters, digits, `-`, `_` and `.`, or NAMESPACE/NAME";
        return Err(AttributeError::value("dataset", what));
    }
    Ok(name.to_owned())
}
