//! What `larder-devices` may do, looked at in its running pods.

use larder_e2e::devices::Devices;
use larder_testkit::machine::MachinePlan;

#[test]
fn the_pod_has_no_capability_and_may_write_to_its_own_node_only() {
    let config = "resources: [{name: example.com/gpu, kind: gpu}]\n";
    let devices = Devices::start("rights", &MachinePlan::three_hcas_on_a_switch(), config);
    devices.wait_for_allocatable(1, "example.com/gpu", 2);
    let pid = devices.cluster.pids_on_node(1, "larder-devices")[0];
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    for set in ["CapEff:", "CapPrm:", "CapBnd:", "CapInh:", "CapAmb:"] {
        assert_eq!(field(set), "0000000000000000", "{set} {status}");
    }
    assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), ("1".to_owned(), "2".to_owned()), "{status}");
    let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    let root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).unwrap();
    assert!(root.split(' ').nth(5).unwrap().split(',').any(|option| option == "ro"), "{root}");

    // Its own token, as whoever takes the process over would use it.
    let token = devices.token(1);
    let says = |args: &[&str]| {
        let as_it = ["--token", token.as_str()];
        let output = devices.cluster.kubectl(&[args, &as_it[..]].concat());
        (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let label = |node: &str, label: &str| says(&["label", "--overwrite", "node", node, label]);
    assert!(label("n1", "device.larder.dev/fabric=other").0, "its own label");
    let (allowed, said) = label("n2", "device.larder.dev/fabric=other");
    assert!(!allowed && said.contains("its own Node only"), "{said}");
    let (allowed, said) = label("n1", "zone=mine");
    assert!(!allowed && said.contains("device.larder.dev/"), "{said}");
    for (verb, what) in [
        ("get", "secrets"),
        ("get", "pods"),
        ("list", "nodes"),
        ("create", "pods"),
        ("delete", "nodes"),
        ("update", "nodes"),
        ("get", "configmaps"),
    ] {
        let (allowed, said) = says(&["auth", "can-i", verb, what, "-n", "larder-system"]);
        assert!(!allowed && said.lines().any(|line| line == "no"), "{verb} {what}: {said}");
    }
}
