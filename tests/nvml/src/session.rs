//! The library's state between calls: the session, the returned handles, and the event sets.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::changes::Changes;
use crate::library;
use crate::machine::{FILE_NAME, FILE_VARIABLE, Gpu, Machine, Slice, code};

/// The interval at which a hanging call checks the file.
const HANG_TICK: Duration = Duration::from_millis(5);

/// The session. Each copy of the library that a process loads has its own.
static SESSION: Mutex<Session> = Mutex::new(Session {
    users: 0,
    load: 0,
    xids_before: 0,
    xids_passed: BTreeMap::new(),
    lost: BTreeSet::new(),
    names: Vec::new(),
    sets: BTreeMap::new(),
    sets_made: 0,
    seen: None,
});

struct Session {
    /// Number of calls of `nvmlInit` that no `nvmlShutdown` has balanced.
    users: u32,
    /// The value of [`Machine::load`] when the session was opened.
    load: u32,
    /// The number of Xids when the session was opened.
    xids_before: usize,
    /// By GPU: the number of Xids of the machine that the session has already checked for it.
    xids_passed: BTreeMap<String, usize>,
    /// GPUs that this session can no longer reach.
    lost: BTreeSet<String>,
    /// The UUIDs of all handles: handle N is the Nth UUID, counted from 1.
    names: Vec<String>,
    sets: BTreeMap<usize, EventSet>,
    sets_made: usize,
    seen: Option<(Stamp, Arc<Machine>)>,
}

/// The identity of a version of the file; a replaced file has a different stamp.
type Stamp = (u64, i64, i64, u64);

#[derive(Default)]
struct EventSet {
    /// The registered GPUs, each with the number of Xids of the machine that this set has already checked for it.
    gpus: BTreeMap<String, usize>,
    /// A wait has found a lost GPU in the set. The set reports nothing after that.
    has_failed: bool,
}

/// An Xid as an event set reports it.
pub(crate) struct Event {
    pub(crate) device: usize,
    pub(crate) xid: u64,
    pub(crate) gpu_instance: Option<u32>,
    pub(crate) compute_instance: Option<u32>,
}

/// The GPU or slice of a handle.
#[derive(Clone, Copy)]
pub(crate) enum Device<'machine> {
    Gpu(&'machine Gpu),
    Slice(&'machine Gpu, &'machine Slice),
}

fn session() -> MutexGuard<'static, Session> {
    SESSION.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    /// The machine in the file. The file is parsed again only after it was replaced.
    fn machine(&mut self, file: &Path) -> Result<Arc<Machine>, u32> {
        let metadata = std::fs::metadata(file).map_err(|_| code::DRIVER_NOT_LOADED)?;
        let stamp = (metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.len());
        if let Some((_, machine)) = self.seen.as_ref().filter(|(seen, _)| *seen == stamp) {
            return Ok(Arc::clone(machine));
        }
        let bytes = std::fs::read(file).map_err(|_| code::DRIVER_NOT_LOADED)?;
        let machine: Machine = serde_json::from_slice(&bytes).map_err(|error| {
            eprintln!("fake NVML: {}: {error}", file.display());
            code::UNKNOWN
        })?;
        let machine = Arc::new(machine);
        self.seen = Some((stamp, Arc::clone(&machine)));
        Ok(machine)
    }
}

/// The machine, after any hang of the driver.
fn driver() -> Result<Arc<Machine>, u32> {
    let file = file();
    let started = Instant::now();
    loop {
        let machine = session().machine(file)?;
        if started.elapsed() >= Duration::from_millis(machine.hang_ms) {
            return machine.error.map_or(Ok(machine), Err);
        }
        sleep(HANG_TICK);
    }
}

/// The machine, for a call of a session.
pub(crate) fn machine() -> Result<Arc<Machine>, u32> {
    if session().users == 0 {
        return Err(code::UNINITIALIZED);
    }
    let machine = driver()?;
    if session().load == machine.load { Ok(machine) } else { Err(code::UNKNOWN) }
}

pub(crate) fn begin() -> Result<(), u32> {
    let machine = driver()?;
    let mut session = session();
    if session.users == 0 {
        session.load = machine.load;
        session.xids_before = machine.xids.len();
        session.xids_passed.clear();
        session.lost.clear();
    }
    session.users += 1;
    Ok(())
}

pub(crate) fn end() -> Result<(), u32> {
    let mut session = session();
    session.users = session.users.checked_sub(1).ok_or(code::UNINITIALIZED)?;
    Ok(())
}

/// Fails if queries of this GPU fail.
pub(crate) fn reach(machine: &Machine, gpu: &Gpu) -> Result<(), u32> {
    let lost = &mut session().lost;
    if machine.lost_for_good && gpu.error == Some(code::GPU_IS_LOST) {
        lost.insert(gpu.uuid.clone());
    }
    gpu.error.or(lost.contains(&gpu.uuid).then_some(code::GPU_IS_LOST)).map_or(Ok(()), Err)
}

/// The handle of a UUID.
pub(crate) fn handle(uuid: &str) -> usize {
    let mut session = session();
    if let Some(index) = session.names.iter().position(|name| name == uuid) {
        return index + 1;
    }
    session.names.push(uuid.to_owned());
    session.names.len()
}

/// The GPU or slice of a handle.
pub(crate) fn device(machine: &Machine, handle: usize) -> Result<Device<'_>, u32> {
    let uuid = handle.checked_sub(1).and_then(|index| session().names.get(index).cloned());
    let uuid = uuid.ok_or(code::INVALID_ARGUMENT)?;
    let slices = |gpu: &'_ Gpu| gpu.slices.iter().position(|slice| slice.uuid == uuid);
    let found = machine.gpus.iter().find_map(|gpu| match slices(gpu) {
        Some(slice) => Some(Device::Slice(gpu, &gpu.slices[slice])),
        None => (gpu.uuid == uuid).then_some(Device::Gpu(gpu)),
    });
    found.ok_or(code::GPU_IS_LOST)
}

pub(crate) fn make_set() -> usize {
    let mut session = session();
    session.sets_made += 1;
    let set = session.sets_made;
    session.sets.insert(set, EventSet::default());
    set
}

pub(crate) fn free_set(set: usize) -> Result<(), u32> {
    let started = Instant::now();
    loop {
        let hang_ms = session().machine(file()).map_or(0, |machine| machine.free_hang_ms);
        if started.elapsed() >= Duration::from_millis(hang_ms) {
            break;
        }
        sleep(HANG_TICK);
    }
    session().sets.remove(&set).map(|_| ()).ok_or(code::INVALID_ARGUMENT)
}

/// Registers a GPU: from now on the set reports its Xids.
pub(crate) fn register(set: usize, gpu: &Gpu) -> Result<(), u32> {
    let mut session = session();
    let passed = session.machine(file())?.xids.len();
    session.sets.get_mut(&set).ok_or(code::INVALID_ARGUMENT)?.gpus.insert(gpu.uuid.clone(), passed);
    Ok(())
}

/// Waits for the next Xid of a set. A set with a lost GPU reports the Xids before the loss, then fails.
pub(crate) fn wait(set: usize, timeout: Duration) -> Result<Event, u32> {
    let started = Instant::now();
    // Created before the file is first read, so that no change between the read and the wait is missed.
    let changes = Changes::of(file());
    loop {
        let machine = machine()?;
        if let Some(event) = next_of(set, &machine)? {
            return Ok(event);
        }
        if has_lost_gpu(set, &machine)? {
            return Err(code::GPU_IS_LOST);
        }
        let Some(left) = timeout.checked_sub(started.elapsed()).filter(|left| !left.is_zero()) else {
            return Err(code::TIMEOUT);
        };
        changes.wait(left);
    }
}

fn has_lost_gpu(set: usize, machine: &Machine) -> Result<bool, u32> {
    let mut session = session();
    let Session { sets, lost, .. } = &mut *session;
    let set = sets.get_mut(&set).ok_or(code::INVALID_ARGUMENT)?;
    let is_lost = |gpu: &Gpu| [gpu.error, gpu.handle_error].contains(&Some(code::GPU_IS_LOST));
    let is_lost = |gpu: &Gpu| set.gpus.contains_key(&gpu.uuid) && (is_lost(gpu) || lost.contains(&gpu.uuid));
    set.has_failed = machine.gpus.iter().any(is_lost);
    Ok(set.has_failed)
}

fn next_of(set: usize, machine: &Machine) -> Result<Option<Event>, u32> {
    let xid = {
        let mut session = session();
        let Session { sets, xids_passed, xids_before, .. } = &mut *session;
        let EventSet { gpus, has_failed } = sets.get_mut(&set).ok_or(code::INVALID_ARGUMENT)?;
        if *has_failed {
            return Err(code::GPU_IS_LOST);
        }
        let passed = |gpu| {
            let of_all = xids_passed.get(gpu).unwrap_or(xids_before);
            gpus.get(gpu).map(|of_set| if machine.sets_report_independently { *of_set } else { *of_all })
        };
        let mut all = machine.xids.iter().enumerate();
        let next = all.find(|(number, xid)| passed(&xid.gpu).is_some_and(|passed| *number >= passed));
        let Some((number, xid)) = next else { return Ok(None) };
        xids_passed.insert(xid.gpu.clone(), number + 1);
        gpus.insert(xid.gpu.clone(), number + 1);
        xid
    };
    let (gpu_instance, compute_instance) = (xid.gpu_instance, xid.compute_instance);
    Ok(Some(Event { device: handle(&xid.gpu), xid: xid.xid, gpu_instance, compute_instance }))
}

/// The path of the machine's file.
fn file() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| match std::env::var_os(FILE_VARIABLE) {
        Some(file) => PathBuf::from(file),
        None => library::path().with_file_name(FILE_NAME),
    })
}
