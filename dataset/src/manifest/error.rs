//! Errors of reading a manifest.

/// Why a manifest cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The file is not a manifest.
    #[error("not a Larder manifest (wrong first bytes)")]
    NotAManifest,
    /// Another version of Larder made the manifest.
    #[error(
        "manifest has format version {found}, but this program reads versions up to {supported}: update Larder on this \
         machine, or import the dataset again with this version"
    )]
    Version {
        /// The version byte in the file.
        found: u8,
        /// The last version that this code reads.
        supported: u8,
    },
    /// The manifest is truncated or its bytes have changed.
    #[error("manifest is damaged ({what}): import the dataset again")]
    Corrupt {
        /// The inconsistent part of the manifest.
        what: &'static str,
    },
}

/// Shorthand for [`ManifestError::Corrupt`].
pub(super) const fn corrupt(what: &'static str) -> ManifestError {
    ManifestError::Corrupt { what }
}
