//! The test cluster itself: it works, and it leaves nothing behind.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use larder_testkit::{Cluster, repository};

fn pod(name: &str, node: u32, script: &str) -> String {
    format!(
        r#"---
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  nodeName: n{node}
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: {image}
    imagePullPolicy: Never
    command: [sh, -c, "{script}"]
    securityContext: {{privileged: true}}
    volumeMounts: [{{name: kubelet, mountPath: /var/lib/kubelet, mountPropagation: Bidirectional}}]
  volumes: [{{name: kubelet, hostPath: {{path: /var/lib/kubelet}}}}]
"#,
        image = Cluster::BUSYBOX
    )
}

#[test]
fn cluster_runs_pods_that_reach_the_test() {
    let cluster = Cluster::shared();
    let listener = cluster.listen(0);
    let script = format!("nc 10.89.0.1 {}; exec tail -f /dev/null", listener.local_addr().expect("bound").port());
    cluster.apply(&(pod("one", 1, &script) + &pod("two", 2, &script)));

    let hello = std::thread::spawn(move || {
        for _ in 0..2 {
            listener.accept().expect("a pod connects").0.write_all(b"hello\n").expect("a pod reads");
        }
    });
    for name in ["one", "two"] {
        cluster.wait_for(name, Duration::from_secs(60), || cluster.kubectl(&["logs", name]).stdout == b"hello\n");
    }
    hello.join().expect("both connected");
    assert!(cluster.exec_in_pod("default", "one", &["test", "-c", "/dev/fuse"]).status.success());
    let node = &cluster.get_json(&["pod", "two"])["spec"]["nodeName"];
    assert_eq!(node, "n2");

    // A pod's mount below /var/lib/kubelet is visible on its node and on no other node.
    let mount = "mkdir /var/lib/kubelet/made && mount -t tmpfs made /var/lib/kubelet/made";
    assert!(cluster.exec_in_pod("default", "two", &["sh", "-c", mount]).status.success());
    assert!(cluster.node_folder(2).join("made").is_dir());
    assert!(cluster.mounts_of_node(2).contains("/var/lib/kubelet/made"));
    assert!(!cluster.mounts_of_node(1).contains("/var/lib/kubelet/made"));

    assert_eq!(cluster.pids("kubelet").len(), 2);
    let (pods, kubelets) = (cluster.pids_on_node(1, "tail"), cluster.pids_on_node(1, "kubelet"));
    assert_eq!((pods.len(), kubelets.len()), (1, 1));
    cluster.restart_kubelet(1);
    cluster.restart_containerd(1);
    assert_ne!(cluster.pids_on_node(1, "kubelet"), kubelets);
    assert_eq!(cluster.pids_on_node(1, "tail"), pods);
    cluster.wait_for("a pod after the restart", Duration::from_secs(30), || {
        cluster.exec_in_pod("default", "one", &["true"]).status.success()
    });
    let undo = "umount /var/lib/kubelet/made && rmdir /var/lib/kubelet/made";
    assert!(cluster.exec_in_pod("default", "two", &["sh", "-c", undo]).status.success());
    cluster.kubectl_ok(&["delete", "pods", "one", "two"]);
}

/// A pod that meets the strictest Pod Security standard and has exclusive CPUs.
fn training_pod(name: &str, node: u32, script: &str) -> String {
    format!(
        r#"---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: strict, labels: {{job: found}}}}
spec:
  nodeName: n{node}
  hostname: {name}
  subdomain: found
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  securityContext: {{runAsNonRoot: true, runAsUser: 1234, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
  - name: main
    image: {image}
    imagePullPolicy: Never
    command: [python3, -c, "{script}"]
    resources: {{limits: {{cpu: 1, memory: 400Mi}}}}
    securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
"#,
        image = Cluster::TRAINING
    )
}

#[test]
fn pods_compute_with_pytorch_on_cpus_of_their_own_and_find_each_other_by_name() {
    let cluster = Cluster::shared();
    cluster.load_training_image();
    cluster.kubectl_ok(&["create", "namespace", "strict"]);
    cluster.kubectl_ok(&["label", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted"]);
    let listen = "import socket as s; s.create_server(('', 80 << 7)).accept()[0].sendall(b'hello')";
    let compute = "\
import os, socket as s, time, torch
def call():
  while True:
    try: return s.create_connection(('one.found', 80 << 7)).recv(9).decode()
    except OSError: time.sleep(0.1)
print(call(), int(torch.arange(10).sum()), torch.distributed.is_gloo_available(), sorted(os.sched_getaffinity(0)))";
    cluster.apply(
        &("apiVersion: v1\nkind: Service\nmetadata: {name: found, namespace: strict}\n\
           spec: {clusterIP: None, selector: {job: found}, publishNotReadyAddresses: true}\n"
            .to_owned()
            + &training_pod("one", 1, listen)
            + &training_pod("two", 2, &compute.replace('\n', "\\n"))),
    );
    let all = std::thread::available_parallelism().expect("it is known").get();
    let said = || cluster.kubectl(&["logs", "-n", "strict", "two"]).stdout;
    cluster.wait_for("the sum", Duration::from_secs(60), || !said().is_empty());
    let said = String::from_utf8(said()).expect("text");
    let cpus = said.trim().strip_prefix("hello 45 True [").and_then(|cpus| cpus.strip_suffix(']'));
    let cpus: Vec<usize> = cpus.expect(&said).split(", ").map(|cpu| cpu.parse().expect(&said)).collect();
    // CPU 0 is reserved for processes that are not pinned.
    assert!(cpus.len() == 1 && (1..all).contains(&cpus[0]), "{cpus:?} of {all}");
    cluster.kubectl_ok(&["delete", "namespace", "strict"]);
}

#[test]
fn a_shared_cluster_is_handed_from_test_to_test_and_a_failed_one_is_not() {
    let first = Cluster::shared();
    let folder = first.note("").parent().expect("the cluster's folder").to_owned();
    fs::write(first.note("test"), "seen").expect("write");
    let waiting = std::thread::spawn(|| {
        let second = Cluster::shared();
        fs::read_to_string(second.note("test")).expect("the same cluster")
    });
    std::thread::sleep(Duration::from_millis(500));
    assert!(!waiting.is_finished(), "one at a time");
    drop(first);
    assert_eq!(waiting.join().expect("no panic"), "seen");

    let failed = std::thread::spawn(|| {
        let _third = Cluster::shared();
        panic!("made up");
    });
    assert!(failed.join().is_err());
    assert!(!folder.exists(), "the cluster of a failed test is gone");
}

#[test]
fn cluster_ends_with_its_owner_and_leaves_nothing() {
    let beside = Cluster::start(1);
    let interfaces = interfaces();
    let folder = std::env::temp_dir().join(format!("larder-owner-{}", std::process::id()));
    let script = repository().join("tests/cluster/cluster.sh");
    let mut owner = Command::new("bash")
        .args(["-c", r#""$0" start "$1" 1 && "$0" exec "$1" kubectl apply -f "$2" >&2 && echo up && read"#])
        .args([&script, &folder, &manifest(&beside)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("bash runs");
    let mut up = String::new();
    BufReader::new(owner.stdout.as_mut().expect("a pipe")).read_line(&mut up).expect("a pipe");
    assert_eq!(up, "up\n");
    let traces = Traces::of(&folder);
    let started = Instant::now();
    while !traces.found().iter().any(|trace| trace.contains("kubepods")) {
        assert!(started.elapsed() < Duration::from_secs(30), "the pod does not start: {:#?}", traces.found());
        std::thread::sleep(Duration::from_millis(100));
    }

    owner.kill().expect("it runs");
    owner.wait().expect("it ends");
    traces.wait_until_gone();
    assert_eq!(self::interfaces(), interfaces);

    // The other cluster has the same addresses and is untouched.
    assert_eq!(beside.get_json(&["nodes"])["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(beside.get_json(&["pods"])["items"].as_array().map(Vec::len), Some(0));
    let of_beside = Traces::of(beside.node_folder(1).ancestors().nth(2).expect("the cluster's folder"));
    assert!(!of_beside.found().is_empty());
    drop(beside);
    of_beside.wait_until_gone();
}

/// Writes a pod's manifest to a file in the cluster's folder.
fn manifest(cluster: &Cluster) -> PathBuf {
    let file = cluster.node_folder(1).with_file_name("pod.yaml");
    fs::write(&file, pod("sleeper", 1, "sleep 1000")).expect("write");
    file
}

/// Network interfaces of this machine.
fn interfaces() -> BTreeSet<PathBuf> {
    fs::read_dir("/sys/class/net").expect("read").map(|entry| entry.expect("read").path()).collect()
}

/// Traces that a cluster leaves visible on this machine.
struct Traces {
    folder: PathBuf,
    cgroup: String,
    /// The processes' namespace. Held open, because the kernel gives the number of one that has ended to the next one made.
    processes: File,
}

impl Traces {
    fn of(folder: &Path) -> Self {
        let read = |name: &str| fs::read_to_string(folder.join(name)).expect("a started cluster has this file");
        let first = PathBuf::from("/proc").join(read("pid").trim());
        let processes = File::open(first.join("ns/pid")).expect("its first process runs");
        Self { folder: folder.to_owned(), cgroup: read("cgroup").trim().to_owned(), processes }
    }

    /// Waits until no traces remain. The guard checks twice a second.
    fn wait_until_gone(&self) {
        let started = Instant::now();
        while !self.found().is_empty() {
            assert!(started.elapsed() < Duration::from_secs(10), "left behind: {:#?}", self.found());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn found(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let folder = self.folder.to_str().expect("UTF-8");
        let namespace = self.processes.metadata().expect("an open file").ino();
        for entry in fs::read_dir("/proc").expect("read").flatten() {
            let process = entry.path();
            let cgroup = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
            let command = fs::read(process.join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            let inside = fs::metadata(process.join("ns/pid")).is_ok_and(|other| other.ino() == namespace);
            if cgroup.contains(&self.cgroup) || command.contains(folder) || inside {
                let cgroup = cgroup.lines().find(|line| line.contains(&self.cgroup)).unwrap_or_default();
                found.insert(format!("{} {command} {cgroup}", process.display()));
            }
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("read");
        found.extend(mounts.lines().filter(|mount| mount.contains(folder)).map(str::to_owned));
        let mut trees = vec![PathBuf::from("/sys/fs/cgroup")];
        trees.extend(fs::read_dir("/sys/fs/cgroup").expect("read").flatten().map(|entry| entry.path()));
        let cgroups = trees.iter().map(|tree| tree.join(&self.cgroup));
        let left = cgroups.chain([self.folder.clone()]).filter(|path| path.exists());
        found.extend(left.map(|path| path.display().to_string()));
        found
    }
}
