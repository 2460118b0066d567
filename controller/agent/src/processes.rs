//! The processes of a session, and those that a process has below it, as /proc shows them.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long processes that are told to end have before they are killed.
pub(crate) const GRACE: Duration = Duration::from_secs(10);
/// How long the kernel has to end processes that were killed.
const KILLED: Duration = Duration::from_secs(5);
/// Between two looks at processes that end.
const PAUSE: Duration = Duration::from_millis(50);

/// Sends a signal to the processes of a session, but for the one that leads it. Says how many there were.
pub(crate) fn signal_session(leader: Pid, signal: Signal) -> usize {
    signal_all(|process| process.session == leader.as_raw_nonzero().get() && process.pid != leader, signal)
}

/// Sends a signal to the processes whose parent this is.
pub(crate) fn signal_children(parent: Pid, signal: Signal) -> usize {
    signal_all(|process| process.parent == parent.as_raw_nonzero().get(), signal)
}

/// Ends the processes of a session, but for the one that leads it: those that do not end when told to are killed.
pub(crate) fn end_session(leader: Pid) {
    signal_session(leader, Signal::CONT);
    signal_session(leader, Signal::TERM);
    let told = Instant::now();
    while told.elapsed() < GRACE {
        if all().iter().all(|process| process.session != leader.as_raw_nonzero().get() || process.pid == leader) {
            return;
        }
        std::thread::sleep(PAUSE);
    }
    let killed = Instant::now();
    // Again, for what they start meanwhile.
    while signal_session(leader, Signal::KILL) > 0 && killed.elapsed() < KILLED {
        std::thread::sleep(PAUSE);
    }
}

fn signal_all(is_meant: impl Fn(&Process) -> bool, signal: Signal) -> usize {
    let meant = all().into_iter().filter(is_meant);
    // One that has ended since is not there any more; one of another user cannot be ended by this one.
    meant.filter(|process| kill_process(process.pid, signal).is_ok()).count()
}

struct Process {
    pid: Pid,
    parent: i32,
    session: i32,
}

/// All processes that have not ended.
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

/// `PID (NAME) STATE PARENT GROUP SESSION ...`, where the name may have any character.
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
