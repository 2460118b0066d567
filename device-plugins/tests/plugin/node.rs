//! A node with fake devices and the plugin's tasks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use larder_devices::cdi::{self, Found};
use larder_devices::config::{Give, Kind, Limits, Mode, ResourceConfig, ResourceName, Select};
use larder_devices::grant::Means;
use larder_devices::health::{Fault, Faults, Reason};
use larder_devices::instance::Instance;
use larder_devices::machine::{
    CharDevice, Gid, GidType, Gpu, Hca, LinkLayer, Machine, PciAddress, PhysState, Place, Port, PortState,
};
use larder_devices::plugin;
use larder_devices::resource::{DeviceKey, Resource, Unit};
use larder_devices::view::View;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(crate) fn pci(bus: u8) -> PciAddress {
    PciAddress { bus, ..PciAddress::default() }
}

fn place(bus: u8, number: u32) -> Place {
    Place { pci: pci(bus), numa: Some(number / 4), ..Place::default() }
}

fn char_device(name: &str, number: u32) -> Option<CharDevice> {
    Some(CharDevice { name: format!("{name}{number}"), numbers: (231, number) })
}

/// GPU `number` of the node.
pub(crate) fn gpu(number: u32) -> Gpu {
    Gpu { uuid: gpu_id(number), minor: number, place: place(0x10 + number as u8, number), ..Gpu::default() }
}

pub(crate) fn gpu_id(number: u32) -> String {
    format!("GPU-{number:08x}-0000-0000-0000-000000000000")
}

/// HCA `number` of the node.
pub(crate) fn hca(number: u32, link_layer: LinkLayer) -> Hca {
    let is_roce = link_layer == LinkLayer::Ethernet;
    let v4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, number as u8];
    let gid = |index, gid_type| Gid { index, gid: v4, gid_type, netdev: String::new() };
    let port = Port {
        number: 1,
        link_layer,
        state: PortState::Active,
        phys_state: PhysState::LinkUp,
        gids: if is_roce { vec![gid(2, GidType::V1), gid(3, GidType::V2)] } else { vec![gid(0, GidType::V1)] },
        umad: char_device("umad", number),
        issm: char_device("issm", number),
        ..Port::default()
    };
    Hca {
        name: format!("mlx5_{number}"),
        place: place(0x40 + number as u8, number),
        ports: vec![port],
        uverbs: char_device("uverbs", number),
        ..Hca::default()
    }
}

/// Eight GPUs and eight HCAs of InfiniBand.
pub(crate) fn machine() -> Machine {
    let hcas = (0..8).map(|number| hca(number, LinkLayer::InfiniBand)).collect();
    Machine { gpus: (0..8).map(gpu).collect(), hcas, ..Machine::default() }
}

/// A resource without devices.
pub(crate) fn resource(name: &str, kind: Kind) -> Resource {
    let config = ResourceConfig {
        name: ResourceName::new(name).unwrap(),
        kind,
        select: Select::default(),
        share: 1,
        give: Give::One,
        mode: Mode::Plugin,
        mad: false,
        limits: None,
        line: 1,
    };
    Resource { config, units: Vec::new() }
}

/// A resource with these devices.
pub(crate) fn resource_of(name: &str, kind: Kind, numbers: impl IntoIterator<Item = u32>) -> Resource {
    let unit = |number: u32| {
        let (gpu, hca) = (DeviceKey::Gpu(gpu_id(number)), hca_key(number));
        let (id, devices) = match kind {
            Kind::Rdma => (hca.to_string(), vec![hca]),
            Kind::Rail => (gpu_id(number), vec![gpu, hca]),
            Kind::Gpu | Kind::Mig => (gpu_id(number), vec![gpu]),
        };
        Unit { id, devices, numa: BTreeSet::from([number / 4]) }
    };
    let units = numbers.into_iter().map(unit).collect();
    Resource { units, ..resource(name, kind) }
}

/// The same devices, but each ID stands for all of them.
pub(crate) fn all(mut resource: Resource) -> Resource {
    let devices = resource.units.drain(..).flat_map(|unit| unit.devices).collect();
    resource.config.give = Give::All;
    Resource { units: vec![Unit { id: Unit::ALL.to_owned(), devices, numa: BTreeSet::new() }], ..resource }
}

pub(crate) fn hca_key(number: u32) -> DeviceKey {
    DeviceKey::Hca(pci(0x40 + number as u8))
}

pub(crate) fn limits() -> Limits {
    Limits { hca_handles: Some(2), hca_objects: Some(2000), memlock: None, required: true }
}

pub(crate) fn view(machine: Machine, resources: impl IntoIterator<Item = Resource>) -> View {
    View { machine: Arc::new(machine), resources: resources.into_iter().collect(), ..View::default() }
}

pub(crate) fn faults(devices: impl IntoIterator<Item = DeviceKey>) -> Arc<Faults> {
    let fault = Fault {
        reason: Reason::PortDown,
        message: "port 1 is DOWN".to_owned(),
        since: SystemTime::UNIX_EPOCH,
        recovery: "port 1 is ACTIVE and LinkUp for 30 s".to_owned(),
    };
    Arc::new(devices.into_iter().map(|device| (device, fault.clone())).collect())
}

/// The folders of a node.
pub(crate) struct Node {
    root: tempfile::TempDir,
    pub(crate) views: watch::Sender<Arc<View>>,
}

impl Node {
    pub(crate) fn new(view: View) -> Self {
        let root = tempfile::tempdir().unwrap();
        let node = Self { root, views: watch::Sender::new(Arc::new(view)) };
        for folder in ["plugins", "cdi", "dev/infiniband"] {
            std::fs::create_dir_all(node.path(folder)).unwrap();
        }
        let nodes = (0..8).flat_map(|number| ["uverbs", "umad", "issm"].map(|name| format!("{name}{number}")));
        for name in nodes.chain(["rdma_cm".to_owned()]) {
            std::fs::write(node.path("dev/infiniband").join(name), b"").unwrap();
        }
        node
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    /// The kubelet's folder.
    pub(crate) fn plugins(&self) -> PathBuf {
        self.path("plugins")
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut View)) {
        self.views.send_modify(|view| change(Arc::make_mut(view)));
    }

    /// The names of the sockets in the kubelet's folder, without the kubelet's own socket.
    pub(crate) fn sockets(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.plugins()).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".sock") && name != "kubelet.sock").collect()
    }

    /// Starts a process of the program.
    pub(crate) async fn start(&self) -> Process {
        self.start_with(Means::Cdi).await
    }

    pub(crate) async fn start_with(&self, means: Means) -> Process {
        let instance = Arc::new(Instance::begin(&self.plugins()).await.unwrap());
        let stop = CancellationToken::new();
        let prepared = watch::Sender::new(Arc::new(View::default()));
        let settings = plugin::Settings {
            folder: self.plugins(),
            means,
            host_dev: Path::new("/dev").to_owned(),
            found: Found::new(vec![self.path("cdi")]),
            // Chooses the last IDs, so that a test can distinguish them from the kubelet's own choice.
            choose: Box::new(|_, _, available, _, size| available.iter().rev().take(size).cloned().collect()),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(plugin::run(settings, Arc::clone(&instance), prepared.subscribe(), stop.clone()));
        let passed_on = prepared.subscribe();
        tasks.spawn(cdi::keep(
            self.cdi_settings(means != Means::Nodes),
            instance,
            self.views.subscribe(),
            prepared,
            stop.clone(),
        ));
        Process { stop, tasks, prepared: passed_on }
    }

    pub(crate) fn cdi_settings(&self, cdi: bool) -> cdi::Settings {
        cdi::Settings {
            folder: cdi.then(|| self.path("cdi")),
            dev: self.path("dev"),
            host_dev: Path::new("/dev").to_owned(),
            hook_folder: Path::new("/opt/larder").to_owned(),
        }
    }
}

/// A process of the program. Dropping it simulates a kill, as far as that is possible within one process.
pub(crate) struct Process {
    stop: CancellationToken,
    tasks: JoinSet<()>,
    pub(crate) prepared: watch::Receiver<Arc<View>>,
}

impl Process {
    /// Stops the process as a signal does.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}
