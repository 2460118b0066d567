//! [`Devices`]: `larder-devices` on a real two-node cluster, deployed as a user would deploy it. The nodes' GPUs and HCAs are
//! fake.

mod kubelet;

use std::path::{Path, PathBuf};
use std::process::Command;

use larder_testkit::machine::{FakeMachine, MachinePlan};
use larder_testkit::{Cluster, FakeNvml, nvml, repository};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use crate::platform::{TIMEOUT, load_larder};
pub use kubelet::PodResources;

/// Where the nodes see their fake hardware.
pub const FAKE_HARDWARE: &str = "/var/lib/kubelet/fake-hardware";

/// A test's place in the shared cluster for devices. Dropping it takes `larder-devices` and the test's pods away.
pub struct Devices {
    /// The cluster.
    pub cluster: Cluster,
    /// The hardware of n1 and n2.
    pub nodes: [Hardware; 2],
    namespace: String,
    overlay: tempfile::TempDir,
}

/// A node's fake hardware.
pub struct Hardware {
    /// Its `/sys` and `/dev`.
    pub machine: FakeMachine,
    /// Its GPUs' driver.
    pub nvml: FakeNvml,
    /// What the driver knows; [`Self::tell`] passes it on.
    pub driver: nvml::Machine,
}

impl Hardware {
    fn new(folder: &Path, plan: &MachinePlan) -> Self {
        let (driver, nvml) = (plan.driver(), FakeNvml::in_folder(&folder.join("nvml")));
        nvml.set(&driver);
        Self { machine: FakeMachine::in_folder(folder, plan.clone()).unwrap(), nvml, driver }
    }

    /// The driver knows [`Self::driver`] from now on.
    pub fn tell(&self) {
        self.nvml.set(&self.driver);
    }

    /// The driver tells of an Xid of the GPU with this index.
    pub fn xid(&mut self, gpu: usize, xid: u64) {
        let gpu = self.driver.gpus[gpu].uuid.clone();
        self.driver.xids.push(nvml::Xid { gpu, xid, ..Default::default() });
        self.tell();
    }
}

impl Devices {
    /// Waits for the test's turn, and deploys `larder-devices` with this configuration on two nodes with the hardware of `plan`.
    /// It serves both nodes when this returns.
    pub fn start(test: &str, plan: &MachinePlan, config: &str) -> Self {
        Self::deployed(test, plan, &["devices"], config)
    }

    /// The same, with the component for dynamic resource allocation beside it.
    pub fn start_dra(test: &str, plan: &MachinePlan, config: &str) -> Self {
        Self::deployed(test, plan, &["devices", "devices-dra"], config)
    }

    fn deployed(test: &str, plan: &MachinePlan, components: &[&str], config: &str) -> Self {
        let cluster = Cluster::shared_with_devices();
        cluster.once("larder", || load_larder(&cluster));
        // It stays: Kubernetes takes long to remove a namespace.
        let system = repository().join("deploy/namespace.yaml");
        cluster.once("namespace", || {
            cluster.kubectl_ok(&["apply", "-f", system.to_str().unwrap()]);
        });
        let nodes = [1, 2].map(|n| {
            let folder = cluster.node_folder(n).join("fake-hardware");
            if folder.exists() {
                std::fs::remove_dir_all(&folder).unwrap();
            }
            // The rdma controller, which test machines lack, and NVIDIA's folder: the nodes share /etc.
            std::fs::create_dir_all(folder.join("cgroup/rdma")).unwrap();
            std::fs::create_dir_all(folder.join("vendor-cdi")).unwrap();
            std::fs::write(folder.join("cgroup/rdma/cgroup.procs"), "").unwrap();
            Hardware::new(&folder, plan)
        });
        let overlay = overlay(components, config);
        let devices = Self { cluster, nodes, namespace: test.to_owned(), overlay };
        for n in [1, 2] {
            // As after a boot: the GPUs of an earlier test have the same names, and its faults would extend their quiet
            // time.
            let removed = devices.cluster.exec_on_node(n, &["rm", "-rf", "/run/larder-devices"]);
            assert!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
            devices.describe_gpus_to_the_runtime(n);
        }
        devices.cluster.kubectl_ok(&["apply", "-k", devices.overlay.path().to_str().unwrap()]);
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": test}});
        devices.cluster.apply(&namespace.to_string());
        devices.wait_until_ready();
        devices.cluster.wait_for("the namespace has an account", TIMEOUT, || {
            devices.cluster.kubectl(&["get", "-n", test, "serviceaccount", "default"]).status.success()
        });
        devices
    }

    /// Waits until `larder-devices` is ready on every node.
    pub fn wait_until_ready(&self) {
        let rollout = ["-n", "larder-system", "rollout", "status", "daemonset/larder-devices", "--timeout=120s"];
        self.cluster.kubectl_ok(&rollout);
    }

    /// The test's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The directory of a node's fake hardware, as this process sees it.
    pub fn folder(&self, node: u32) -> PathBuf {
        self.cluster.node_folder(node).join("fake-hardware")
    }

    /// What the kubelet of a node says of its pods and devices.
    pub fn pod_resources(&self, node: u32) -> PodResources {
        PodResources::of(&self.cluster.node_folder(node))
    }

    /// A pod of one container on a node, with these limits. It runs `script`.
    pub fn pod(&self, name: &str, node: u32, limits: &Value, script: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": format!("n{node}")},
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "main", "image": Cluster::BUSYBOX, "command": ["sh", "-c", script],
                    "resources": {"limits": limits},
                }],
            },
        })
    }

    /// Applies objects.
    pub fn apply(&self, objects: &[Value]) {
        self.cluster.apply(&json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string());
    }

    /// A pod of the test's namespace, as the API server has it.
    pub fn get_pod(&self, name: &str) -> Value {
        self.cluster.get_json(&["pod", "-n", &self.namespace, name])
    }

    /// Waits until a pod runs.
    pub fn wait_until_running(&self, pod: &str) {
        self.cluster.wait_for(&format!("pod {pod} runs"), TIMEOUT, || {
            let status = &self.get_pod(pod)["status"];
            assert_ne!(status["phase"], "Failed", "{status}");
            status["phase"] == "Running"
        });
    }

    /// Waits until a pod has succeeded, and returns what it printed.
    pub fn output(&self, pod: &str) -> String {
        let mut phase = String::new();
        self.cluster.wait_for(&format!("pod {pod} ends"), TIMEOUT, || {
            phase = self.get_pod(pod)["status"]["phase"].as_str().unwrap_or_default().to_owned();
            ["Succeeded", "Failed"].contains(&&*phase)
        });
        let said = self.cluster.kubectl_ok(&["logs", "-n", &self.namespace, pod]);
        assert_eq!(phase, "Succeeded", "{said}\n{}", self.get_pod(pod)["status"]);
        said
    }

    /// How many of a resource a node offers to new pods, as the API server knows it.
    pub fn allocatable(&self, node: u32, resource: &str) -> u64 {
        let node = self.cluster.get_json(&["node", &format!("n{node}")]);
        node["status"]["allocatable"][resource].as_str().map_or(0, |count| count.parse().unwrap())
    }

    /// Waits for that number.
    pub fn wait_for_allocatable(&self, node: u32, resource: &str, count: u64) {
        let what = format!("{resource} of n{node} is {count} at the API server");
        self.cluster.wait_for(&what, TIMEOUT, || self.allocatable(node, resource) == count);
    }

    /// What `larder devices --json` says on a node.
    pub fn report(&self, node: u32) -> Value {
        let said = self.in_devices(node, &["larder", "devices", "--json"]);
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        serde_json::from_slice(&said.stdout).unwrap()
    }

    /// What `/metrics` of `larder-devices` says on a node.
    pub fn metrics(&self, node: u32) -> String {
        let address = &self.pod_of(node)["status"]["podIP"];
        let url = format!("http://{}:9470/metrics", address.as_str().expect("it has an address"));
        let said = self.cluster.exec(&["curl", "-sS", "--fail", &url]);
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8(said.stdout).unwrap()
    }

    /// Kills `larder-devices` on a node; the kubelet starts it again.
    pub fn kill(&self, node: u32) {
        for pid in self.cluster.pids_on_node(node, "larder-devices") {
            let pid = Pid::from_raw(pid as i32).unwrap();
            // It may have ended by itself.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }

    /// The token of `larder-devices` on a node.
    pub fn token(&self, node: u32) -> String {
        let pid = self.cluster.pids_on_node(node, "larder-devices")[0];
        let path = format!("/proc/{pid}/root/var/run/secrets/kubernetes.io/serviceaccount/token");
        std::fs::read_to_string(path).unwrap()
    }

    /// Runs a command in the pod of `larder-devices` of a node.
    pub fn in_devices(&self, node: u32, args: &[&str]) -> std::process::Output {
        let pod = self.pod_of(node)["metadata"]["name"].as_str().unwrap().to_owned();
        self.cluster.exec_in_pod("larder-system", &pod, args)
    }

    /// The pod of `larder-devices` of a node.
    fn pod_of(&self, node: u32) -> Value {
        let field = format!("--field-selector=spec.nodeName=n{node}");
        let select = ["-n", "larder-system", "-l", "app.kubernetes.io/name=larder-devices", &field];
        let mut pods = self.cluster.get_json(&[&["pods"], &select[..]].concat());
        let pod = pods["items"][0].take();
        assert!(!pod.is_null(), "larder-devices has no pod on n{node}");
        pod
    }

    /// NVIDIA's container toolkit describes the GPUs to the runtime in a CDI file, which is fake here, too.
    fn describe_gpus_to_the_runtime(&self, node: u32) {
        let gpus = &self.nodes[node as usize - 1].driver.gpus;
        let devices: Vec<Value> = gpus
            .iter()
            .map(|gpu| {
                let name = format!("nvidia{}", gpu.minor);
                let node = json!({"path": format!("/dev/{name}"), "hostPath": format!("{FAKE_HARDWARE}/dev/{name}")});
                json!({"name": gpu.uuid, "containerEdits": {"deviceNodes": [node]}})
            })
            .collect();
        let spec = json!({"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices});
        let kept = self.folder(node).join("nvidia.json");
        std::fs::write(&kept, spec.to_string()).unwrap();
        let put = "mkdir -p /var/run/cdi && cp /var/lib/kubelet/fake-hardware/nvidia.json /var/run/cdi/nvidia.json";
        let put = self.cluster.exec_on_node(node, &["sh", "-c", put]);
        assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // A test that failed gets its cluster thrown away.
        if std::thread::panicking() {
            return;
        }
        let overlay = self.overlay.path().to_str().unwrap_or_default();
        self.cluster.kubectl_ok(&["delete", "namespace", &self.namespace, "--wait=true", "--timeout=120s"]);
        self.cluster.kubectl_ok(&["delete", "-k", overlay, "--wait=true", "--timeout=120s"]);
        self.cluster.wait_for("no larder-devices is left", TIMEOUT, || {
            let label = "app.kubernetes.io/name=larder-devices";
            let left = self.cluster.kubectl(&["get", "pods", "-n", "larder-system", "-l", label, "-o", "name"]);
            left.status.success() && left.stdout.is_empty()
        });
    }
}

/// Components by themselves, on the fake hardware. The last one has the configuration.
fn overlay(components: &[&str], config: &str) -> tempfile::TempDir {
    let overlay = tempfile::tempdir().unwrap();
    let deploy = repository().join("deploy");
    let copied = Command::new("cp").arg("-r").arg(&deploy).arg(overlay.path().join("deploy")).status();
    assert!(copied.unwrap().success(), "copy deploy");
    let components: Vec<String> = components.iter().map(|name| format!("deploy/components/{name}")).collect();
    // Each component's own, of which the last one counts.
    let last = match components.last().expect("there is a component").as_str() {
        last @ "deploy/components/devices" => format!("{last}/base"),
        last => last.to_owned(),
    };
    std::fs::write(overlay.path().join(last).join("config.yaml"), config).unwrap();
    let volumes = [
        ("sys-class", "sys/class"),
        ("sys-devices", "sys/devices"),
        ("sys-bus", "sys/bus"),
        ("sys-module", "sys/module"),
        ("dev", "dev"),
        ("cgroup", "cgroup"),
        ("nvml", "nvml"),
        ("vendor-cdi", "vendor-cdi"),
    ];
    let volumes: Vec<Value> = volumes
        .iter()
        .map(|(name, folder)| json!({"name": name, "hostPath": {"path": format!("{FAKE_HARDWARE}/{folder}")}}))
        .collect();
    let container = json!({
        "name": "larder-devices",
        "env": [
            {"name": "LARDER_NVML", "value": "/host/nvml/libnvidia-ml.so.1"},
            {"name": "LARDER_HOST_DEV", "value": format!("{FAKE_HARDWARE}/dev")},
        ],
        "volumeMounts": [{"name": "nvml", "mountPath": "/host/nvml", "readOnly": true}],
    });
    let patch = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "larder-devices"},
        "spec": {"template": {"spec": {"volumes": volumes, "containers": [container]}}},
    });
    let lines = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "components": components,
        "patches": [{"patch": patch.to_string()}],
    });
    std::fs::write(overlay.path().join("kustomization.yaml"), lines.to_string()).unwrap();
    overlay
}
