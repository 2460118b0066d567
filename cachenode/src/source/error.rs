//! Why a dataset cannot be resolved.

use std::io;
use std::path::PathBuf;

use larder_dataset::ManifestError;
use larder_import::{ImportError, PublishError};
use larder_origin::OriginError;
use serde::{Deserialize, Serialize};

use crate::error_kind::ErrorKind;
use crate::manifest_file::ManifestFileError;

/// The reason that a dataset cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The URL or path is wrong; the text says what to write instead.
    #[error("{what}")]
    Invalid {
        /// Why it is invalid, and how to correct it.
        what: String,
    },
    /// The origin has nothing under that name.
    #[error("{what}")]
    Missing {
        /// The message.
        what: String,
    },
    /// The origin refuses or fails.
    #[error(transparent)]
    Origin(#[from] OriginError),
    /// The manifest beside the data cannot be fetched.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The origin cannot be listed.
    #[error("import {url}")]
    Import {
        /// The origin.
        url: String,
        /// The cause.
        source: ImportError,
    },
    /// The process that imported it failed, in these words.
    #[error("{source}")]
    Reported {
        /// The class of the error, by what a caller can do.
        kind: ErrorKind,
        /// The words.
        source: ReportedError,
    },
    /// A manifest file cannot be used.
    #[error(transparent)]
    ManifestFile(#[from] ManifestFileError),
    /// A manifest is not consistent.
    #[error("manifest {path}: {source}")]
    Manifest {
        /// The file.
        path: PathBuf,
        /// The flaw.
        source: ManifestError,
    },
    /// A folder of Larder's cannot be used.
    #[error(transparent)]
    Home(#[from] io::Error),
}

/// An error of another process: the words of it and of its causes.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
#[error("{text}")]
pub struct ReportedError {
    text: String,
    source: Option<Box<ReportedError>>,
}

impl ReportedError {
    /// The first words, and those of the cause.
    pub fn new(text: impl Into<String>, cause: Option<ReportedError>) -> Self {
        Self { text: text.into(), source: cause.map(Box::new) }
    }
}
