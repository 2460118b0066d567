//! Imports for mounts, in a process of their own.
//!
//! The cast: [`Importer`] says where a node imports; `turns` are the slots for imports, and `line` decides which import
//! gets one; `allowance` holds back imports that a quota does not allow; `process` starts the other process and reads
//! its reports; `messages` are their protocol. The other process runs
//! [`importer_process`](crate::importer_process).
//!
//! Invariants: an import that needs too much memory costs this process nothing but an error, and its mounts are served.
//! At most two run at once, fewer for the namespaces of a quota, and the namespaces that pay take turns. The other
//! process ends with this one, or when nobody waits for it any more. It alone writes the manifest, completely or not at
//! all. The job and its credentials go through a pipe: neither its arguments nor its environment have them.

mod allowance;
mod line;
pub(crate) mod messages;
mod process;
mod turns;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use larder_dataset::environment::OWNER;
use larder_import::remove_orphaned_drafts;
use larder_store::Quota;
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::error_kind::ErrorKind;
use crate::source::{self, Import, Importing, ReportedError, SourceError};
use allowance::{Allowance, Allowances};
use messages::{Job, Report};
use process::Event;
use turns::{Permit, Turns};

/// The memory that an import may take. It needs about half of that, whatever the number of keys, and more only where
/// millions of folders are directly in one folder of an origin that is listed folder by folder.
const MEMORY_BYTES: u64 = 512 << 20;

/// Processes that import at once; other imports wait. Their memory is a part of the container's limit (ADR 25).
const PROCESSES_MOST: usize = 2;

/// The memory of all of them.
pub(crate) const PROCESSES_BYTES: u64 = PROCESSES_MOST as u64 * MEMORY_BYTES;

/// How long an import may list while others wait for its slot. Stopping it costs reading its journal once more, which
/// is far quicker than listing.
const TURN: Duration = Duration::from_secs(300);

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
    turns: Arc<Turns>,
    allowances: Arc<Allowances>,
}

impl Importer {
    /// A process of this program, with at most 512 MiB of data in memory.
    pub fn own_process() -> Self {
        // This very program, even if its file was replaced since.
        Self::process("/proc/self/exe", MEMORY_BYTES, TURN)
    }

    /// A process of `program`, with at most `memory_bytes` of data in memory. Its `main` begins with
    /// [`run_if_asked`](crate::importer_process::run_if_asked). It lists at least for the time `turn` before it gives
    /// its slot to another.
    pub fn process(program: impl Into<PathBuf>, memory_bytes: u64, turn: Duration) -> Self {
        let (turns, allowances) = (Turns::new(PROCESSES_MOST, turn), Allowances::new());
        Self::Process(Arc::new(Processes { program: program.into(), memory_bytes, turns, allowances }))
    }

    /// Imports that a namespace pays for. `waits` is true while one waits for the quota of the namespace.
    pub(crate) fn paid_by<'a>(&'a self, payer: &'a str, waits: &'a AtomicBool) -> PaidImporter<'a> {
        PaidImporter { importer: self, payer, waits }
    }

    /// Limits the imports of namespaces from now on. Those that run stay.
    pub(crate) fn limit(&self, quotas: &[Quota]) {
        if let Self::Process(processes) = self {
            processes.allowances.limit(quotas);
        }
    }

    /// The quota that limits the imports of a namespace, and how many of it run now.
    pub(crate) fn limit_of(&self, payer: &str) -> Option<(Quota, usize)> {
        match self {
            Self::Here => None,
            Self::Process(processes) => processes.allowances.limit_of(payer),
        }
    }
}

impl Importing for Importer {
    type Allowance = ();

    async fn allow(&self) {}

    async fn import(&self, import: Import<'_>) -> Result<BTreeMap<String, u64>, SourceError> {
        match self {
            Self::Here => source::Here.import(import).await,
            Self::Process(processes) => in_process(processes, import, "").await,
        }
    }
}

/// An importer for what one namespace pays for.
#[derive(Debug)]
pub(crate) struct PaidImporter<'a> {
    importer: &'a Importer,
    payer: &'a str,
    waits: &'a AtomicBool,
}

impl Importing for PaidImporter<'_> {
    type Allowance = Option<Allowance>;

    async fn allow(&self) -> Option<Allowance> {
        let Importer::Process(processes) = self.importer else { return None };
        self.waits.store(true, Ordering::Relaxed);
        let allowance = processes.allowances.take(self.payer).await;
        self.waits.store(false, Ordering::Relaxed);
        Some(allowance)
    }

    async fn import(&self, import: Import<'_>) -> Result<BTreeMap<String, u64>, SourceError> {
        match self.importer {
            Importer::Here => source::Here.import(import).await,
            Importer::Process(processes) => in_process(processes, import, self.payer).await,
        }
    }
}

/// Imports when it is the payer's turn. A namespace has one turn however many owners its datasets have; without one, it
/// is the turn of the owner.
async fn in_process(
    processes: &Processes,
    import: Import<'_>,
    payer: &str,
) -> Result<BTreeMap<String, u64>, SourceError> {
    let owner = import.config.env.get(OWNER).unwrap_or_default();
    let whose = if payer.is_empty() { owner } else { payer };
    loop {
        let permit = processes.turns.take(whose).await;
        if let Some(outcome) = one_turn(processes, &import, permit).await {
            return outcome;
        }
        info!(url = %import.url, "an import gives way to others that wait, and continues when it is its turn again");
    }
}

/// Imports in a process until that ends. `None` if it was stopped for the sake of others; its journal stays.
async fn one_turn(
    processes: &Processes,
    import: &Import<'_>,
    permit: Permit,
) -> Option<Result<BTreeMap<String, u64>, SourceError>> {
    let memory_bytes = processes.memory_bytes;
    let (job, mut turn) = (Job::of(import, memory_bytes), permit.turn());
    let (events, mut received) = mpsc::channel(MESSAGES_MOST);
    if let Err(error) = process::start(processes.program.clone(), job, events, permit) {
        return Some(Err(error.into()));
    }
    // The other process ends when this is dropped.
    let mut lifeline = None;
    let mut outcome = None;
    let (mut lists, mut gave_way) = (false, false);
    loop {
        let event = tokio::select! {
            event = received.recv() => match event {
                Some(event) => event,
                None => return Some(Err(SourceError::Home(panicked()))),
            },
            // What is listed is in the journal. Before it lists, it reads that, and afterwards it makes the manifest:
            // either is bounded by the size of a listing, and would have to be done again.
            () = turn.over(), if lists && !gave_way => {
                gave_way = true;
                drop(lifeline.take());
                continue;
            }
        };
        match event {
            Event::Started(stdin) => lifeline = Some(stdin),
            Event::Reported(Report::Listed { files, bytes, done, known }) => {
                turn.begin();
                lists = done < known;
                import.progress.listed(files, bytes, done, known);
            }
            Event::Reported(Report::Noted(what)) => import.progress.noted(&what),
            Event::Reported(Report::Kept { skipped }) => outcome = Some(Ok(skipped)),
            Event::Reported(Report::Failed { kind, error }) => {
                outcome = Some(Err(SourceError::Reported { kind, source: error }))
            }
            Event::Ended(ended) => {
                drop(lifeline.take());
                return match (outcome.take(), ended) {
                    (Some(outcome), _) => Some(outcome),
                    (None, _) if gave_way => None,
                    (None, Ok(status)) => Some(Err(ended_early(import, memory_bytes, status))),
                    (None, Err(error)) => Some(Err(error.into())),
                };
            }
        }
    }
}

fn panicked() -> io::Error {
    io::Error::other("the thread that started an import panicked; see the log")
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

#[cfg(test)]
mod tests {
    use futures::poll;
    use larder_dataset::environment::ANONYMOUS;
    use larder_import::Silent;
    use larder_origin::{OriginConfig, OriginUrl};

    use super::*;
    use crate::home::Home;
    use crate::kept_listing::KeptListing;

    /// No process is started: both slots are taken.
    #[tokio::test]
    async fn imports_take_turns_by_the_namespace_that_pays_and_without_one_by_the_owner() {
        let folder = tempfile::tempdir().unwrap();
        let importer = Importer::process("/nonexistent", MEMORY_BYTES, TURN);
        let Importer::Process(processes) = &importer else { panic!("it is one") };
        let _slots = [processes.turns.take("first").await, processes.turns.take("second").await];
        let url: OriginUrl = format!("file://{}", folder.path().display()).parse().unwrap();
        let (home, waits) = (Home::new(folder.path().join("home")), AtomicBool::new(false));
        let kept = KeptListing::at(folder.path().join("kept.manifest"));
        for (payer, owner, whose) in
            [("team-a", "uid-1", "team-a"), ("team-a", ANONYMOUS, "team-a"), ("", "uid-2", "uid-2")]
        {
            let mut config = OriginConfig::default();
            config.env.set(OWNER, owner);
            let import = Import {
                url: &url,
                origin: larder_origin::open(&url, &config).unwrap(),
                kept: &kept,
                config: &config,
                home: &home,
                link_objects: false,
                since_ns: None,
                progress: &Silent,
            };
            let paid = importer.paid_by(payer, &waits);
            let mut waiting = Box::pin(paid.import(import));
            assert!(poll!(&mut waiting).is_pending());
            let line = format!("{:?}", processes.turns);
            assert!(line.contains(&format!("{whose:?}")), "{line}");
            assert!(whose == owner || !line.contains(&format!("{owner:?}")), "{line}");
        }
    }
}
