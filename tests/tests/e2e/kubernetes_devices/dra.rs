//! The same devices by dynamic resource allocation: the scheduler chooses them, and the kubelet has them prepared.

use std::collections::BTreeSet;

use larder_e2e::devices::Devices;
use larder_e2e::platform::TIMEOUT;
use larder_testkit::machine::{MachinePlan, PORT_DOWN, PORT_UP};
use serde_json::{Value, json};

const CONFIG: &str = "
resources:
- {name: larder.dev/gpu, kind: gpu, mode: dra}
- {name: larder.dev/hca, kind: rdma, mode: dra}
health: {portDown: 1s, portUp: 1s}
";

/// Prints the device nodes of a container, and waits.
const LOOK: &str =
    r#"echo "nodes $(cd /dev && ls -d nvidia* infiniband/* 2>/dev/null | tr '\n' ' ')"; echo "nccl $NCCL_IB_HCA""#;

/// Four GPUs, each with an HCA of its PCIe root.
fn four_pairs() -> Value {
    let request = |kind: &str, n: usize| json!({"name": format!("{kind}-{n}"), "exactly": {"deviceClassName": format!("{kind}.larder.dev")}});
    let requests: Vec<Value> = (0..4).flat_map(|n| [request("gpu", n), request("hca", n)]).collect();
    let pair = |n: usize| json!({"requests": [format!("gpu-{n}"), format!("hca-{n}")], "matchAttribute": "resource.kubernetes.io/pcieRoot"});
    let constraints: Vec<Value> = (0..4).map(pair).collect();
    json!({"devices": {"requests": requests, "constraints": constraints}})
}

/// The numbers at the ends of the device nodes that a container printed, by what they begin with.
fn numbers(said: &str, nodes: &str) -> BTreeSet<u32> {
    let line = said.lines().find_map(|line| line.strip_prefix("nodes ")).unwrap_or_else(|| panic!("{said}"));
    line.split(' ').filter_map(|node| node.strip_prefix(nodes)?.parse().ok()).collect()
}

/// The taints of the devices of n1, by the names of the devices.
fn taints(devices: &Devices) -> Vec<(String, String)> {
    let slices = devices.cluster.get_json(&["resourceslices"]);
    let of_n1 = slices["items"].as_array().unwrap().iter().filter(|slice| slice["spec"]["nodeName"] == "n1");
    let all = of_n1.flat_map(|slice| slice["spec"]["devices"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    all.flat_map(|device| {
        let taints = device["taints"].as_array().cloned().unwrap_or_default();
        taints.into_iter().map(|taint| (text(&device["name"]), text(&taint["value"])))
    })
    .collect()
}

// SEMANTICS: D28
#[test]
fn claims_get_aligned_pairs_plain_requests_get_devices_and_one_out_of_service_is_not_given() {
    let mut devices = Devices::start_dra("dra", &MachinePlan::eight_pairs(), CONFIG);
    let offered = || {
        let slices = devices.cluster.get_json(&["resourceslices"]);
        let of_n1 = slices["items"].as_array().unwrap().iter().filter(|slice| slice["spec"]["nodeName"] == "n1");
        of_n1.map(|slice| slice["spec"]["devices"].as_array().unwrap().len()).sum::<usize>()
    };
    devices.cluster.wait_for("n1 offers 16 devices", TIMEOUT, || offered() == 16);

    // A claim of four pairs: one container has all of it, another one HCA of it.
    let template = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "pairs", "namespace": "dra"}, "spec": {"spec": four_pairs()},
    });
    let small = json!({"memory": "64Mi", "cpu": "50m"});
    let mut pod = devices.pod("claims", 1, &small, &format!("{LOOK}; exec tail -f /dev/null"));
    pod["spec"]["resourceClaims"] = json!([{"name": "pairs", "resourceClaimTemplateName": "pairs"}]);
    pod["spec"]["containers"][0]["resources"]["claims"] = json!([{"name": "pairs"}]);
    let mut one = pod["spec"]["containers"][0].clone();
    one["name"] = json!("one");
    one["resources"]["claims"] = json!([{"name": "pairs", "request": "hca-1"}]);
    pod["spec"]["containers"].as_array_mut().unwrap().push(one);
    devices.apply(&[template, pod]);
    devices.wait_until_running("claims");
    let logs = |container: &str| {
        let mut said = String::new();
        devices.cluster.wait_for(&format!("{container} says what it has"), TIMEOUT, || {
            said = devices.cluster.kubectl_ok(&["logs", "-n", "dra", "claims", "-c", container]);
            said.contains("nccl ")
        });
        said
    };
    let all = logs("main");
    let gpus = numbers(&all, "nvidia");
    assert_eq!(gpus.len(), 4, "{all}");
    assert_eq!(numbers(&all, "infiniband/uverbs"), gpus, "the HCA of the pair of GPU N is mlx5_N: {all}");
    assert!(gpus.iter().all(|n| all.contains(&format!("mlx5_{n}:1"))), "{all}");
    let said = logs("one");
    let hca = numbers(&said, "infiniband/uverbs");
    assert!(hca.len() == 1 && hca.is_subset(&gpus) && numbers(&said, "nvidia").is_empty(), "{said}");

    // What was written for the device plugin gets devices, too.
    let limits = json!({"larder.dev/gpu": 2, "larder.dev/hca": 1, "memory": "64Mi", "cpu": "50m"});
    devices.apply(&[devices.pod("plain", 1, &limits, LOOK)]);
    let said = devices.output("plain");
    assert_eq!((numbers(&said, "nvidia").len(), numbers(&said, "infiniband/uverbs").len()), (2, 1), "{said}");
    assert!(numbers(&said, "nvidia").is_disjoint(&gpus), "no device twice: {said}");

    // Four HCAs are free. One leaves service, and a pod that asks for four waits until it is back.
    let free: u32 = (0..8).find(|n| !gpus.contains(n)).unwrap();
    let name = format!("mlx5_{free}");
    devices.nodes[0].machine.set_port(&name, 1, PORT_DOWN).unwrap();
    devices.cluster.wait_for("the device has a taint", TIMEOUT, || {
        taints(&devices).iter().map(|(_, reason)| reason.as_str()).eq(["PortDown"])
    });
    let limits = json!({"larder.dev/hca": 4, "memory": "64Mi", "cpu": "50m"});
    devices.apply(&[devices.pod("patient", 1, &limits, LOOK)]);
    devices.cluster.wait_for("the scheduler finds no room", TIMEOUT, || {
        let pod = devices.get_pod("patient");
        assert_eq!(pod["status"]["phase"], "Pending", "a device out of service was given: {}", pod["status"]);
        pod["status"]["conditions"][0]["reason"] == "Unschedulable"
    });
    devices.nodes[0].machine.set_port(&name, 1, PORT_UP).unwrap();
    assert!(numbers(&devices.output("patient"), "infiniband/uverbs").contains(&free));
    assert_eq!(taints(&devices), []);

    // Nothing of a claim is left when its pod is gone.
    devices.cluster.kubectl_ok(&["delete", "pod", "-n", "dra", "--all", "--wait=true", "--timeout=120s"]);
    devices.cluster.wait_for("no file of a claim is left", TIMEOUT, || {
        let left = devices.cluster.exec_on_node(1, &["sh", "-c", "ls /var/run/cdi | grep claim"]);
        left.stdout.is_empty()
    });
}
