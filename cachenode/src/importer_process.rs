//! The process that imports for a node: it takes one job, does it, reports the outcome, and ends.
//!
//! Invariants: it has no descriptor of the node's, so no connection and no lock stays open through it. It ends with the
//! node, or when the node no longer waits for it, at any moment: the manifest is kept completely or not at all. Its
//! memory is private and limited, so the container's limit, less two such processes, is left for the node.
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

use crate::importing::messages::{Job, ROLE, Report, line_of, next};
use crate::kept_listing::KeptListing;
use crate::node::NodeError;
use crate::source::{Here, Import, Importing, ReportedError, SourceError};

/// Interval between two reports of the progress.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// How long the import process of a killed node may take to end.
const PREDECESSOR_MOST: Duration = Duration::from_secs(10);

/// The most causes of an error that are reported.
const CAUSES_MOST: usize = 16;

/// Imports if this process was started to import for a node. `main` calls it first, before anything is opened.
pub fn run_if_asked() -> Option<ExitCode> {
    (std::env::args_os().nth(1)? == ROLE).then(run)
}

fn run() -> ExitCode {
    close_inherited();
    // If the node's container runs out of memory, the kernel ends this process and not the node, except in a group that
    // it ends as a whole (`memory.oom.group`), as the kubelet makes them on cgroup v2. Without this file it chooses for
    // itself. The file can be written to only while the memory is not private.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    larder_telemetry::keep_memory_private();
    // Where this is not possible, the end of the pipe ends this process.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let _ = rustix::thread::set_name(c"larder-import");
    // The job first: the node reads no report before the job is taken.
    let job = match next::<Job>(&mut io::stdin().lock()) {
        Ok(Some(job)) => Ok(job),
        Ok(None) => return fail("there is no job on standard input: only larderd starts this"),
        Err(error) => Err(error),
    };
    let reporter = Reporter::default();
    let ready = job.and_then(|job| prepare(&job).map(|()| job));
    let reported = match ready.map_err(SourceError::Home).and_then(|job| import(&job, &reporter)) {
        Ok(skipped) => reporter.end(&Report::Kept { skipped }),
        Err(error) => {
            let reported = reported(&error, CAUSES_MOST);
            reporter.end(&Report::Failed { kind: NodeError::from(error).kind(), error: reported })
        }
    };
    match reported {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}

/// Prepares this process for a job. Errors: its memory cannot be limited, or nobody waits for it any more.
fn prepare(job: &Job) -> io::Result<()> {
    larder_telemetry::init_logs("warn").map_err(io::Error::other)?;
    // The node may have ended before the signal of its death was requested.
    if std::os::unix::process::parent_id() != job.parent {
        return Err(io::Error::other(
            "the process that requested this import did not start this process, or has ended",
        ));
    }
    limit_memory(job.memory_bytes)?;
    end_with_the_pipe()
}

fn fail(error: impl std::fmt::Display) -> ExitCode {
    // Standard error may be closed.
    let _ = writeln!(io::stderr(), "error: {error}");
    ExitCode::FAILURE
}

/// Closes all descriptors but the three streams: the node may have some that are not closed on exec.
fn close_inherited() {
    let open: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2)
        .collect();
    // One of them was that of the listing of /proc/self/fd, which is closed by now.
    for fd in open.into_iter().filter(|fd| std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok()) {
        // SAFETY: the program has just begun and this is its only thread, so nothing owns a descriptor but the three
        // streams.
        unsafe { rustix::io::close(fd) };
    }
}

fn limit_memory(bytes: u64) -> io::Result<()> {
    // A lower limit of the container stays: raising it would need a capability.
    let most = getrlimit(Resource::Data).maximum.map_or(bytes, |most| most.min(bytes));
    Ok(setrlimit(Resource::Data, Rlimit { current: Some(most), maximum: Some(most) })?)
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
    let (config, home, kept) = (job.config(), job.home(), KeptListing::at(job.keep()));
    // The stack of each thread counts against the memory limit.
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
            let import = Import {
                url: &url,
                origin,
                kept: &kept,
                config: &config,
                home: &home,
                link_objects: job.link_objects,
                since_ns: job.since_ns,
                progress: reporter,
            };
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
fn reported(error: &dyn std::error::Error, causes_most: usize) -> ReportedError {
    let text = error.to_string();
    match error.source() {
        Some(cause) if causes_most == 0 => ReportedError::new(format!("{text}: {}", Chain(cause)), None),
        cause => ReportedError::new(text, cause.map(|cause| reported(cause, causes_most.saturating_sub(1)))),
    }
}

/// Reports the progress to the node.
#[derive(Default)]
struct Reporter(Mutex<Sent>);

#[derive(Default)]
struct Sent {
    last: Option<Instant>,
    /// The latest progress, if it came too soon after the last report.
    pending: Option<Report>,
}

impl Reporter {
    fn send(&self, report: &Report) -> io::Result<()> {
        let line = line_of(report)?;
        let mut out = io::stdout().lock();
        out.write_all(&line)?;
        out.flush()
    }

    fn lock(&self) -> MutexGuard<'_, Sent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports the outcome.
    fn end(&self, report: &Report) -> io::Result<()> {
        let pending = self.lock().pending.take();
        pending.map_or(Ok(()), |pending| self.send(&pending))?;
        self.send(report)
    }
}

impl Progress for Reporter {
    fn listed(&self, files: u64, bytes: u64, done: u64, known: u64) {
        let report = Report::Listed { files, bytes, done, known };
        let mut sent = self.lock();
        // The last one says that all is listed, and must not wait for the end.
        if done < known && sent.last.is_some_and(|last| last.elapsed() < REPORT_EVERY) {
            sent.pending = Some(report);
            return;
        }
        *sent = Sent { last: Some(Instant::now()), pending: None };
        // A node that is gone ends this process soon.
        let _ = self.send(&report);
    }

    fn noted(&self, what: &str) {
        let _ = self.send(&Report::Noted(what.to_owned()));
    }
}
