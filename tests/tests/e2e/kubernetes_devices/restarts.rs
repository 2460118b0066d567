//! The kubelet and `larder-devices` are killed, one or both, and updated.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use larder_e2e::devices::{Devices, PodResources};
use larder_e2e::platform::{TIMEOUT, kill_process};
use larder_testkit::machine::MachinePlan;
use larder_testkit::scaled;
use serde_json::{Value, json};

const RAIL: &str = "larder.dev/rail";
const CONFIG: &str = "resources: [{name: larder.dev/rail, kind: rail}]\n";

/// What is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Kubelet,
    Plugin,
    Both,
}

struct Lab {
    devices: Devices,
    kubelet: PodResources,
    /// The pod that runs all the time: its devices and its container.
    keeper: (BTreeMap<String, Vec<String>>, Value),
    pods: u32,
}

impl Lab {
    fn start() -> Self {
        let devices = Devices::start("restarts", &MachinePlan::eight_pairs(), CONFIG);
        devices.wait_for_allocatable(1, RAIL, 8);
        let limits = json!({RAIL: 2, "memory": "64Mi", "cpu": "100m"});
        devices.apply(&[devices.pod("keeper", 1, &limits, "exec tail -f /dev/null")]);
        devices.wait_until_running("keeper");
        let kubelet = devices.pod_resources(1);
        let mut lab = Self { devices, kubelet, keeper: Default::default(), pods: 0 };
        lab.keeper = lab.keeper_now();
        lab
    }

    fn keeper_now(&self) -> (BTreeMap<String, Vec<String>>, Value) {
        let mut held = BTreeMap::new();
        self.devices.cluster.wait_for("the kubelet knows what the keeper holds", TIMEOUT, || {
            held = self.kubelet.held_by("restarts", "keeper").unwrap_or_default();
            !held.is_empty()
        });
        let status = self.devices.get_pod("keeper")["status"]["containerStatuses"][0].clone();
        (held, json!([status["containerID"], status["restartCount"], status["state"]]))
    }

    /// True if the kubelet knows all eight rails.
    fn has_capacity(&self) -> bool {
        self.kubelet.allocatable().is_some_and(|devices| devices.get(RAIL).is_some_and(|ids| ids.len() == 8))
    }

    /// The kubelet's socket, which is another one after its restart.
    fn socket(&self) -> Option<(u64, i64)> {
        let socket = self.devices.cluster.node_folder(1).join("device-plugins/kubelet.sock");
        std::fs::metadata(socket).ok().map(|socket| (socket.ino(), socket.ctime_nsec()))
    }

    /// What the keeper's status says of its devices.
    fn healths(&self) -> BTreeSet<String> {
        let status = &self.devices.get_pod("keeper")["status"]["containerStatuses"][0];
        let told = status["allocatedResourcesStatus"].as_array().cloned().unwrap_or_default();
        let rails = told.into_iter().filter(|told| told["name"] == RAIL);
        let devices = rails.flat_map(|told| told["resources"].as_array().cloned().unwrap_or_default());
        devices.map(|device| device["health"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Kills, waits until the kubelet knows all rails again, and returns how long after its socket was there that was.
    fn kill(&self, victim: Victim) -> Duration {
        let before = self.socket();
        let pid = |program: &str| self.devices.cluster.pids_on_node(1, program).first().copied();
        let plugin = pid("larder-devices").expect("larder-devices runs");
        if victim != Victim::Plugin {
            kill_process(pid("kubelet").expect("the kubelet runs"));
        }
        if victim != Victim::Kubelet {
            kill_process(plugin);
        }
        if victim != Victim::Plugin {
            self.devices.cluster.wait_for("the kubelet is back", TIMEOUT, || {
                self.socket().is_some_and(|socket| Some(socket) != before)
            });
        }
        let mut since = Instant::now();
        if victim != Victim::Kubelet {
            self.devices
                .cluster
                .wait_for("larder-devices is back", TIMEOUT, || pid("larder-devices").is_some_and(|pid| pid != plugin));
            since = Instant::now();
        }
        while !self.has_capacity() {
            assert!(since.elapsed() < TIMEOUT, "{victim:?} was killed, and the kubelet does not know the rails");
            std::thread::sleep(Duration::from_millis(10));
        }
        since.elapsed()
    }

    fn new_pod(&mut self) -> (String, Value) {
        self.pods += 1;
        let name = format!("pod-{}", self.pods);
        let limits = json!({RAIL: 1, "memory": "64Mi", "cpu": "100m"});
        let pod = self.devices.pod(&name, 1, &limits, "true");
        (name, pod)
    }

    /// A pod that is made now is admitted and runs.
    fn admits_pods(&mut self, after: &str) {
        let (name, pod) = self.new_pod();
        self.devices.apply(&[pod]);
        self.devices.cluster.wait_for(&format!("{name} ends, after {after}"), TIMEOUT, || {
            let status = self.devices.get_pod(&name)["status"].clone();
            assert_ne!(status["phase"], "Failed", "after {after}: {status}");
            status["phase"] == "Succeeded"
        });
    }
}

// SEMANTICS: D29
#[test]
fn after_each_kill_of_the_kubelet_and_the_plugin_capacity_is_right_and_pods_run() {
    let mut lab = Lab::start();
    for victim in [Victim::Kubelet, Victim::Plugin, Victim::Both] {
        let (mut times, mut healths) = (Vec::new(), BTreeSet::new());
        for round in 0..scaled(1) {
            times.push(lab.kill(victim));
            healths.extend(lab.healths());
            if victim != Victim::Plugin {
                // Pods that are made before that may be refused: docs/DEVICES.md says which.
                std::thread::sleep(Duration::from_secs(5));
            }
            assert!(lab.has_capacity(), "it stays right");
            healths.extend(lab.healths());
            lab.admits_pods(&format!("kill {round} of {victim:?}"));
            assert_eq!(lab.keeper_now(), lab.keeper, "the pod that ran is harmed by kill {round} of {victim:?}");
        }
        times.sort_unstable();
        eprintln!("{victim:?} killed {} times, all devices back after {times:?}, known as {healths:?}", times.len());
    }

    // An update takes the old one away before the new one is there.
    lab.devices.cluster.kubectl_ok(&["rollout", "restart", "-n", "larder-system", "daemonset/larder-devices"]);
    lab.devices.wait_until_ready();
    lab.devices.cluster.wait_for("the kubelet knows all rails", TIMEOUT, || lab.has_capacity());
    lab.devices.wait_for_allocatable(1, RAIL, 8);
    lab.admits_pods("a rolling update");
    assert_eq!(lab.keeper_now(), lab.keeper, "the pod that ran is harmed by a rolling update");
}
