//! The thread that listens: it waits for events of every GPU, and tells Xids.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{EventSet, Nvml};
use tokio::sync::mpsc;

use super::news::{DriverNews, Settings};
use super::raw::{self, Event};
use super::shared::Shared;

/// What happens to an event set that is dropped.
const FREE: &str = "nvmlEventSetFree";

/// The most events of a GPU that are told at the end of a session: a GPU may have more without end.
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

/// What there is of a GPU's events.
enum Ear<'nvml> {
    /// A set of the GPU's own: a GPU that fails takes its set with it, and no other's.
    Set(EventSet<'nvml>),
    /// It cannot be registered; there is another try at this time.
    Deaf(Instant),
}

/// Tells the events of one session, until it is over.
fn listen_to(
    driver: &Arc<Nvml>,
    settings: &Settings,
    shared: &Shared,
    news: &mpsc::Sender<DriverNews>,
) -> Result<(), NobodyListens> {
    let mut ears: BTreeMap<String, (u64, Ear<'_>)> = BTreeMap::new();
    loop {
        let wanted = shared.wanted(driver);
        if let Some(wanted) = &wanted {
            let is_due = |ear: &Ear<'_>| matches!(ear, Ear::Deaf(retry) if *retry <= Instant::now());
            let is_wanted = |uuid: &String, (failures, ear): &mut _| wanted.get(uuid) == Some(failures) && !is_due(ear);
            shared.listening.during(FREE, || ears.retain(is_wanted));
            for (uuid, failures) in wanted {
                ears.entry(uuid.clone()).or_insert_with(|| {
                    let set = shared.listening.during("nvmlDeviceRegisterEvents", || register(driver, uuid));
                    (*failures, set.map_or_else(|error| deaf(uuid, &error, settings), Ear::Set))
                });
            }
        }
        let sets = ears.values().filter(|(_, ear)| matches!(ear, Ear::Set(_))).count();
        let turn = settings.listen_every / u32::try_from(sets.max(1)).unwrap_or(u32::MAX);
        // A session that is over is listened to once more, for all that has happened: its events are told by no other.
        let (turn, most) = if wanted.is_some() { (turn, 1) } else { (Duration::ZERO, LAST_EVENTS) };
        for (uuid, (_, ear)) in &mut ears {
            for _ in 0..most {
                let Ear::Set(set) = ear else { break };
                match shared.listening.during("nvmlEventSetWait", || raw::wait(set, turn)) {
                    Ok(Some(event)) => {
                        if let Event::Xid { xid, slice } = event {
                            let xid = DriverNews::Xid { gpu: uuid.clone(), slice, xid };
                            news.blocking_send(xid).map_err(|_| NobodyListens)?;
                        }
                        // Most of them change what the GPU says of itself.
                        shared.ask_now();
                    }
                    Ok(None) => break,
                    Err(error) => shared.listening.during(FREE, || *ear = deaf(uuid, &error, settings)),
                }
            }
        }
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

fn register<'nvml>(driver: &'nvml Nvml, uuid: &str) -> Result<EventSet<'nvml>, NvmlError> {
    let set = driver.create_event_set()?;
    let count = driver.device_count()?;
    for device in (0..count).filter_map(|index| driver.device_by_index(index).ok()) {
        if device.uuid().is_ok_and(|found| found == uuid) {
            return raw::register(&device, &set).map(|()| set);
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
