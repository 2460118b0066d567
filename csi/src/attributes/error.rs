//! Mistakes in a request.

/// A mistake in a request. The message never contains a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttributeError {
    /// A field of the request.
    #[error("{field} {what}")]
    Field {
        /// The field's name in CSI.
        field: &'static str,
        what: String,
    },
    /// An unknown attribute.
    #[error("unknown attribute `{name}`; known are {known}")]
    Unknown { name: String, known: String },
    /// An attribute with an invalid value.
    #[error("attribute `{name}` {what}")]
    Value { name: &'static str, what: String },
    /// A key of the Secret that is unknown, or incomplete without another.
    #[error("secret key `{name}` {what}")]
    Secret { name: String, what: String },
    /// A Secret without the keys that the origin requires.
    #[error("the volume's Secret has no keys for an {scheme} origin, which requires {missing}")]
    MissingKeys {
        /// The scheme of the origin's URL.
        scheme: &'static str,
        missing: &'static str,
    },
}

impl AttributeError {
    /// An error about the field `field` of a request.
    pub(crate) fn field(field: &'static str, what: impl Into<String>) -> Self {
        Self::Field { field, what: what.into() }
    }

    /// An error about the value of the attribute `name`.
    pub(crate) fn value(name: &'static str, what: impl Into<String>) -> Self {
        Self::Value { name, what: what.into() }
    }
}

/// Untrusted text, shortened and stripped of control characters for a message.
pub(crate) fn printable(text: &str) -> String {
    text.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect()
}
