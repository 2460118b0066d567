//! The thread that asks: it opens and closes sessions with the driver, and reports what has changed since the last round.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use tokio::sync::mpsc;

use super::inventory::{self, Reading};
use super::news::{DriverNews, RecoveryAction, Settings};
use super::shared::{Shared, Wanted};
use crate::machine::{Gpu, Warning};

/// How often to check whether the other thread has released a session.
const RELEASE: Duration = Duration::from_millis(50);

/// How many times the age at which a session is replaced doubles.
const REOPEN_DOUBLINGS: u32 = 4;

/// Asks until it is stopped or the receiver of the news is gone.
pub(super) fn ask(settings: Settings, shared: &Shared, news: &mpsc::Sender<DriverNews>) {
    let mut asker = Asker {
        settings,
        shared,
        news,
        session: None,
        ended: Weak::new(),
        reopened: 0,
        gpus: Vec::new(),
        sent: None,
        answers: BTreeMap::new(),
        failures: Wanted::new(),
        trouble: None,
    };
    loop {
        match asker.round() {
            Ok(pause) if shared.pause_asking(asker.settings.listen_every.min(pause), pause) => {}
            Ok(_) | Err(ReceiverGone) => break,
        }
    }
    asker.end_session();
}

/// The receiver of the news is gone.
struct ReceiverGone;

struct Asker<'a> {
    settings: Settings,
    shared: &'a Shared,
    news: &'a mpsc::Sender<DriverNews>,
    session: Option<Session>,
    /// The previous session. NVML counts its users, so a new session needs all of them to have left the old one.
    ended: Weak<Nvml>,
    /// The number of sessions that were replaced because a GPU failed, since all GPUs last answered.
    reopened: u32,
    /// As last read.
    gpus: Vec<Gpu>,
    /// The GPUs as last sent.
    sent: Option<(String, Vec<Gpu>, Vec<Warning>)>,
    /// The answer of each GPU as last sent.
    answers: BTreeMap<String, Result<RecoveryAction, String>>,
    failures: Wanted,
    /// Why the driver cannot be asked, as last sent.
    trouble: Option<DriverNews>,
}

struct Session {
    nvml: Arc<Nvml>,
    driver: String,
    begun: Instant,
    /// The last full read.
    read: Option<Instant>,
}

impl Asker<'_> {
    /// Asks once, and returns the pause before the next round.
    fn round(&mut self) -> Result<Duration, ReceiverGone> {
        if self.session.is_none() && self.ended.strong_count() > 0 {
            return Ok(RELEASE);
        }
        match self.query() {
            Ok((driver, reading)) => {
                self.send_reading(driver, reading)?;
                Ok(self.settings.every)
            }
            Err(error) => {
                self.end_session();
                self.send_trouble(&error)
            }
        }
    }

    fn query(&mut self) -> Result<(String, Reading), NvmlError> {
        let (settings, gpus) = (&self.settings, &self.gpus);
        let session = match &mut self.session {
            Some(session) => session,
            none => none.insert(self.shared.asking.during("nvmlInit", || Session::begin(settings))?),
        };
        let everything = session.read.is_none_or(|read| read.elapsed() >= settings.everything_every);
        let reading =
            self.shared.asking.during("a query of the GPUs", || inventory::read(&session.nvml, gpus, everything))?;
        let is_new = |gpu: &Gpu| !gpus.iter().any(|known| known.uuid == gpu.uuid);
        // A new GPU also changes the links of its peers, which the next round reads.
        session.read = match session.read.filter(|_| !everything) {
            Some(_) if reading.gpus.iter().any(is_new) => None,
            Some(read) => Some(read),
            None => Some(Instant::now()),
        };
        Ok((session.driver.clone(), reading))
    }

    fn send_reading(&mut self, driver: String, reading: Reading) -> Result<(), ReceiverGone> {
        self.gpus.clone_from(&reading.gpus);
        self.trouble = None;
        let gpus = (driver, reading.gpus, reading.warnings);
        if self.sent.as_ref() != Some(&gpus) {
            self.sent = Some(gpus.clone());
            let (driver, gpus, warnings) = gpus;
            self.send(DriverNews::Gpus { driver, gpus, warnings })?;
        }
        self.answers.retain(|uuid, _| reading.answers.contains_key(uuid));
        self.failures.retain(|uuid, _| reading.answers.contains_key(uuid));
        let fails = reading.answers.values().any(Result::is_err);
        for (uuid, answer) in reading.answers {
            let fails_now = answer.is_err() && self.answers.get(&uuid).is_none_or(Result::is_ok);
            *self.failures.entry(uuid.clone()).or_default() += u64::from(fails_now);
            if self.answers.get(&uuid) == Some(&answer) {
                continue;
            }
            let before = self.answers.insert(uuid.clone(), answer.clone());
            if let (Some(Err(_)), Some(session)) = (before, &mut self.session) {
                // The GPU may have returned with other links.
                session.read = None;
            }
            self.send(match answer {
                Ok(action) => DriverNews::Recovery { gpu: uuid, action },
                Err(why) => DriverNews::GpuFailed { gpu: uuid, why },
            })?;
        }
        if !self.shared.listening.is_overdue(self.settings.silent_after) {
            self.send(DriverNews::Answered)?;
        }
        let session = self.session.as_ref();
        let reopen_after = reopen_after(&self.settings, self.reopened);
        self.reopened = if fails { self.reopened } else { 0 };
        if fails && session.is_some_and(|session| session.begun.elapsed() >= reopen_after) {
            self.reopened += 1;
            self.end_session();
        } else {
            let nvml = session.map(|session| Arc::clone(&session.nvml));
            self.shared.listen_to(nvml, self.failures.clone());
        }
        Ok(())
    }

    fn send_trouble(&mut self, error: &NvmlError) -> Result<Duration, ReceiverGone> {
        let why = error.to_string();
        let (trouble, pause) = match error {
            NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound | NvmlError::DriverNotLoaded => {
                (DriverNews::Absent { why }, self.settings.absent_every)
            }
            _ => (DriverNews::Failed { why }, self.settings.every),
        };
        if matches!(trouble, DriverNews::Absent { .. }) {
            // Another driver has to be reported in full.
            (self.sent, self.gpus) = (None, Vec::new());
            self.answers.clear();
        }
        if self.trouble.as_ref() != Some(&trouble) {
            self.send(trouble.clone())?;
            self.trouble = Some(trouble);
        }
        Ok(pause)
    }

    fn end_session(&mut self) {
        self.shared.listen_to(None, Wanted::new());
        if let Some(session) = self.session.take() {
            self.ended = Arc::downgrade(&session.nvml);
            // The last user shuts the library down, which also calls the driver.
            self.shared.asking.during("nvmlShutdown", || drop(session));
        }
    }

    fn send(&self, news: DriverNews) -> Result<(), ReceiverGone> {
        self.news.blocking_send(news).map_err(|_| ReceiverGone)
    }
}

/// How long a session lasts while a GPU fails. It doubles, because neither session reports what happens between the two.
fn reopen_after(settings: &Settings, reopened: u32) -> Duration {
    settings.reopen_every * (1 << reopened.min(REOPEN_DOUBLINGS))
}

impl Session {
    fn begin(settings: &Settings) -> Result<Self, NvmlError> {
        let nvml = Nvml::builder().lib_path(settings.library.as_os_str()).init()?;
        let driver = nvml.sys_driver_version()?;
        Ok(Self { nvml: Arc::new(nvml), driver, begun: Instant::now(), read: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS: D15
    #[test]
    fn a_gpu_that_fails_for_long_has_sessions_replaced_ever_more_seldom() {
        let seconds = |reopened| reopen_after(&Settings::default(), reopened).as_secs();
        assert_eq!([0, 1, 2, 3, 4, 5, u32::MAX].map(seconds), [30, 60, 120, 240, 480, 480, 480]);
    }
}
