//! Child processes that end with this one, and the system calls for them that have no safe wrapper.
#![expect(unsafe_code, reason = "a child's own setting before it runs, a mount namespace")]

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use larder_epochs::process;

/// How long a daemon may take to end after its mount was removed, and again after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// The interval at which a process is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Number of log lines that an error quotes.
const LINES_IN_ERRORS: usize = 12;

/// A process that is killed when this is dropped, and by the kernel when this process ends for any reason.
#[derive(Debug)]
pub struct Child {
    name: String,
    log: PathBuf,
    process: std::process::Child,
}

impl Child {
    /// Starts it in a separate process group, so that Ctrl-C reaches only this process. Both outputs go to `log`. The
    /// calling thread must live as long as the child may: the kernel kills the child when that thread ends.
    pub fn spawn(name: &str, command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let output = File::create(log).with_context(|| format!("create the log {}", log.display()))?;
        let errors = output.try_clone().with_context(|| format!("open the log {}", log.display()))?;
        let parent = rustix::process::getpid();
        command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        // SAFETY: between fork and exec only two system calls are made, and no memory is allocated.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                // The parent may have died before the signal was set; then the child would live on.
                if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(std::io::ErrorKind::Other.into()) }
            });
        }
        let process = command.spawn().with_context(|| format!("start {name}"))?;
        Ok(Self { name: name.to_owned(), log: log.to_owned(), process })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The exit status; `None` while the process runs.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.process.try_wait().with_context(|| format!("poll {}", self.name))
    }

    /// The last lines of its output, with its name, for an error.
    pub fn last_words(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(LINES_IN_ERRORS)..].join("\n    ");
        if last.is_empty() {
            format!("{} printed nothing", self.name)
        } else {
            format!("{} printed:\n    {last}", self.name)
        }
    }

    /// Waits for the process to end without a signal, then sends SIGTERM, then kills it with all its descendants.
    pub fn end(mut self) {
        if !self.ends_within(END_TIMEOUT) {
            self.signal(Signal::TERM);
            self.ends_within(END_TIMEOUT);
        }
    }

    /// Sends SIGTERM and waits, then kills it.
    pub fn stop(mut self) {
        self.signal(Signal::TERM);
        self.ends_within(END_TIMEOUT);
    }

    fn ends_within(&mut self, time: Duration) -> bool {
        let started = Instant::now();
        while started.elapsed() < time {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return true;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        false
    }

    fn signal(&self, signal: Signal) {
        if let Some(id) = Pid::from_raw(self.process.id() as i32) {
            let _ = kill_process(id, signal);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(Some(_))) {
            return;
        }
        // The process was not reaped yet, so no other process can have its id.
        for id in process::family(self.process.id()) {
            if let Some(id) = Pid::from_raw(id as i32) {
                let _ = kill_process(id, Signal::KILL);
            }
        }
        // Bounded: a reader of an unresponsive FUSE mount ends only when that mount does.
        self.ends_within(END_TIMEOUT);
    }
}

/// Moves this thread, and the processes that it starts, to a private mount namespace: other processes do not see their
/// mounts, which end with the last of them, even if all are killed. Needs root. Must be called on the main thread,
/// before anything is mounted.
pub fn own_mounts() -> anyhow::Result<()> {
    // SAFETY: no descriptor of this process depends on which mounts its threads see.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }
        .context("create a mount namespace (needs root)")?;
    let private = rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).context("make the mounts of this run private")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alive(id: u32) -> bool {
        // An ended process that was not waited for is a zombie; its files in /proc still exist.
        std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    }

    fn within_seconds(seconds: u64, what: impl Fn() -> bool) -> bool {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(seconds) {
            if what() {
                return true;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        false
    }

    #[test]
    fn a_dropped_child_takes_its_children_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 300 & echo $!; wait"]);
        let child = Child::spawn("shell", &mut command, &log).unwrap();
        assert!(within_seconds(10, || child.last_words().contains("printed:")));
        let grandchild: u32 = child.last_words().rsplit_once(' ').unwrap().1.trim().parse().unwrap();
        let id = child.id();
        assert!(alive(id) && alive(grandchild));
        drop(child);
        assert!(!alive(id) && within_seconds(10, || !alive(grandchild)));
    }

    #[test]
    fn a_child_dies_with_the_thread_that_started_it() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let child = std::thread::spawn(move || Child::spawn("sleep", Command::new("sleep").arg("300"), &log).unwrap());
        let child = child.join().unwrap();
        let id = child.id();
        assert!(within_seconds(10, || !alive(id)));
    }

    #[test]
    fn the_error_names_a_program_that_cannot_be_started() {
        let folder = tempfile::tempdir().unwrap();
        let error = Child::spawn("ghost", &mut Command::new("/nonexistent"), &folder.path().join("log")).unwrap_err();
        assert!(error.to_string().contains("start ghost"), "{error}");
    }
}
