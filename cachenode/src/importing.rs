//! Imports for mounts, in a process of their own.
//!
//! The cast: [`Importer`] says where a node imports; `process` starts the other process and reads its reports;
//! `messages` are their protocol. The other process runs [`importer_process`](crate::importer_process).
//!
//! Invariants: an import that needs too much memory, or that the kernel ends, costs this process nothing but an error,
//! and its mounts are served. At most two run at once. The other process ends with this one, or when nobody waits for
//! it any more. It alone writes the manifest, completely or not at all. The job and its credentials go through a pipe:
//! neither its arguments nor its environment have them.

pub(crate) mod messages;
mod process;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;

use larder_import::remove_orphaned_drafts;
use tokio::sync::{Semaphore, mpsc};
use tracing::warn;

use crate::error_kind::ErrorKind;
use crate::source::{self, Import, Importing, ReportedError, SourceError};
use messages::{Job, Report};
use process::Event;

/// The memory that an import may take. It needs about half of that, whatever the number of keys, and more only where
/// millions of folders are directly in one folder of an origin that is listed folder by folder.
const MEMORY_BYTES: u64 = 512 << 20;

/// Processes that import at once; other imports wait. Their memory is a part of the container's limit (ADR 25).
const PROCESSES_MOST: usize = 2;

/// Events that wait to be handled. The other process waits if there are more.
const MESSAGES_MOST: usize = 16;

/// Where a node imports datasets that have no manifest yet.
#[derive(Clone, Debug)]
pub enum Importer {
    /// In this process.
    Here,
    /// In a process of its own.
    Process(Arc<Processes>),
}

/// How processes that import are started. Few run at once, over all clones of an [`Importer`].
#[derive(Debug)]
pub struct Processes {
    program: PathBuf,
    memory_bytes: u64,
    permits: Arc<Semaphore>,
}

impl Importer {
    /// A process of this program, with at most 512 MiB of data in memory.
    pub fn own_process() -> Self {
        // This very program, even if its file was replaced since.
        Self::process("/proc/self/exe", MEMORY_BYTES)
    }

    /// A process of `program`, with at most so much data in memory. Its `main` begins with
    /// [`run_if_asked`](crate::importer_process::run_if_asked).
    pub fn process(program: impl Into<PathBuf>, memory_bytes: u64) -> Self {
        let permits = Arc::new(Semaphore::new(PROCESSES_MOST));
        Self::Process(Arc::new(Processes { program: program.into(), memory_bytes, permits }))
    }
}

impl Importing for Importer {
    async fn import(&self, import: Import<'_>) -> Result<BTreeMap<String, u64>, SourceError> {
        match self {
            Self::Here => source::Here.import(import).await,
            Self::Process(processes) => in_process(processes, import).await,
        }
    }
}

async fn in_process(processes: &Processes, import: Import<'_>) -> Result<BTreeMap<String, u64>, SourceError> {
    let memory_bytes = processes.memory_bytes;
    let permit = Arc::clone(&processes.permits).acquire_owned().await.map_err(io::Error::other)?;
    let job = Job::of(&import, memory_bytes);
    let (events, mut received) = mpsc::channel(MESSAGES_MOST);
    process::start(processes.program.clone(), job, events, permit)?;
    // The other process ends when this is dropped.
    let mut lifeline = None;
    let mut outcome = None;
    while let Some(event) = received.recv().await {
        match event {
            Event::Started(stdin) => lifeline = Some(stdin),
            Event::Reported(Report::Listed { files, bytes, done, known }) => {
                import.progress.listed(files, bytes, done, known);
            }
            Event::Reported(Report::Noted(what)) => import.progress.noted(&what),
            Event::Reported(Report::Kept { skipped }) => outcome = Some(Ok(skipped)),
            Event::Reported(Report::Failed { kind, error }) => {
                outcome = Some(Err(SourceError::Reported { kind, source: error }))
            }
            Event::Ended(ended) => {
                drop(lifeline.take());
                return match outcome.take() {
                    Some(outcome) => outcome,
                    None => Err(ended_early(&import, memory_bytes, ended?)),
                };
            }
        }
    }
    let panicked = io::Error::other("the thread that started an import panicked; see the log");
    Err(SourceError::Home(panicked))
}

/// The error of a process that ended without reporting an outcome.
fn ended_early(import: &Import<'_>, memory_bytes: u64, status: ExitStatus) -> SourceError {
    if let Ok(imports) = import.home.sub_folder(source::IMPORTS) {
        remove_orphaned_drafts(&imports);
    }
    let url = import.url;
    let publish = source::publish_command(&url.to_string(), import.config);
    let why = format!(
        "the process that listed it ended early ({status}) and published nothing: the next attempt continues \
        where it stopped. If it ran out of memory (its limit is {} MiB), publish a manifest from a machine \
        with more: `{publish}`",
        memory_bytes >> 20
    );
    warn!(%url, %status, "an import process ended early");
    SourceError::Reported {
        kind: ErrorKind::Unavailable,
        source: ReportedError::new(format!("import {url}"), Some(ReportedError::new(why, None))),
    }
}
