//! The process that imports for a node: it takes one job, does it, says so, and ends.
//!
//! Invariants: it has no descriptor of the node's, so no connection and no lock stays open through it. It ends with the
//! node, and when the node does not wait for it any more, at any moment: the manifest is kept completely or not at all.
//! Its memory is limited, and if the machine runs out of it, this process is the one to go.
#![expect(unsafe_code, reason = "closes inherited descriptors")]

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::RawFd;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use larder_dataset::Chain;
use larder_import::{ImportError, JournalError, Progress};
use larder_origin::OriginUrl;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

use crate::home::Home;
use crate::importing::messages::{Job, ROLE, Report, line_of, next};
use crate::kept_listing::KeptListing;
use crate::node::NodeError;
use crate::source::{Here, Import, Importing, SourceError, Told};

/// How often the node hears how far it is.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// How long a predecessor may take to end whose node was killed.
const PREDECESSOR_MOST: Duration = Duration::from_secs(10);

/// The most causes of an error that are told.
const CAUSES_MOST: usize = 16;

/// Does the job of this process if it was started to import for a node. To be called at the very beginning of `main`,
/// before anything is opened.
pub fn run_if_asked() -> Option<ExitCode> {
    (std::env::args_os().nth(1)? == ROLE).then(run)
}

fn run() -> ExitCode {
    close_inherited();
    // Where this is not possible, the end of the pipe says the same.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let _ = rustix::thread::set_name(c"larder-import");
    // The job first: the node hears reports once it was taken.
    let job = match next::<Job>(&mut io::stdin().lock()) {
        Ok(Some(job)) => Ok(job),
        Ok(None) => return fail("there is no job on standard input: only larderd starts this"),
        Err(error) => Err(error),
    };
    let reporter = Reporter::default();
    let ready = job.and_then(|job| prepare(&job).map(|()| job));
    let said = match ready.map_err(SourceError::Home).and_then(|job| import(&job, &reporter)) {
        Ok(skipped) => reporter.end(&Report::Kept { skipped }),
        Err(error) => {
            let told = told(&error, CAUSES_MOST);
            reporter.end(&Report::Failed { kind: NodeError::from(error).kind(), told })
        }
    };
    match said {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}

/// Readies this process for a job. Errors: it cannot be limited, or nobody waits for it any more.
fn prepare(job: &Job) -> io::Result<()> {
    larder_telemetry::init_logs("warn").map_err(io::Error::other)?;
    // It may have ended before its end could be told.
    if std::os::unix::process::parent_id() != job.parent {
        return Err(io::Error::other(
            "the process that wants an import is not the one that started this, or has ended",
        ));
    }
    limit_memory(job.memory_bytes)?;
    end_with_the_pipe()
}

fn fail(error: impl std::fmt::Display) -> ExitCode {
    // Nobody may be there to read it.
    let _ = writeln!(io::stderr(), "error: {error}");
    ExitCode::FAILURE
}

/// Closes all but the three streams: the node may have descriptors that are not closed when a program is started.
fn close_inherited() {
    let open: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2)
        .collect();
    // One of them was that of the folder, which is closed by now.
    for fd in open.into_iter().filter(|fd| std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok()) {
        // SAFETY: the program has just begun and this is its only thread, so nothing owns a descriptor but the three
        // streams.
        unsafe { rustix::io::close(fd) };
    }
}

fn limit_memory(bytes: u64) -> io::Result<()> {
    let limit = |most| Rlimit { current: Some(most), maximum: Some(most) };
    // A lower limit of the container's stays: raising it would need a right.
    let most = getrlimit(Resource::Data).maximum.map_or(bytes, |most| most.min(bytes));
    setrlimit(Resource::Data, limit(most))?;
    // Its memory includes credentials: no core dumps.
    setrlimit(Resource::Core, limit(0))?;
    // If the memory of the node's container runs out, this process is to be ended. A file that is not there ends the
    // other.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    Ok(())
}

/// Ends this process when the node closes standard input.
fn end_with_the_pipe() -> io::Result<()> {
    let watch = || {
        let mut rest = [0; 64];
        loop {
            match io::stdin().lock().read(&mut rest) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => std::process::exit(1),
                Ok(_) => {}
            }
        }
    };
    std::thread::Builder::new().name("lifeline".into()).spawn(watch).map(drop)
}

fn import(job: &Job, reporter: &Reporter) -> Result<BTreeMap<String, u64>, SourceError> {
    let url: OriginUrl = job.url.parse()?;
    let (config, home, kept) = (job.config(), Home::new(job.home()), KeptListing::at(job.keep()));
    // Each thread counts for the limit.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(24)
        .thread_stack_size(1 << 20)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let started = Instant::now();
        loop {
            let origin = larder_origin::open(&url, &config)?;
            let import = Import { url: &url, origin, kept: &kept, config: &config, home: &home, progress: reporter };
            match Here.import(import).await {
                Err(SourceError::Import { source: ImportError::Journal(JournalError::InUse { .. }), .. })
                    if started.elapsed() < PREDECESSOR_MOST =>
                {
                    tokio::time::sleep(REPORT_EVERY).await;
                }
                done => return done,
            }
        }
    })
}

/// The words of an error and its causes, as [`Chain`] shows them.
fn told(error: &dyn std::error::Error, causes_most: usize) -> Told {
    let text = error.to_string();
    match error.source() {
        Some(cause) if causes_most == 0 => Told::new(format!("{text}: {}", Chain(cause)), None),
        cause => Told::new(text, cause.map(|cause| told(cause, causes_most.saturating_sub(1)))),
    }
}

/// Says to the node how far the import is.
#[derive(Default)]
struct Reporter(Mutex<Said>);

#[derive(Default)]
struct Said {
    last: Option<Instant>,
    /// How far it is, if that was too soon to say.
    unsaid: Option<Report>,
}

impl Reporter {
    fn say(&self, report: &Report) -> io::Result<()> {
        let line = line_of(report)?;
        let mut out = io::stdout().lock();
        out.write_all(&line)?;
        out.flush()
    }

    fn lock(&self) -> MutexGuard<'_, Said> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says how it ended.
    fn end(&self, report: &Report) -> io::Result<()> {
        let unsaid = self.lock().unsaid.take();
        unsaid.map_or(Ok(()), |unsaid| self.say(&unsaid))?;
        self.say(report)
    }
}

impl Progress for Reporter {
    fn listed(&self, files: u64, bytes: u64, done: u64, known: u64) {
        let report = Report::Listed { files, bytes, done, known };
        let mut said = self.lock();
        if said.last.is_some_and(|last| last.elapsed() < REPORT_EVERY) {
            said.unsaid = Some(report);
            return;
        }
        *said = Said { last: Some(Instant::now()), unsaid: None };
        // A node that is gone ends this process soon.
        let _ = self.say(&report);
    }

    fn noted(&self, what: &str) {
        let _ = self.say(&Report::Noted(what.to_owned()));
    }
}
