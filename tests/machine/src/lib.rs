//! Fake machines with GPUs and HCAs: a sysfs and a `/dev` in a temporary directory, laid out as the kernel lays them
//! out.
//!
//! A [`MachinePlan`] describes a machine's devices as plain data. [`FakeMachine`] is the machine's directory, which it
//! changes as the kernel would while a program reads it. `plans` has the machines that tests share. GPUs are only PCI
//! functions and device nodes here; `larder-fake-nvml` reports their details from the same plan.

mod plan;
mod plans;
mod sysfs;

pub use plan::{GidPlan, GpuPlan, HcaPlan, MachinePlan, PORT_DOWN, PORT_UP, PcieSlot, PortPlan};

use std::io;
use std::path::{Path, PathBuf};

use sysfs::Sysfs;

/// A fake machine.
///
/// Its device nodes are real, with numbers that no driver serves here, so creating a machine needs root. Opening such a
/// node fails with ENXIO, or with EPERM if a cgroup forbids it.
#[derive(Debug)]
pub struct FakeMachine {
    folder: PathBuf,
    /// The temporary directory, removed on drop; `None` for a machine in a caller's folder.
    _scratch: Option<tempfile::TempDir>,
    sysfs: Sysfs,
    plan: MachinePlan,
}

impl FakeMachine {
    /// Creates the machine in a temporary directory, which is removed when the value is dropped.
    pub fn new(plan: MachinePlan) -> io::Result<Self> {
        let scratch = tempfile::tempdir()?;
        let machine = Self::in_folder(scratch.path(), plan)?;
        Ok(Self { _scratch: Some(scratch), ..machine })
    }

    /// Creates the machine in a folder and leaves it there.
    pub fn in_folder(folder: &Path, plan: MachinePlan) -> io::Result<Self> {
        let sysfs = Sysfs::new(folder);
        sysfs.write_skeleton(plan.exclusive_namespaces)?;
        for gpu in &plan.gpus {
            sysfs.add_gpu(gpu)?;
        }
        for hca in &plan.hcas {
            sysfs.add_hca(hca)?;
        }
        Ok(Self { folder: folder.to_owned(), _scratch: None, sysfs, plan })
    }

    /// The machine's current devices.
    pub fn plan(&self) -> &MachinePlan {
        &self.plan
    }

    /// The directory that stands for `/sys`.
    pub fn sysfs(&self) -> PathBuf {
        self.folder.join("sys")
    }

    /// The directory that stands for `/dev`.
    pub fn dev(&self) -> PathBuf {
        self.folder.join("dev")
    }

    /// The folder of an HCA: the target of its link in `class/infiniband`.
    pub fn hca_folder(&self, name: &str) -> PathBuf {
        self.sysfs().join("class/infiniband").join(name)
    }

    /// Sets `state` and `phys_state` of a port, such as [`PORT_UP`] or [`PORT_DOWN`].
    pub fn set_port(&mut self, hca: &str, port: u32, (state, phys_state): (&str, &str)) -> io::Result<()> {
        let folder = self.hca_folder(hca).join(format!("ports/{port}"));
        let planned = self.hca_mut(hca).ports.iter_mut().find(|planned| planned.number == port);
        let planned = planned.expect("the HCA has such a port");
        (planned.state, planned.phys_state) = (state.to_owned(), phys_state.to_owned());
        sysfs::rewrite(&folder.join("state"), state)?;
        sysfs::rewrite(&folder.join("phys_state"), phys_state)
    }

    /// Removes an HCA, as when its driver is unbound. Returns the HCA's plan, for [`FakeMachine::add_hca`].
    pub fn remove_hca(&mut self, name: &str) -> io::Result<HcaPlan> {
        let at = self.plan.hcas.iter().position(|hca| hca.name == name).expect("there is such an HCA");
        let hca = self.plan.hcas.remove(at);
        self.sysfs.remove_hca(&hca)?;
        Ok(hca)
    }

    /// Adds an HCA, as when its driver is bound.
    pub fn add_hca(&mut self, hca: HcaPlan) -> io::Result<()> {
        self.sysfs.add_hca(&hca)?;
        self.plan.hcas.push(hca);
        Ok(())
    }

    /// Renames an HCA, as `rdma dev set` does.
    pub fn rename_hca(&mut self, name: &str, new: &str) -> io::Result<()> {
        let hca = self.hca_mut(name);
        new.clone_into(&mut hca.name);
        let hca = hca.clone();
        self.sysfs.rename_hca(name, &hca)
    }

    /// Renames the network interfaces of an HCA, in its GIDs too, as udev does, or a pod that got the interface.
    pub fn set_netdevs(&mut self, hca: &str, netdevs: &[&str]) -> io::Result<()> {
        let planned = self.hca_mut(hca);
        let before = std::mem::replace(&mut planned.netdevs, netdevs.iter().map(|&name| name.to_owned()).collect());
        let first = planned.netdevs.first().cloned().unwrap_or_default();
        for gid in planned.ports.iter_mut().flat_map(|port| &mut port.gids).filter(|gid| !gid.netdev.is_empty()) {
            gid.netdev.clone_from(&first);
        }
        let planned = planned.clone();
        self.sysfs.replace_netdevs(&planned, &before)
    }

    /// Replaces the GIDs of an HCA's port.
    pub fn set_gids(&mut self, hca: &str, port: u32, gids: Vec<GidPlan>) -> io::Result<()> {
        let planned = self.hca_mut(hca).ports.iter_mut().find(|planned| planned.number == port);
        let planned = planned.expect("the HCA has such a port");
        planned.gids = gids;
        let planned = planned.clone();
        sysfs::write_gids(&self.hca_folder(hca), &planned)
    }

    /// The folder of the PCI function at an address, of any kind of device.
    pub fn pci_folder(&self, address: &str) -> PathBuf {
        self.sysfs().join("bus/pci/devices").join(address)
    }

    fn hca_mut(&mut self, name: &str) -> &mut HcaPlan {
        self.plan.hcas.iter_mut().find(|hca| hca.name == name).expect("there is such an HCA")
    }
}

/// Replaces a file, a link or a folder with an entry that `make` creates, so that a test sees how a reader reacts.
pub fn replace_entry(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => std::fs::remove_dir_all(path)?,
        Ok(_) => std::fs::remove_file(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    make(path)
}
