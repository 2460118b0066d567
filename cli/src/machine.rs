//! The mounts of this machine as `larder top` and `larder ui` show them: their figures of the last seconds, their
//! passes, and the sentence about each.
//!
//! The cast: [`Machine`] asks the mounts for their stats, each in a thread of its own, since one whose process is
//! stopped does not answer; [`view`] turns two stats of a mount into what is shown.

pub(crate) mod view;

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use larder_cachenode::Stats;
use larder_daemon_api::mountinfo::larder_mounts;
use larder_dataset::Chain;

use crate::mount_stats::{SILENT, is_foreign, read};
use view::{Counted, MountView};

/// Rates are those of this time.
const SPAN: Duration = Duration::from_secs(10);
/// How long a mount may take to answer.
const ANSWER: Duration = Duration::from_secs(2);

/// Asks the mounts of this machine for their stats, again and again.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    mounts: HashMap<PathBuf, Asked>,
}

/// A mount, and what it answered.
#[derive(Debug)]
struct Asked {
    questions: SyncSender<()>,
    answers: Receiver<anyhow::Result<Stats>>,
    is_waiting: bool,
    /// It has not answered an earlier question in time, so it is not waited for.
    is_late: bool,
    /// Its counts of the last seconds, the oldest first.
    samples: VecDeque<(Instant, Counted)>,
}

impl Asked {
    fn new(dir: &Path) -> Self {
        let (questions, asked) = sync_channel::<()>(1);
        let (answer, answers) = sync_channel(1);
        let dir = dir.to_owned();
        // It ends with this value, unless the mount never answers.
        std::thread::spawn(move || while asked.recv().is_ok() && answer.send(read(&dir)).is_ok() {});
        Self { questions, answers, is_waiting: false, is_late: false, samples: VecDeque::new() }
    }

    fn ask(&mut self) {
        self.is_late = self.is_waiting;
        if !self.is_waiting {
            self.is_waiting = self.questions.send(()).is_ok();
        }
    }

    /// Takes the answer, for which it waits until `deadline`, unless it is late already.
    fn answer(&mut self, dir: &Path, deadline: Instant) -> Option<MountView> {
        let left = if self.is_late { Duration::ZERO } else { deadline.saturating_duration_since(Instant::now()) };
        let Ok(answer) = self.answers.recv_timeout(left) else {
            return Some(MountView::dead(dir, SILENT.to_owned()));
        };
        self.is_waiting = false;
        match answer {
            Ok(stats) => {
                let now = Instant::now();
                self.samples.push_back((now, Counted::from(&stats)));
                while self.samples.len() > 2 && self.samples.get(1).is_some_and(|(at, _)| now - *at >= SPAN) {
                    self.samples.pop_front();
                }
                let (began, before) = *self.samples.front()?;
                Some(MountView::new(dir, &stats, before, now - began))
            }
            Err(error) if is_foreign(&error) => None,
            Err(error) => {
                self.samples.clear();
                Some(MountView::dead(dir, Chain(&*error).to_string()))
            }
        }
    }
}

impl Machine {
    /// The mounts as they are now, by path, without those of other users who share theirs with nobody. Waits 2 s at
    /// most.
    pub(crate) fn look(&mut self) -> Vec<MountView> {
        let mut dirs: Vec<PathBuf> = larder_mounts().into_iter().map(|mount| mount.path).collect();
        dirs.sort();
        dirs.dedup();
        self.mounts.retain(|dir, _| dirs.contains(dir));
        for dir in &dirs {
            self.mounts.entry(dir.clone()).or_insert_with(|| Asked::new(dir)).ask();
        }
        let deadline = Instant::now() + ANSWER;
        dirs.iter().filter_map(|dir| self.mounts.get_mut(dir)?.answer(dir, deadline)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: W2
    #[test]
    fn a_mount_that_does_not_answer_delays_the_others_once() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(".larder")).unwrap();
        // A pipe that nobody writes to answers as little as a process that is stopped.
        let pipe = folder.path().join(".larder/stats.json");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let mut asked = Asked::new(folder.path());
        let far = Duration::from_secs(365 * 24 * 3600);
        for patience in [Duration::ZERO, far, far] {
            asked.ask();
            let view = asked.answer(folder.path(), Instant::now() + patience).unwrap();
            assert_eq!(view.error.as_deref(), Some(SILENT));
        }
    }
}
