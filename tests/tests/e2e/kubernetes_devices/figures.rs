//! How soon capacity is back and faults are told, and what becomes of pods meanwhile: printed, and not asserted.
//!
//! `cargo nextest run --release -p larder-e2e --run-ignored only --no-capture kubernetes_devices::figures`
#![expect(clippy::print_stdout, reason = "it prints figures")]

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant, SystemTime};

use larder_e2e::Watch;
use larder_e2e::devices::{Devices, PodResources};
use larder_e2e::platform::{TIMEOUT, kill_process};
use larder_testkit::machine::{MachinePlan, PORT_DOWN, PORT_UP};
use serde_json::{Value, json};

const RAIL: &str = "larder.dev/rail";

/// How long a port must be down, and up, to count.
const HYSTERESIS: Duration = Duration::from_secs(1);
const CONFIG: &str = "
resources: [{name: larder.dev/rail, kind: rail}]
health: {portDown: 1s, portUp: 1s}
";

const TIMES: usize = 20;

/// Between two looks at the kubelet.
const POLL: Duration = Duration::from_millis(5);

fn print(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let [median, last, longest] = [times.len() / 2, times.len() * 99 / 100, times.len() - 1].map(|nth| times[nth]);
    println!("{what}: median {median:.3?}, p99 {last:.3?}, longest {longest:.3?} of {}", times.len());
}

fn print_load() {
    println!("load of the machine: {}", std::fs::read_to_string("/proc/loadavg").unwrap().trim());
}

struct Lab {
    devices: Devices,
    kubelet: PodResources,
}

impl Lab {
    fn start(test: &str) -> Self {
        let devices = Devices::start(test, &MachinePlan::eight_pairs(), CONFIG);
        devices.wait_for_allocatable(1, RAIL, 8);
        let kubelet = devices.pod_resources(1);
        Self { devices, kubelet }
    }

    fn pod(&self, name: &str, script: &str) -> Value {
        self.devices.pod(name, 1, &json!({RAIL: 1, "memory": "64Mi", "cpu": "100m"}), script)
    }

    /// When the kubelet made its socket.
    fn socket(&self) -> Option<SystemTime> {
        let socket = self.devices.cluster.node_folder(1).join("device-plugins/kubelet.sock");
        let socket = std::fs::metadata(socket).ok()?;
        let nanoseconds = socket.ctime() as u64 * 1_000_000_000 + socket.ctime_nsec() as u64;
        Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds))
    }

    fn has_capacity(&self) -> bool {
        self.kubelet.allocatable().is_some_and(|devices| devices.get(RAIL).is_some_and(|ids| ids.len() == 8))
    }

    fn kill(&self, program: &str) {
        kill_process(self.devices.cluster.pids_on_node(1, program)[0]);
    }

    /// The memory of larder-devices, which has an API server and a container runtime here.
    fn print_memory(&self, when: &str) {
        let pid = self.devices.cluster.pids_on_node(1, "larder-devices")[0];
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let is_memory = |line: &&str| ["VmHWM", "VmRSS", "RssAnon"].iter().any(|name| line.starts_with(name));
        println!("larder-devices {when}: {:?}", status.lines().filter(is_memory).collect::<Vec<_>>());
    }

    /// Kills the kubelet, and returns how long after the new one's socket it knows all devices.
    fn restart_kubelet(&self) -> Duration {
        let (before, begun) = (self.socket(), Instant::now());
        self.kill("kubelet");
        loop {
            assert!(begun.elapsed() < TIMEOUT, "the kubelet does not come back");
            if let Some(made) = self.socket().filter(|made| Some(*made) != before)
                && self.has_capacity()
            {
                return made.elapsed().unwrap();
            }
            std::thread::sleep(POLL);
        }
    }

    /// What becomes of pods that are made right after each `kill`: how many fail, with the reasons, and how many run.
    fn print_pods(&self, what: &str, kill: impl Fn()) {
        let (mut succeeded, mut failed, mut reasons) = (0, 0, Vec::new());
        for nth in 0..TIMES {
            let name = format!("{what}-{nth}");
            let pod = self.pod(&name, "true");
            kill();
            self.devices.apply(&[pod]);
            let mut status = Value::Null;
            self.devices.cluster.wait_for(&format!("{name} ends"), TIMEOUT, || {
                status = self.devices.get_pod(&name)["status"].clone();
                status["phase"] == "Succeeded" || status["phase"] == "Failed"
            });
            if status["phase"] == "Failed" {
                failed += 1;
                reasons.push(format!("{}: {}", status["reason"], status["message"]));
            } else {
                succeeded += 1;
            }
            self.devices.cluster.wait_for("the kubelet knows all rails", TIMEOUT, || self.has_capacity());
            self.devices.wait_until_ready();
            self.devices.wait_for_allocatable(1, RAIL, 8);
        }
        reasons.sort();
        reasons.dedup();
        println!("pods made while the {what} is away: {failed} fail, {succeeded} run; {reasons:#?}");
    }
}

#[test]
#[ignore = "a measurement of minutes, which prints its figures"]
fn how_soon_a_restarted_kubelet_knows_the_devices_and_a_fault_is_told() {
    let mut lab = Lab::start("figures");
    print_load();
    lab.print_memory("at first");
    let mut back = Vec::new();
    for _ in 0..TIMES {
        back.push(lab.restart_kubelet());
        std::thread::sleep(Duration::from_secs(2));
    }
    print("the kubelet's socket to all devices at the kubelet", back);

    lab.devices.wait_for_allocatable(1, RAIL, 8);
    lab.devices.apply(&[lab.pod("holder", "exec tail -f /dev/null")]);
    lab.devices.wait_until_running("holder");
    let held = lab.kubelet.held_by("figures", "holder").unwrap();
    let gpu = lab.devices.nodes[0].driver.gpus.iter().position(|gpu| held[RAIL].contains(&gpu.uuid)).unwrap();
    let hca = format!("mlx5_{gpu}");
    let cluster = &lab.devices.cluster;
    let health = "{.status.containerStatuses[0].allocatedResourcesStatus[*].resources[*].health}";
    let pod = Watch::start(cluster, &["-n", "figures", "pod", "holder"], health);
    let node = Watch::start(cluster, &["node", "n1"], r"{.status.allocatable.larder\.dev/rail}");
    let (mut at_pod, mut at_node, mut back_at_node) = (Vec::new(), Vec::new(), Vec::new());
    std::thread::sleep(Duration::from_secs(3));
    for _ in 0..TIMES {
        let since = Instant::now();
        lab.devices.nodes[0].machine.set_port(&hca, 1, PORT_DOWN).unwrap();
        at_pod.push(pod.after(since, |line| line.contains("Unhealthy")).saturating_sub(HYSTERESIS));
        at_node.push(node.after(since, |line| line == "7").saturating_sub(HYSTERESIS));
        let since = Instant::now();
        lab.devices.nodes[0].machine.set_port(&hca, 1, PORT_UP).unwrap();
        back_at_node.push(node.after(since, |line| line == "8").saturating_sub(HYSTERESIS));
        pod.after(since, |line| !line.is_empty() && !line.contains("Unhealthy"));
    }
    print("a port down to allocatedResourcesStatus, less the hysteresis", at_pod);
    print("a port down to allocatable at the API server, less the hysteresis", at_node);
    print("a port up to allocatable at the API server, less the hysteresis", back_at_node);

    lab.print_memory("at last");
    print_load();
}

#[test]
#[ignore = "a measurement of minutes, which prints its figures"]
fn what_becomes_of_pods_that_are_made_while_the_kubelet_or_the_plugin_is_away() {
    let lab = Lab::start("away");
    print_load();
    lab.print_pods("kubelet", || lab.kill("kubelet"));
    lab.print_pods("plugin", || lab.kill("larder-devices"));
    print_load();
}
