//! Which large files are to be checked, of those that an earlier process wrote: the ones that somebody opens, and all
//! others by the `scrub`.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::config::FileSpan;

/// The most files that wait for a check. A further one is asked for again when it is opened again.
const ASKED_MOST: usize = 64;

/// The files of a dataset that are to be checked.
#[derive(Debug, Default)]
pub(super) struct Checks {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// Those that somebody has opened, the first one first.
    asked: VecDeque<FileSpan>,
    /// All others are to be checked, too.
    wants_scrub: bool,
    /// They have been, or are being checked.
    is_scrubbed: bool,
    /// A thread checks files.
    is_running: bool,
}

/// The next check.
pub(super) enum Next {
    File(FileSpan),
    Scrub,
}

impl Checks {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the check of a file. True if the caller is to start the thread.
    pub(super) fn ask(&self, span: FileSpan) -> bool {
        let mut queue = self.lock();
        if !queue.asked.contains(&span) && queue.asked.len() < ASKED_MOST {
            queue.asked.push_back(span);
        }
        self.changed.notify_all();
        !std::mem::replace(&mut queue.is_running, true)
    }

    /// Asks for the scrub, unless it was asked for before. True if the caller is to start the thread.
    pub(super) fn ask_scrub(&self) -> bool {
        let mut queue = self.lock();
        if std::mem::replace(&mut queue.is_scrubbed, true) {
            return false;
        }
        queue.wants_scrub = true;
        !std::mem::replace(&mut queue.is_running, true)
    }

    /// The thread could not be started.
    pub(super) fn not_started(&self) {
        self.lock().is_running = false;
    }

    /// Ends a rest, so that the thread sees that it is to stop.
    pub(super) fn wake(&self) {
        let _queue = self.lock();
        self.changed.notify_all();
    }

    /// The next check of the thread. None: there is none, and the thread ends.
    pub(super) fn next(&self) -> Option<Next> {
        let mut queue = self.lock();
        if let Some(span) = queue.asked.pop_front() {
            return Some(Next::File(span));
        }
        if std::mem::take(&mut queue.wants_scrub) {
            return Some(Next::Scrub);
        }
        queue.is_running = false;
        None
    }

    /// A file that somebody has opened.
    pub(super) fn next_asked(&self) -> Option<FileSpan> {
        self.lock().asked.pop_front()
    }

    /// Waits for `time`, unless a file is asked for or `may_rest` is false.
    pub(super) fn rest(&self, time: Duration, may_rest: impl Fn() -> bool) {
        let rests = |queue: &mut Queue| queue.asked.is_empty() && may_rest();
        drop(self.changed.wait_timeout_while(self.lock(), time, rests));
    }
}
