//! Rails of machines that are read before their driver is loaded, or only in part.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use larder_devices::config::Config;
use larder_devices::health::{self, Memory, Now, Reason};
use larder_devices::inventory;
use larder_devices::machine::{Gpu, Machine, RdmaMode};
use larder_devices::resource::{self, DeviceKey};
use larder_devices::state::{Event, Rules, State};
use larder_testkit::machine::{FakeMachine, MachinePlan, replace_entry};

use crate::{from_nvml, roots};

/// A node that offers rails, and the remaining GPUs and HCAs. The HCA selectors are as narrow as possible.
struct Node {
    machine: FakeMachine,
    state: State,
    now: Now,
}

impl Node {
    fn new(plan: MachinePlan) -> Self {
        let config = "resources:\n- {name: a/rail, kind: rail, select: {vendors: [15b3]}}\n\
                      - {name: a/hca, kind: rdma, share: 64}\n- {name: a/gpu, kind: gpu}\n";
        let config = Config::parse("config.yaml", config).unwrap();
        let rules = Rules { assign: resource::assign, check: |_, _| Ok(()) };
        let now = Now { instant: Instant::now(), wall: SystemTime::UNIX_EPOCH };
        Self {
            machine: FakeMachine::new(plan).unwrap(),
            state: State::new(config, rules, &Memory::default(), now),
            now,
        }
    }

    fn apply(&mut self, event: health::Event) {
        self.state.apply(Some(Event::Health(event)), self.now);
    }

    fn pass(&mut self, seconds: u64) {
        self.now.instant += Duration::from_secs(seconds);
        self.state.apply(None, self.now);
    }

    fn read(&self, gpus: usize) -> Machine {
        let gpus: Vec<Gpu> = self.machine.plan().gpus[..gpus].iter().map(from_nvml).collect();
        inventory::read_with(&roots(&self.machine), &gpus, Some("580.1".to_owned()), Ok(RdmaMode::None))
    }

    /// Reads the machine while NVML names `gpus` GPUs. Returns the number of units of each resource.
    fn units(&mut self, gpus: usize) -> [usize; 3] {
        let machine = self.read(gpus);
        self.apply(health::Event::Machine(machine));
        let counts: Vec<usize> = self.state.view().resources.iter().map(|resource| resource.units.len()).collect();
        counts.try_into().unwrap()
    }
}

// SEMANTICS: D4
#[test]
fn no_hca_is_offered_alone_before_the_gpu_of_its_rail_is_listed() {
    let mut node = Node::new(MachinePlan::eight_pairs());
    node.apply(health::Event::DriverFailed { why: "not loaded".to_owned() });
    node.pass(2);
    assert_eq!(node.units(0), [0, 0, 0]);
    let excluded: Vec<String> = node.state.view().excluded.iter().map(ToString::to_string).collect();
    let why = "a/hca does not offer it: a rail may need it for the GPU at 0000:13:00.0, which NVML does not list yet";
    assert_eq!((excluded.len(), excluded[0].as_str()), (8, why));
    assert_eq!(node.units(5), [5, 0, 0]);
    assert_eq!(node.units(8), [8, 0, 0]);
    node.apply(health::Event::DriverAnswered);
    // A removed GPU was named before, so no HCA is held back for it.
    assert_eq!(node.units(7), [8, 0, 0]);
    assert_eq!(node.state.view().excluded.len(), 0);
}

#[test]
fn a_gpu_that_another_driver_serves_has_no_hca_wait() {
    let mut node = Node::new(MachinePlan::eight_pairs());
    node.pass(2);
    let driver = |gpu: usize| node.machine.pci_folder(&node.machine.plan().gpus[gpu].slot.pci).join("driver");
    replace_entry(&driver(0), |path| symlink("/sys/bus/pci/drivers/vfio-pci", path)).unwrap();
    fs::remove_file(driver(1)).unwrap();
    let is_waiting =
        |machine: &Machine| machine.gpu_functions.iter().map(|place| place.root.clone()).collect::<Vec<_>>();
    assert_eq!(is_waiting(&node.read(0))[0], "pci0000:20");
    assert_eq!(node.units(0), [0, 1, 0]);
}

// SEMANTICS: D3
#[test]
fn a_rail_stays_while_its_devices_are_read_in_part() {
    let mut node = Node::new(MachinePlan::eight_pairs());
    node.pass(2);
    assert_eq!(node.units(8), [8, 0, 0]);
    let whole = Arc::clone(node.state.view());
    // An HCA whose driver rebinds appears before its device node, interfaces and ports.
    let (hca, gpu) = (node.machine.plan().hcas[0].clone(), node.machine.plan().gpus[1].clone());
    let verbs = node.machine.sysfs().join("class/infiniband_verbs").join(format!("uverbs{}", hca.uverbs));
    let (ports, vendor) = (node.machine.hca_folder(&hca.name).join("ports"), node.machine.pci_folder(&hca.slot.pci));
    let target = fs::read_link(&verbs).unwrap();
    fs::remove_file(&verbs).unwrap();
    assert_eq!(node.units(8), [8, 0, 0]);
    assert_eq!(node.state.view().resources, whole.resources);
    assert_eq!(node.state.view().machine.hcas[0].uverbs, whole.machine.hcas[0].uverbs);
    fs::rename(&ports, ports.with_file_name("later")).unwrap();
    fs::rename(vendor.join("vendor"), vendor.join("later")).unwrap();
    assert_eq!(node.units(8), [8, 0, 0]);
    node.pass(5);
    let key = DeviceKey::Hca(hca.slot.pci.parse().unwrap());
    assert_eq!(node.state.view().faults[&key].reason, Reason::PortDown, "its ports are not taken for up");
    fs::rename(ports.with_file_name("later"), &ports).unwrap();
    fs::rename(vendor.join("later"), vendor.join("vendor")).unwrap();
    symlink(target, &verbs).unwrap();
    assert_eq!(node.units(8), [8, 0, 0]);
    node.pass(30);
    assert_eq!(**node.state.view(), *whole);

    // A GPU that fell off the bus is still named by NVML.
    fs::remove_file(node.machine.pci_folder(&gpu.slot.pci)).unwrap();
    node.apply(health::Event::GpuFailed { gpu: gpu.uuid.clone(), why: "GPU is lost".to_owned() });
    assert_eq!(node.units(8), [8, 0, 0]);
    node.pass(30);
    let faults: Vec<_> = node.state.view().faults.keys().cloned().collect();
    assert_eq!(faults, [DeviceKey::Gpu(gpu.uuid)]);
    assert_eq!(node.state.view().resources, whole.resources);
}
