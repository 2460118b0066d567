//! Starts the process of an import and reads its reports, on a thread of its own.
//!
//! The kernel ends the process with the thread that started it, so that thread lives until the process has ended.

use std::ffi::OsString;
use std::io::{self, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use larder_dataset::environment::is_of_origins;
use tokio::sync::mpsc::Sender;

use super::messages::{Job, ROLE, Report, line_of, next};
use super::turns::Permit;

/// An event in the life of the process.
#[derive(Debug)]
pub(super) enum Event {
    /// It has its job. It ends when this is closed.
    Started(ChildStdin),
    /// It sent a report.
    Reported(Report),
    /// It has ended, or could not be started. The last event.
    Ended(io::Result<ExitStatus>),
}

/// Starts `program` for a job. If nobody receives the events any more, the process ends. The permit is held until it
/// has ended. Errors: there can be no thread.
pub(super) fn start(program: PathBuf, job: Job, events: Sender<Event>, permit: Permit) -> io::Result<()> {
    let watch = move || {
        let ended = watch(&program, &job, &events);
        drop(permit);
        let _ = events.blocking_send(Event::Ended(ended));
    };
    std::thread::Builder::new().name("import".into()).spawn(watch).map(drop)
}

fn watch(program: &Path, job: &Job, events: &Sender<Event>) -> io::Result<ExitStatus> {
    let mut process = spawn(program)
        .map_err(|error| io::Error::new(error.kind(), format!("start a process for an import: {error}")))?;
    let forwarded = forward_reports(&mut process, job, events);
    if forwarded.is_err() {
        // It may have ended already.
        let _ = process.kill();
    }
    let status = process.wait()?;
    // A process that was killed reports nothing more: its status gives the reason.
    if status.success() { forwarded.map(|()| status) } else { Ok(status) }
}

fn spawn(program: &Path) -> io::Result<Child> {
    let own_name = std::env::args_os().next().unwrap_or_else(|| OsString::from("larderd"));
    let mut command = Command::new(program);
    // The credentials are in the job, and must not be in the environment too.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_of_origins)) {
        command.env_remove(name);
    }
    command
        .arg0(own_name)
        .arg(ROLE)
        // Each arena of the allocator keeps freed memory, which would count against the limit.
        .env("MALLOC_ARENA_MAX", "2")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
}

/// Gives the process its job and forwards its reports. Errors: it does not take the job, sends a malformed report, or
/// nobody receives the events.
fn forward_reports(process: &mut Child, job: &Job, events: &Sender<Event>) -> io::Result<()> {
    let (Some(mut stdin), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
        return Err(io::Error::other("a process has no streams"));
    };
    stdin.write_all(&line_of(job)?)?;
    let send = |event| events.blocking_send(event).map_err(|_| io::Error::other("nobody waits for the import"));
    send(Event::Started(stdin))?;
    let mut stdout = BufReader::new(stdout);
    while let Some(report) = next(&mut stdout)? {
        send(Event::Reported(report))?;
    }
    Ok(())
}
