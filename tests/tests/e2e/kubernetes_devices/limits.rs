//! Limits of RDMA objects and of locked memory, from a resource to the container's cgroup. The cgroups of the rdma controller are
//! fake; everything else is as on a node that has them.

mod host;
mod killed;

use std::collections::BTreeSet;
use std::path::PathBuf;

use larder_e2e::devices::Devices;
use larder_e2e::platform::TIMEOUT;
use larder_testkit::machine::MachinePlan;
use serde_json::{Value, json};

const HCA: &str = "larder.dev/hca";

/// What the hook writes for an HCA, after its name.
const LIMIT: &str = "hca_handle=2 hca_object=2000";

/// The resource [`HCA`] of three HCAs, each for so many containers.
fn start(test: &str, share: u32) -> Devices {
    let limits = "{hcaHandles: 2, hcaObjects: 2000, memlock: unlimited, required: true}";
    let config = format!("resources: [{{name: {HCA}, kind: rdma, share: {share}, limits: {limits}}}]\n");
    let devices = Devices::start(test, &MachinePlan::three_hcas_on_a_switch(), &config);
    for node in [1, 2] {
        devices.wait_for_allocatable(node, HCA, 3 * u64::from(share));
    }
    devices
}

/// A container that has run: its OCI spec, and its cgroup.
struct Container {
    spec: Value,
    cgroup: PathBuf,
}

impl Container {
    /// That of a pod of one container.
    fn of(devices: &Devices, node: u32, pod: &str) -> Self {
        let id = devices.get_pod(pod)["status"]["containerStatuses"][0]["containerID"].clone();
        let id = id.as_str().unwrap().strip_prefix("containerd://").unwrap().to_owned();
        let spec = specs(devices, node).into_iter().find(|(found, _)| *found == id).unwrap().1;
        let root = devices.folder(node).join("cgroup");
        let root = if root.join("rdma").exists() { root.join("rdma") } else { root };
        let cgroup = root.join(spec["linux"]["cgroupsPath"].as_str().unwrap().trim_start_matches('/'));
        Self { spec, cgroup }
    }

    /// The lines in its cgroup.
    fn written(&self) -> BTreeSet<String> {
        lines(&std::fs::read_to_string(self.cgroup.join("rdma.max")).unwrap())
    }

    /// The lines that its hooks are to write.
    fn hooks(&self) -> BTreeSet<String> {
        let hooks = self.spec["hooks"]["createRuntime"].as_array().unwrap().iter();
        let args = hooks.map(|hook| (hook["path"].as_str().unwrap(), &hook["args"]));
        args.map(|(path, args)| {
            assert_eq!((path, &args[1]), ("/opt/larder/bin/larder-rdma-limit", &json!("--max")), "{args}");
            args[2].as_str().unwrap().to_owned()
        })
        .collect()
    }

    /// The lines that the NRI plugin added.
    fn annotated(&self) -> BTreeSet<String> {
        lines(self.spec["annotations"]["rdma.larder.dev/max"].as_str().unwrap())
    }

    /// The limit of locked memory.
    fn memlock(&self) -> &Value {
        let rlimits = self.spec["process"]["rlimits"].as_array().unwrap();
        rlimits.iter().find(|limit| limit["type"] == "RLIMIT_MEMLOCK").unwrap()
    }
}

fn lines(text: &str) -> BTreeSet<String> {
    text.lines().map(str::to_owned).collect()
}

/// The specs of the containers that were created on a node, by their IDs.
fn specs(devices: &Devices, node: u32) -> Vec<(String, Value)> {
    let folder = devices.cluster.folder().join(format!("n{node}/specs"));
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|end| end == "json"));
    files
        .map(|path| {
            let spec = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            (path.file_stem().unwrap().to_str().unwrap().to_owned(), spec)
        })
        .collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The reasons and messages of the events about an object.
fn events(devices: &Devices, namespace: &str, about: &str) -> String {
    let about = format!("--field-selector=involvedObject.name={about}");
    let events = devices.cluster.get_json(&["events", "-n", namespace, &about]);
    let events = events["items"].as_array().unwrap().iter();
    events.map(|event| format!("{} {}\n", text(&event["reason"]), text(&event["message"]))).collect()
}

// SEMANTICS: D20
#[test]
fn the_limits_of_a_container_are_written_before_its_process_runs() {
    let devices = start("limits", 1);
    let mut pod = devices.pod("train", 1, &json!({HCA: 2}), "touch /out/started && exec tail -f /dev/null");
    pod["spec"]["volumes"] = json!([{"name": "out", "emptyDir": {}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "out", "mountPath": "/out"}]);
    devices.apply(&[pod]);
    devices.wait_until_running("train");
    let container = Container::of(&devices, 1, "train");
    let wanted = container.hooks();
    assert!(wanted.len() == 2 && wanted.iter().all(|line| line.ends_with(LIMIT)), "{wanted:?}");
    assert_eq!((container.written(), container.annotated()), (wanted.clone(), wanted.clone()));
    assert_eq!((&container.memlock()["hard"], &container.memlock()["soft"]), (&json!(u64::MAX), &json!(u64::MAX)));
    assert_eq!(container.spec["linux"]["resources"]["unified"], Value::Null, "cgroup v1 has no such key");

    let uid = devices.get_pod("train")["metadata"]["uid"].as_str().unwrap().to_owned();
    let started = format!("pods/{uid}/volumes/kubernetes.io~empty-dir/out/started");
    let started = devices.cluster.node_folder(1).join(started);
    devices.cluster.wait_for("the process runs", TIMEOUT, || started.exists());
    let changed = |path: PathBuf| path.metadata().unwrap().modified().unwrap();
    assert!(changed(container.cgroup.join("rdma.max")) <= changed(started));

    // What it has of them now is a metric, until it is gone.
    let hca = wanted.first().unwrap().split(' ').next().unwrap();
    let current = format!("{hca} hca_handle=1 hca_object=17\nmlx5_9 hca_handle=2 hca_object=3\n");
    std::fs::write(container.cgroup.join("rdma.current"), current).unwrap();
    let metrics = || {
        let metrics = devices.metrics(1);
        let ours = metrics.lines().filter(|line| line.starts_with("larder_devices_rdma_current{"));
        ours.map(str::to_owned).collect::<Vec<_>>()
    };
    let labels = format!("namespace=\"limits\",pod=\"train\",hca=\"{hca}\"");
    let counted = [("hca_handle", 1), ("hca_object", 17)]
        .map(|(object, count)| format!("larder_devices_rdma_current{{{labels},object=\"{object}\"}} {count}"));
    assert_eq!(metrics(), counted);
    devices.cluster.kubectl_ok(&["delete", "pod", "-n", devices.namespace(), "train"]);
    devices.cluster.wait_for("the metric is gone with the pod", TIMEOUT, || metrics().is_empty());
}

// SEMANTICS: D21
#[test]
fn a_pod_lowers_its_limits_and_is_refused_what_is_above_them() {
    let devices = start("wishes", 4);
    let pod = |name: &str, wish: &str| {
        let mut pod = devices.pod(name, 1, &json!({HCA: 1}), "exec tail -f /dev/null");
        pod["metadata"]["annotations"] = json!({"rdma.larder.dev/limits": wish});
        pod
    };
    let pods = [
        pod("low", "hca_handle=1 hca_object=500 memlock=1Mi"),
        pod("high", "hca_object=2001"),
        pod("odd", "hca_object=lots"),
    ];
    devices.apply(&pods);
    devices.wait_until_running("low");
    let low = Container::of(&devices, 1, "low");
    let written = low.written();
    assert!(
        written.len() == 1 && written.iter().all(|line| line.ends_with(" hca_handle=1 hca_object=500")),
        "{written:?}"
    );
    assert_eq!((&low.memlock()["hard"], &low.memlock()["soft"]), (&json!(1 << 20), &json!(1 << 20)));
    for (pod, why) in [
        ("high", "requests hca_object=2001, but larder.dev/hca allows 2000: request less, or omit it"),
        ("odd", "is malformed: \"hca_object=lots\" is not one of hca_handle=N"),
    ] {
        let why = format!("the pod's annotation rdma.larder.dev/limits {why}");
        devices.cluster.wait_for(&format!("{pod} is refused: {why}"), TIMEOUT, || {
            events(&devices, devices.namespace(), pod).contains(&why)
        });
        let state = &devices.get_pod(pod)["status"]["containerStatuses"][0]["state"];
        assert!(state["running"].is_null() && state["terminated"].is_null(), "{state}");
        let is_its = |spec: &Value| {
            let name = |key: &str| spec["annotations"][format!("io.kubernetes.cri.{key}")].clone();
            (name("container-type"), name("sandbox-name")) == (json!("container"), json!(pod))
        };
        assert!(specs(&devices, 1).iter().all(|(_, spec)| !is_its(spec)), "{pod} was created");
    }
}
