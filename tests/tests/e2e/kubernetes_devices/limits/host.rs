//! Nodes that lack a part of what limits need.

use larder_e2e::devices::Devices;
use larder_e2e::platform::TIMEOUT;
use serde_json::{Value, json};

use super::{Container, HCA, LIMIT, events, lines, start, text};

/// Waits until the HCAs of a node are out of service because a part is missing, and everybody is told why.
fn wait_until_missing(devices: &Devices, node: u32, part: &str, why: &str) {
    devices.wait_for_allocatable(node, HCA, 0);
    let reported = || text(&devices.report(node)["missing"][part]).contains(why);
    devices.cluster.wait_for(&format!("the report says: {why}"), TIMEOUT, reported);
    let report = devices.report(node);
    let hcas: Vec<&Value> =
        report["devices"].as_array().unwrap().iter().filter(|device| device["kind"] == "hca").collect();
    assert_eq!(hcas.len(), 3);
    for hca in hcas {
        let fault = &hca["fault"];
        assert!(fault["reason"] == "LimitsMissing" && text(&fault["message"]).contains(why), "{fault}");
    }
    let told = || {
        let events = events(devices, "default", &format!("n{node}"));
        events.lines().any(|event| event.starts_with("LimitsMissing ") && event.contains(why))
    };
    devices.cluster.wait_for(&format!("an event of the node says: {why}"), TIMEOUT, told);
}

// SEMANTICS: D19
#[test]
fn the_controller_may_go_and_come_back_as_that_of_cgroup_v2() {
    let devices = start("unified", 1);
    let cgroup = devices.folder(2).join("cgroup");
    std::fs::remove_dir_all(cgroup.join("rdma")).unwrap();
    wait_until_missing(&devices, 2, "controller", "the kernel has no rdma cgroup controller");
    // Unlike the machine, the pods lack it.
    std::fs::create_dir(cgroup.join("kubepods")).unwrap();
    std::fs::write(cgroup.join("kubepods/cgroup.controllers"), "cpu pids\n").unwrap();
    std::fs::write(cgroup.join("cgroup.controllers"), "cpu rdma pids\n").unwrap();
    let why = "the cgroup kubepods lacks the rdma controller";
    wait_until_missing(&devices, 2, "controller", why);
    std::fs::write(cgroup.join("kubepods/cgroup.controllers"), "cpu rdma pids\n").unwrap();
    devices.wait_for_allocatable(2, HCA, 3);

    devices.apply(&[devices.pod("train", 2, &json!({HCA: 2}), "exec tail -f /dev/null")]);
    devices.wait_until_running("train");
    let container = Container::of(&devices, 2, "train");
    let wanted = container.hooks();
    assert!(wanted.len() == 2 && wanted.iter().all(|line| line.ends_with(LIMIT)), "{wanted:?}");
    assert_eq!(container.written(), wanted);
    let unified = &container.spec["linux"]["resources"]["unified"];
    assert_eq!(lines(text(&unified["rdma.max"])), wanted, "{unified}");
}

// SEMANTICS: D20
#[test]
fn a_container_whose_hook_fails_or_is_missing_does_not_start() {
    let devices = start("hooks", 1);
    // It ends when it is told to, and is started again, for which nobody asks the device plugin.
    let script = "until [ -e /told/end ]; do sleep 0.1; done; rm /told/end";
    let mut pod = devices.pod("train", 1, &json!({HCA: 1}), script);
    pod["spec"]["restartPolicy"] = json!("Always");
    pod["spec"]["volumes"] = json!([{"name": "told", "emptyDir": {}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "told", "mountPath": "/told"}]);
    devices.apply(&[pod]);
    devices.wait_until_running("train");
    let uid = text(&devices.get_pod("train")["metadata"]["uid"]).to_owned();
    let told = devices.cluster.node_folder(1).join(format!("pods/{uid}/volumes/kubernetes.io~empty-dir/told"));
    let end = || std::fs::write(told.join("end"), "").unwrap();
    let wait_until_not_started = |why: &str| {
        devices.cluster.wait_for(&format!("the container does not start: {why}"), TIMEOUT, || {
            let status = &devices.get_pod("train")["status"]["containerStatuses"][0];
            let ends = [&status["state"]["terminated"], &status["lastState"]["terminated"]];
            ends.iter().any(|end| end["reason"] == "StartError" && text(&end["message"]).contains(why))
        });
    };
    let wait_until_ready = || {
        devices.cluster.wait_for("the container runs again", TIMEOUT, || {
            devices.get_pod("train")["status"]["containerStatuses"][0]["ready"] == true
        });
    };

    let full = devices.folder(1).join("cgroup/full");
    std::fs::write(&full, "").unwrap();
    end();
    wait_until_not_started("rdma.max: No space left on device");
    std::fs::remove_file(full).unwrap();
    wait_until_ready();
    assert!(Container::of(&devices, 1, "train").written().iter().all(|line| line.ends_with(LIMIT)));

    // A folder in its place, so that it cannot be installed again, made under the installer's own lock.
    let on_node = |script: &str| {
        let said = devices.cluster.exec_on_node(1, &["sh", "-ec", script]);
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    };
    let replace = "rm larder-rdma-limit; mkdir larder-rdma-limit";
    on_node(&format!("cd /opt/larder/bin && flock .larder-rdma-limit.lock sh -ec '{replace}'"));
    end();
    wait_until_not_started("Permission denied: '/opt/larder/bin/larder-rdma-limit'");
    wait_until_missing(&devices, 1, "hook", "install the hook /usr/bin/larder-rdma-limit into /opt/larder/bin");
    on_node("rmdir /opt/larder/bin/larder-rdma-limit");
    wait_until_ready();
    devices.wait_for_allocatable(1, HCA, 3);
    assert!(Container::of(&devices, 1, "train").written().iter().all(|line| line.ends_with(LIMIT)));
}

// SEMANTICS: D19
#[test]
fn a_runtime_without_nri_takes_required_limits_of_locked_memory_out_of_service() {
    let devices = start("without-nri", 1);
    devices.apply(&[devices.pod("train", 1, &json!({HCA: 1}), "exec tail -f /dev/null")]);
    devices.wait_until_running("train");
    let settings = devices.cluster.folder().join("n1/containerd.toml");
    let before = std::fs::read_to_string(&settings).unwrap();
    std::fs::write(&settings, format!("{before}\n[plugins.\"io.containerd.nri.v1.nri\"]\n  disable = true\n")).unwrap();
    devices.cluster.restart_containerd(1);
    wait_until_missing(&devices, 1, "nri", "the container runtime does not call the NRI plugin: /var/run/nri/nri.sock");
    std::fs::write(&settings, before).unwrap();
    devices.cluster.restart_containerd(1);
    devices.wait_for_allocatable(1, HCA, 3);
    assert_eq!(devices.get_pod("train")["status"]["containerStatuses"][0]["restartCount"], 0);
}
