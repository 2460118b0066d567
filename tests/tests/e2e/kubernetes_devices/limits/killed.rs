//! Containers that start while what limits them is killed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use larder_e2e::devices::{Devices, FAKE_HARDWARE};
use larder_e2e::platform::TIMEOUT;
use larder_testkit::{Cluster, scaled};
use rand::RngExt;
use serde_json::{Value, json};

use super::{HCA, LIMIT, lines, specs, start, text};

/// Containers of a pod in an ordinary run and at most: it starts one after the other.
const CONTAINERS: (u32, u32) = (25, 50);

fn containers() -> usize {
    scaled(CONTAINERS.0).min(CONTAINERS.1) as usize
}

/// What is killed.
const PARTS: [&str; 3] = ["larder-devices", "containerd", "kubelet"];

/// How many are, while the pods of two nodes start.
const KILLS: usize = 6;

/// A pod whose containers each leave their cgroup's path in a file of the node with the container's name, and end.
fn pod(devices: &Devices, name: &str, node: u32) -> Value {
    let script = "path=$(grep :pids: /proc/self/cgroup) && echo \"${path#*:*:}\" >/ran/${path##*/}";
    let mut pod = devices.pod(name, node, &json!({}), "");
    let container = |nth| {
        json!({
            "name": format!("c{nth}"), "image": Cluster::BUSYBOX, "command": ["sh", "-c", script],
            "resources": {"limits": {HCA: 1}}, "volumeMounts": [{"name": "ran", "mountPath": "/ran"}],
        })
    };
    pod["spec"]["containers"] = (0..containers()).map(container).collect();
    pod["spec"]["volumes"] =
        json!([{"name": "ran", "hostPath": {"path": format!("{FAKE_HARDWARE}/ran"), "type": "DirectoryOrCreate"}}]);
    // A container that did not start is tried again.
    pod["spec"]["restartPolicy"] = json!("OnFailure");
    pod
}

/// Runs a pod on each node to its end, while parts of the nodes are killed. A pod that is refused, since a part was away, is made
/// again. Returns how many were.
fn run(devices: &Devices, wave: u32, killed: &mut BTreeMap<&str, u32>) -> u32 {
    let (mut random, mut refused, mut kills) = (rand::rng(), 0, 0);
    let mut under_way: Vec<(u32, String)> = [1, 2].map(|node| (node, format!("wave-{wave}-n{node}"))).into();
    devices.apply(&under_way.iter().map(|(node, name)| pod(devices, name, *node)).collect::<Vec<_>>());
    let started = Instant::now();
    while !under_way.is_empty() {
        assert!(started.elapsed() < TIMEOUT, "{under_way:?} do not end");
        std::thread::sleep(Duration::from_millis(random.random_range(200..2500)));
        if kills < KILLS {
            // Each of them equally often, on a node and at a time that nobody chooses.
            let (what, node) = (PARTS[kills % PARTS.len()], random.random_range(1..=2));
            kills += 1;
            *killed.entry(what).or_default() += 1;
            match what {
                "containerd" => devices.cluster.restart_containerd(node),
                "kubelet" => devices.cluster.restart_kubelet(node),
                _ => devices.kill(node),
            }
        }
        under_way.retain_mut(|(node, name)| match text(&devices.get_pod(name)["status"]["phase"]) {
            "Succeeded" => false,
            "Failed" => {
                refused += 1;
                name.push_str("-again");
                devices.apply(&[pod(devices, name, *node)]);
                true
            }
            _ => true,
        });
    }
    refused
}

// SEMANTICS: D20
#[test]
fn no_container_runs_without_its_limit_whatever_is_killed() {
    let devices = start("killed", 64);
    let (waves, started) = (scaled(1), Instant::now());
    let (mut killed, mut refused) = (BTreeMap::new(), 0);
    for wave in 0..waves {
        refused += run(&devices, wave, &mut killed);
    }
    let took = started.elapsed();
    let (mut ran, mut without_nri) = (0, 0);
    for node in [1, 2] {
        let specs: BTreeMap<String, Value> = specs(&devices, node).into_iter().collect();
        for left in std::fs::read_dir(devices.folder(node).join("ran")).unwrap() {
            let left = left.unwrap();
            let id = left.file_name().into_string().unwrap();
            let cgroup = std::fs::read_to_string(left.path()).unwrap();
            let max = format!("cgroup/rdma/{}/rdma.max", cgroup.trim().trim_start_matches('/'));
            let written = std::fs::read_to_string(devices.folder(node).join(&max)).unwrap_or_default();
            let written = lines(&written);
            let is_limited = |line: &String| line.starts_with("mlx5_") && line.ends_with(&format!(" {LIMIT}"));
            assert!(written.len() == 1 && written.iter().all(is_limited), "{id} of n{node} ran with {written:?}");
            ran += 1;
            without_nri += u32::from(specs[&id]["annotations"]["rdma.larder.dev/max"].is_null());
        }
    }
    println!(
        "{ran} containers ran in {took:.0?}, all limited, {without_nri} of them made while NRI's plugin was away; \
         killed: {killed:?}; pods refused and made again: {refused}"
    );
    assert!(ran >= waves as usize * 2 * containers(), "{ran} have run");
}
