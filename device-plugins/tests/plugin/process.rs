//! The whole program.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use larder_devices::cdi;
use larder_testkit::machine::{MachinePlan, MadeUpMachine};

use crate::kubelet::Kubelet;

const HCA: &str = "larder.dev/hca";

/// A process of the program, killed when dropped.
struct Program(Child);

impl Program {
    /// On this machine, with its folders in `root`. There are no API server, no container runtime and no library of GPUs.
    fn start(root: &Path, machine: &MadeUpMachine, log: impl Into<Stdio>) -> Self {
        let in_root = |flag: &str, name: &str| format!("--{flag}={}", root.join(name).display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_larder-devices"));
        command.args(["--node=n1", "--nvml=/no/nvml", "--vendor-cdi-dir=/no/cdi"]);
        command.arg(format!("--sysfs={}", machine.sysfs().display()));
        command.arg(format!("--dev={}", machine.dev().display()));
        for (flag, name) in [
            ("config", "config.yaml"),
            ("kubelet-dir", "kubelet"),
            ("cdi-dir", "cdi"),
            ("nri-socket", "nri.sock"),
            ("cgroups", "cgroup"),
            ("hook", "hook.image"),
            ("hook-dir", "hook"),
            ("faults", "faults.json"),
        ] {
            command.arg(in_root(flag, name));
        }
        command.env_clear().env("KUBECONFIG", "/no/kubeconfig").stdout(Stdio::null()).stderr(log);
        Self(command.spawn().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test]
async fn a_process_that_starts_again_leaves_the_cdi_file_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    let machine = MadeUpMachine::new(MachinePlan::eight_pairs()).unwrap();
    let config = format!("resources:\n- {{name: {HCA}, kind: rdma, limits: {{hcaObjects: 5}}}}\n");
    std::fs::write(root.path().join("config.yaml"), config).unwrap();
    // What the limit needs.
    std::fs::write(root.path().join("hook.image"), "a program").unwrap();
    std::fs::create_dir_all(root.path().join("cgroup/rdma")).unwrap();
    std::fs::write(root.path().join("cgroup/rdma/cgroup.procs"), "").unwrap();
    let plugins = root.path().join("kubelet/device-plugins");
    std::fs::create_dir_all(&plugins).unwrap();
    let kubelet = Kubelet::start(&plugins);
    let mut written = Vec::new();
    for life in 1..=3 {
        let program = Program::start(root.path(), &machine, Stdio::inherit());
        kubelet.until("registered", |known| known.registrations.len() == life).await;
        kubelet.until_healthy(HCA, 8).await;
        let file = root.path().join("cdi").join(cdi::FILE);
        let found = file.metadata().unwrap();
        written.push((found.ino(), found.mtime(), found.mtime_nsec()));
        drop(program);
    }
    // Not for a moment was it without the devices: containers that start in it would fail.
    written.dedup();
    assert_eq!(written.len(), 1, "{written:?}");
}

#[tokio::test]
async fn gpus_without_their_library_and_resources_without_devices_are_in_the_log_once() {
    let root = tempfile::tempdir().unwrap();
    let machine = MadeUpMachine::new(MachinePlan::eight_pairs()).unwrap();
    let config = format!("resources:\n- {{name: {HCA}, kind: rdma}}\n- {{name: larder.dev/gpu, kind: gpu}}\n");
    std::fs::write(root.path().join("config.yaml"), config).unwrap();
    let plugins = root.path().join("kubelet/device-plugins");
    std::fs::create_dir_all(&plugins).unwrap();
    let kubelet = Kubelet::start(&plugins);
    let log = root.path().join("log");
    let program = Program::start(root.path(), &machine, File::create(&log).unwrap());
    kubelet.until_healthy(HCA, 8).await;
    drop(program);
    let log = std::fs::read_to_string(log).unwrap();
    let lines = |words: &[&str]| log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count();
    assert_eq!(lines(&["WARN", "/no/nvml", "8 GPUs on the PCI bus are not offered", "No such file"]), 1, "{log}");
    assert_eq!(lines(&["INFO", "larder.dev/gpu", "devices of a resource", "devices=0"]), 1, "{log}");
    assert_eq!(lines(&["INFO", HCA, "devices of a resource", "devices=8"]), 1, "{log}");
}
