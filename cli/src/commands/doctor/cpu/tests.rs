use super::*;

const LARDERD: &str = "0e5c43a7-1b2f-4f0c-9d3e-6a7b8c9d0e1f";
const TRAINING: &str = "71aa02b4-77de-4a52-8a11-000000000001";

/// A fake node.
struct Node {
    folder: tempfile::TempDir,
    unified: bool,
}

impl Node {
    /// A node with these CPUs, on which `larderd` runs.
    fn new(unified: bool, cpus: &str) -> Self {
        let node = Self { folder: tempfile::tempdir().unwrap(), unified };
        std::fs::create_dir_all(node.kubelet().join("pods").join(LARDERD).join("containers/larderd")).unwrap();
        std::fs::create_dir_all(node.kubelet().join("pods").join(TRAINING).join("containers/train")).unwrap();
        node.group("", 0, cpus);
        if unified {
            std::fs::write(node.cgroups().join("cgroup.controllers"), "cpuset cpu\n").unwrap();
        }
        node
    }

    fn kubelet(&self) -> PathBuf {
        self.folder.path().join("kubelet")
    }

    fn cgroups(&self) -> PathBuf {
        self.folder.path().join("cgroup")
    }

    /// Adds a cgroup.
    fn group(&self, path: &str, weight: u64, cpus: &str) {
        let files = match self.unified {
            true => [("", "cpu.weight", weight.to_string()), ("", "cpuset.cpus.effective", cpus.to_owned())],
            false => [("cpu", "cpu.shares", weight.to_string()), ("cpuset", "cpuset.effective_cpus", cpus.to_owned())],
        };
        for (controller, file, text) in files {
            let folder = self.cgroups().join(controller).join(path);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(file), format!("{text}\n")).unwrap();
        }
    }

    fn finding(&self) -> Finding {
        finding(&self.kubelet(), &self.cgroups())
    }
}

/// A node with cgroups of version 2 as systemd names them: `larderd` with a weight beside a Guaranteed pod with 60
/// CPUs, on these cores.
fn with_systemd(weight: u64, training_cpus: &str, shared_cpus: &str) -> Node {
    let node = Node::new(true, "0-63");
    let burstable = "kubepods.slice/kubepods-burstable.slice";
    let larderd = format!("{burstable}/kubepods-burstable-pod{}.slice", LARDERD.replace('-', "_"));
    let training = format!("kubepods.slice/kubepods-pod{}.slice", TRAINING.replace('-', "_"));
    node.group("system.slice", 100, "0-63");
    node.group("kubepods.slice", 2_500, "0-63");
    node.group("kubepods.slice/kubepods-besteffort.slice", 1, "0-63");
    node.group(burstable, weight, "0-63");
    node.group(&larderd, weight, "0-63");
    // The containers that hold the pods' namespaces have all cores.
    node.group(&format!("{larderd}/cri-containerd-a.scope"), 1, "0-63");
    node.group(&format!("{larderd}/cri-containerd-b.scope"), weight, shared_cpus);
    node.group(&training, 2_340, "0-63");
    node.group(&format!("{training}/cri-containerd-c.scope"), 1, "0-63");
    node.group(&format!("{training}/cri-containerd-d.scope"), 2_340, training_cpus);
    node
}

#[test]
fn a_larderd_that_busy_pods_would_starve_is_a_warning() {
    let found = with_systemd(10, "0-63", "0-63").finding();
    assert_eq!(found.verdict, Verdict::Warn);
    assert_eq!(found.found, "0.3 of 64 CPUs while all pods are busy, on the 64 that it may use");
    assert!(found.remedy.starts_with("raise the CPU request of larderd"), "{}", found.remedy);
    assert_eq!(with_systemd(79, "0-63", "0-63").finding().verdict, Verdict::Ok);
}

#[test]
fn pods_with_cores_of_their_own_take_nothing_and_leave_what_is_left() {
    let found = with_systemd(10, "4-63", "0-3").finding();
    assert_eq!(found.verdict, Verdict::Ok, "{}", found.found);
    assert_eq!(found.found, "3.6 of 64 CPUs while all pods are busy, on the 4 that it may use");
    let found = with_systemd(79, "1-63", "0").finding();
    assert_eq!(found.verdict, Verdict::Warn);
    assert!(found.remedy.contains("--reserved-cpus"), "{}", found.remedy);
}

#[test]
fn version_1_and_the_kubelets_own_names_are_read_too() {
    for (shares, verdict) in [(256, Verdict::Warn), (2_048, Verdict::Ok)] {
        let node = Node::new(false, "0-15");
        node.group("kubepods", 16_384, "0-15");
        node.group("kubepods/burstable", shares, "0-15");
        node.group(&format!("kubepods/burstable/pod{LARDERD}"), shares, "0-15");
        node.group(&format!("kubepods/burstable/pod{LARDERD}/a"), shares, "0-15");
        node.group(&format!("kubepods/pod{TRAINING}"), 13_000, "0-15");
        node.group(&format!("kubepods/pod{TRAINING}/b"), 13_000, "0-15");
        let found = node.finding();
        assert_eq!(found.verdict, verdict, "{}", found.found);
    }
}

#[test]
fn a_small_node_needs_an_eighth_of_its_cpus() {
    for (shares, verdict) in [(100, Verdict::Warn), (256, Verdict::Ok)] {
        let node = Node::new(false, "0-1");
        node.group("kubepods", 2_048, "0-1");
        node.group("kubepods/burstable", 2_048, "0-1");
        node.group(&format!("kubepods/burstable/pod{LARDERD}"), shares, "0-1");
        node.group(&format!("kubepods/burstable/pod{TRAINING}"), 1_700, "0-1");
        let found = node.finding();
        assert_eq!(found.verdict, verdict, "{}", found.found);
    }
}

#[test]
fn a_node_without_larderd_or_without_its_cgroup_is_no_fault() {
    let node = Node::new(true, "0-63");
    assert!(node.finding().found.contains("not visible here"));
    std::fs::remove_dir_all(node.kubelet()).unwrap();
    let found = node.finding();
    assert_eq!((found.verdict, found.found.as_str()), (Verdict::Ok, "larderd does not run on this node"));
}
