//! The whole program.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use larder_devices::cdi;
use larder_testkit::machine::{FakeMachine, MachinePlan};

use crate::kubelet::Kubelet;

const HCA: &str = "larder.dev/hca";

/// A process of the program, killed when dropped.
struct Program(Child);

impl Program {
    /// Starts the program on a fake machine, with its folders in `root`, and without an API server, a container runtime
    /// or NVML.
    fn start(root: &Path, machine: &FakeMachine, log: impl Into<Stdio>) -> Self {
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

    /// Waits until the program exits without a signal.
    fn end(&mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
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
    let machine = FakeMachine::new(MachinePlan::eight_pairs()).unwrap();
    let config = format!("resources:\n- {{name: {HCA}, kind: rdma, limits: {{hcaObjects: 5}}}}\n");
    std::fs::write(root.path().join("config.yaml"), config).unwrap();
    // The hook and the controller, which the limit needs.
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
    // The file was never without the devices: a container that starts at such a moment would fail.
    written.dedup();
    assert_eq!(written.len(), 1, "{written:?}");
}

// SEMANTICS: D25
#[tokio::test]
async fn gpus_without_their_library_and_resources_without_devices_are_in_the_log_once() {
    let root = tempfile::tempdir().unwrap();
    let machine = FakeMachine::new(MachinePlan::eight_pairs()).unwrap();
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
    assert_eq!(lines(&["INFO", "larder.dev/gpu", "number of devices changed", "devices=0"]), 1, "{log}");
    assert_eq!(lines(&["INFO", HCA, "number of devices changed", "devices=8"]), 1, "{log}");
}

#[tokio::test]
async fn a_wrong_configuration_ends_a_start_and_names_the_file_and_the_line() {
    let root = tempfile::tempdir().unwrap();
    let machine = FakeMachine::new(MachinePlan::eight_pairs()).unwrap();
    std::fs::create_dir_all(root.path().join("kubelet/device-plugins")).unwrap();
    let both = format!("resources:\n- {{name: {HCA}, kind: rdma}}\n- {{name: larder.dev/hcb, kind: rdma}}\n");
    for (config, line, why) in [
        ("resources:\n- {name: a/b, kind: rdma, shrae: 2}\n", 2, "unknown field `shrae`"),
        ("resources: []\n", 1, "resources is empty"),
        // This configuration is invalid only on this machine.
        (both.as_str(), 3, "larder.dev/hcb and larder.dev/hca (line 2) both select 0000:14:00.0"),
    ] {
        let (file, log) = (root.path().join("config.yaml"), root.path().join("log"));
        std::fs::write(&file, config).unwrap();
        let mut program = Program::start(root.path(), &machine, File::create(&log).unwrap());
        assert_eq!(program.end(), Some(1), "{config}");
        let log = std::fs::read_to_string(log).unwrap();
        let at = format!("{}, line {line}: ", file.display());
        assert!(log.contains(&at) && log.contains(why), "{config}{log}");
    }
}

#[tokio::test]
async fn a_wrong_configuration_of_a_running_process_is_in_the_log_and_the_old_one_stays_in_force() {
    let root = tempfile::tempdir().unwrap();
    let machine = FakeMachine::new(MachinePlan::eight_pairs()).unwrap();
    let config = root.path().join("config.yaml");
    let right = format!("resources:\n- {{name: {HCA}, kind: rdma}}\n");
    std::fs::write(&config, &right).unwrap();
    let plugins = root.path().join("kubelet/device-plugins");
    std::fs::create_dir_all(&plugins).unwrap();
    let kubelet = Kubelet::start(&plugins);
    let log = root.path().join("log");
    let _program = Program::start(root.path(), &machine, File::create(&log).unwrap());
    kubelet.until_healthy(HCA, 8).await;
    std::fs::write(&config, format!("{right}- {{name: larder.dev/hcb, kind: rdma}}\n")).unwrap();
    let at = format!("{}, line 3: larder.dev/hcb and {HCA} (line 2) both select", config.display());
    until_logged(&log, &["WARN", "new configuration refused", &at]).await;
    std::fs::write(&config, format!("{right}- {{name: larder.dev/gpu, kind: gpu}}\n")).unwrap();
    until_logged(&log, &["INFO", "configuration accepted"]).await;
    kubelet.until_healthy(HCA, 8).await;
}

/// Waits for a line with all of these words.
async fn until_logged(log: &Path, words: &[&str]) {
    let is_logged = |text: &str| text.lines().any(|line| words.iter().all(|word| line.contains(word)));
    let since = Instant::now();
    loop {
        let text = std::fs::read_to_string(log).unwrap();
        if is_logged(&text) {
            return;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "{words:?} is not in the log:\n{text}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
