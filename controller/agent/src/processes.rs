//! The processes of a session and the children of a process, found through /proc.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long processes have between SIGTERM and SIGKILL.
pub(crate) const GRACE: Duration = Duration::from_secs(10);
/// How long to wait for killed processes to disappear.
const KILLED: Duration = Duration::from_secs(5);
/// The interval between two polls of terminating processes.
const PAUSE: Duration = Duration::from_millis(50);

/// Sends a signal to all processes of a session except its leader. Returns how many processes received it.
pub(crate) fn signal_session(leader: Pid, signal: Signal) -> usize {
    signal_all(|process| process.session == leader.as_raw_nonzero().get() && process.pid != leader, signal)
}

/// Sends a signal to the children of a process. Returns how many received it.
pub(crate) fn signal_children(parent: Pid, signal: Signal) -> usize {
    signal_all(|process| process.parent == parent.as_raw_nonzero().get(), signal)
}

/// Terminates all processes of a session except its leader, and kills those that do not exit within [`GRACE`].
pub(crate) fn end_session(leader: Pid) {
    signal_session(leader, Signal::CONT);
    signal_session(leader, Signal::TERM);
    let signaled_at = Instant::now();
    while signaled_at.elapsed() < GRACE {
        if all().iter().all(|process| process.session != leader.as_raw_nonzero().get() || process.pid == leader) {
            return;
        }
        std::thread::sleep(PAUSE);
    }
    let killed = Instant::now();
    // Repeated, because the processes may have forked before they were killed.
    while signal_session(leader, Signal::KILL) > 0 && killed.elapsed() < KILLED {
        std::thread::sleep(PAUSE);
    }
}

fn signal_all(is_meant: impl Fn(&Process) -> bool, signal: Signal) -> usize {
    let meant = all().into_iter().filter(is_meant);
    // Sending fails if a process has exited since, or runs as another user.
    meant.filter(|process| kill_process(process.pid, signal).is_ok()).count()
}

struct Process {
    pid: Pid,
    parent: i32,
    session: i32,
}

/// All processes that are not zombies.
fn all() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            let stat = std::fs::read(entry.path().join("stat")).ok()?;
            parse(pid, &String::from_utf8_lossy(&stat))
        })
        .collect()
}

/// Parses `PID (NAME) STATE PARENT GROUP SESSION ...`. The name may contain any character, including `)`.
fn parse(pid: Pid, stat: &str) -> Option<Process> {
    let mut words = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = words.next()?;
    let parent = words.next()?.parse().ok()?;
    let session = words.nth(1)?.parse().ok()?;
    (!["Z", "X"].contains(&state)).then_some(Process { pid, parent, session })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_a_strange_name_is_read() {
        let pid = Pid::from_raw(7).unwrap();
        let process = parse(pid, "7 (a) R 1) S 3 4 5 0 -1 4194560").unwrap();
        assert_eq!((process.parent, process.session), (3, 5));
        assert!(parse(pid, "7 (gone) Z 3 4 5 0").is_none());
        assert!(parse(pid, "7 (short) S 3").is_none());
    }
}
