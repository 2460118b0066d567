//! The single owner of the program's state: it takes [`Event`]s and publishes [`View`]s.
//!
//! [`State`] is pure: [`State::apply`] takes an event and a time. [`run`] is the task around it, which waits for events and for
//! the next time at which something is due. [`config_file`] and [`memory`] are the tasks beside it that use files.
//!
//! Invariant: after [`State::apply`], the view follows from the newest machine, the configuration in force and all conditions. It is
//! published only if it differs from the previous one.

pub mod config_file;
pub mod memory;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use larder_telemetry::Heartbeat;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::{Config, ConfigError, Refusal};
use crate::health::capabilities::Capabilities;
use crate::health::{self, Health, Mark, Memory, Notice, Now};
use crate::machine::Machine;
use crate::node::counters::Counters;
use crate::resource::{Assignment, DeviceKey, Resource};
use crate::view::View;

/// The capacity of the event channel. A sender waits for room, for milliseconds at most, because the state does no I/O.
pub const EVENTS: usize = 256;

/// The capacity of the notice channel. More notices are dropped and counted.
pub const NOTICES: usize = 256;

/// The first view waits at most this long for the inventory, the driver and the components that limits need: a list that is
/// shorter than it will be a moment later would cost pods their admission.
pub const FIRST_VIEW: Duration = Duration::from_secs(2);

/// An input of the state.
#[derive(Debug)]
pub enum Event {
    /// Devices.
    Health(health::Event),
    /// A new configuration, or the error in the file; the previous configuration then stays in force.
    Config(Result<Config, ConfigError>),
    /// Which components that limits depend on are present.
    Capabilities(Capabilities),
}

/// How resources follow from a machine and a configuration.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub assign: fn(&Machine, &Config) -> Assignment,
    pub check: fn(&Machine, &Config) -> Result<(), Refusal>,
}

/// All that is known.
#[derive(Debug)]
pub struct State {
    rules: Rules,
    config: Config,
    capabilities: Capabilities,
    health: Health,
    received: Received,
    /// When the first view is due, even if something is still missing.
    patience: Instant,
    view: Arc<View>,
}

/// The inputs that the first view waits for.
#[derive(Debug, Default)]
struct Received {
    machine: bool,
    /// Whether the driver answers.
    driver: Option<bool>,
    capabilities: bool,
    /// The first view is complete.
    enough: bool,
}

impl State {
    /// Before the first event; the view is empty.
    pub fn new(config: Config, rules: Rules, remembered: &Memory, now: Now) -> Self {
        let health = Health::new(config.health.clone(), remembered, now);
        Self {
            rules,
            config,
            capabilities: Capabilities::default(),
            health,
            received: Received::default(),
            patience: now.instant + FIRST_VIEW,
            view: Arc::default(),
        }
    }

    /// The newest view. The same `Arc` as long as nothing changes.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// True once the first view is complete.
    pub fn is_first_view_made(&self) -> bool {
        self.received.enough
    }

    /// The faults that must outlive the process.
    pub fn remember(&self) -> Memory {
        self.health.remember()
    }

    /// When time alone changes something.
    pub fn next(&self) -> Option<Instant> {
        let first = (!self.received.enough).then_some(self.patience);
        self.health.next().into_iter().chain(first).min()
    }

    /// Applies an event, or `None` when only time has passed. Returns the notices to report.
    pub fn apply(&mut self, event: Option<Event>, now: Now) -> Vec<Notice> {
        let mut refused = self.view.refused_config.clone();
        let mut is_assigned = true;
        let mut notices = Vec::new();
        match event {
            None => self.health.tick(now),
            Some(Event::Health(event)) => {
                self.received.machine |= matches!(event, health::Event::Machine(_));
                match event {
                    health::Event::DriverAnswered => self.received.driver = Some(true),
                    health::Event::DriverFailed { .. } => self.received.driver = Some(false),
                    _ => {}
                }
                let machine = Arc::clone(self.health.machine());
                notices = self.health.apply(event, now);
                is_assigned = Arc::ptr_eq(&machine, self.health.machine());
            }
            Some(Event::Capabilities(capabilities)) => {
                self.received.capabilities = true;
                self.capabilities = capabilities;
            }
            Some(Event::Config(config)) => {
                let check = |config: Config| match (self.rules.check)(self.health.machine(), &config) {
                    Ok(()) => Ok(config),
                    Err(refusal) => Err(refusal.of(&config.file)),
                };
                let checked = config.and_then(check);
                refused = match checked {
                    Ok(config) => {
                        self.health.configure(config.health.clone(), now);
                        is_assigned = self.config == config;
                        self.config = config;
                        None
                    }
                    Err(error) => Some(error.to_string().into()),
                };
            }
        }
        let received = &mut self.received;
        if !received.enough {
            // A driver that answers has listed its GPUs. A machine without the driver's version was read before that.
            let has_gpus = self.health.machine().gpu_driver.is_some();
            let is_read = received.machine && received.driver.is_some_and(|answers| !answers || has_gpus);
            received.enough = is_read && received.capabilities || self.patience <= now.instant;
            is_assigned = false;
        }
        self.publish(refused, is_assigned, now);
        notices
    }

    /// Replaces the view, and reuses the parts that are still valid.
    fn publish(&mut self, refused_config: Option<Arc<str>>, is_assigned: bool, now: Now) {
        if !self.received.enough {
            self.view = changed(&self.view, View { refused_config, ..View::clone(&self.view) });
            return;
        }
        let machine = Arc::clone(self.health.machine());
        let (resources, excluded) = if is_assigned {
            (Arc::clone(&self.view.resources), Arc::clone(&self.view.excluded))
        } else {
            let assigned = (self.rules.assign)(&machine, &self.config);
            (assigned.resources.into(), assigned.excluded.into())
        };
        self.health
            .apply(health::Event::Marks(Mark::LimitsMissing, limits_missing(&resources, &self.capabilities)), now);
        let faults = Arc::clone(self.health.faults());
        let capabilities = self.capabilities.clone();
        self.view = changed(&self.view, View { machine, resources, excluded, faults, refused_config, capabilities });
    }
}

fn changed(old: &Arc<View>, new: View) -> Arc<View> {
    if **old == new { Arc::clone(old) } else { Arc::new(new) }
}

/// The devices of resources whose limits cannot be kept here, and why.
fn limits_missing(resources: &[Resource], capabilities: &Capabilities) -> BTreeMap<DeviceKey, String> {
    let mut missing = BTreeMap::new();
    for resource in resources {
        let why = resource.config.limits.as_ref().and_then(|limits| capabilities.missing(limits));
        if let Some(why) = why {
            missing
                .extend(resource.devices().map(|device| (device.clone(), format!("{}: {why}", resource.config.name))));
        }
    }
    missing
}

/// Where the task publishes to.
#[derive(Debug)]
pub struct Outputs {
    /// The newest view: the first one once it is made, whatever it is, and then only what has changed.
    pub view: watch::Sender<Arc<View>>,
    /// The notices to report.
    pub notices: mpsc::Sender<Notice>,
    /// The faults that must survive the process, sent on a change.
    pub memory: watch::Sender<Memory>,
    /// Counts the Xids.
    pub counters: Arc<Counters>,
    pub heartbeat: Heartbeat,
}

/// Takes events until all senders are gone or `stop` is cancelled.
pub async fn run(mut state: State, mut events: mpsc::Receiver<Event>, outputs: Outputs, stop: CancellationToken) {
    loop {
        outputs.heartbeat.beat();
        let due = state.next().map(tokio::time::Instant::from_std);
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = events.recv() => match event {
                Some(event) => Some(event),
                None => return,
            },
            () = sleep_until(due) => None,
            () = tokio::time::sleep(Heartbeat::EVERY) => continue,
        };
        let notices = state.apply(event, now());
        let memory = state.remember();
        outputs.memory.send_if_modified(|old| {
            *old != memory && {
                *old = memory;
                true
            }
        });
        for notice in notices {
            outputs.counters.count_xid(notice.action);
            warn!(device = %notice.device, xid = notice.xid, meaning = notice.meaning, action = ?notice.action, "Xid");
            if let Err(error) = outputs.notices.try_send(notice) {
                outputs.counters.events_dropped.fetch_add(1, Ordering::Relaxed);
                warn!(%error, "notice dropped");
            }
        }
        outputs.view.send_if_modified(|old| {
            // The receivers start with an empty view that is not the state's, so the first view is sent even if it is equal.
            if !state.is_first_view_made() || Arc::ptr_eq(old, state.view()) {
                return false;
            }
            log_difference(old, state.view());
            *old = Arc::clone(state.view());
            true
        });
    }
}

/// The time, as [`State`] wants it.
pub fn now() -> Now {
    Now { instant: tokio::time::Instant::now().into_std(), wall: SystemTime::now() }
}

async fn sleep_until(due: Option<tokio::time::Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

fn log_difference(old: &View, new: &View) {
    for (device, fault) in new.faults.iter() {
        if old.faults.get(device).is_none_or(|before| before.reason != fault.reason) {
            warn!(%device, reason = fault.reason.name(), fault.message, fault.recovery, "device out of service");
        }
    }
    for device in old.faults.keys().filter(|device| !new.faults.contains_key(device)) {
        info!(%device, "device back in service");
    }
    for resource in new.resources.iter() {
        let devices = resource.devices().count();
        let before = old.resources.iter().find(|before| before.config.name == resource.config.name);
        if before.is_none_or(|before| before.devices().count() != devices) {
            info!(resource = %resource.config.name, devices, "number of devices changed");
        }
    }
    if new.refused_config != old.refused_config {
        match &new.refused_config {
            Some(why) => warn!(%why, "new configuration refused; the previous one stays in force"),
            None => info!("configuration accepted"),
        }
    }
}
