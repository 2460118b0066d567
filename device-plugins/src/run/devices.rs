//! Follows sysfs and the GPUs' driver.
//!
//! Sysfs is read in the background, one look at a time, so a hanging HCA firmware does not delay news of the driver. The port states
//! that were sent are always those of the newest look, so the next look reports any difference.

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

/// How often port states are read: a margin below one second, within which a fault must be known.
const PORTS_EVERY: Duration = Duration::from_millis(750);

/// How often all of sysfs is read, for addresses, virtual functions and network interfaces. It opens thousands of files.
const ALL_EVERY: Duration = Duration::from_secs(60);

/// The delay of a full read after a port or an HCA has changed: its addresses and device nodes change a moment later.
const ALL_AFTER_CHANGE: Duration = Duration::from_secs(5);

/// How long the first machine waits for the GPU driver.
const FIRST: Duration = Duration::from_secs(2);

/// The remedy on a node that has GPUs but no driver or library.
const LIBRARY_REMEDY: &str =
    "install NVIDIA's driver on the node, and let its library reach this pod (`runtimeClassName: nvidia`)";

/// A look that takes longer is logged.
const LOOK_SLOW: Duration = Duration::from_secs(10);

/// The node's devices, as far as they are known.
pub(super) struct Devices {
    roots: Roots,
    /// The driver's library.
    library: PathBuf,
    news: mpsc::Receiver<DriverNews>,
    sysfs: Arc<Mutex<Sysfs>>,
    /// The look in progress, if any.
    looks: JoinSet<Look>,
    /// When the next full read is due.
    all_due: Instant,
    /// Shared with the looks; every reading of the ports is one.
    gpus: Arc<Vec<Gpu>>,
    driver: Option<String>,
    /// The driver's warnings.
    warnings: Vec<Warning>,
    /// Why the driver reports nothing, and the remedy.
    trouble: Option<String>,
    /// The last logged warning about GPUs that the driver does not list.
    logged: Option<Warning>,
    /// The driver has reported other GPUs since the look began.
    has_newer_gpus: bool,
    machine: Option<Machine>,
    /// Events that [`Self::first`] has collected.
    pending: Vec<HealthEvent>,
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
            logged: None,
            has_newer_gpus: false,
            machine: None,
            pending: Vec::new(),
        }
    }

    /// The first machine; with GPUs, if their driver answers soon.
    pub(super) async fn first(&mut self) -> Machine {
        let due = Instant::now() + FIRST;
        let mut is_answered = false;
        let mut pending = Vec::new();
        while !is_answered && let Ok(Some(news)) = timeout_at(due, self.news.recv()).await {
            is_answered = matches!(news, DriverNews::Answered | DriverNews::Failed { .. } | DriverNews::Absent { .. });
            pending.extend(self.apply(news));
        }
        self.begin_look();
        let look = loop {
            match timeout(LOOK_SLOW, self.looks.join_next()).await {
                Ok(look) => break look,
                Err(_) => warn_of_slow_look(),
            }
        };
        self.pending = look.map(|look| self.see(look)).unwrap_or_default();
        self.pending.extend(pending);
        self.machine.clone().unwrap_or_default()
    }

    /// Sends changes until `stop`.
    pub(super) async fn follow(mut self, events: mpsc::Sender<Event>, stop: CancellationToken) {
        let mut changes = std::mem::take(&mut self.pending);
        let mut tick = interval(PORTS_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut slow_at = Instant::now();
        loop {
            for event in changes.drain(..) {
                if events.send(Event::Health(event)).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                Some(news) = self.news.recv() => {
                    let is_gpus = matches!(news, DriverNews::Gpus { .. });
                    changes = self.apply(news);
                    if is_gpus {
                        changes.extend(self.place_gpus().await);
                    }
                    changes.extend(self.report_warnings());
                }
                Some(look) = self.looks.join_next() => changes = self.see(look),
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

    /// Applies news of the driver.
    fn apply(&mut self, news: DriverNews) -> Vec<HealthEvent> {
        vec![match news {
            DriverNews::Gpus { driver, gpus, warnings } => {
                for warning in &warnings {
                    warn!(at = warning.at, why = warning.why, "unexpected data of a GPU");
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

    /// The warnings about the GPUs of a machine. If the driver lists none although sysfs has some, that is also logged once.
    fn update_warnings(&mut self, functions: &[Place]) -> Vec<Warning> {
        let trouble = self.trouble.as_ref().filter(|_| self.gpus.is_empty() && !functions.is_empty());
        let unnamed = trouble.map(|trouble| Warning {
            at: self.library.display().to_string(),
            why: format!("{} GPUs on the PCI bus are not offered: {trouble}", functions.len()),
        });
        if let Some(Warning { at, why }) = unnamed.as_ref().filter(|unnamed| self.logged.as_ref() != Some(*unnamed)) {
            warn!(library = at, why, "GPUs on the PCI bus are not offered");
        }
        self.logged.clone_from(&unnamed);
        self.warnings.iter().cloned().chain(unnamed).collect()
    }

    /// Reports the machine if the warnings about its GPUs have changed.
    fn report_warnings(&mut self) -> Option<HealthEvent> {
        let mut machine = self.machine.take()?;
        let warnings = self.update_warnings(&machine.gpu_functions);
        let is_changed = warnings != machine.gpu_warnings;
        machine.gpu_warnings = warnings;
        let changes = is_changed.then(|| HealthEvent::Machine(machine.clone()));
        self.machine = Some(machine);
        changes
    }

    /// Locates the GPUs that the driver has just listed: its next news are about them.
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
            Err(error) => warn!(%error, "cannot locate the GPUs in sysfs"),
        }
        Some(HealthEvent::Machine(machine.clone()))
    }

    /// Starts a look at sysfs, whose result [`Self::see`] applies.
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

    /// Applies the result of a look.
    fn see(&mut self, look: Result<Look, tokio::task::JoinError>) -> Vec<HealthEvent> {
        let Look { machine, ports, is_changed } = match look {
            Ok(look) => look,
            Err(error) => {
                warn!(%error, "cannot read sysfs");
                return Vec::new();
            }
        };
        if is_changed {
            self.all_due = self.all_due.min(Instant::now() + ALL_AFTER_CHANGE);
        }
        let mut changes = Vec::new();
        if let Some(mut machine) = machine {
            machine.gpu_warnings = self.update_warnings(&machine.gpu_functions);
            if let Some(known) = self.machine.as_ref().filter(|_| self.has_newer_gpus) {
                machine.gpus.clone_from(&known.gpus);
                machine.gpu_driver.clone_from(&known.gpu_driver);
            }
            if self.machine.as_ref() != Some(&machine) {
                changes.push(HealthEvent::Machine(machine.clone()));
                self.machine = Some(machine);
            }
        }
        if is_changed || !changes.is_empty() {
            changes.push(HealthEvent::Ports(ports));
        }
        changes
    }
}

fn warn_of_slow_look() {
    warn!("a read of sysfs does not return: the firmware of an HCA may hang; restart the node if this persists");
}
