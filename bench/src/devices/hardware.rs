//! The fake machine: 16 GPUs and 16 HCAs, two of each behind a PCIe switch, with eight switches on two NUMA nodes.

use std::path::{Path, PathBuf};

use anyhow::Context;
use larder_fake_machine::{FakeMachine, GpuPlan, HcaPlan, MachinePlan, PcieSlot};
use larder_fake_nvml::{FILE_NAME, Link};
use tempfile::TempDir;

/// Number of GPUs, and of HCAs.
pub(super) const PAIRS: u8 = 16;

/// A file in place of the hook's program. Nothing runs it.
pub(super) const HOOK: &str = "hook-program";

/// The devices of the machine.
pub(super) fn plan() -> MachinePlan {
    let slot = |nth: u8, device: u8| {
        let root = 0x20 * (nth / 2);
        PcieSlot::on_switch(root, 1, root + 1, 2 * (nth % 2) + device, i32::from(nth >= PAIRS / 2))
    };
    MachinePlan {
        gpus: (0..PAIRS).map(|nth| GpuPlan::h100(nth.into(), slot(nth, 0))).collect(),
        hcas: (0..PAIRS).map(|nth| HcaPlan::infiniband(nth.into(), slot(nth, 1))).collect(),
        ..MachinePlan::default()
    }
}

/// The machine in a temporary folder, which is removed when the value is dropped.
pub(super) struct Hardware {
    folder: TempDir,
    pub(super) machine: FakeMachine,
}

impl Hardware {
    /// `library` is the fake NVML.
    pub(super) fn new(library: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("make a temporary folder")?;
        let machine = FakeMachine::in_folder(folder.path(), plan()).context("make a fake machine (needs root)")?;
        let hardware = Self { folder, machine };
        for folder in ["nvml", "cgroup/rdma", "kubelet/device-plugins"] {
            std::fs::create_dir_all(hardware.path(folder)).with_context(|| format!("make the folder {folder}"))?;
        }
        // RDMA limits need this file; without it, no HCA would be in service.
        hardware.write("cgroup/rdma/cgroup.procs", "")?;
        hardware.write(HOOK, "not run")?;
        std::fs::copy(library, hardware.nvml()).with_context(|| format!("copy {}", library.display()))?;
        let mut driver = hardware.machine.plan().driver();
        for gpu in &mut driver.gpus {
            gpu.links = vec![Link::Switch; 18];
        }
        driver.write(&hardware.path("nvml").join(FILE_NAME)).context("write the machine of the fake NVML")?;
        Ok(hardware)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The path of the machine's copy of the fake NVML.
    pub(super) fn nvml(&self) -> PathBuf {
        self.path("nvml/libnvidia-ml.so.1")
    }

    /// Writes a file of the machine.
    pub(super) fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.path(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }
}
