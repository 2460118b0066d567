//! Follows sysfs and the GPUs' driver.
//!
//! Sysfs is looked at beside everything else, one look at a time: while the firmware of an HCA hangs, the driver's news go on.
//! The ports' states that are told are always those of the newest look at the ports, so that the next one is told whatever
//! differs from them.

mod sysfs;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod warnings;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::health::Event as HealthEvent;
use crate::inventory::{self, Roots};
use crate::machine::{Gpu, Machine, Place, Warning};
use crate::nvml::DriverNews;
use crate::state::Event;
use sysfs::{Look, Read, Sysfs};

/// How often the states of ports are read: with a margin below the second within which a fault is to be known.
const PORTS_EVERY: Duration = Duration::from_millis(750);

/// How often all of sysfs is read, for what no port tells: addresses, virtual functions, network interfaces. It opens thousands of
/// files.
const ALL_EVERY: Duration = Duration::from_secs(60);

/// All of sysfs is read so soon after a port or an HCA has changed: its addresses and device nodes change with it, a moment later.
const ALL_AFTER_CHANGE: Duration = Duration::from_secs(5);

/// The longest that the first machine waits for the GPUs' driver.
const FIRST: Duration = Duration::from_secs(2);

/// What helps where there are GPUs and no library or driver of theirs.
const LIBRARY_REMEDY: &str =
    "install NVIDIA's driver on the node, and let its library reach this pod (`runtimeClassName: nvidia`)";

/// A look that takes longer is worth a warning.
const LOOK_SLOW: Duration = Duration::from_secs(10);

/// What is known of the node's devices.
pub(super) struct Devices {
    roots: Roots,
    /// The driver's library, which tells the news.
    library: PathBuf,
    news: mpsc::Receiver<DriverNews>,
    sysfs: Arc<Mutex<Sysfs>>,
    /// The look that has not ended, if there is one.
    looks: JoinSet<Look>,
    /// When everything is to be read again.
    all_due: Instant,
    /// Shared with the looks, of which there is one each time that ports are read.
    gpus: Arc<Vec<Gpu>>,
    driver: Option<String>,
    /// What the driver could not tell.
    warnings: Vec<Warning>,
    /// Why the driver tells nothing, and what helps.
    trouble: Option<String>,
    /// What was last said of GPUs that it tells nothing of.
    said: Option<Warning>,
    /// Other GPUs were told since the look began.
    has_newer_gpus: bool,
    machine: Option<Machine>,
    /// Events that [`Self::first`] has met.
    met: Vec<HealthEvent>,
}

impl Devices {
    pub(super) fn new(roots: Roots, library: PathBuf, news: mpsc::Receiver<DriverNews>) -> Self {
        Self::reading(roots, library, news, inventory::read)
    }

    fn reading(roots: Roots, library: PathBuf, news: mpsc::Receiver<DriverNews>, read: Read) -> Self {
        let sysfs = Arc::new(Mutex::new(Sysfs::new(roots.clone(), read)));
        Self {
            roots,
            library,
            news,
            sysfs,
            looks: JoinSet::new(),
            all_due: Instant::now(),
            gpus: Arc::default(),
            driver: None,
            warnings: Vec::new(),
            trouble: None,
            said: None,
            has_newer_gpus: false,
            machine: None,
            met: Vec::new(),
        }
    }

    /// The machine as it is at first: with its GPUs, if their driver tells them soon.
    pub(super) async fn first(&mut self) -> Machine {
        let due = Instant::now() + FIRST;
        let mut is_answered = false;
        let mut met = Vec::new();
        while !is_answered && let Ok(Some(news)) = timeout_at(due, self.news.recv()).await {
            is_answered = matches!(news, DriverNews::Answered | DriverNews::Failed { .. } | DriverNews::Absent { .. });
            met.extend(self.hear(news));
        }
        self.begin_look();
        let look = loop {
            match timeout(LOOK_SLOW, self.looks.join_next()).await {
                Ok(look) => break look,
                Err(_) => warn_of_slow_look(),
            }
        };
        self.met = look.map(|look| self.see(look)).unwrap_or_default();
        self.met.extend(met);
        self.machine.clone().unwrap_or_default()
    }

    /// Sends what changes until `stop`.
    pub(super) async fn follow(mut self, events: mpsc::Sender<Event>, stop: CancellationToken) {
        let mut told = std::mem::take(&mut self.met);
        let mut tick = interval(PORTS_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut slow_at = Instant::now();
        loop {
            for event in told.drain(..) {
                if events.send(Event::Health(event)).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                Some(news) = self.news.recv() => {
                    let is_gpus = matches!(news, DriverNews::Gpus { .. });
                    told = self.hear(news);
                    if is_gpus {
                        told.extend(self.place_gpus().await);
                    }
                    told.extend(self.tell_oddities());
                }
                Some(look) = self.looks.join_next() => told = self.see(look),
                _ = tick.tick() => {
                    if self.looks.is_empty() {
                        self.begin_look();
                        slow_at = Instant::now() + LOOK_SLOW;
                    } else if slow_at <= Instant::now() {
                        warn_of_slow_look();
                        slow_at += ALL_EVERY;
                    }
                }
            }
        }
    }

    /// Takes the driver's news in.
    fn hear(&mut self, news: DriverNews) -> Vec<HealthEvent> {
        vec![match news {
            DriverNews::Gpus { driver, gpus, warnings } => {
                for warning in &warnings {
                    warn!(at = warning.at, why = warning.why, "a GPU cannot be read as it should be");
                }
                (self.driver, self.gpus, self.warnings) = (Some(driver), Arc::new(gpus), warnings);
                return Vec::new();
            }
            DriverNews::Xid { gpu, slice, xid } => HealthEvent::Xid { gpu, slice, xid },
            DriverNews::Recovery { gpu, action } => HealthEvent::Recovery { gpu, action },
            DriverNews::GpuFailed { gpu, why } => HealthEvent::GpuFailed { gpu, why },
            DriverNews::Answered => {
                self.trouble = None;
                HealthEvent::DriverAnswered
            }
            DriverNews::Failed { why } => {
                self.trouble = Some(why.clone());
                HealthEvent::DriverFailed { why }
            }
            DriverNews::Absent { why } => {
                self.trouble = Some(format!("{why}; {LIBRARY_REMEDY}"));
                HealthEvent::DriverFailed { why }
            }
        }]
    }

    /// What is odd about the GPUs of a machine. A driver that has named none of them although sysfs has some is also logged, once.
    fn update_oddities(&mut self, functions: &[Place]) -> Vec<Warning> {
        let trouble = self.trouble.as_ref().filter(|_| self.gpus.is_empty() && !functions.is_empty());
        let unnamed = trouble.map(|trouble| Warning {
            at: self.library.display().to_string(),
            why: format!("{} GPUs on the PCI bus are not offered: {trouble}", functions.len()),
        });
        if let Some(Warning { at, why }) = unnamed.as_ref().filter(|unnamed| self.said.as_ref() != Some(*unnamed)) {
            warn!(library = at, why, "the node's GPUs are not offered");
        }
        self.said.clone_from(&unnamed);
        self.warnings.iter().cloned().chain(unnamed).collect()
    }

    /// Tells the machine if something else is odd about its GPUs than before.
    fn tell_oddities(&mut self) -> Option<HealthEvent> {
        let mut machine = self.machine.take()?;
        let warnings = self.update_oddities(&machine.gpu_functions);
        let is_changed = warnings != machine.gpu_warnings;
        machine.gpu_warnings = warnings;
        let told = is_changed.then(|| HealthEvent::Machine(machine.clone()));
        self.machine = Some(machine);
        told
    }

    /// Finds the places of other GPUs than before: what the driver tells next is of these.
    async fn place_gpus(&mut self) -> Option<HealthEvent> {
        (self.has_newer_gpus, self.all_due) = (true, Instant::now());
        let (roots, gpus) = (self.roots.clone(), Arc::clone(&self.gpus));
        let placed = tokio::task::spawn_blocking(move || inventory::gpus(&roots, &gpus)).await;
        let machine = self.machine.as_mut()?;
        match placed {
            Ok(gpus) => {
                (machine.gpus, machine.gpu_driver) = (gpus, self.driver.clone());
                machine.gpu_warnings.clone_from(&self.warnings);
            }
            Err(error) => warn!(%error, "the places of GPUs cannot be read"),
        }
        Some(HealthEvent::Machine(machine.clone()))
    }

    /// Has sysfs looked at, which is [seen](Self::see) later.
    fn begin_look(&mut self) {
        let everything = self.all_due <= Instant::now();
        if everything {
            self.all_due = Instant::now() + ALL_EVERY;
        }
        self.has_newer_gpus = false;
        let (sysfs, gpus, driver) = (Arc::clone(&self.sysfs), Arc::clone(&self.gpus), self.driver.clone());
        self.looks.spawn_blocking(move || {
            sysfs.lock().unwrap_or_else(PoisonError::into_inner).look(&gpus, driver, everything)
        });
    }

    /// Takes a look's findings in.
    fn see(&mut self, look: Result<Look, tokio::task::JoinError>) -> Vec<HealthEvent> {
        let Look { machine, ports, is_changed } = match look {
            Ok(look) => look,
            Err(error) => {
                warn!(%error, "sysfs cannot be read");
                return Vec::new();
            }
        };
        if is_changed {
            self.all_due = self.all_due.min(Instant::now() + ALL_AFTER_CHANGE);
        }
        let mut told = Vec::new();
        if let Some(mut machine) = machine {
            machine.gpu_warnings = self.update_oddities(&machine.gpu_functions);
            if let Some(known) = self.machine.as_ref().filter(|_| self.has_newer_gpus) {
                machine.gpus.clone_from(&known.gpus);
                machine.gpu_driver.clone_from(&known.gpu_driver);
            }
            if self.machine.as_ref() != Some(&machine) {
                told.push(HealthEvent::Machine(machine.clone()));
                self.machine = Some(machine);
            }
        }
        if is_changed || !told.is_empty() {
            told.push(HealthEvent::Ports(ports));
        }
        told
    }
}

fn warn_of_slow_look() {
    warn!("sysfs has not been read for long: the firmware of an HCA may hang; restart the node if this lasts");
}
