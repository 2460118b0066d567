//! Mistakes in a request.

/// A mistake in a request. The message never contains a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttributeError {
    /// A field of the request.
    #[error("{field} {what}")]
    Field {
        /// The field, as CSI names it.
        field: &'static str,
        /// The mistake.
        what: String,
    },
    /// An unknown attribute.
    #[error("unknown attribute `{name}`; known are {known}")]
    Unknown {
        /// Its name.
        name: String,
        /// The known ones.
        known: String,
    },
    /// An attribute with an invalid value.
    #[error("attribute `{name}` {what}")]
    Value {
        /// Its name.
        name: &'static str,
        /// The mistake.
        what: String,
    },
    /// A key of the Secret that is unknown, or incomplete without another.
    #[error("secret key `{name}` {what}")]
    Secret {
        /// The key.
        name: String,
        /// The mistake.
        what: String,
    },
    /// A Secret without the keys that the origin requires.
    #[error("the volume's Secret has no keys for an {scheme} origin, which requires {missing}")]
    MissingKeys {
        /// How the origin's URL begins.
        scheme: &'static str,
        /// The keys.
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

/// Text from outside, made fit for a message.
pub(crate) fn printable(text: &str) -> String {
    text.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect()
}
