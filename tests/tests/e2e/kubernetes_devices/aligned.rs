//! Which devices pods get, and that they get no others.

use std::collections::{BTreeMap, BTreeSet};

use larder_e2e::devices::Devices;
use larder_e2e::platform::TIMEOUT;
use larder_testkit::machine::MachinePlan;
use serde_json::json;

/// Prints the device nodes and the hints of a container, and what opening each device node of the host says.
const LOOK: &str = r#"
echo "nodes $(cd /dev && ls -d nvidia* infiniband/* 2>/dev/null | tr '\n' ' ')"
echo "nccl $NCCL_IB_HCA"
echo "ucx $UCX_NET_DEVICES"
echo "nvidia $NVIDIA_VISIBLE_DEVICES"
for n in 0 1 2 3 4 5 6 7; do
    mknod /tmp/nvidia$n c 195 $n
    mknod /tmp/uverbs$n c 231 $((192 + n))
    mknod /tmp/umad$n c 231 $n
done
for node in /tmp/nvidia* /tmp/uverbs* /tmp/umad*; do echo "open ${node##*/} $(cat $node 2>&1 | sed 's/.*: //')"; done
"#;

/// What a container printed, by the first word of its lines.
fn told(said: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut told: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (word, rest) in said.lines().filter_map(|line| line.split_once(' ')) {
        told.entry(word).or_default().push(rest.trim());
    }
    told
}

// SEMANTICS: D30
#[test]
fn rails_are_matching_pairs_of_one_numa_node_and_nothing_else_opens() {
    let config = "resources: [{name: larder.dev/rail, kind: rail}]\n";
    let devices = Devices::start("rails", &MachinePlan::eight_pairs(), config);
    for node in [1, 2] {
        devices.wait_for_allocatable(node, "larder.dev/rail", 8);
    }
    // Both hold four pairs at a time.
    let limits = json!({"larder.dev/rail": 4, "memory": "64Mi", "cpu": "100m"});
    let pod = |name: &str| devices.pod(name, 1, &limits, &format!("{LOOK}\nexec tail -f /dev/null"));
    devices.apply(&[pod("one"), pod("two")]);
    let outputs = ["one", "two"].map(|name| {
        let mut said = String::new();
        devices.cluster.wait_for(&format!("{name} has looked at all nodes"), TIMEOUT, || {
            let logs = devices.cluster.kubectl(&["logs", "-n", devices.namespace(), name]);
            said = String::from_utf8_lossy(&logs.stdout).into_owned();
            said.lines().filter(|line| line.starts_with("open ")).count() == 24
        });
        said
    });
    let mut all = BTreeSet::new();
    for said in &outputs {
        let told = told(said);
        let nodes: BTreeSet<&str> = told["nodes"][0].split(' ').collect();
        let mut gpus: Vec<usize> = nodes.iter().filter_map(|node| node.strip_prefix("nvidia")?.parse().ok()).collect();
        gpus.sort_unstable();
        assert!(gpus == [0, 1, 2, 3] || gpus == [4, 5, 6, 7], "of one NUMA node: {said}");
        // The HCA of the pair of GPU N is mlx5_N, whose node is uverbsN.
        let own: BTreeSet<String> = gpus
            .iter()
            .flat_map(|n| [format!("nvidia{n}"), format!("infiniband/uverbs{n}")])
            .chain(["infiniband/rdma_cm".to_owned()])
            .collect();
        assert_eq!(nodes, own.iter().map(String::as_str).collect(), "{said}");
        let names: Vec<String> = gpus.iter().map(|n| format!("mlx5_{n}:1")).collect();
        assert_eq!(told["nccl"], [format!("={}", names.join(","))], "{said}");
        assert_eq!(told["ucx"], [names.join(",")], "{said}");
        assert_eq!(told["nvidia"], ["void"], "by CDI names: {said}");
        assert_eq!(told["open"].len(), 24, "{said}");
        for opened in &told["open"] {
            let (node, why) = opened.split_once(' ').unwrap();
            let is_own = own.contains(node) || own.contains(&format!("infiniband/{node}"));
            let expected = if is_own { "No such device or address" } else { "Operation not permitted" };
            assert_eq!(why, expected, "{node}: {said}");
        }
        all.extend(gpus);
    }
    assert_eq!(all.len(), 8, "no device twice: {outputs:?}");
}

// SEMANTICS: D30
#[test]
fn gpus_and_hcas_that_are_asked_for_separately_share_a_numa_node() {
    let config = "resources:\n- {name: example.com/gpu, kind: gpu}\n- {name: rdma/hca, kind: rdma}\n";
    let plan = MachinePlan::eight_pairs();
    let devices = Devices::start("numa", &plan, config);
    devices.wait_for_allocatable(1, "example.com/gpu", 8);
    devices.wait_for_allocatable(1, "rdma/hca", 8);
    let names: Vec<String> = (0..4).map(|n| format!("pod-{n}")).collect();
    let limits = json!({"example.com/gpu": 2, "rdma/hca": 2, "memory": "64Mi", "cpu": "100m"});
    let pods: Vec<_> = names.iter().map(|name| devices.pod(name, 1, &limits, "exec tail -f /dev/null")).collect();
    devices.apply(&pods);
    let kubelet = devices.pod_resources(1);
    let mut numas = Vec::new();
    for name in &names {
        devices.wait_until_running(name);
        let held = kubelet.held_by(devices.namespace(), name).unwrap();
        let gpus =
            held["example.com/gpu"].iter().map(|id| plan.gpus.iter().find(|gpu| gpu.uuid == *id).unwrap().slot.numa);
        let hcas =
            held["rdma/hca"].iter().map(|id| plan.hcas.iter().find(|hca| hca.slot.pci == *id).unwrap().slot.numa);
        let of_pod: BTreeSet<i32> = gpus.chain(hcas).collect();
        assert_eq!(of_pod.len(), 1, "{name} has devices of both NUMA nodes: {held:?}");
        numas.extend(of_pod);
    }
    numas.sort_unstable();
    assert_eq!(numas, [0, 0, 1, 1]);
    // What people see agrees with the kubelet.
    let report = devices.report(1);
    let held = |kind: &str| {
        let devices = report["devices"].as_array().unwrap().iter();
        devices.filter(|device| device["kind"] == kind && device["pods"][0]["namespace"] == "numa").count()
    };
    assert_eq!((held("gpu"), held("hca")), (8, 8), "{report}");
}
