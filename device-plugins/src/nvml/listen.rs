//! The thread that listens: it waits for events of every GPU, and tells Xids.
//!
//! This thread's CPU goes into waking up, not into waiting, so one set holds all GPUs as long as nothing is wrong. NVML fails the wait of a set as soon as one GPU of it is lost: each GPU has a set of its own from then on.
//!
//! Invariant: a new set hears a GPU before the old one is heard out and freed, so no event falls between the two. What a set has
//! not told when NVML fails it is lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, Nvml};
use tokio::sync::mpsc;

use super::news::{DriverNews, Settings};
use super::raw::{self, Event};
use super::shared::{Shared, Wanted};

/// What happens to an event set that is dropped.
const FREE: &str = "nvmlEventSetFree";

/// What makes an event set, and puts a GPU into it.
const REGISTER: &str = "nvmlDeviceRegisterEvents";

/// The most events of a set that are told at its end: a GPU may have more without end.
const LAST_EVENTS: u32 = 1000;

/// Listens until it is stopped, or nobody wants the news any more.
pub(super) fn listen(settings: &Settings, shared: &Shared, news: &mpsc::Sender<DriverNews>) {
    while let Some(driver) = shared.next_driver() {
        let listens = listen_to(&driver, settings, shared, news);
        // The last one to leave shuts the library down, which is a call of the driver, too.
        shared.listening.during("nvmlShutdown", || drop(driver));
        if listens.is_err() {
            return;
        }
    }
}

/// The receiver of the news is gone.
struct NobodyListens;

/// Tells the events of one session, until it is over.
fn listen_to(
    driver: &Arc<Nvml>,
    settings: &Settings,
    shared: &Shared,
    news: &mpsc::Sender<DriverNews>,
) -> Result<(), NobodyListens> {
    let mut ears = Ears::new(driver, settings, shared, news);
    loop {
        let wanted = shared.wanted(driver);
        if let Some(wanted) = &wanted {
            ears.follow(wanted)?;
        }
        let sets = ears.sets();
        let turn = settings.listen_every / u32::try_from(sets.max(1)).unwrap_or(u32::MAX);
        // A session that is over is listened to once more, for all that has happened: its events are told by no other.
        let (turn, most) = if wanted.is_some() { (turn, 1) } else { (Duration::ZERO, LAST_EVENTS) };
        ears.hear(turn, most)?;
        match wanted {
            None => {
                shared.listening.during(FREE, || drop(ears));
                return Ok(());
            }
            Some(wanted) if sets == 0 => shared.pause_listening(settings.listen_every, driver, &wanted),
            Some(_) => {}
        }
    }
}

/// What there is of a GPU's events.
enum Ear<'nvml> {
    /// They are those of the set of all.
    All,
    /// A set of the GPU's own: a GPU that fails takes its set with it, and no other's.
    Own(EventSet<'nvml>),
    /// It cannot be registered; there is another try at this time.
    Deaf(Instant),
}

/// All that a session listens with.
struct Ears<'a> {
    driver: &'a Nvml,
    settings: &'a Settings,
    shared: &'a Shared,
    news: &'a mpsc::Sender<DriverNews>,
    /// The set of all GPUs; `None` once something was wrong with it.
    all: Option<EventSet<'a>>,
    /// The GPUs in it, by the handles that its events have.
    members: Vec<(usize, String)>,
    /// The set of all no longer tells events: a wait failed, or a GPU could not be registered, which leaves a set undefined.
    is_broken: bool,
    /// With how often each GPU had failed when it was registered.
    gpus: BTreeMap<String, (u64, Ear<'a>)>,
}

impl<'a> Ears<'a> {
    fn new(driver: &'a Nvml, settings: &'a Settings, shared: &'a Shared, news: &'a mpsc::Sender<DriverNews>) -> Self {
        let all = shared.listening.during(REGISTER, || driver.create_event_set().ok());
        let (members, gpus) = (Vec::new(), BTreeMap::new());
        Self { driver, settings, shared, news, all, members, is_broken: false, gpus }
    }

    /// How many sets are waited for.
    fn sets(&self) -> usize {
        let own = self.gpus.values().filter(|(_, ear)| matches!(ear, Ear::Own(_))).count();
        own + usize::from(!self.members.is_empty())
    }

    /// Registers the GPUs that are not yet, and those anew that have failed since; forgets others.
    fn follow(&mut self, wanted: &Wanted) -> Result<(), NobodyListens> {
        let is_as_wanted = |uuid: &String, failures: &u64| wanted.get(uuid) == Some(failures);
        // NVML lets no GPU leave a set.
        let leaves = |(uuid, (failures, ear)): (_, &_)| matches!(ear, Ear::All) && !is_as_wanted(uuid, failures);
        if self.gpus.iter().any(leaves) {
            self.split(wanted)?;
        }
        let is_due = |ear: &Ear<'_>| matches!(ear, Ear::Deaf(retry) if *retry <= Instant::now());
        let leaves = |(uuid, (failures, ear)): &(String, (u64, Ear<'_>))| !is_as_wanted(uuid, failures) || is_due(ear);
        let (left, stay): (BTreeMap<_, _>, _) = std::mem::take(&mut self.gpus).into_iter().partition(leaves);
        self.gpus = stay;
        for (uuid, failures) in wanted {
            if !self.gpus.contains_key(uuid) {
                let ear = self.register(uuid);
                self.gpus.insert(uuid.clone(), (*failures, ear));
            }
        }
        for (uuid, (_, ear)) in left {
            if let Ear::Own(set) = ear {
                self.hear_out(set, |_| Some(uuid.clone()))?;
            }
        }
        if self.is_broken { self.split(wanted) } else { Ok(()) }
    }

    /// Has one set tell the GPU's events.
    fn register(&mut self, uuid: &str) -> Ear<'a> {
        let shared = self.shared;
        let ear = shared.listening.during(REGISTER, || {
            let (device, types) = find(self.driver, uuid)?;
            if let Some(all) = self.all.as_ref().filter(|_| !self.is_broken) {
                match raw::register(&device, types, all) {
                    Ok(()) => {
                        self.members.push((raw::handle(&device), uuid.to_owned()));
                        return Ok(Ear::All);
                    }
                    Err(error) => {
                        tracing::debug!(gpu = uuid, %error, "register a GPU with the others");
                        self.is_broken = true;
                    }
                }
            }
            let own = self.driver.create_event_set()?;
            raw::register(&device, types, &own).map(|()| Ear::Own(own))
        });
        ear.unwrap_or_else(|error| deaf(uuid, &error, self.settings))
    }

    /// Gives each GPU a set of its own instead of that of all, until the session ends.
    fn split(&mut self, wanted: &Wanted) -> Result<(), NobodyListens> {
        let (all, members) = (self.all.take(), std::mem::take(&mut self.members));
        self.is_broken = false;
        for (_, uuid) in &members {
            self.gpus.remove(uuid);
            if let Some(failures) = wanted.get(uuid) {
                let ear = self.register(uuid);
                self.gpus.insert(uuid.clone(), (*failures, ear));
            }
        }
        all.map_or(Ok(()), |all| self.hear_out(all, |device| member(&members, device)))
    }

    /// Tells the last events of a set that others have taken the place of.
    fn hear_out(&self, set: EventSet<'_>, of: impl Fn(&Device<'_>) -> Option<String>) -> Result<(), NobodyListens> {
        // It is over, whether it fails or not.
        let heard = self.hear_set(&set, Duration::ZERO, LAST_EVENTS, of);
        self.shared.listening.during(FREE, || drop(set));
        heard.map(|_| ())
    }

    /// Tells at most so many events of each set, and waits so long for each.
    fn hear(&mut self, turn: Duration, most: u32) -> Result<(), NobodyListens> {
        if let Some(all) = self.all.as_ref().filter(|_| !self.members.is_empty())
            && let Err(error) = self.hear_set(all, turn, most, |device| member(&self.members, device))?
        {
            tracing::debug!(%error, "wait for events of all GPUs");
            self.is_broken = true;
            // What the set has not told, the GPUs may still say of themselves.
            self.shared.ask_now();
        }
        let mut failed = Vec::new();
        for (uuid, (_, ear)) in &self.gpus {
            if let Ear::Own(set) = ear
                && let Err(error) = self.hear_set(set, turn, most, |_| Some(uuid.clone()))?
            {
                failed.push((uuid.clone(), deaf(uuid, &error, self.settings)));
            }
        }
        let (gpus, shared) = (&mut self.gpus, self.shared);
        for (uuid, deaf) in failed {
            shared.listening.during(FREE, || gpus.get_mut(&uuid).map(|(_, ear)| *ear = deaf));
        }
        Ok(())
    }

    /// Tells at most so many events of a set. The error within is that of the wait.
    fn hear_set(
        &self,
        set: &EventSet<'_>,
        turn: Duration,
        most: u32,
        of: impl Fn(&Device<'_>) -> Option<String>,
    ) -> Result<Result<(), NvmlError>, NobodyListens> {
        for _ in 0..most {
            let told = self.shared.listening.during("nvmlEventSetWait", || raw::wait(set, turn));
            let (device, event) = match told {
                Ok(Some(told)) => told,
                Ok(None) => break,
                Err(error) => return Ok(Err(error)),
            };
            if let Event::Xid { xid, slice } = event {
                match self.shared.listening.during("nvmlDeviceGetUUID", || of(&device)) {
                    Some(gpu) => {
                        self.news.blocking_send(DriverNews::Xid { gpu, slice, xid }).map_err(|_| NobodyListens)?
                    }
                    None => tracing::warn!(xid, "the driver does not tell of which GPU an Xid is"),
                }
            }
            // Most of them change what the GPU says of itself.
            self.shared.ask_now();
        }
        Ok(Ok(()))
    }
}

/// The GPU that an event is of. One that is lost may no longer tell its UUID, and its handle is known.
fn member(members: &[(usize, String)], device: &Device<'_>) -> Option<String> {
    let handle = raw::handle(device);
    let known = members.iter().find(|(member, _)| *member == handle).map(|(_, uuid)| uuid.clone());
    known.or_else(|| device.uuid().ok())
}

/// The GPU, and the types of events that it is to tell.
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

/// The driver's words are told with the GPU's other failures; that it has no events at all is told here alone.
fn deaf<'nvml>(uuid: &str, error: &NvmlError, settings: &Settings) -> Ear<'nvml> {
    let lasts = matches!(error, NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_));
    if lasts {
        tracing::warn!(gpu = uuid, %error, "the GPU tells no Xids");
    } else {
        tracing::debug!(gpu = uuid, %error, "register a GPU for Xids");
    }
    Ear::Deaf(Instant::now() + if lasts { Duration::from_secs(3600) } else { settings.every })
}
