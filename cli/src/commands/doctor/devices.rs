//! Checks of a node with GPUs and HCAs, for larder-devices. All files are below a root, so that tests can pass any
//! machine.

use std::path::Path;

use larder_rdma_limit::Controller;

use super::finding::{Finding, Verdict};
use super::host::release;
use super::release::version;

/// The findings of the machine whose files are below `root`.
pub(super) fn findings(root: &Path) -> Vec<Finding> {
    let hcas = names(&root.join("sys/class/infiniband"));
    let gpus = gpus(root);
    let has_gpus = root.join("proc/driver/nvidia/version").exists();
    let mut findings = vec![hca(&hcas)];
    if !gpus.is_empty() {
        findings.push(driver(gpus.len(), has_gpus));
    }
    if !hcas.is_empty() {
        findings.push(netns(&text(root, "sys/module/ib_core/parameters/netns_mode")));
        findings.push(controller(root));
        findings.push(memlock(root));
    }
    if !hcas.is_empty() && has_gpus {
        findings.push(peer_memory(root, &release()));
    }
    if !hcas.is_empty() || has_gpus {
        findings.push(nri(root));
        findings.push(cdi(root));
    }
    findings
}

/// The text of a file; empty if it cannot be read.
fn text(root: &Path, path: &str) -> String {
    std::fs::read(root.join(path)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// The names in a directory, sorted; none if it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The PCI addresses of NVIDIA's GPUs, except GPUs bound to another driver, such as vfio-pci for virtual machines.
fn gpus(root: &Path) -> Vec<String> {
    let devices = root.join("sys/bus/pci/devices");
    let is_gpu = |address: &String| {
        let attribute = |name: &str| text(&devices, &format!("{address}/{name}"));
        // The class of a display controller is 0x03 followed by its kind, such as 0x0302 for a controller without a
        // display.
        let driver = std::fs::read_link(devices.join(address).join("driver")).ok();
        let is_for_pods = driver.is_none_or(|driver| driver.ends_with("nvidia"));
        attribute("vendor").trim() == "0x10de" && attribute("class").starts_with("0x03") && is_for_pods
    };
    names(&devices).into_iter().filter(is_gpu).collect()
}

fn driver(gpus: usize, is_there: bool) -> Finding {
    let (verdict, found) = match is_there {
        true => (Verdict::Ok, format!("{gpus} with NVIDIA's driver")),
        false => (Verdict::Fail, format!("{gpus} without NVIDIA's driver: larder-devices offers none")),
    };
    Finding { what: "GPUs", verdict, found, remedy: "install NVIDIA's driver, or load it: modprobe nvidia" }
}

fn hca(names: &[String]) -> Finding {
    let found = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    Finding::ok("HCAs", found)
}

/// In exclusive mode an HCA belongs to one network namespace, so it cannot be shared with pods.
fn netns(mode: &str) -> Finding {
    let (verdict, found) = match mode.trim() {
        "N" | "0" => (Verdict::Fail, "exclusive: larder-devices cannot assign HCAs to pods"),
        "Y" | "1" => (Verdict::Ok, "shared"),
        _ => (Verdict::Ok, "shared (the kernel has no other mode)"),
    };
    let remedy = "run rdma system set netns shared before any pod starts; for the next boot, add the line options ib_core \
                  netns_mode=1 to a file in /etc/modprobe.d";
    Finding { what: "RDMA namespaces", verdict, found: found.to_owned(), remedy }
}

/// The rdma controller, as larder-devices and its hook find it.
fn controller(root: &Path) -> Finding {
    const WHAT: &str = "RDMA limits";
    let cgroups = root.join("sys/fs/cgroup");
    let Some(controller) = Controller::find(&cgroups) else {
        let remedy =
            "use a kernel with CONFIG_CGROUP_RDMA; with cgroup v1, mount its rdma controller at /sys/fs/cgroup/rdma";
        return Finding { what: WHAT, verdict: Verdict::Fail, found: "no rdma controller".to_owned(), remedy };
    };
    match (controller, Controller::missing_from(&cgroups)) {
        (Controller::V1, _) => Finding::ok(WHAT, "cgroup v1".to_owned()),
        (Controller::V2, None) => Finding::ok(WHAT, "cgroup v2".to_owned()),
        (Controller::V2, Some(folder)) => {
            let folder = folder.strip_prefix(root).unwrap_or(&folder).display();
            let remedy = "echo +rdma > /sys/fs/cgroup/cgroup.subtree_control, at each boot before the kubelet starts";
            Finding {
                what: WHAT,
                verdict: Verdict::Fail,
                found: format!("/{folder} lacks the rdma controller"),
                remedy,
            }
        }
    }
}

/// Containers inherit the limit of containerd, unless NRI sets a different limit.
fn memlock(root: &Path) -> Finding {
    const WHAT: &str = "locked memory";
    let processes = names(&root.join("proc"));
    let is_containerd = |pid: &&String| text(root, &format!("proc/{pid}/comm")).trim() == "containerd";
    let limits = processes.iter().find(is_containerd).map(|pid| text(root, &format!("proc/{pid}/limits")));
    let soft = limits.as_deref().and_then(|limits| {
        let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
        line.split_whitespace().next().map(str::to_owned)
    });
    let (verdict, found) = match soft.as_deref() {
        Some("unlimited") => (Verdict::Ok, "containers have no limit".to_owned()),
        Some(bytes) => (Verdict::Warn, format!("containers can lock only {bytes} bytes, too few for RDMA")),
        None => (Verdict::Warn, "unknown: containerd is not running".to_owned()),
    };
    let remedy = "set limits.memlock in the configuration of larder-devices (needs NRI), or LimitMEMLOCK=infinity in \
                  containerd's unit";
    Finding { what: WHAT, verdict, found, remedy }
}

/// HCAs access a GPU's memory through NVIDIA's peer-memory module, or through dma-buf with NVIDIA's open kernel
/// modules.
fn peer_memory(root: &Path, release: &str) -> Finding {
    let has_module = ["nvidia_peermem", "nv_peer_mem"].iter().any(|name| root.join("sys/module").join(name).exists());
    let has_open_driver = text(root, "proc/driver/nvidia/version").contains("Open Kernel Module");
    let has_dma_buf = has_open_driver && version(release).is_some_and(|kernel| kernel >= (5, 12));
    let (verdict, found) = match (has_module, has_dma_buf) {
        (true, _) => (Verdict::Ok, "nvidia_peermem is loaded"),
        (false, true) => (Verdict::Ok, "dma-buf"),
        (false, false) => (Verdict::Warn, "none: data is copied through host memory"),
    };
    let remedy = "modprobe nvidia_peermem, or use NVIDIA's open kernel modules on Linux 5.12 or later";
    Finding { what: "peer memory", verdict, found: found.to_owned(), remedy }
}

fn nri(root: &Path) -> Finding {
    let is_there = ["run/nri/nri.sock", "var/run/nri/nri.sock"].iter().any(|path| root.join(path).exists());
    let (verdict, found) =
        if is_there { (Verdict::Ok, "/var/run/nri/nri.sock") } else { (Verdict::Warn, "no /var/run/nri/nri.sock") };
    let remedy = "use containerd 2, or switch NRI on in containerd 1.7.7 or later; without it pods keep the runtime's limit of locked \
                  memory, and cannot ask for lower limits of RDMA";
    Finding { what: "NRI", verdict, found: found.to_owned(), remedy }
}

fn cdi(root: &Path) -> Finding {
    let folders = [("run/cdi", "/var/run/cdi"), ("var/run/cdi", "/var/run/cdi"), ("etc/cdi", "/etc/cdi")];
    let found: Vec<&str> = folders.iter().filter(|(path, _)| root.join(path).is_dir()).map(|(_, name)| *name).collect();
    let (verdict, found) = match found.first() {
        Some(folder) => (Verdict::Ok, (*folder).to_owned()),
        None => (Verdict::Warn, "neither /etc/cdi nor /var/run/cdi".to_owned()),
    };
    let remedy = "start larder-devices, which makes /var/run/cdi; containerd reads it from 2.0 on, and 1.7 with enable_cdi = true";
    Finding { what: "CDI", verdict, found, remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with these files.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        root
    }

    fn shown(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(|it| format!("{} {:?} {}", it.what, it.verdict, it.found)).collect()
    }

    #[test]
    fn a_machine_without_devices_has_no_problems() {
        assert_eq!(shown(&findings(machine(&[]).path())), ["HCAs Ok none"]);
    }

    #[test]
    fn a_node_with_all_components_has_no_problems() {
        let root = machine(&[
            ("sys/class/infiniband/mlx5_0/node_type", "1"),
            ("sys/module/ib_core/parameters/netns_mode", "Y\n"),
            ("sys/module/nvidia_peermem/refcnt", "0"),
            ("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module"),
            ("sys/fs/cgroup/cgroup.controllers", "cpu memory rdma pids\n"),
            ("sys/fs/cgroup/kubepods.slice/cgroup.controllers", "cpu memory rdma pids\n"),
            ("proc/7/comm", "containerd\n"),
            ("proc/7/limits", "Limit Soft Limit Hard Limit Units\nMax locked memory   unlimited  unlimited  bytes\n"),
            ("run/nri/nri.sock", ""),
            ("etc/cdi/nvidia.yaml", ""),
        ]);
        let expected = [
            "HCAs Ok mlx5_0",
            "RDMA namespaces Ok shared",
            "RDMA limits Ok cgroup v2",
            "locked memory Ok containers have no limit",
            "peer memory Ok nvidia_peermem is loaded",
            "NRI Ok /var/run/nri/nri.sock",
            "CDI Ok /etc/cdi",
        ];
        assert_eq!(shown(&findings(root.path())), expected);
    }

    #[test]
    fn each_missing_component_has_a_remedy() {
        let root = machine(&[
            ("sys/class/infiniband/mlx5_0/node_type", "1"),
            ("sys/module/ib_core/parameters/netns_mode", "N\n"),
            ("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module"),
            // The rdma controller of cgroup v1 is enabled, but not mounted.
            ("proc/cgroups", "#subsys_name hierarchy num_cgroups enabled\nrdma 0 1 1\ncpu 1 1 1\n"),
            ("proc/7/comm", "containerd\n"),
            ("proc/7/limits", "Max locked memory         8388608              8388608              bytes     \n"),
        ]);
        let findings = findings(root.path());
        let expected = [
            "HCAs Ok mlx5_0",
            "RDMA namespaces Fail exclusive: larder-devices cannot assign HCAs to pods",
            "RDMA limits Fail no rdma controller",
            "locked memory Warn containers can lock only 8388608 bytes, too few for RDMA",
            "peer memory Warn none: data is copied through host memory",
            "NRI Warn no /var/run/nri/nri.sock",
            "CDI Warn neither /etc/cdi nor /var/run/cdi",
        ];
        assert_eq!(shown(&findings), expected);
        assert!(findings.iter().skip(1).all(|it| !it.remedy.is_empty()));
    }

    #[test]
    fn the_controller_must_be_enabled_for_pods() {
        let of = |files: &[(&str, &str)]| controller(machine(files).path()).found;
        let all = ("sys/fs/cgroup/cgroup.controllers", "cpu rdma");
        assert_eq!(
            of(&[all, ("sys/fs/cgroup/kubepods/cgroup.controllers", "cpu")]),
            "/sys/fs/cgroup/kubepods lacks the rdma controller"
        );
        assert_eq!(of(&[("sys/fs/cgroup/cgroup.controllers", "cpu rdmax")]), "no rdma controller");
        assert_eq!(of(&[("sys/fs/cgroup/rdma/cgroup.procs", "")]), "cgroup v1");
    }

    #[test]
    fn gpus_need_a_driver() {
        let gpu = [
            ("sys/bus/pci/devices/0000:18:00.0/vendor", "0x10de\n"),
            ("sys/bus/pci/devices/0000:18:00.0/class", "0x030200\n"),
            // The GPU's audio function, and a display controller of another vendor.
            ("sys/bus/pci/devices/0000:18:00.1/vendor", "0x10de\n"),
            ("sys/bus/pci/devices/0000:18:00.1/class", "0x040300\n"),
            ("sys/bus/pci/devices/0000:02:00.0/vendor", "0x1a03\n"),
            ("sys/bus/pci/devices/0000:02:00.0/class", "0x030000\n"),
        ];
        let root = machine(&gpu);
        let found = shown(&findings(root.path()));
        assert_eq!(found, ["HCAs Ok none", "GPUs Fail 1 without NVIDIA's driver: larder-devices offers none"]);
        std::os::unix::fs::symlink("../vfio-pci", root.path().join(gpu[0].0).with_file_name("driver")).unwrap();
        assert_eq!(shown(&findings(root.path())), ["HCAs Ok none"], "it is given to a virtual machine");
        let driver = [&gpu[..], &[("proc/driver/nvidia/version", "NVRM version")]].concat();
        assert_eq!(shown(&findings(machine(&driver).path()))[1], "GPUs Ok 1 with NVIDIA's driver");
    }

    #[test]
    fn dma_buf_needs_the_open_modules_and_a_kernel_that_supports_it() {
        let open = machine(&[("proc/driver/nvidia/version", "NVIDIA UNIX Open Kernel Module for x86_64")]);
        assert_eq!(peer_memory(open.path(), "6.1.0").found, "dma-buf");
        assert_eq!(peer_memory(open.path(), "5.10.0").verdict, Verdict::Warn);
    }
}
