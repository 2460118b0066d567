use serde_json::json;
use tempfile::TempDir;

use super::super::claim::Allocated;
use super::super::claim::Uid;
use super::super::devices::offered;
use super::super::prepared::{Given, prepare};
use super::super::samples::{Api as Server, serve_pods, view, with_faults};
use super::*;
use crate::health::Reason;
use crate::node::samples;

const SLICE: &str = "n1-devices.larder.dev-0";
const HCAS: [&str; 2] = ["hca-0000-20-00-0", "hca-0000-21-00-0"];

struct World {
    folder: TempDir,
    api: Server,
    publisher: Publisher,
    marks: mpsc::Receiver<Event>,
}

impl World {
    fn new() -> Self {
        let (folder, api) = (tempfile::tempdir().unwrap(), Server::new());
        let (events, marks) = mpsc::channel(64);
        serve_pods(folder.path(), &[]);
        let settings = Settings {
            node: "n1".into(),
            pods: Arc::new(Pods::new(folder.path())),
            counters: Arc::default(),
            files: Files::new(folder.path().join("cdi")),
            events,
        };
        let publisher = Publisher::new(settings, api.client());
        Self { folder, api, publisher, marks }
    }

    /// Starts another process, which has no state.
    fn restart(&mut self) {
        self.publisher = Publisher::new(self.publisher.settings.clone(), self.api.client());
    }

    /// Sets what pods hold from now on.
    fn hold(&mut self, held: &[(&str, &str)]) {
        serve_pods(self.folder.path(), held);
        self.publisher.settings.pods = Arc::new(Pods::new(self.folder.path()));
    }

    async fn look(&mut self, view: &View) -> bool {
        self.publisher.look(view).await.unwrap()
    }

    /// The marked devices, from the last event.
    fn marks(&mut self) -> Option<Vec<String>> {
        let mut last = None;
        while let Ok(event) = self.marks.try_recv() {
            let Event::Health(HealthEvent::Marks(Mark::HeldElsewhere, devices)) = event else { panic!("{event:?}") };
            last = Some(devices.into_iter().map(|(device, why)| format!("{device}: {why}")).collect());
        }
        last
    }
}

#[tokio::test]
async fn slices_follow_the_view_and_repair_foreign_changes() {
    let mut world = World::new();
    let (dra, plugin) = (view(Mode::Dra, Mode::Dra), view(Mode::Plugin, Mode::Plugin));
    assert!(world.look(&dra).await);
    assert_eq!(world.api.writes(), [format!("POST {SLICE}")]);
    assert_eq!(world.api.devices(), [&["gpu-0", "gpu-1"][..], &HCAS].concat());
    assert!(world.look(&dra).await);
    world.restart();
    assert!(world.look(&dra).await);
    assert_eq!(world.api.writes(), [""; 0]);
    let faulty = with_faults(dra.clone(), &[(samples::hca(0), Reason::PortDown)]);
    assert!(world.look(&faulty).await);
    assert_eq!(world.api.writes(), [format!("PUT {SLICE}")]);
    assert_eq!(world.api.devices()[2], format!("{} PortDown", HCAS[0]));
    world.api.lock().slices.get_mut(SLICE).unwrap()["spec"]["devices"][0]["taints"] = json!([]);
    world.api.lock().slices.get_mut(SLICE).unwrap()["spec"]["devices"][0]["name"] = json!("gpu-9");
    assert!(world.look(&dra).await);
    assert_eq!(world.api.devices()[..2], ["gpu-0", "gpu-1"]);
    // The kubelet removes the slices when the driver was not registered for a while.
    world.api.lock().slices.clear();
    assert!(world.look(&dra).await);
    assert_eq!(world.api.writes(), [format!("PUT {SLICE}"), format!("POST {SLICE}")]);
    assert!(world.look(&plugin).await);
    assert_eq!(world.api.writes(), [format!("DELETE {SLICE}")]);
    assert_eq!(world.marks(), None);
}

#[tokio::test]
async fn a_name_that_comes_from_the_plugin_is_offered_when_that_has_let_go_of_it() {
    let mut world = World::new();
    let dra = view(Mode::Dra, Mode::Plugin);
    world.api.lock().capacity = json!({"larder.dev/gpu": "2"});
    world.hold(&[("larder.dev/gpu", "GPU-1")]);
    assert!(!world.look(&dra).await);
    assert_eq!((world.api.devices(), world.api.writes()), (Vec::new(), Vec::new()));
    let kubelet = "GPU-0: the kubelet still counts larder.dev/gpu of the device plugin, for up to five minutes or until it restarts";
    let pod = "GPU-1: pod team/p holds it as larder.dev/gpu through the device plugin";
    assert_eq!(world.marks().unwrap(), [kubelet, pod]);
    world.api.lock().capacity = json!({"larder.dev/gpu": "0"});
    assert!(!world.look(&dra).await);
    assert_eq!((world.api.devices(), world.marks().unwrap()), (vec!["gpu-0".to_owned()], vec![pod.to_owned()]));
    world.restart();
    assert!(!world.look(&dra).await);
    assert_eq!(world.api.devices(), ["gpu-0"]);
    world.hold(&[]);
    assert!(world.look(&dra).await);
    assert_eq!(
        (world.api.devices(), world.marks().unwrap()),
        (vec!["gpu-0".to_owned(), "gpu-1".to_owned()], Vec::new())
    );
    // The kubelet is no longer queried.
    world.publisher.settings.pods = Arc::new(Pods::new(&world.folder.path().join("away")));
    assert!(world.look(&dra).await);
}

// SEMANTICS: D26
#[tokio::test]
async fn nothing_is_written_while_the_allocated_devices_are_unknown() {
    let mut world = World::new();
    let dra = view(Mode::Dra, Mode::Plugin);
    assert!(world.look(&dra).await);
    assert_eq!(world.api.writes().len(), 1);
    world.restart();
    world.publisher.settings.pods = Arc::new(Pods::new(&world.folder.path().join("away")));
    let faulty = with_faults(dra, &[(samples::gpu(0), Reason::GpuFault)]);
    let error = format!("{:#}", world.publisher.look(&faulty).await.unwrap_err());
    assert!(
        error.starts_with("cannot list devices allocated through the device plugin: ask the kubelet at"),
        "{error}"
    );
    assert_eq!(world.api.writes(), [""; 0]);
    world.hold(&[]);
    assert!(world.look(&faulty).await);
    assert_eq!(world.api.devices(), ["gpu-0 GpuFault", "gpu-1"]);
}

// SEMANTICS: D26
#[tokio::test]
async fn a_device_that_a_claim_still_has_is_kept_from_the_plugin() {
    let mut world = World::new();
    let (dra, plugin) = (view(Mode::Dra, Mode::Dra), view(Mode::Plugin, Mode::Dra));
    let offered = offered(&dra);
    let (key, resource) = (offered["gpu-1"].key, offered["gpu-1"].resource);
    let allocated = Allocated { request: "r".into(), device: "gpu-1".into(), share: None, admin: false };
    let uid = Uid::new("u1").unwrap();
    let write = |allocated: Allocated| {
        let given = [Given { allocated, key, resource }];
        let (_, file) = prepare(&dra.machine, &uid, "team/c".into(), &given, &BTreeSet::new());
        Files::new(world.folder.path().join("cdi")).write(&uid, &file).unwrap();
    };
    // A claim with admin access holds no device.
    write(Allocated { admin: true, ..allocated.clone() });
    assert!(world.publisher.claimed(&plugin).await.unwrap().is_empty());
    write(allocated);
    assert!(world.look(&dra).await);
    assert_eq!(world.marks(), None);
    // The mark is also set while the API server is unreachable.
    world.api.lock().refused = vec![("GET".into(), 503)];
    world.publisher.look(&plugin).await.unwrap_err();
    assert_eq!(world.marks().unwrap(), ["GPU-1: ResourceClaim team/c has it"]);
    world.api.lock().refused.clear();
    assert!(world.look(&plugin).await);
    assert_eq!((world.api.devices(), world.marks()), (HCAS.map(str::to_owned).into(), None));
    world.publisher.settings.files.remove(&uid).unwrap();
    assert!(world.look(&plugin).await);
    assert_eq!(world.marks().unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_failed_write_is_repeated() {
    let mut world = World::new();
    let dra = view(Mode::Dra, Mode::Dra);
    for (verb, code) in [("POST", 403), ("POST", 500), ("GET /apis/resource.k8s.io/v1/resourceslices", 404)] {
        world.api.lock().refused = vec![(verb.into(), code)];
        let error = format!("{:#}", world.publisher.look(&dra).await.unwrap_err());
        assert!(error.contains("ResourceSlice"), "{error}");
    }
    world.api.lock().refused.clear();
    assert!(world.look(&dra).await);
    assert_eq!(world.api.devices().len(), 4);
}
