//! Devices leave service and come back: at the kubelet, at the API server, in the status and the events of the pod that holds them.

use std::time::Duration;

use larder_e2e::devices::Devices;
use larder_e2e::platform::TIMEOUT;
use larder_testkit::machine::{MachinePlan, PORT_DOWN, PORT_UP};
use serde_json::{Value, json};

const RAIL: &str = "larder.dev/rail";

/// Long enough for a machine that stalls, where a port must not be taken for one that is down.
const CONFIG: &str = "
resources: [{name: larder.dev/rail, kind: rail}]
health: {portDown: 5s, portUp: 2s, gpuQuiet: 2s, nvmlUnknown: 3s}
";

/// NVML's recovery actions.
const NONE: u32 = 0;
const GPU_RESET: u32 = 1;
const NODE_REBOOT: u32 = 2;

/// A pod on n1 that holds four of its eight rails.
struct Holder {
    devices: Devices,
    /// The indexes of its GPUs, which are those of its HCAs.
    gpus: Vec<usize>,
}

impl Holder {
    fn start() -> Self {
        let devices = Devices::start("faults", &MachinePlan::eight_pairs(), CONFIG);
        for node in [1, 2] {
            devices.wait_for_allocatable(node, RAIL, 8);
        }
        let limits = json!({RAIL: 4, "memory": "64Mi", "cpu": "100m"});
        devices.apply(&[devices.pod("holder", 1, &limits, "exec tail -f /dev/null")]);
        devices.wait_until_running("holder");
        let held = devices.pod_resources(1).held_by("faults", "holder").unwrap();
        let index = |id: &String| devices.nodes[0].driver.gpus.iter().position(|gpu| gpu.uuid == *id).unwrap();
        let gpus: Vec<usize> = held[RAIL].iter().map(index).collect();
        assert_eq!(gpus.len(), 4, "{held:?}");
        Self { devices, gpus }
    }

    fn id(&self, gpu: usize) -> String {
        self.devices.nodes[0].driver.gpus[gpu].uuid.clone()
    }

    /// What the pod's status says of the health of its devices, by the indexes of their GPUs.
    fn health(&self) -> Vec<(usize, String)> {
        let pod = self.devices.get_pod("holder");
        let statuses = pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"].as_array().cloned();
        let of_rail = |status: &Value| status["name"] == RAIL;
        let resources = statuses.into_iter().flatten().find(of_rail).map(|status| status["resources"].clone());
        let mut health: Vec<(usize, String)> = resources
            .iter()
            .flat_map(|resources| resources.as_array().unwrap())
            .filter_map(|resource| {
                let gpu = self.gpus.iter().find(|gpu| resource["resourceID"] == *self.id(**gpu))?;
                Some((*gpu, resource["health"].as_str().unwrap().to_owned()))
            })
            .collect();
        health.sort();
        health
    }

    /// Waits until the node offers so many rails, and the pod's status names these of its own as unhealthy, and no others.
    fn wait_for(&self, what: &str, offered: u64, unhealthy: &[usize]) {
        let expected: Vec<(usize, String)> = self
            .gpus
            .iter()
            .map(|gpu| (*gpu, if unhealthy.contains(gpu) { "Unhealthy" } else { "Healthy" }.to_owned()))
            .collect();
        self.devices
            .cluster
            .wait_for(&format!("{what}: the pod's status says {expected:?}"), TIMEOUT, || self.health() == expected);
        self.devices.wait_for_allocatable(1, RAIL, offered);
        assert_eq!(self.devices.allocatable(2, RAIL), 8, "{what}: nothing happened on the other node");
    }

    /// How many events of the pod have a reason and a note with these texts.
    fn events(&self, reason: &str, texts: &[&str]) -> usize {
        let events = self.devices.cluster.get_json(&["events", "-n", "faults"]);
        let is_it = |event: &&Value| {
            event["reason"] == reason
                && event["involvedObject"]["name"] == "holder"
                && event["message"].as_str().is_some_and(|note| texts.iter().all(|text| note.contains(text)))
        };
        events["items"].as_array().unwrap().iter().filter(is_it).count()
    }

    fn wait_for_event(&self, reason: &str, texts: &[&str]) {
        let what = format!("an event {reason} of the pod says {texts:?}");
        self.devices.cluster.wait_for(&what, TIMEOUT, || self.events(reason, texts) == 1);
    }

    /// The status of the condition DeviceFault of n1.
    fn condition(&self) -> String {
        let node = self.devices.cluster.get_json(&["node", "n1"]);
        let conditions = node["status"]["conditions"].as_array().unwrap();
        let ours = conditions.iter().find(|condition| condition["type"] == "larder.dev/DeviceFault");
        ours.map_or(String::new(), |condition| condition["status"].as_str().unwrap().to_owned())
    }

    fn set_port(&mut self, hca: usize, state: (&str, &str)) {
        self.devices.nodes[0].machine.set_port(&format!("mlx5_{hca}"), 1, state).unwrap();
    }

    fn set_recovery(&mut self, gpu: usize, action: u32) {
        self.devices.nodes[0].driver.gpus[gpu].recovery_action = Some(action);
        self.devices.nodes[0].tell();
    }
}

#[test]
fn devices_leave_service_and_come_back_and_the_pod_that_holds_them_is_told() {
    let mut lab = Holder::start();
    let (gpu, id) = (lab.gpus[1], lab.id(lab.gpus[1]));
    let hca = lab.devices.nodes[0].machine.plan().hcas[gpu].slot.pci.clone();
    lab.wait_for("at first", 8, &[]);
    assert_eq!(lab.condition(), "False");

    // A port that flaps is not down.
    for _ in 0..5 {
        lab.set_port(gpu, PORT_DOWN);
        std::thread::sleep(Duration::from_millis(300));
        lab.set_port(gpu, PORT_UP);
        std::thread::sleep(Duration::from_millis(300));
    }
    lab.wait_for("a port that flapped", 8, &[]);

    // One that is down takes its rail out of service, and brings it back.
    lab.set_port(gpu, PORT_DOWN);
    lab.wait_for("a port that is down", 7, &[gpu]);
    lab.wait_for_event("DeviceOutOfService", &[&hca]);
    lab.devices.cluster.wait_for("the condition is True", TIMEOUT, || lab.condition() == "True");
    let report = lab.devices.report(1);
    let fault = report["devices"].as_array().unwrap().iter().find(|device| device["id"] == *hca).unwrap();
    assert_eq!(fault["fault"]["reason"], "PortDown", "{report}");
    assert_eq!(fault["pods"][0]["pod"], "holder", "{report}");
    lab.set_port(gpu, PORT_UP);
    lab.wait_for("a port that is up again", 8, &[]);
    lab.wait_for_event("DeviceInService", &[&hca]);
    lab.devices.cluster.wait_for("the condition is False", TIMEOUT, || lab.condition() == "False");
    assert_eq!(lab.events("DeviceOutOfService", &[]), 1, "none of the port that flapped");

    // What an application did is told; its GPU stays.
    for xid in [13, 31, 94] {
        lab.devices.nodes[0].xid(gpu, xid);
        lab.wait_for_event("DeviceXid", &[&id, &format!("Xid {xid}: ")]);
    }
    lab.wait_for("Xids of applications", 8, &[]);

    // The driver asks for a reset, until it was made.
    lab.devices.nodes[0].xid(gpu, 154);
    lab.set_recovery(gpu, GPU_RESET);
    lab.wait_for("a GPU that needs a reset", 7, &[gpu]);
    lab.set_recovery(gpu, NONE);
    lab.wait_for("a GPU that was reset", 8, &[]);

    // A GPU that fell off the bus takes the node's others with it.
    lab.set_recovery(gpu, NODE_REBOOT);
    lab.devices.nodes[0].xid(gpu, 79);
    let all = lab.gpus.clone();
    lab.wait_for("a GPU that fell off the bus", 0, &all);
    lab.set_recovery(gpu, NONE);
    lab.wait_for("a GPU that is back on the bus", 8, &[]);

    // A driver that hangs is not known to have lost its GPUs, at first.
    lab.devices.nodes[0].driver.hang_ms = 3_600_000;
    lab.devices.nodes[0].tell();
    lab.wait_for("NVML hangs", 0, &all);
    lab.devices.nodes[0].driver.hang_ms = 0;
    lab.devices.nodes[0].tell();
    lab.wait_for("NVML answers again", 8, &[]);

    let pod = lab.devices.get_pod("holder");
    assert_eq!(pod["status"]["phase"], "Running");
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0, "the pod ran on");
}
