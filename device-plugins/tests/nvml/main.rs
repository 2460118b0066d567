//! The GPU driver, tested with a fake library that is loaded like the real one.

mod sessions;
mod slices;

use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use larder_devices::machine::{Gpu, GpuFamily, Place};
use larder_devices::nvml::{self, DriverNews, RecoveryAction, Settings, ThreadEnded};
use larder_testkit::FakeNvml;
use larder_testkit::nvml::{Gpu as Made, Link, Machine, Xid, code};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Receives the news that the threads report about a library.
struct Driver {
    news: mpsc::Receiver<DriverNews>,
    seen: Vec<DriverNews>,
    stop: CancellationToken,
    running: JoinHandle<Result<(), ThreadEnded>>,
}

/// Short intervals, but long timeouts, so that a busy machine does not cause failures.
fn settings(library: PathBuf) -> Settings {
    let (soon, never) = (Duration::from_millis(30), Duration::from_secs(3600));
    Settings {
        library,
        every: soon,
        everything_every: soon,
        absent_every: soon,
        listen_every: soon,
        silent_after: Duration::from_secs(60),
        reopen_every: never,
    }
}

impl Driver {
    fn of(nvml: &FakeNvml) -> Self {
        Self::start(settings(nvml.library()), 64)
    }

    fn start(settings: Settings, room: usize) -> Self {
        let (sender, news) = mpsc::channel(room);
        let stop = CancellationToken::new();
        let running = tokio::spawn(nvml::run(settings, sender, stop.clone()));
        Self { news, seen: Vec::new(), stop, running }
    }

    /// The next matching news.
    async fn next<T>(&mut self, mut fits: impl FnMut(&DriverNews) -> Option<T>) -> T {
        let patience = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            let news = tokio::time::timeout_at(patience, self.news.recv()).await;
            let news = news.unwrap_or_else(|_| panic!("no such news; seen: {:#?}", self.seen));
            let news = news.expect("the threads live");
            self.seen.push(news.clone());
            if let Some(found) = fits(&news) {
                return found;
            }
        }
    }

    async fn until(&mut self, wanted: DriverNews) {
        self.next(|news| (*news == wanted).then_some(())).await;
    }

    async fn gpus(&mut self) -> Vec<Gpu> {
        self.next(|news| if let DriverNews::Gpus { gpus, .. } = news { Some(gpus.clone()) } else { None }).await
    }

    async fn xid(&mut self) -> (String, Option<(u32, Option<u32>)>, u64) {
        let xid = |news: &DriverNews| match news {
            DriverNews::Xid { gpu, slice, xid } => Some((gpu.clone(), *slice, *xid)),
            _ => None,
        };
        self.next(xid).await
    }

    async fn recovery(&mut self, gpu: &str) -> RecoveryAction {
        let action = |news: &DriverNews| match news {
            DriverNews::Recovery { gpu: of, action } if of == gpu => Some(*action),
            _ => None,
        };
        self.next(action).await
    }

    async fn failed(&mut self) -> String {
        self.next(|news| if let DriverNews::Failed { why } = news { Some(why.clone()) } else { None }).await
    }

    async fn absent(&mut self) -> String {
        self.next(|news| if let DriverNews::Absent { why } = news { Some(why.clone()) } else { None }).await
    }

    async fn failed_gpu(&mut self) -> (String, String) {
        let failed = |news: &DriverNews| match news {
            DriverNews::GpuFailed { gpu, why } => Some((gpu.clone(), why.clone())),
            _ => None,
        };
        self.next(failed).await
    }

    async fn end(self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(Duration::from_secs(60), self.running).await;
        ended.expect("it ends").expect("no panic").expect("the threads live");
    }
}

/// Asserts that the text contains all of these parts.
fn says(text: &(impl Debug + ?Sized), parts: &[&str]) {
    let text = format!("{text:?}");
    assert!(parts.iter().all(|part| text.contains(part)), "{text} does not say {parts:?}");
}

fn xid(machine: &mut Machine, gpu: usize, xid: u64) {
    let gpu = machine.gpus[gpu].uuid.clone();
    machine.xids.push(Xid { gpu, xid, ..Xid::default() });
}

#[tokio::test]
async fn eight_gpus_are_reported_with_their_switched_links() {
    let machine = Machine::h100s(8);
    let nvml = FakeNvml::with(&machine);
    let mut driver = Driver::of(&nvml);
    let news = driver.next(|news| matches!(news, DriverNews::Gpus { .. }).then(|| news.clone())).await;
    let expected = |made: &Made| Gpu {
        uuid: made.uuid.clone(),
        model: "NVIDIA H100 80GB HBM3".to_owned(),
        family: GpuFamily::Hopper,
        minor: made.minor,
        memory_bytes: 80 << 30,
        place: Place { pci: made.pci.parse().unwrap(), ..Place::default() },
        nvlinks: machine.gpus.iter().filter(|peer| *peer != made).map(|peer| (peer.uuid.clone(), 18)).collect(),
        mig: None,
    };
    let gpus = machine.gpus.iter().map(expected).collect();
    assert_eq!(news, DriverNews::Gpus { driver: "580.95.05".to_owned(), gpus, warnings: Vec::new() });
    driver.until(DriverNews::Answered).await;
    // Unchanged GPUs are not reported again.
    driver.until(DriverNews::Answered).await;
    driver.until(DriverNews::Answered).await;
    let again = driver.seen.iter().filter(|news| matches!(news, DriverNews::Gpus { .. })).count();
    assert_eq!(again, 1);
    driver.end().await;
}

#[tokio::test]
async fn links_between_two_gpus_are_theirs_alone() {
    let mut machine = Machine::h100s(3);
    for (gpu, peer) in [(0, 1), (1, 0)] {
        machine.gpus[gpu].links = vec![Link::Gpu(machine.gpus[peer].pci.clone()); 4];
    }
    machine.gpus[2].links.clear();
    let nvml = FakeNvml::with(&machine);
    let mut driver = Driver::of(&nvml);
    let gpus = driver.gpus().await;
    assert_eq!(gpus[0].nvlinks.clone().into_iter().collect::<Vec<_>>(), [(gpus[1].uuid.clone(), 4)]);
    assert_eq!(gpus[1].nvlinks.clone().into_iter().collect::<Vec<_>>(), [(gpus[0].uuid.clone(), 4)]);
    assert_eq!(gpus[2].nvlinks.len(), 0);
    driver.end().await;
}

#[tokio::test]
async fn an_xid_is_reported_once() {
    let mut machine = Machine::h100s(8);
    xid(&mut machine, 5, 31);
    let nvml = FakeNvml::with(&machine);
    let mut driver = Driver::of(&nvml);
    driver.gpus().await;
    // Not the one from before.
    for (gpu, number) in [(3, 79), (3, 79), (7, 13), (0, 94)] {
        xid(&mut machine, gpu, number);
        nvml.set(&machine);
        assert_eq!(driver.xid().await, (machine.gpus[gpu].uuid.clone(), None, number));
    }
    driver.end().await;
}

// SEMANTICS: D15
#[tokio::test]
async fn a_full_queue_loses_nothing() {
    let mut machine = Machine::h100s(1);
    let nvml = FakeNvml::with(&machine);
    let mut driver = Driver::start(settings(nvml.library()), 1);
    driver.gpus().await;
    (0..50).for_each(|number| xid(&mut machine, 0, number));
    nvml.set(&machine);
    for number in 0..50 {
        assert_eq!(driver.xid().await.2, number);
    }
    driver.end().await;
}

// SEMANTICS: D16
#[tokio::test]
async fn a_gpu_that_is_lost_costs_itself_alone() {
    let mut machine = Machine::h100s(8);
    let nvml = FakeNvml::with(&machine);
    let mut driver = Driver::of(&nvml);
    let lost = machine.gpus[2].uuid.clone();
    driver.gpus().await;
    assert_eq!(driver.recovery(&lost).await, RecoveryAction::None);
    for by_handle in [false, true] {
        let gone = Some(code::GPU_IS_LOST);
        (machine.gpus[2].error, machine.gpus[2].handle_error) = if by_handle { (None, gone) } else { (gone, None) };
        nvml.set(&machine);
        let (gpu, why) = driver.failed_gpu().await;
        assert_eq!(gpu, lost);
        says(&why, &["fell off the bus"]);
        // The others answer and report their Xids.
        driver.until(DriverNews::Answered).await;
        xid(&mut machine, 3, 13);
        nvml.set(&machine);
        assert_eq!(driver.xid().await, (machine.gpus[3].uuid.clone(), None, 13));

        (machine.gpus[2].error, machine.gpus[2].handle_error) = (None, None);
        nvml.set(&machine);
        assert_eq!(driver.recovery(&lost).await, RecoveryAction::None);
        xid(&mut machine, 2, 31);
        nvml.set(&machine);
        assert_eq!(driver.xid().await, (lost.clone(), None, 31));
    }
    let failed = driver.seen.iter().filter(|news| matches!(news, DriverNews::GpuFailed { .. }));
    assert_eq!(failed.count(), 2);
    let mut counts = driver.seen.iter().filter_map(|news| match news {
        DriverNews::Gpus { gpus, .. } => Some(gpus.len()),
        _ => None,
    });
    assert!(counts.all(|count| count == 8), "a GPU that fails stays in the list");
    driver.end().await;
}

#[tokio::test]
async fn one_wait_receives_events_of_all_gpus() {
    let mut machine = Machine::h100s(8);
    let nvml = FakeNvml::with(&machine);
    let patient = Settings { listen_every: Duration::from_secs(3600), ..settings(nvml.library()) };
    let mut driver = Driver::start(patient, 64);
    driver.until(DriverNews::Answered).await;
    for gpu in [7, 0, 4] {
        xid(&mut machine, gpu, 31);
        nvml.set(&machine);
        assert_eq!(driver.xid().await, (machine.gpus[gpu].uuid.clone(), None, 31));
    }
    driver.end().await;
}

/// Waits until the events of this GPU and of all others are received.
async fn is_reported(driver: &mut Driver, nvml: &FakeNvml, machine: &mut Machine, gpu: usize) {
    driver.gpus().await;
    xid(machine, gpu, 31);
    nvml.set(machine);
    driver.xid().await;
}

#[tokio::test]
async fn events_before_the_loss_of_a_gpu_are_reported() {
    let mut machine = Machine::h100s(8);
    let nvml = FakeNvml::with(&machine);
    // The channel holds one item, so both threads send alternately: the GPU's failure is known while more events are
    // queued.
    let mut driver = Driver::start(settings(nvml.library()), 1);
    is_reported(&mut driver, &nvml, &mut machine, 2).await;
    machine.gpus[2].error = Some(code::GPU_IS_LOST);
    (0..50).for_each(|number| xid(&mut machine, 2, number));
    nvml.set(&machine);
    for number in 0..50 {
        assert_eq!(driver.xid().await, (machine.gpus[2].uuid.clone(), None, number));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    driver.end().await;
}

#[tokio::test]
async fn a_gpu_that_is_lost_takes_no_events_of_others_with_it() {
    let mut machine = Machine::h100s(8);
    let nvml = FakeNvml::with(&machine);
    // The wait for events notices the loss before any query does.
    let rarely = Settings { every: Duration::from_secs(3600), ..settings(nvml.library()) };
    let mut driver = Driver::start(rarely, 64);
    is_reported(&mut driver, &nvml, &mut machine, 2).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    machine.gpus[2].error = Some(code::GPU_IS_LOST);
    nvml.set(&machine);
    tokio::time::sleep(Duration::from_millis(200)).await;
    xid(&mut machine, 5, 13);
    nvml.set(&machine);
    assert_eq!(driver.xid().await, (machine.gpus[5].uuid.clone(), None, 13));
    driver.end().await;
}

#[tokio::test]
async fn no_event_falls_between_the_sets_when_all_get_one_of_their_own() {
    let mut machine = Machine { sets_report_independently: true, free_hang_ms: 1000, ..Machine::h100s(8) };
    let nvml = FakeNvml::with(&machine);
    let mut driver = Driver::of(&nvml);
    // Events are lost until the GPU's event set was created, so send until one is reported.
    let mut is_reported = false;
    while !is_reported {
        xid(&mut machine, 2, 31);
        nvml.set(&machine);
        is_reported = tokio::time::timeout(Duration::from_millis(100), driver.xid()).await.is_ok();
    }
    machine.gpus[2].error = Some(code::GPU_IS_LOST);
    nvml.set(&machine);
    driver.failed_gpu().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    // The shared event set is being freed, so another set has to report this event.
    xid(&mut machine, 5, 13);
    nvml.set(&machine);
    driver.until(DriverNews::Xid { gpu: machine.gpus[5].uuid.clone(), slice: None, xid: 13 }).await;
    machine.free_hang_ms = 0;
    nvml.set(&machine);
    driver.end().await;
}

#[tokio::test]
async fn the_set_of_a_gpu_that_is_lost_later_is_drained_too() {
    let mut machine = Machine::h100s(8);
    let nvml = FakeNvml::with(&machine);
    let mut driver = Driver::start(settings(nvml.library()), 1);
    is_reported(&mut driver, &nvml, &mut machine, 2).await;
    machine.gpus[2].error = Some(code::GPU_IS_LOST);
    nvml.set(&machine);
    driver.failed_gpu().await;
    // From now on, each GPU has its own event set.
    xid(&mut machine, 4, 31);
    nvml.set(&machine);
    driver.xid().await;
    machine.gpus[4].error = Some(code::GPU_IS_LOST);
    (0..50).for_each(|number| xid(&mut machine, 4, number));
    nvml.set(&machine);
    for number in 0..50 {
        assert_eq!(driver.xid().await, (machine.gpus[4].uuid.clone(), None, number));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    driver.end().await;
}

#[tokio::test]
async fn a_gpu_that_never_answered_is_a_warning() {
    let mut machine = Machine::h100s(3);
    machine.gpus[0].error = Some(code::GPU_IS_LOST);
    machine.gpus[1].handle_error = Some(code::UNKNOWN);
    let nvml = FakeNvml::with(&machine);
    let mut driver = Driver::of(&nvml);
    let (gpus, warnings) = driver
        .next(|news| match news {
            DriverNews::Gpus { gpus, warnings, .. } => Some((gpus.clone(), warnings.clone())),
            _ => None,
        })
        .await;
    assert_eq!(gpus.iter().map(|gpu| &gpu.uuid).collect::<Vec<_>>(), [&machine.gpus[2].uuid]);
    says(&warnings, &[&machine.gpus[0].uuid, "GPU 1: "]);
    assert_eq!(warnings.len(), 2);
    driver.end().await;
}

#[tokio::test]
async fn a_gpu_that_is_gone_leaves_the_list_and_comes_back() {
    let machine = Machine::h100s(4);
    let nvml = FakeNvml::with(&machine);
    let mut driver = Driver::of(&nvml);
    assert_eq!(driver.gpus().await.len(), 4);
    let mut fewer = machine.clone();
    fewer.gpus.remove(1);
    nvml.set(&fewer);
    assert_eq!(driver.gpus().await.len(), 3);
    nvml.set(&machine);
    while driver.gpus().await.iter().map(|gpu| gpu.nvlinks.len()).ne([3; 4]) {}
    driver.end().await;
}

#[tokio::test]
async fn a_changed_recovery_action_is_reported() {
    let mut machine = Machine::h100s(2);
    machine.gpus[1].recovery_action = None;
    let nvml = FakeNvml::with(&machine);
    let mut driver = Driver::of(&nvml);
    let gpus = machine.gpus.iter().map(|gpu| gpu.uuid.clone()).collect::<Vec<_>>();
    assert_eq!(driver.recovery(&gpus[0]).await, RecoveryAction::None);
    for (number, action) in [
        (1, RecoveryAction::GpuReset),
        (2, RecoveryAction::NodeReboot),
        (3, RecoveryAction::DrainP2p),
        (4, RecoveryAction::DrainAndReset),
        (9, RecoveryAction::Other(9)),
        (0, RecoveryAction::None),
    ] {
        machine.gpus[0].recovery_action = Some(number);
        nvml.set(&machine);
        assert_eq!(driver.recovery(&gpus[0]).await, action);
    }
    // A driver without the recovery query reports pending memory remapping, which needs a reset. Without it, nobody
    // knows.
    let first = driver.seen.iter().find_map(|news| match news {
        DriverNews::Recovery { gpu, action } if *gpu == gpus[1] => Some(*action),
        _ => None,
    });
    assert_eq!(first, Some(RecoveryAction::Unsupported));
    machine.gpus[1].remapping_pending = true;
    nvml.set(&machine);
    assert_eq!(driver.recovery(&gpus[1]).await, RecoveryAction::GpuReset);
    machine.gpus[1].remapping_pending = false;
    nvml.set(&machine);
    assert_eq!(driver.recovery(&gpus[1]).await, RecoveryAction::Unsupported);
    driver.end().await;
}

// SEMANTICS: D15
#[tokio::test]
async fn an_xid_has_its_gpu_asked_at_once() {
    let mut machine = Machine::h100s(2);
    let nvml = FakeNvml::with(&machine);
    let rarely = Settings { every: Duration::from_secs(3600), ..settings(nvml.library()) };
    let mut driver = Driver::start(rarely, 64);
    driver.until(DriverNews::Answered).await;
    machine.gpus[1].recovery_action = Some(1);
    xid(&mut machine, 1, 154);
    nvml.set(&machine);
    let gpu = machine.gpus[1].uuid.clone();
    assert_eq!(driver.xid().await, (gpu.clone(), None, 154));
    assert_eq!(driver.recovery(&gpu).await, RecoveryAction::GpuReset);
    driver.end().await;
}

/// Only reads from the GPU.
#[tokio::test]
#[ignore = "needs a GPU: compares with NVIDIA's own library where it loads"]
async fn the_real_library_agrees() {
    let settings = Settings { absent_every: Duration::from_secs(3600), ..Settings::default() };
    let library = settings.library.clone();
    let real = match nvml_wrapper::Nvml::builder().lib_path(library.as_os_str()).init() {
        Ok(real) => real,
        Err(error) => {
            println!("SKIPPED: no GPU here: {}: {error}", library.display());
            let mut driver = Driver::start(settings, 64);
            driver.absent().await;
            return driver.end().await;
        }
    };
    let mut driver = Driver::start(settings, 64);
    let gpus = driver.gpus().await;
    assert_eq!(gpus.len(), real.device_count().unwrap() as usize);
    for gpu in &gpus {
        println!("{gpu:#?}");
        let device = real.device_by_uuid(gpu.uuid.as_str()).unwrap();
        assert_eq!(gpu.memory_bytes, device.memory_info().unwrap().total);
        assert_eq!(gpu.model, device.name().unwrap());
        assert_eq!(gpu.minor, device.minor_number().unwrap());
        assert_eq!(gpu.place.pci, device.pci_info().unwrap().bus_id.parse().unwrap());
        // In a virtual machine or a sandbox sysfs may have no such device, or no NUMA node for it.
        let node = std::fs::read_to_string(format!("/sys/bus/pci/devices/{}/numa_node", gpu.place.pci));
        match (device.numa_node_id(), node.as_deref().map(str::trim)) {
            (Ok(numa), Ok(node)) if node != "-1" => assert_eq!(numa.to_string(), node),
            (numa, node) => println!("NUMA node of {}: NVML {numa:?}, sysfs {node:?}", gpu.uuid),
        }
        let set = real.create_event_set().unwrap();
        let types = device.supported_event_types().unwrap();
        let xids = nvml_wrapper::bitmasks::event::EventTypes::CRITICAL_XID_ERROR;
        println!("events: {types:?}");
        if types.contains(xids) {
            device.register_events(xids, set).unwrap();
        }
    }
    driver.until(DriverNews::Answered).await;
    let answers = driver.seen.iter().filter(|news| matches!(news, DriverNews::Recovery { .. })).collect::<Vec<_>>();
    println!("{answers:#?}");
    assert_eq!(answers.len(), gpus.len());
    driver.end().await;
}
