use std::path::PathBuf;

use larder_testkit::machine::{FakeMachine, HcaPlan, MachinePlan, PORT_DOWN, PORT_UP, PortPlan};
use tokio::task::JoinHandle;

use super::*;
use crate::health::PortSeen;
use crate::machine::{PhysState, Place, PortState};

const LIBRARY: &str = "libnvidia-ml.so.1";

/// Followed devices.
struct Followed {
    machine: FakeMachine,
    news: mpsc::Sender<DriverNews>,
    events: mpsc::Receiver<Event>,
    stop: CancellationToken,
    following: JoinHandle<()>,
    first: Machine,
}

impl Followed {
    async fn of(plan: MachinePlan, read: Read) -> Self {
        let machine = FakeMachine::new(plan).unwrap();
        let (news, taken) = mpsc::channel(16);
        news.send(DriverNews::Answered).await.unwrap();
        let mut devices = Devices::reading(roots(&machine), LIBRARY.into(), taken, read);
        let first = devices.first().await;
        let (events, seen) = mpsc::channel(16);
        let stop = CancellationToken::new();
        let following = tokio::spawn(devices.follow(events, stop.clone()));
        Self { machine, news, events: seen, stop, following, first }
    }

    /// The next event that fits.
    async fn next<T>(&mut self, mut fits: impl FnMut(&HealthEvent) -> Option<T>) -> T {
        let wait = async {
            loop {
                match self.events.recv().await {
                    Some(Event::Health(event)) => {
                        if let Some(found) = fits(&event) {
                            return found;
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
        };
        timeout(Duration::from_secs(300), wait).await.expect("there is no such event")
    }

    async fn machine(&mut self) -> Machine {
        self.next(|event| if let HealthEvent::Machine(machine) = event { Some(machine.clone()) } else { None }).await
    }

    /// The ports of `mlx5_0`, as they are reported next.
    async fn ports(&mut self) -> Vec<PortSeen> {
        let ports = |event: &HealthEvent| match event {
            HealthEvent::Ports(ports) => Some(ports["mlx5_0"].clone()),
            _ => None,
        };
        self.next(ports).await
    }

    fn flag(&self, name: &str) -> PathBuf {
        self.machine.sysfs().join(name)
    }

    async fn end(self) {
        self.stop.cancel();
        timeout(Duration::from_secs(60), self.following).await.expect("it ends").unwrap();
    }
}

fn roots(machine: &FakeMachine) -> Roots {
    Roots { sysfs: machine.sysfs(), dev: machine.dev() }
}

/// The first HCA has two ports.
fn two_ports() -> MachinePlan {
    let mut plan = MachinePlan::eight_pairs();
    let HcaPlan { ports, .. } = &mut plan.hcas[0];
    ports.push(PortPlan { number: 2, umad: 100, ..ports[0].clone() });
    plan
}

fn gpu(uuid: &str, plan: &MachinePlan, nth: usize) -> Gpu {
    let place = Place { pci: plan.gpus[nth].slot.pci.parse().unwrap(), ..Place::default() };
    Gpu { uuid: uuid.to_owned(), place, ..Gpu::default() }
}

fn news_of(gpus: &[Gpu]) -> DriverNews {
    DriverNews::Gpus { driver: "580.1".to_owned(), gpus: gpus.to_vec(), warnings: Vec::new() }
}

const fn seen(number: u32, state: PortState, phys_state: PhysState) -> PortSeen {
    PortSeen { number, state, phys_state }
}

/// A reader that meets the first port while it is down, if there is a file `blip`.
fn read_in_a_blip(roots: &Roots, gpus: &[Gpu], driver: Option<String>) -> Machine {
    let mut machine = inventory::read(roots, gpus, driver);
    if roots.sysfs.join("blip").exists() {
        machine.hcas[0].ports[0].state = PortState::Down;
    }
    machine
}

// SEMANTICS: D14
#[tokio::test(start_paused = true)]
async fn a_blip_seen_only_by_a_full_read_is_cleared_by_the_next_poll() {
    let mut devices = Followed::of(MachinePlan::eight_pairs(), read_in_a_blip).await;
    devices.ports().await;
    std::fs::write(devices.flag("blip"), "").unwrap();
    assert!(!devices.machine().await.hcas[0].ports[0].is_up());
    assert_eq!(devices.ports().await, [seen(1, PortState::Active, PhysState::LinkUp)]);
    devices.end().await;
}

// SEMANTICS: D14
#[tokio::test(start_paused = true)]
async fn a_port_that_comes_after_the_others_is_polled_too() {
    let machine = FakeMachine::new(two_ports()).unwrap();
    let hca = machine.hca_folder("mlx5_0");
    std::fs::rename(hca.join("ports/2"), hca.join("later")).unwrap();
    let mut sysfs = Sysfs::new(roots(&machine), inventory::read);
    let numbers = |look: Look| look.ports["mlx5_0"].iter().map(|port| port.number).collect::<Vec<_>>();
    assert_eq!(numbers(sysfs.look(&[], None, true)), [1]);
    std::fs::rename(hca.join("later"), hca.join("ports/2")).unwrap();
    let look = sysfs.look(&[], None, true);
    assert!(look.is_changed);
    assert_eq!(numbers(look), [1, 2]);
    let look = sysfs.look(&[], None, false);
    assert!(!look.is_changed && look.machine.is_none());
    std::fs::rename(hca.join("ports/1"), hca.join("gone")).unwrap();
    assert_eq!(numbers(sysfs.look(&[], None, true)), [2]);
}

// SEMANTICS: D14
#[tokio::test(start_paused = true)]
async fn a_port_change_schedules_one_delayed_full_read() {
    let mut devices = Followed::of(two_ports(), inventory::read).await;
    // What the start brings about is over.
    tokio::time::sleep(ALL_AFTER_CHANGE * 2).await;
    devices.machine.set_port("mlx5_0", 2, PORT_DOWN).unwrap();
    let down = seen(2, PortState::Down, PhysState::Disabled);
    while devices.ports().await[1] != down {}
    let since = Instant::now();
    let read = devices.machine().await;
    assert_eq!(read.hcas[0].ports.iter().map(|port| port.is_up()).collect::<Vec<_>>(), [true, false]);
    // The clock of the test.
    let took = since.elapsed();
    assert!(ALL_AFTER_CHANGE <= took && took <= ALL_AFTER_CHANGE + 2 * PORTS_EVERY, "{took:?}");
    devices.machine.set_port("mlx5_0", 2, PORT_UP).unwrap();
    assert!(devices.machine().await.hcas[0].ports[1].is_up());
    devices.end().await;
}

/// A reader that hangs as long as there is a file `hang`, and reports it by a file `hangs`.
fn read_or_hang(roots: &Roots, gpus: &[Gpu], driver: Option<String>) -> Machine {
    while roots.sysfs.join("hang").exists() {
        // At the end the machine is gone.
        let _ = std::fs::write(roots.sysfs.join("hangs"), "");
        std::thread::sleep(Duration::from_millis(1));
    }
    inventory::read(roots, gpus, driver)
}

// SEMANTICS: D16
#[tokio::test]
async fn a_hanging_hca_delays_neither_driver_news_nor_shutdown() {
    let mut devices = Followed::of(MachinePlan::eight_pairs(), read_or_hang).await;
    assert_eq!(devices.machine().await, devices.first);
    let plan = MachinePlan::eight_pairs();
    let gpus = [gpu("GPU-0", &plan, 0), gpu("GPU-1", &plan, 1)];
    std::fs::write(devices.flag("hang"), "").unwrap();
    let mut sent_gpus = Vec::new();
    for count in 1..=2 {
        devices.news.send(news_of(&gpus[..count])).await.unwrap();
        devices.news.send(DriverNews::Answered).await.unwrap();
        sent_gpus = devices.machine().await.gpus;
        assert_eq!(sent_gpus.iter().map(|gpu| gpu.place.root.is_empty()).collect::<Vec<_>>(), vec![false; count]);
        devices.next(|event| matches!(event, HealthEvent::DriverAnswered).then_some(())).await;
        while !devices.flag("hangs").exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    // What was read with the GPUs of before does not count for them.
    std::fs::remove_file(devices.flag("hang")).unwrap();
    devices.machine.set_port("mlx5_0", 1, PORT_DOWN).unwrap();
    let mut others = Vec::new();
    let is_down = |event: &HealthEvent| match event {
        HealthEvent::Machine(machine) => {
            others.extend((machine.gpus != sent_gpus).then(|| machine.gpus.clone()));
            None
        }
        HealthEvent::Ports(ports) => (!ports["mlx5_0"][0].is_up()).then_some(()),
        _ => None,
    };
    devices.next(is_down).await;
    assert_eq!(others, Vec::<Vec<Gpu>>::new());

    std::fs::remove_file(devices.flag("hangs")).unwrap();
    std::fs::write(devices.flag("hang"), "").unwrap();
    devices.news.send(news_of(&gpus)).await.unwrap();
    while !devices.flag("hangs").exists() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    devices.end().await;
}
