use std::path::Path;
use std::time::Duration;

use super::*;
use crate::config::{
    self, ConfigError, Give, HealthConfig, Kind, Limits, Mode, Refusal, ResourceConfig, ResourceName, Select, XidAction,
};
use crate::health::{History, PortSeen, Reason, RecoveryAction, Remembered};
use crate::machine::{Gpu, Hca, PciAddress, PhysState, Place, Port, PortState};
use crate::resource::Unit;

fn pci(bus: u8) -> PciAddress {
    PciAddress { bus, ..PciAddress::default() }
}

fn machine() -> Machine {
    let port = Port { number: 1, state: PortState::Active, phys_state: PhysState::LinkUp, ..Port::default() };
    let place = |bus| Place { pci: pci(bus), ..Place::default() };
    let hca = |bus| Hca { name: format!("mlx5_{bus}"), place: place(bus), ports: vec![port.clone()], ..Hca::default() };
    let gpu = |bus: u8| Gpu { uuid: format!("GPU-{bus}"), place: place(bus), ..Gpu::default() };
    Machine {
        hcas: vec![hca(1), hca(2)],
        gpus: vec![gpu(3), gpu(4)],
        gpu_driver: Some("580.95".to_owned()),
        ..Machine::default()
    }
}

/// A configuration of one resource for each name.
fn config(names: &[&str], limits: Option<Limits>) -> Config {
    let resource = |name: &&str| ResourceConfig {
        name: ResourceName::new(name).unwrap(),
        kind: if name.contains("gpu") { Kind::Gpu } else { Kind::Rdma },
        select: Select::default(),
        share: 1,
        give: Give::One,
        mode: Mode::Plugin,
        mad: false,
        limits,
        line: 1,
    };
    Config {
        file: "larder.yaml".to_owned(),
        resources: names.iter().map(resource).collect(),
        health: HealthConfig::default(),
    }
}

fn both() -> Config {
    config(&["larder.dev/gpu", "larder.dev/hca"], None)
}

fn assign(machine: &Machine, config: &Config) -> Assignment {
    let gpus: Vec<DeviceKey> = machine.gpus.iter().map(|gpu| DeviceKey::Gpu(gpu.uuid.clone())).collect();
    let hcas: Vec<DeviceKey> = machine.hcas.iter().map(|hca| DeviceKey::Hca(hca.place.pci)).collect();
    let units = |kind| {
        let devices = if kind == Kind::Gpu { &gpus } else { &hcas };
        let unit = |device: &DeviceKey| Unit { id: device.to_string(), devices: vec![device.clone()], numa: [].into() };
        devices.iter().map(unit).collect()
    };
    let resource = |config: &ResourceConfig| Resource { config: config.clone(), units: units(config.kind) };
    Assignment { resources: config.resources.iter().map(resource).collect(), excluded: Vec::new() }
}

fn check(_: &Machine, config: &Config) -> Result<(), Refusal> {
    let refusal = || Refusal { line: 7, why: "two resources claim one device".to_owned() };
    if config.resources.len() > 2 { Err(refusal()) } else { Ok(()) }
}

const RULES: Rules = Rules { assign, check };

fn there() -> Capabilities {
    Capabilities { controller: None, hook: None, nri: None, unified: false }
}

fn port(bus: u8, up: bool) -> Event {
    let (state, phys_state) =
        if up { (PortState::Active, PhysState::LinkUp) } else { (PortState::Down, PhysState::Polling) };
    Event::Health(health::Event::Ports(
        [(format!("mlx5_{bus}"), vec![PortSeen { number: 1, state, phys_state }])].into(),
    ))
}

fn xid(bus: u8, xid: u64) -> Event {
    Event::Health(health::Event::Xid { gpu: format!("GPU-{bus}"), slice: None, xid })
}

fn later(now: Now, seconds: u64) -> Now {
    let passed = Duration::from_secs(seconds);
    Now { instant: now.instant + passed, wall: now.wall + passed }
}

fn send_all(state: &mut State, now: Now) {
    state.apply(Some(Event::Capabilities(there())), now);
    state.apply(Some(Event::Health(health::Event::DriverAnswered)), now);
    state.apply(Some(Event::Health(health::Event::Machine(machine()))), now);
}

// SEMANTICS: D11
#[test]
fn the_wait_for_the_inputs_of_the_first_view_is_bounded() {
    let start = now();
    let mut state = State::new(both(), RULES, &Memory::default(), start);
    state.apply(Some(Event::Capabilities(there())), start);
    state.apply(Some(Event::Health(health::Event::Machine(machine()))), start);
    assert_eq!(**state.view(), View::default(), "whether there are more GPUs is not known");
    assert_eq!(state.next(), Some(start.instant + FIRST_VIEW));
    let mut early = State::new(both(), RULES, &Memory::default(), start);
    early.apply(Some(Event::Capabilities(there())), start);
    early.apply(Some(Event::Health(health::Event::Machine(Machine::default()))), start);
    early.apply(Some(Event::Health(health::Event::DriverAnswered)), start);
    assert_eq!(**early.view(), View::default(), "its GPUs were not read yet");
    early.apply(Some(Event::Health(health::Event::Machine(machine()))), start);
    assert_eq!(early.view().resources.len(), 2);
    let mut patient = State::new(both(), RULES, &Memory::default(), start);
    patient.apply(Some(Event::Health(health::Event::Machine(machine()))), start);
    patient.apply(None, later(start, 2));
    assert_eq!((patient.view().resources.len(), patient.next()), (2, None));
    state.apply(Some(Event::Health(health::Event::DriverFailed { why: "no driver".to_owned() })), start);
    assert_eq!(state.view().resources.len(), 2);
    assert_eq!(state.view().resources[0].units.len() + state.view().resources[1].units.len(), 4);
}

#[test]
fn the_view_is_replaced_only_by_a_change() {
    let start = now();
    let mut state = State::new(both(), RULES, &Memory::default(), start);
    send_all(&mut state, start);
    let first = Arc::clone(state.view());
    for event in [port(1, true), port(2, true), Event::Config(Ok(both())), Event::Capabilities(there()), port(1, false)]
    {
        state.apply(Some(event), start);
        assert!(Arc::ptr_eq(&first, state.view()));
    }
    state.apply(None, later(start, 5));
    assert_eq!(state.view().faults[&DeviceKey::Hca(pci(1))].reason, Reason::PortDown);
    state.apply(Some(xid(4, 95)), later(start, 5));
    assert_eq!(state.view().faults.len(), 2);
    assert!(Arc::ptr_eq(&first.resources, &state.view().resources), "what is right is kept");
    // A device that is gone is still offered, for the kubelet to count.
    let mut less = machine();
    less.gpus.remove(0);
    state.apply(Some(Event::Health(health::Event::Machine(less))), later(start, 6));
    assert_eq!(state.view().resources[0].units.len(), 2);
    assert_eq!(state.view().faults[&DeviceKey::Gpu("GPU-3".to_owned())].reason, Reason::Gone);
    let mut more = machine();
    more.gpus.push(Gpu { uuid: "GPU-5".to_owned(), ..machine().gpus[1].clone() });
    state.apply(Some(Event::Health(health::Event::Machine(more))), later(start, 7));
    assert_eq!(state.view().resources[0].units.len(), 3);
}

// SEMANTICS: D1
#[test]
fn a_wrong_configuration_leaves_the_old_one_in_force_and_a_right_one_replaces_it() {
    let start = now();
    let mut state = State::new(both(), RULES, &Memory::default(), start);
    send_all(&mut state, start);
    let wrong = "larder.yaml, line 3: unknown field `shrae`";
    let refusal = Refusal { line: 3, why: "unknown field `shrae`".to_owned() };
    state.apply(Some(Event::Config(Err(refusal.of("larder.yaml")))), start);
    assert_eq!((state.view().refused_config.as_deref(), state.view().resources.len()), (Some(wrong), 2));
    // Other things go on meanwhile, and do not make it right.
    state.apply(Some(xid(3, 95)), start);
    assert_eq!((state.view().refused_config.as_deref(), state.view().faults.len()), (Some(wrong), 1));
    // One that can be read, but not be in force on this machine.
    let three = config(&["larder.dev/gpu", "larder.dev/a", "larder.dev/b"], None);
    state.apply(Some(Event::Config(Ok(three))), start);
    assert_eq!(state.view().refused_config.as_deref(), Some("larder.yaml, line 7: two resources claim one device"));
    assert_eq!(state.view().resources.len(), 2);

    let mut new = config(&["rdma/hca"], None);
    new.health.gpu_quiet = Duration::from_secs(1000);
    state.apply(Some(Event::Config(Ok(new))), start);
    assert_eq!((state.view().refused_config.as_deref(), state.view().resources.len()), (None, 1));
    let event = Event::Health(health::Event::Recovery { gpu: "GPU-3".to_owned(), action: RecoveryAction::None });
    state.apply(Some(event), start);
    assert_eq!(state.next(), Some(start.instant + Duration::from_secs(1000)));
}

// SEMANTICS: D19
#[test]
fn required_limits_that_cannot_be_enforced_take_all_devices_of_the_resource_out_of_service() {
    let start = now();
    let limits = Limits { hca_handles: Some(2), hca_objects: None, memlock: Some(1 << 30), required: true };
    let mut state = State::new(config(&["larder.dev/gpu", "rdma/hca"], Some(limits)), RULES, &Memory::default(), start);
    send_all(&mut state, start);
    assert_eq!(state.view().faults.len(), 0);
    let gone = Capabilities { nri: Some("NRI is not connected".to_owned()), ..there() };
    state.apply(Some(Event::Capabilities(gone)), start);
    assert_eq!(state.view().faults.len(), 4);
    let fault = &state.view().faults[&DeviceKey::Hca(pci(2))];
    assert_eq!((fault.reason, fault.message.as_str()), (Reason::LimitsMissing, "rdma/hca: NRI is not connected"));
    state.apply(Some(Event::Capabilities(there())), start);
    assert_eq!(state.view().faults.len(), 0);

    // Only what a limit needs counts.
    let broken =
        Capabilities { hook: Some("no hook".to_owned()), controller: Some("no controller".to_owned()), ..there() };
    assert_eq!(broken.missing(&limits).as_deref(), Some("no controller; no hook"));
    assert_eq!(broken.missing(&Limits { hca_handles: None, ..limits }), None);
    // Without the hook, containers would not start; without NRI they do, unless that is not wanted.
    let not_required = Limits { required: false, ..limits };
    assert_eq!(broken.missing(&not_required).as_deref(), Some("no controller; no hook"));
    let no_nri = Capabilities { nri: Some("no NRI".to_owned()), ..there() };
    assert_eq!((no_nri.missing(&not_required), no_nri.missing(&limits).as_deref()), (None, Some("no NRI")));
    assert!(Capabilities::default().missing(&limits).is_some(), "what was not probed is not there");
}

/// The memory of a process in which these GPUs have failed.
fn failed(gpus: &[&str]) -> Memory {
    let fault = |gpu: &&str| Remembered {
        gpu: (*gpu).to_owned(),
        action: XidAction::DrainGpu,
        what: "Xid 95".to_owned(),
        since: 1,
        last: 2,
        awaits_reset: true,
        repair_pending: false,
    };
    let history = |gpu: &&str| History { gpu: (*gpu).to_owned(), begun: vec![0, 1] };
    Memory { faults: gpus.iter().map(fault).collect(), history: gpus.iter().map(history).collect() }
}

// SEMANTICS: D17
#[test]
fn faults_survive_a_restart_and_not_a_reboot() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("faults.json");
    let load = |boot| memory::load(&path, boot).unwrap();
    assert_eq!(load("boot-1"), Memory::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (sender, receiver) = watch::channel(Memory::default());
        let stop = CancellationToken::new();
        let keep =
            tokio::spawn(memory::keep(path.clone(), "boot-1".to_owned(), Memory::default(), receiver, stop.clone()));
        sender.send_replace(failed(&["GPU-1"]));
        sender.send_replace(failed(&["GPU-1", "GPU-2"]));
        // What was said before the end is written.
        stop.cancel();
        keep.await.unwrap();
    });
    assert_eq!(load("boot-1"), failed(&["GPU-1", "GPU-2"]));
    assert_eq!(load("boot-2"), Memory::default());
    std::fs::write(&path, "{\"version\": 1, \"boo").unwrap();
    assert_eq!(load("boot-1"), Memory::default());
    // As version 0.1 wrote it.
    let fault = r#"{"gpu": "GPU-1", "action": "drainGpu", "what": "Xid 95", "since": 1, "last": 2}"#;
    std::fs::write(&path, format!(r#"{{"version": 1, "boot": "boot-1", "faults": [{fault}]}}"#)).unwrap();
    assert_eq!(load("boot-1"), Memory { history: vec![], ..failed(&["GPU-1"]) });
}

// SEMANTICS: D17
#[tokio::test(start_paused = true)]
async fn faults_that_could_not_be_written_are_written_when_they_can() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("later/devices/faults.json");
    assert_eq!(memory::load(&path, "boot-1").unwrap(), Memory::default());
    let (sender, receiver) = watch::channel(Memory::default());
    let stop = CancellationToken::new();
    let keep = tokio::spawn(memory::keep(path.clone(), "boot-1".to_owned(), Memory::default(), receiver, stop.clone()));
    sender.send_replace(failed(&["GPU-1"]));
    tokio::time::sleep(Duration::from_secs(100)).await;
    std::fs::create_dir(folder.path().join("later")).unwrap();
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(memory::load(&path, "boot-1").unwrap(), failed(&["GPU-1"]));
    stop.cancel();
    keep.await.unwrap();
}

// SEMANTICS: D17
#[tokio::test]
async fn no_file_is_read_or_written_where_another_user_can_change_it() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let write = async |path: &Path| {
        let (sender, receiver) = watch::channel(Memory::default());
        let task =
            memory::keep(path.to_owned(), "boot".to_owned(), Memory::default(), receiver, CancellationToken::new());
        sender.send_replace(failed(&["GPU-1"]));
        drop(sender);
        task.await;
    };
    let file = at("own/faults.json");
    write(&file).await;
    let mode = |path: &Path| path.metadata().unwrap().mode() & 0o7777;
    assert_eq!((mode(&at("own")), mode(&file)), (0o700, 0o600));
    assert_eq!(memory::load(&file, "boot").unwrap(), failed(&["GPU-1"]));

    // A folder that a link stands for, one that is a file, and one that others can write to.
    symlink(at("own"), at("link")).unwrap();
    std::fs::write(at("file"), "").unwrap();
    std::fs::create_dir(at("shared")).unwrap();
    std::fs::set_permissions(at("shared"), std::fs::Permissions::from_mode(0o770)).unwrap();
    for (folder, why) in [("link", "symbolic link"), ("file", "symbolic link"), ("shared", "its mode is 770")] {
        let path = at(folder).join("faults.json");
        let before = std::fs::read(&file).unwrap();
        let error = memory::load(&path, "boot").unwrap_err().to_string();
        assert!(error.contains(why) && error.contains(at(folder).to_str().unwrap()), "{error}");
        write(&path).await;
        assert_eq!(std::fs::read(&file).unwrap(), before);
        assert!(!at("shared/faults.json").exists());
    }

    // Files in the program's own folder that it cannot have written.
    let kept = std::fs::read(&file).unwrap();
    std::fs::rename(&file, at("elsewhere.json")).unwrap();
    symlink(at("elsewhere.json"), &file).unwrap();
    assert_eq!(memory::load(&file, "boot").unwrap(), Memory::default());
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, &kept).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(memory::load(&file, "boot").unwrap(), Memory::default());
    std::fs::remove_file(&file).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert_eq!(memory::load(&file, "boot").unwrap(), Memory::default());

    // Root can also be given a folder of another user's, as larderd's is.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(at("own"), Some(65_532), None).unwrap();
        let error = memory::load(&file, "boot").unwrap_err().to_string();
        assert!(error.contains("belongs to uid 65532 and not to uid 0"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_notices_are_counted() {
    let mut state = State::new(both(), RULES, &Memory::default(), now());
    send_all(&mut state, now());
    let (events, receiver) = mpsc::channel(EVENTS);
    let (notices, mut received) = mpsc::channel(1);
    let counters = Arc::new(Counters::default());
    let (view, memory) = (watch::channel(Arc::default()).0, watch::channel(Memory::default()).0);
    let outputs = Outputs { view, notices, memory, counters: Arc::clone(&counters), heartbeat: Heartbeat::default() };
    for number in 0..3 {
        events.send(xid(4, 31 + number)).await.unwrap();
    }
    drop(events);
    run(state, receiver, outputs, CancellationToken::new()).await;
    assert_eq!(received.recv().await.map(|notice| notice.xid), Some(31));
    assert_eq!(counters.events_dropped.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn the_task_publishes_views_notices_and_memory_and_wakes_by_itself() {
    let state = State::new(both(), RULES, &Memory::default(), now());
    let (events, receiver) = mpsc::channel(EVENTS);
    let (notices, mut received) = mpsc::channel(NOTICES);
    let (view, mut views) = watch::channel(Arc::default());
    let (memory, mut kept) = watch::channel(Memory::default());
    let stop = CancellationToken::new();
    let counters = Arc::new(Counters::default());
    let outputs = Outputs { view, notices, memory, counters: Arc::clone(&counters), heartbeat: Heartbeat::default() };
    let task = tokio::spawn(run(state, receiver, outputs, stop.clone()));
    for event in [
        Event::Capabilities(there()),
        Event::Health(health::Event::DriverAnswered),
        Event::Health(health::Event::Machine(machine())),
        xid(4, 31),
        xid(3, 95),
        port(1, false),
    ] {
        events.send(event).await.unwrap();
    }
    let notices = [received.recv().await.unwrap(), received.recv().await.unwrap()];
    assert_eq!(
        notices.map(|notice| (notice.device.to_string(), notice.xid)),
        [("GPU-4".into(), 31), ("GPU-3".into(), 95)]
    );
    let count = |action| counters.xids(action);
    assert_eq!((count(XidAction::RestartWorker), count(XidAction::DrainGpu), count(XidAction::Watch)), (1, 1, 0));
    kept.wait_for(|kept| kept.faults.len() == 1).await.unwrap();
    // The port is down for 5 s, which nobody tells the task.
    let down = views.wait_for(|view| view.faults.contains_key(&DeviceKey::Hca(pci(1))));
    tokio::time::timeout(Duration::from_secs(60), down).await.unwrap().unwrap();
    let event = Event::Health(health::Event::Recovery { gpu: "GPU-3".to_owned(), action: RecoveryAction::None });
    events.send(event).await.unwrap();
    kept.wait_for(|kept| kept.faults.is_empty()).await.unwrap();
    assert_eq!(views.wait_for(|view| view.faults.len() == 1).await.unwrap().resources.len(), 2);
    stop.cancel();
    task.await.unwrap();
    assert!(received.try_recv().is_err(), "each is told once");
}

#[tokio::test(start_paused = true)]
async fn the_first_view_is_published_even_if_it_is_empty() {
    let state = State::new(config(&[], None), RULES, &Memory::default(), now());
    let (events, receiver) = mpsc::channel(EVENTS);
    let (view, mut views) = watch::channel(Arc::default());
    let (notices, memory) = (mpsc::channel(NOTICES).0, watch::channel(Memory::default()).0);
    let outputs = Outputs { view, notices, memory, counters: Arc::default(), heartbeat: Heartbeat::default() };
    let stop = CancellationToken::new();
    let task = tokio::spawn(run(state, receiver, outputs, stop.clone()));
    let send = async |event| events.send(event).await.unwrap();
    send(Event::Capabilities(Capabilities::default())).await;
    send(Event::Config(Err(Refusal { line: 1, why: "wrong".to_owned() }.of("larder.yaml")))).await;
    send(Event::Config(Ok(config(&[], None)))).await;
    send(Event::Health(health::Event::Machine(Machine::default()))).await;
    tokio::time::sleep(FIRST_VIEW / 2).await;
    assert!(!views.has_changed().unwrap(), "the driver has not answered yet");
    send(Event::Health(health::Event::DriverFailed { why: "no driver".to_owned() })).await;
    views.changed().await.unwrap();
    assert_eq!(**views.borrow(), View::default());
    stop.cancel();
    task.await.unwrap();
}

// SEMANTICS: P7
#[tokio::test(start_paused = true)]
async fn the_task_beats_also_while_nothing_happens_and_not_once_it_hangs() {
    let state = State::new(config(&[], None), RULES, &Memory::default(), now());
    let (_events, receiver) = mpsc::channel(EVENTS);
    let (view, memory) = (watch::channel(Arc::default()).0, watch::channel(Memory::default()).0);
    let heartbeat = Heartbeat::default();
    let notices = mpsc::channel(NOTICES).0;
    let outputs = Outputs { view, notices, memory, counters: Arc::default(), heartbeat: heartbeat.clone() };
    let task = tokio::spawn(run(state, receiver, outputs, CancellationToken::new()));
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(heartbeat.check("it"), Ok(()));
    task.abort();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(heartbeat.check("it").is_err());
}

fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
    match text {
        "two" => Ok(both()),
        "one" => Ok(config(&["rdma/hca"], None)),
        other => Err(Refusal { line: 1, why: other.to_owned() }.of(&path.display().to_string())),
    }
}

// SEMANTICS: D1
#[tokio::test(start_paused = true)]
async fn every_way_of_changing_the_file_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("larder.yaml");
    // As a ConfigMap is mounted: a link to a link to a folder, of which the middle one is swapped.
    let version = |name: &str, text: &str| {
        std::fs::create_dir(folder.path().join(name)).unwrap();
        std::fs::write(folder.path().join(name).join("larder.yaml"), text).unwrap();
        let new = folder.path().join("..data_tmp");
        std::os::unix::fs::symlink(name, &new).unwrap();
        std::fs::rename(new, folder.path().join("..data")).unwrap();
    };
    version("..1", "two");
    std::os::unix::fs::symlink("..data/larder.yaml", &path).unwrap();
    let (events, mut received) = mpsc::channel(EVENTS);
    let stop = CancellationToken::new();
    let task = tokio::spawn(config_file::watch(path.clone(), "two".to_owned(), parse, events, stop.clone()));
    let mut next = async || match received.recv().await.unwrap() {
        Event::Config(config) => config.map(|config| config.resources.len()).map_err(|error| error.to_string()),
        other => panic!("{other:?}"),
    };
    version("..2", "wrong");
    assert_eq!(next().await, Err(format!("{}, line 1: wrong", path.display())));
    version("..3", "one");
    assert_eq!(next().await, Ok(1));
    std::fs::remove_file(folder.path().join("..data")).unwrap();
    assert!(next().await.unwrap_err().contains("larder.yaml"));
    version("..4", "two");
    assert_eq!(next().await, Ok(2));
    std::fs::write(folder.path().join("..4/larder.yaml"), "x".repeat(config::FILE_BYTES_MOST + 1)).unwrap();
    assert!(next().await.unwrap_err().contains("larger than"));
    tokio::time::sleep(10 * config_file::INTERVAL).await;
    assert!(received.try_recv().is_err(), "what stays the same is told once");
    stop.cancel();
    task.await.unwrap();
}
