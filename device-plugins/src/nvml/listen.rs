//! The thread that listens: it waits for events of all GPUs and reports Xids.
//!
//! The cost of this thread is waking up, not waiting, so one event set holds all GPUs while all of them work. NVML fails the wait of
//! a set as soon as one of its GPUs is lost; from then on each GPU has a set of its own.
//!
//! Invariant: a GPU is registered with the new set before the old one is drained and freed, so no event falls between the two.
//! Events that a set has not reported when NVML fails it are lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, Nvml};
use tokio::sync::mpsc;

use super::news::{DriverNews, Settings};
use super::raw::{self, Event};
use super::shared::{Shared, Wanted};

/// The call behind dropping an event set.
const FREE: &str = "nvmlEventSetFree";

/// The call that adds a GPU to an event set.
const REGISTER: &str = "nvmlDeviceRegisterEvents";

/// The most events that are read from a set before it is freed: a GPU may produce them without end.
const LAST_EVENTS: u32 = 1000;

/// Listens until it is stopped or the receiver of the news is gone.
pub(super) fn listen(settings: &Settings, shared: &Shared, news: &mpsc::Sender<DriverNews>) {
    while let Some(driver) = shared.next_driver() {
        let listens = listen_to(&driver, settings, shared, news);
        // The last user shuts the library down, which also calls the driver.
        shared.listening.during("nvmlShutdown", || drop(driver));
        if listens.is_err() {
            return;
        }
    }
}

/// The receiver of the news is gone.
struct ReceiverGone;

/// Reports the events of one session until it is over.
fn listen_to(
    driver: &Arc<Nvml>,
    settings: &Settings,
    shared: &Shared,
    news: &mpsc::Sender<DriverNews>,
) -> Result<(), ReceiverGone> {
    let mut subscriptions = Subscriptions::new(driver, settings, shared, news);
    loop {
        let wanted = shared.wanted(driver);
        if let Some(wanted) = &wanted {
            subscriptions.follow(wanted)?;
        }
        let sets = subscriptions.sets();
        let turn = settings.listen_every / u32::try_from(sets.max(1)).unwrap_or(u32::MAX);
        // A session that is over is read once more to the end, because no later session reports its events.
        let (turn, most) = if wanted.is_some() { (turn, 1) } else { (Duration::ZERO, LAST_EVENTS) };
        subscriptions.receive(turn, most)?;
        match wanted {
            None => {
                shared.listening.during(FREE, || drop(subscriptions));
                return Ok(());
            }
            Some(wanted) if sets == 0 => shared.pause_listening(settings.listen_every, driver, &wanted),
            Some(_) => {}
        }
    }
}

/// How a GPU's events are received.
enum Subscription<'nvml> {
    /// From the set of all GPUs.
    All,
    /// From a set of the GPU's own: a GPU that fails breaks only its own set.
    Own(EventSet<'nvml>),
    /// Not at all: the GPU cannot be registered, and is tried again at this time.
    Unregistered(Instant),
}

/// The event sets of a session.
struct Subscriptions<'a> {
    driver: &'a Nvml,
    settings: &'a Settings,
    shared: &'a Shared,
    news: &'a mpsc::Sender<DriverNews>,
    /// The set of all GPUs; `None` once it broke.
    all: Option<EventSet<'a>>,
    /// The GPUs in `all`, by the handles of its events.
    members: Vec<(usize, String)>,
    /// True if `all` broke: a wait failed, or a registration, which leaves a set undefined.
    is_broken: bool,
    /// Each with the number of the GPU's failures when it was registered.
    gpus: BTreeMap<String, (u64, Subscription<'a>)>,
}

impl<'a> Subscriptions<'a> {
    fn new(driver: &'a Nvml, settings: &'a Settings, shared: &'a Shared, news: &'a mpsc::Sender<DriverNews>) -> Self {
        let all = shared.listening.during(REGISTER, || driver.create_event_set().ok());
        let (members, gpus) = (Vec::new(), BTreeMap::new());
        Self { driver, settings, shared, news, all, members, is_broken: false, gpus }
    }

    /// The number of sets to wait for.
    fn sets(&self) -> usize {
        let own = self.gpus.values().filter(|(_, subscription)| matches!(subscription, Subscription::Own(_))).count();
        own + usize::from(!self.members.is_empty())
    }

    /// Registers new GPUs, registers those again that have failed since, and forgets the others.
    fn follow(&mut self, wanted: &Wanted) -> Result<(), ReceiverGone> {
        let is_as_wanted = |uuid: &String, failures: &u64| wanted.get(uuid) == Some(failures);
        // NVML cannot remove a GPU from a set.
        let leaves = |(uuid, (failures, subscription)): (_, &_)| {
            matches!(subscription, Subscription::All) && !is_as_wanted(uuid, failures)
        };
        if self.gpus.iter().any(leaves) {
            self.split(wanted)?;
        }
        let is_due = |subscription: &Subscription<'_>| matches!(subscription, Subscription::Unregistered(retry) if *retry <= Instant::now());
        let leaves = |(uuid, (failures, subscription)): &(String, (u64, Subscription<'_>))| {
            !is_as_wanted(uuid, failures) || is_due(subscription)
        };
        let (left, stay): (BTreeMap<_, _>, _) = std::mem::take(&mut self.gpus).into_iter().partition(leaves);
        self.gpus = stay;
        for (uuid, failures) in wanted {
            if !self.gpus.contains_key(uuid) {
                let subscription = self.register(uuid);
                self.gpus.insert(uuid.clone(), (*failures, subscription));
            }
        }
        for (uuid, (_, subscription)) in left {
            if let Subscription::Own(set) = subscription {
                self.drain(set, |_| Some(uuid.clone()))?;
            }
        }
        if self.is_broken { self.split(wanted) } else { Ok(()) }
    }

    /// Registers a GPU with one set.
    fn register(&mut self, uuid: &str) -> Subscription<'a> {
        let shared = self.shared;
        let subscription = shared.listening.during(REGISTER, || {
            let (device, types) = find(self.driver, uuid)?;
            if let Some(all) = self.all.as_ref().filter(|_| !self.is_broken) {
                match raw::register(&device, types, all) {
                    Ok(()) => {
                        self.members.push((raw::handle(&device), uuid.to_owned()));
                        return Ok(Subscription::All);
                    }
                    Err(error) => {
                        tracing::debug!(gpu = uuid, %error, "register a GPU with the others");
                        self.is_broken = true;
                    }
                }
            }
            let own = self.driver.create_event_set()?;
            raw::register(&device, types, &own).map(|()| Subscription::Own(own))
        });
        subscription.unwrap_or_else(|error| unregistered(uuid, &error, self.settings))
    }

    /// Replaces the set of all by one set for each GPU, until the session ends.
    fn split(&mut self, wanted: &Wanted) -> Result<(), ReceiverGone> {
        let (all, members) = (self.all.take(), std::mem::take(&mut self.members));
        self.is_broken = false;
        for (_, uuid) in &members {
            self.gpus.remove(uuid);
            if let Some(failures) = wanted.get(uuid) {
                let subscription = self.register(uuid);
                self.gpus.insert(uuid.clone(), (*failures, subscription));
            }
        }
        all.map_or(Ok(()), |all| self.drain(all, |device| member(&members, device)))
    }

    /// Reports the last events of a set that other sets have replaced.
    fn drain(&self, set: EventSet<'_>, of: impl Fn(&Device<'_>) -> Option<String>) -> Result<(), ReceiverGone> {
        // The set is freed whether or not the wait fails.
        let drained = self.receive_from(&set, Duration::ZERO, LAST_EVENTS, of);
        self.shared.listening.during(FREE, || drop(set));
        drained.map(|_| ())
    }

    /// Reports at most `most` events of each set, and waits up to `turn` for each.
    fn receive(&mut self, turn: Duration, most: u32) -> Result<(), ReceiverGone> {
        if let Some(all) = self.all.as_ref().filter(|_| !self.members.is_empty())
            && let Err(error) = self.receive_from(all, turn, most, |device| member(&self.members, device))?
        {
            tracing::debug!(%error, "wait for events of all GPUs");
            self.is_broken = true;
            // The GPUs themselves may still report what the set did not.
            self.shared.ask_now();
        }
        let mut failed = Vec::new();
        for (uuid, (_, subscription)) in &self.gpus {
            if let Subscription::Own(set) = subscription
                && let Err(error) = self.receive_from(set, turn, most, |_| Some(uuid.clone()))?
            {
                failed.push((uuid.clone(), unregistered(uuid, &error, self.settings)));
            }
        }
        let (gpus, shared) = (&mut self.gpus, self.shared);
        for (uuid, unregistered) in failed {
            shared.listening.during(FREE, || gpus.get_mut(&uuid).map(|(_, subscription)| *subscription = unregistered));
        }
        Ok(())
    }

    /// Reports at most `most` events of a set. The inner error is that of the wait.
    fn receive_from(
        &self,
        set: &EventSet<'_>,
        turn: Duration,
        most: u32,
        of: impl Fn(&Device<'_>) -> Option<String>,
    ) -> Result<Result<(), NvmlError>, ReceiverGone> {
        for _ in 0..most {
            let waited = self.shared.listening.during("nvmlEventSetWait", || raw::wait(set, turn));
            let (device, event) = match waited {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) => return Ok(Err(error)),
            };
            if let Event::Xid { xid, slice } = event {
                match self.shared.listening.during("nvmlDeviceGetUUID", || of(&device)) {
                    Some(gpu) => {
                        self.news.blocking_send(DriverNews::Xid { gpu, slice, xid }).map_err(|_| ReceiverGone)?
                    }
                    None => tracing::warn!(xid, "the driver does not report the GPU of an Xid"),
                }
            }
            // Most events change the state that the GPU reports.
            self.shared.ask_now();
        }
        Ok(Ok(()))
    }
}

/// The GPU of an event, by its handle: a lost GPU may no longer report its UUID.
fn member(members: &[(usize, String)], device: &Device<'_>) -> Option<String> {
    let handle = raw::handle(device);
    let known = members.iter().find(|(member, _)| *member == handle).map(|(_, uuid)| uuid.clone());
    known.or_else(|| device.uuid().ok())
}

/// The GPU, and the types of events to register.
fn find<'nvml>(driver: &'nvml Nvml, uuid: &str) -> Result<(Device<'nvml>, u64), NvmlError> {
    let count = driver.device_count()?;
    for device in (0..count).filter_map(|index| driver.device_by_index(index).ok()) {
        if device.uuid().is_ok_and(|found| found == uuid) {
            let types = raw::event_types(&device)?;
            return Ok((device, types));
        }
    }
    Err(NvmlError::NotFound)
}

/// A GPU whose registration failed. Its failures are reported by the thread that asks; only missing support is logged here.
fn unregistered<'nvml>(uuid: &str, error: &NvmlError, settings: &Settings) -> Subscription<'nvml> {
    let lasts = matches!(error, NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_));
    if lasts {
        tracing::warn!(gpu = uuid, %error, "the GPU does not support Xid events");
    } else {
        tracing::debug!(gpu = uuid, %error, "register a GPU for Xids");
    }
    Subscription::Unregistered(Instant::now() + if lasts { Duration::from_secs(3600) } else { settings.every })
}
