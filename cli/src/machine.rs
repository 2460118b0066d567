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

use crate::mount_stats::{is_foreign, read};
use view::MountView;

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
    /// The stats of the last seconds, the oldest first.
    samples: VecDeque<(Instant, Stats)>,
}

impl Asked {
    fn new(dir: &Path) -> Self {
        let (questions, asked) = sync_channel::<()>(1);
        let (answer, answers) = sync_channel(1);
        let dir = dir.to_owned();
        // It ends with this value, unless the mount never answers.
        std::thread::spawn(move || while asked.recv().is_ok() && answer.send(read(&dir)).is_ok() {});
        Self { questions, answers, is_waiting: false, samples: VecDeque::new() }
    }

    fn ask(&mut self) {
        if !self.is_waiting {
            self.is_waiting = self.questions.send(()).is_ok();
        }
    }

    /// Takes the answer, for which it waits until `deadline`.
    fn answer(&mut self, dir: &Path, deadline: Instant) -> Option<MountView> {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(answer) = self.answers.recv_timeout(left) else {
            let why = "its process does not answer: it is stopped, or has no CPU".to_owned();
            return Some(MountView::dead(dir, why));
        };
        self.is_waiting = false;
        match answer {
            Ok(stats) => {
                let now = Instant::now();
                self.samples.push_back((now, stats));
                while self.samples.len() > 2 && self.samples.get(1).is_some_and(|(at, _)| now - *at >= SPAN) {
                    self.samples.pop_front();
                }
                let ((began, before), (ended, stats)) = (self.samples.front()?, self.samples.back()?);
                Some(MountView::new(dir, stats, before, ended.duration_since(*began)))
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
