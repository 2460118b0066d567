//! A real Kubernetes cluster, started by `tests/cluster/cluster.sh`.
//!
//! The invariant: a cluster leaves nothing behind. Dropping a test's own [`Cluster`] stops it; a shared cluster ends
//! with the test run. The script's guard stops a cluster whose owner was killed. All of a cluster except its cgroups is
//! in its own namespaces, so two clusters never interfere.

mod processes;
mod shared;

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use crate::repository::repository;
use processes::processes;
use shared::Turn;

/// Number of nodes of the shared cluster.
const SHARED_NODES: u32 = 2;

/// Words of errors that say nothing about the object: an API server or an etcd that does not answer in time.
const BUSY: [&str; 4] = ["etcdserver: ", "timed out", "TLS handshake timeout", "connection refused"];

/// How long a test waits for its answer.
const BUSY_MOST: Duration = Duration::from_secs(120);

/// Pauses of a wait between two questions.
const PAUSE_LEAST: Duration = Duration::from_millis(100);
const PAUSE_MOST: Duration = Duration::from_secs(1);

/// A running cluster with the nodes `n1`, `n2` and so on. Pods find each other by the names of headless services. If a
/// panic drops it, it prints the state and the logs of its pods to standard error.
#[derive(Debug)]
pub struct Cluster {
    folder: PathBuf,
    pid: u32,
    cgroup: String,
    /// The test's turn in a shared cluster; `None` for a test's own cluster.
    turn: Option<Turn>,
}

impl Cluster {
    /// The address of the bridge, where pods reach the sockets of [`Self::listen`].
    pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 89, 0, 1);

    /// An image with a shell and the usual tools, present on every node.
    pub const BUSYBOX: &str = "larder.dev/busybox:1";

    /// An image with Debian's Python, PyTorch and Open MPI, after [`Self::load_training_image`].
    pub const TRAINING: &str = "larder.dev/training:1";

    /// Starts the test's own cluster and waits until all nodes are ready. Dropping it stops it.
    pub fn start(nodes: u32) -> Self {
        let folder = temporary();
        start(&folder, nodes, std::process::id(), &[]);
        Self::at(folder, None)
    }

    /// Starts the test's own cluster, without nodes. A Node with the annotation `kwok.x-k8s.io/node: fake` is ready,
    /// and its pods run as `tests/cluster/kwok-pods.yaml` says, until the annotation is removed. Dropping the cluster
    /// stops it.
    pub fn of_fake_nodes() -> Self {
        Self::of_fake_nodes_and(0, &[])
    }

    /// As [`Self::of_fake_nodes`], with `real` real nodes in addition.
    pub fn of_fake_and_real_nodes(real: u32) -> Self {
        Self::of_fake_nodes_and(real, &[])
    }

    /// As [`Self::of_fake_nodes`], with Kubernetes 1.37, whose scheduler places gangs. `tests/cluster/peers.sh install`
    /// builds it.
    pub fn of_fake_nodes_with_gangs() -> Self {
        Self::of_fake_nodes_and(0, &[("LARDER_TEST_KUBERNETES", "v1.37.0")])
    }

    /// Starts Kueue in the cluster. `tests/cluster/kueue.sh install` builds it. Kueue ends with the cluster.
    pub fn start_kueue(&self, mode: &[&str]) {
        let mut command = Command::new(repository().join("tests/cluster/kueue.sh"));
        let started = command.arg("start").arg(&self.folder).args(mode).output().expect("Kueue's script runs");
        succeeded("kueue.sh start", &started);
    }

    /// Starts the controllers of JobSets, TrainJobs, MPIJobs, RayJobs and LeaderWorkerSets in the cluster.
    /// `tests/cluster/controllers.sh install` builds them. They end with the cluster.
    pub fn start_controllers(&self) {
        let mut command = Command::new(repository().join("tests/cluster/controllers.sh"));
        let started = command.arg("start").arg(&self.folder).output().expect("the controllers' script runs");
        succeeded("controllers.sh start", &started);
    }

    fn of_fake_nodes_and(real: u32, environment: &[(&str, &str)]) -> Self {
        let folder = temporary();
        let (owner, real) = (std::process::id().to_string(), real.to_string());
        let mut kwok = Command::new(repository().join("tests/cluster/kwok.sh"));
        started(kwok.arg("start").arg(&folder).args([&owner, "pods", &real]).envs(environment.iter().copied()));
        Self::at(folder, None)
    }

    /// The two-node cluster that the tests of this run share, one at a time: this waits until earlier tests have ended.
    /// A test works in its own namespace, leaves no pod behind, and undoes its changes to the nodes. After a failed
    /// test, the next test gets a new cluster.
    pub fn shared() -> Self {
        Self::shared_by("run", &[])
    }

    /// A second shared cluster, for tests of devices. Its nodes have two fake NUMA nodes with a CPU each. The kubelets
    /// align devices to these NUMA nodes and report to the API server every second.
    pub fn shared_with_devices() -> Self {
        Self::shared_by("devices", &[("LARDER_TEST_DEVICES", "1")])
    }

    fn shared_by(tests: &str, environment: &[(&str, &str)]) -> Self {
        let turn = Turn::take(tests);
        if !turn.finds_a_sound_cluster() {
            if turn.folder().exists() {
                stop(turn.folder());
            }
            start(turn.folder(), SHARED_NODES, turn.run, environment);
        }
        turn.begin();
        Self::at(turn.folder().to_owned(), Some(turn))
    }

    fn at(folder: PathBuf, turn: Option<Turn>) -> Self {
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a started cluster has this file");
        let pid = read("pid").trim().parse().expect("a process id");
        let cgroup = read("cgroup").trim().to_owned();
        Self { folder, pid, cgroup, turn }
    }

    /// The cluster's folder, for the other scripts in `tests/cluster`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A file in the cluster's folder, with which tests record their set-up for later tests.
    pub fn note(&self, name: &str) -> PathBuf {
        self.folder.join(format!("note-{name}"))
    }

    /// Runs `work`, unless an earlier test of this cluster has run it, under the same name.
    pub fn once(&self, name: &str, work: impl FnOnce()) {
        let note = self.note(name);
        if !note.exists() {
            work();
            std::fs::write(note, "").expect("a file in the cluster's folder");
        }
    }

    /// The administrator's kubeconfig. Its API server is in the cluster's network ([`Self::in_network`]).
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// Runs kubectl as the cluster's administrator.
    pub fn kubectl(&self, args: &[&str]) -> Output {
        self.exec(&[&["kubectl"], args].concat())
    }

    /// Runs kubectl, which must succeed, and returns its output.
    pub fn kubectl_ok(&self, args: &[&str]) -> String {
        succeeded(&format!("kubectl {args:?}"), &self.kubectl(args))
    }

    /// Applies manifests.
    pub fn apply(&self, yaml: &str) {
        let mut kubectl = script();
        kubectl.arg("exec").arg(&self.folder).args(["kubectl", "apply", "-f", "-"]);
        let mut kubectl = kubectl
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the cluster's script runs");
        // A kubectl that rejects its input closes the pipe. The reason is in its output, so the write error is ignored.
        let _ = kubectl.stdin.take().expect("stdin is a pipe").write_all(yaml.as_bytes());
        let output = kubectl.wait_with_output().expect("the cluster's script ends");
        succeeded(&format!("kubectl apply of\n{yaml}\n"), &output);
    }

    /// `kubectl get ARGS -o json`, repeated while the API server is too busy to answer.
    pub fn get_json(&self, args: &[&str]) -> Value {
        let args = [&["get", "-o", "json"], args].concat();
        let started = Instant::now();
        loop {
            let output = self.kubectl(&args);
            let is_busy = BUSY.iter().any(|words| text(&output.stderr).contains(words));
            if output.status.success() || !is_busy || started.elapsed() > BUSY_MOST {
                let json = succeeded(&format!("kubectl {args:?}"), &output);
                return serde_json::from_str(&json).expect("kubectl prints JSON");
            }
            std::thread::sleep(PAUSE_MOST);
        }
    }

    /// Runs a command in a pod's first container.
    pub fn exec_in_pod(&self, namespace: &str, pod: &str, args: &[&str]) -> Output {
        self.kubectl(&[&["exec", "-n", namespace, pod, "--"], args].concat())
    }

    /// Waits until `done` returns true, and calls it up to ten times per second, less often if it takes long. Panics
    /// after `timeout`.
    pub fn wait_for(&self, what: &str, timeout: Duration, mut done: impl FnMut() -> bool) {
        let started = Instant::now();
        loop {
            let asked = Instant::now();
            if done() {
                return;
            }
            assert!(started.elapsed() < timeout, "waited {timeout:?} in vain for {what}");
            // A kubectl takes a core while it runs, which the test's own pods may need.
            std::thread::sleep((asked.elapsed() * 2).clamp(PAUSE_LEAST, PAUSE_MOST));
        }
    }

    /// Loads an image archive, such as `deploy/images/build` writes, into all nodes.
    pub fn load_image(&self, archive: &Path) {
        let loaded = script().arg("load").arg(&self.folder).arg(archive).output().expect("the cluster's script runs");
        succeeded(&format!("load {}", archive.display()), &loaded);
    }

    /// Loads [`Self::TRAINING`] into all nodes, unless an earlier test has loaded it.
    pub fn load_training_image(&self) {
        self.once("training-image", || {
            let mut command = Command::new(repository().join("tests/cluster/training.sh"));
            let loaded = command.arg("load").arg(&self.folder).output().expect("the image's script runs");
            succeeded("training.sh load", &loaded);
        });
    }

    /// Node `n`'s `/var/lib/kubelet`, as a path of this machine. The node's mounts are not visible below this path; use
    /// [`Self::mounts_of_node`] or [`Self::exec_on_node`].
    pub fn node_folder(&self, n: u32) -> PathBuf {
        self.folder.join(format!("n{n}/kubelet"))
    }

    /// Runs a command in the cluster's namespaces: it sees the bridge and all processes.
    pub fn exec(&self, args: &[&str]) -> Output {
        let mut command = script();
        command.arg("exec").arg(&self.folder).args(args).stdin(Stdio::null());
        command.output().expect("the cluster's script runs")
    }

    /// Runs a command in a node's namespaces: it sees the node's mounts and interfaces.
    pub fn exec_on_node(&self, n: u32, args: &[&str]) -> Output {
        let mut command = script();
        command.arg("exec-node").arg(&self.folder).arg(n.to_string()).args(args).stdin(Stdio::null());
        command.output().expect("the cluster's script runs")
    }

    /// The cluster's processes that run this command, with their ids in this machine's PID namespace.
    pub fn pids(&self, command: &str) -> Vec<u32> {
        processes(&format!("/{}/", self.cgroup), command)
    }

    /// As [`Self::pids`], restricted to one node: its pods, its kubelet and its containerd.
    pub fn pids_on_node(&self, n: u32, command: &str) -> Vec<u32> {
        processes(&format!("/{}/n{n}/", self.cgroup), command)
    }

    /// Restarts a node's kubelet and waits for the new one.
    pub fn restart_kubelet(&self, n: u32) {
        self.restart("kubelet", n);
    }

    /// Restarts a node's containerd and waits for the new one. Pods keep running.
    pub fn restart_containerd(&self, n: u32) {
        self.restart("containerd", n);
    }

    fn restart(&self, part: &str, n: u32) {
        let restarted = script().arg("restart").arg(&self.folder).arg(part).arg(n.to_string()).output();
        succeeded(&format!("restart {part} of n{n}"), &restarted.expect("the cluster's script runs"));
    }

    /// Listens on [`Self::HOST`] in the cluster's network, with a socket of this process. Port 0 chooses a free port.
    pub fn listen(&self, port: u16) -> TcpListener {
        self.in_network(|| TcpListener::bind((Self::HOST, port)).expect("the port is free in the cluster"))
    }

    /// Runs `work` on a thread in the cluster's network. Sockets stay in the network in which they were created, so
    /// `work` may return them to any thread.
    pub fn in_network<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let network = std::fs::File::open(format!("/proc/{}/ns/net", self.pid)).expect("the cluster runs");
        let enter_and_work = || {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may enter it");
            work()
        };
        std::thread::scope(|scope| scope.spawn(enter_and_work).join()).expect("the work in the cluster's network")
    }

    /// The mounts of a node: `/proc/PID/mountinfo` of its kubelet.
    pub fn mounts_of_node(&self, n: u32) -> String {
        let kubelets = self.pids_on_node(n, "kubelet");
        let kubelet = kubelets.first().expect("the node's kubelet runs");
        std::fs::read_to_string(format!("/proc/{kubelet}/mountinfo")).expect("the node's kubelet runs")
    }

    /// The pods, the events and the last lines of the pods' logs, for diagnosing a failed test.
    fn tell(&self) -> String {
        let first = std::fs::read_to_string(self.folder.join("log/init.log"));
        let mut told = format!("\n--- the log of the first process\n{}", first.unwrap_or_default());
        let mut add = |args: &[&str]| {
            let output = self.kubectl(args);
            told += &format!("\n--- kubectl {}\n{}{}", args.join(" "), text(&output.stdout), text(&output.stderr));
        };
        add(&["get", "nodes,pods", "-A", "-o", "wide"]);
        add(&["get", "events", "-A", "--sort-by=.metadata.creationTimestamp"]);
        let pods = "jsonpath={range .items[*]}{.metadata.namespace} {.metadata.name}{\"\\n\"}{end}";
        for pod in text(&self.kubectl(&["get", "pods", "-A", "-o", pods]).stdout).lines() {
            if let Some((namespace, name)) = pod.split_once(' ') {
                add(&["logs", "-n", namespace, name, "--all-containers", "--prefix", "--tail=50"]);
            }
        }
        told
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        if failed {
            eprintln!("{}", self.tell());
        }
        match &self.turn {
            Some(turn) if !failed => turn.end_well(),
            _ => stop(&self.folder),
        }
    }
}

fn temporary() -> PathBuf {
    tempfile::Builder::new().prefix("larder-k8s-").tempdir().expect("a temporary folder").keep()
}

fn start(folder: &Path, nodes: u32, owner: u32, environment: &[(&str, &str)]) {
    assert!(rustix::process::geteuid().is_root(), "a test cluster needs root: it makes namespaces and cgroups");
    assert!(Path::new("/dev/fuse").exists(), "a test cluster mounts for real, and there is no /dev/fuse here");
    let numbers = [nodes, owner].map(|number| number.to_string());
    started(script().arg("start").arg(folder).args(numbers).envs(environment.iter().copied()));
}

fn started(script: &mut Command) {
    let started = script.output().expect("the cluster's script runs");
    assert!(started.status.success(), "no cluster: {}", text(&started.stderr));
}

fn stop(folder: &Path) {
    let stopped = script().arg("stop").arg(folder).status();
    if !stopped.is_ok_and(|status| status.success()) {
        eprintln!("the cluster in {} was not stopped", folder.display());
    }
}

/// Runs `kubectl kustomize` on a folder. It needs no cluster.
pub fn kustomize(folder: &Path) -> Output {
    script().args(["kubectl", "kustomize"]).arg(folder).output().expect("the cluster's script runs")
}

fn script() -> Command {
    Command::new(repository().join("tests/cluster/cluster.sh"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeded(what: &str, output: &Output) -> String {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{what} failed: {out}{err}");
    out
}
