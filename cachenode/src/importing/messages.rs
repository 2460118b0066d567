//! Messages between a node and the process that imports for it: a job, then reports, each a line of JSON.
//!
//! A job contains credentials. It is never shown: it has no `Debug`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use larder_origin::OriginConfig;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error_kind::ErrorKind;
use crate::home::{Home, HomeLimits};
use crate::source::{Import, ReportedError};

/// The argument that makes a program the one that imports.
pub(crate) const ROLE: &str = "import-for-a-mount";

/// The longest message.
const MESSAGE_BYTES_MAX: u64 = 4 << 20;

/// The work to do.
#[derive(Serialize, Deserialize)]
pub(crate) struct Job {
    /// The process for which it is done.
    pub(crate) parent: u32,
    /// The data that the process may have in memory.
    pub(crate) memory_bytes: u64,
    pub(crate) url: String,
    home: Vec<u8>,
    limits: HomeLimits,
    keep: Vec<u8>,
    pub(crate) link_objects: bool,
    pub(crate) since_ns: Option<i64>,
    endpoint: Option<String>,
    region: Option<String>,
    anonymous: bool,
    attempt_timeout: Duration,
    connect_timeout: Duration,
    deadline: Duration,
    concurrency: usize,
    env: BTreeMap<String, String>,
}

impl Job {
    pub(super) fn of(import: &Import<'_>, memory_bytes: u64) -> Self {
        let config = import.config;
        Self {
            parent: std::process::id(),
            memory_bytes,
            url: import.url.to_string(),
            home: import.home.dir().as_os_str().as_bytes().to_vec(),
            limits: import.home.limits(),
            keep: import.kept.path().as_os_str().as_bytes().to_vec(),
            link_objects: import.link_objects,
            since_ns: import.since_ns,
            endpoint: config.endpoint.clone(),
            region: config.region.clone(),
            anonymous: config.anonymous,
            attempt_timeout: config.attempt_timeout,
            connect_timeout: config.connect_timeout,
            deadline: config.deadline,
            concurrency: config.concurrency,
            env: config.env.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        }
    }

    /// The folder of journals and manifests, with its limits.
    pub(crate) fn home(&self) -> Home {
        Home::limited(OsString::from_vec(self.home.clone()), self.limits)
    }

    /// Where the manifest goes.
    pub(crate) fn keep(&self) -> PathBuf {
        OsString::from_vec(self.keep.clone()).into()
    }

    /// How the origin is reached.
    pub(crate) fn config(&self) -> OriginConfig {
        OriginConfig {
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            anonymous: self.anonymous,
            attempt_timeout: self.attempt_timeout,
            connect_timeout: self.connect_timeout,
            deadline: self.deadline,
            concurrency: self.concurrency,
            env: self.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect(),
            ..OriginConfig::default()
        }
    }
}

/// How far the work is. The last is `Kept` or `Failed`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// As [`Progress::listed`](larder_import::Progress::listed) has it.
    Listed { files: u64, bytes: u64, done: u64, known: u64 },
    /// For the log.
    Noted(String),
    /// The listing is kept; the number of skipped keys, by reason.
    Kept { skipped: BTreeMap<String, u64> },
    /// It failed.
    Failed { kind: ErrorKind, error: ReportedError },
}

/// A message as a line.
pub(crate) fn line_of(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// The next message; `None` at the end. Errors: it is cut off, too long or none.
pub(crate) fn next<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    from.take(MESSAGE_BYTES_MAX).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        // The text of a JSON error may quote what it does not understand.
        Some(b'\n') => serde_json::from_slice(&line).map(Some).map_err(|_| broken()),
        Some(_) => Err(broken()),
    }
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "malformed message between a node and its import process")
}
