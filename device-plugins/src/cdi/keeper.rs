//! Keeps our CDI file on disk.
//!
//! The kubelet does not call Allocate when a container restarts, so the file always names every HCA that a container
//! may have. HCAs that no resource offers any more keep their entries. Invariant: a view is passed on only after the
//! file was written for it; devices for which writing failed are out of service in that view.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::nodes;
use super::spec::{self, Device, Spec};
use crate::health::{Fault, Faults, Reason};
use crate::instance::Instance;
use crate::resource::DeviceKey;
use crate::view::View;
use larder_kubelet::atomic_file;

/// The name of our file.
pub const FILE: &str = "larder.dev-hca.json";

/// How often the file and the device nodes are checked while the view does not change.
const LOOK: Duration = Duration::from_secs(10);

/// How soon a failure is retried, and how often an older process checks whether the newer one is still running.
const RETRY: Duration = Duration::from_secs(1);

/// The folders that the keeper works with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The runtime's folder of CDI files, or `None` if the runtime has no CDI.
    pub folder: Option<PathBuf>,
    /// The host's /dev, as a path in our mount namespace.
    pub dev: PathBuf,
    /// The host's /dev, as a path in the runtime's mount namespace.
    pub host_dev: PathBuf,
    /// The folder of the hook program, as a path in the runtime's mount namespace.
    pub hook_folder: PathBuf,
}

/// The devices that are not prepared, and why.
type Unprepared = BTreeMap<DeviceKey, String>;

/// Keeps the file current with the newest of `views` until `stop`, starting from the file that exists. Passes each view
/// on to `prepared` once the file matches it. While a newer process is running, only the newer process writes the file.
pub async fn keep(
    settings: Settings,
    instance: Arc<Instance>,
    mut views: watch::Receiver<Arc<View>>,
    prepared: watch::Sender<Arc<View>>,
    stop: CancellationToken,
) {
    let settings = Arc::new(settings);
    let (mut is_passed_on, mut faults) = (false, Faults::new());
    loop {
        let view = Arc::clone(&views.borrow_and_update());
        let (task_settings, task_instance, task_view) =
            (Arc::clone(&settings), Arc::clone(&instance), Arc::clone(&view));
        let prepared_now = move || prepare(&task_settings, &task_instance, &task_view);
        let (problems, is_ours) = match tokio::task::spawn_blocking(prepared_now).await {
            Ok(prepared) => prepared,
            Err(error) => (all(&view, &format!("preparing the CDI file failed: {error}")), true),
        };
        let wait = if problems.is_empty() && is_ours { LOOK } else { RETRY };
        let now = with_times(problems, &faults);
        if faults != now {
            for (device, fault) in now.iter().filter(|(device, _)| !faults.contains_key(device)) {
                warn!(%device, message = fault.message, "HCA not prepared");
            }
            for device in faults.keys().filter(|device| !now.contains_key(device)) {
                info!(%device, "HCA prepared again");
            }
            faults = now;
        }
        prepared.send_if_modified(|known| {
            let overlaid = overlay(&view, &faults);
            let changed = **known != *overlaid;
            *known = overlaid;
            changed || !is_passed_on
        });
        is_passed_on = true;
        tokio::select! {
            () = stop.cancelled() => return,
            changed = views.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// The view with these devices out of service as well. A device that already has a fault keeps that fault.
fn overlay(view: &Arc<View>, faults: &Faults) -> Arc<View> {
    if faults.keys().all(|device| view.faults.contains_key(device)) {
        return Arc::clone(view);
    }
    let mut all = faults.clone();
    all.extend(view.faults.iter().map(|(device, fault)| (device.clone(), fault.clone())));
    Arc::new(View { faults: Arc::new(all), ..View::clone(view) })
}

fn with_times(problems: Unprepared, known: &Faults) -> Faults {
    let fault = |(device, message): (DeviceKey, String)| {
        let since = known.get(&device).map_or_else(SystemTime::now, |fault| fault.since);
        let recovery = "containers can get it, which is retried every second".to_owned();
        (device, Fault { reason: Reason::NotPrepared, message, since, recovery })
    };
    problems.into_iter().map(fault).collect()
}

/// All HCAs that a resource offers, with one common reason.
fn all(view: &View, why: &str) -> Unprepared {
    spec::owners(view).into_keys().map(|pci| (DeviceKey::Hca(pci), why.to_owned())).collect()
}

/// Writes the file if its content is out of date. Returns the devices that containers cannot get, and whether this
/// process writes the file.
fn prepare(settings: &Settings, instance: &Instance, view: &View) -> (Unprepared, bool) {
    let mut problems = missing_nodes(settings, view);
    let Some(folder) = settings.folder.as_deref() else { return (problems, true) };
    if !instance.is_newest() {
        return (problems, false);
    }
    let last = read(&folder.join(FILE)).ok().and_then(|text| serde_json::from_slice::<Spec>(&text).ok());
    let wanted = spec::spec(view, last.as_ref(), &settings.host_dev, &settings.hook_folder);
    if let Err(error) = write(folder, &wanted) {
        // Writing failed, but devices whose entries in the last file are still correct can be used.
        let known = last.map(|last| last.devices).unwrap_or_default();
        let stale = |device: &&Device| !known.contains(device);
        let stale: Vec<&str> = wanted.devices.iter().filter(stale).map(|device| device.name.as_str()).collect();
        for pci in spec::owners(view).into_keys().filter(|pci| stale.contains(&spec::name(*pci).as_str())) {
            let why = format!("write {}: {error}", folder.join(FILE).display());
            problems.entry(DeviceKey::Hca(pci)).or_insert(why);
        }
    }
    (problems, true)
}

/// The HCAs of resources for which a device node is missing.
fn missing_nodes(settings: &Settings, view: &View) -> Unprepared {
    let owners = spec::owners(view);
    let mut problems = Unprepared::new();
    for hca in &view.machine.hcas {
        let Some(owner) = owners.get(&hca.place.pci) else { continue };
        let missing = |name: &String| !settings.dev.join(nodes::FOLDER).join(name).exists();
        let why = match nodes::names(hca, owner.mad) {
            None => Some(format!("{} has no uverbs device: load the kernel module ib_uverbs", hca.name)),
            Some(names) => names.into_iter().find(missing).map(|name| {
                let hint = if name == nodes::RDMA_CM { ": load the kernel module rdma_ucm" } else { "" };
                format!("/dev/{}/{name} of {} is missing{hint}", nodes::FOLDER, hca.name)
            }),
        };
        problems.extend(why.map(|why| (DeviceKey::Hca(hca.place.pci), why)));
    }
    problems
}

/// Writes the file, or removes it if there is no device.
fn write(folder: &Path, spec: &Spec) -> io::Result<()> {
    let path = folder.join(FILE);
    atomic_file::sweep(&path);
    if spec.devices.is_empty() {
        return match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    let text = text(spec)?;
    if read(&path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    std::fs::create_dir_all(folder)?;
    atomic_file::replace(&path, &text, 0o644)?;
    info!(path = %path.display(), devices = spec.devices.len(), "CDI file written");
    Ok(())
}

fn text(spec: &Spec) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(spec)?;
    text.push(b'\n');
    Ok(text)
}

/// Reads a file up to the largest size that our file can have.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(super::decode::BYTES_MOST as u64).read_to_end(&mut text)?;
    Ok(text)
}
