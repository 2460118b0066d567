//! Fake machines with GPUs and HCAs: a sysfs and a `/dev` in a temporary directory, laid out as the kernel lays them out.
//!
//! A [`MachinePlan`] says what a machine has, as plain data; [`FakeMachine`] is its directory, and changes it as the kernel
//! would while a program reads it. `plans` has the machines that tests share. GPUs are PCI functions and device nodes only:
//! `larder-fake-nvml` answers for them, from the same plan.

mod plan;
mod plans;
mod sysfs;

pub use plan::{GidPlan, GpuPlan, HcaPlan, MachinePlan, PORT_DOWN, PORT_UP, PcieSlot, PortPlan};

use std::io;
use std::path::{Path, PathBuf};

use sysfs::Sysfs;

/// A fake machine.
///
/// Its device nodes are real ones, with numbers that no driver serves here, so it takes root to make one. Opening such a node
/// fails with ENXIO, and with EPERM where a cgroup forbids it.
#[derive(Debug)]
pub struct FakeMachine {
    folder: PathBuf,
    /// Ends with the value.
    _scratch: Option<tempfile::TempDir>,
    sysfs: Sysfs,
    plan: MachinePlan,
}

impl FakeMachine {
    /// Makes the machine, which ends with the value.
    pub fn new(plan: MachinePlan) -> io::Result<Self> {
        let scratch = tempfile::tempdir()?;
        let machine = Self::in_folder(scratch.path(), plan)?;
        Ok(Self { _scratch: Some(scratch), ..machine })
    }

    /// Makes the machine in a folder, where it stays.
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

    /// What the machine has now.
    pub fn plan(&self) -> &MachinePlan {
        &self.plan
    }

    /// Its `/sys`.
    pub fn sysfs(&self) -> PathBuf {
        self.folder.join("sys")
    }

    /// Its `/dev`.
    pub fn dev(&self) -> PathBuf {
        self.folder.join("dev")
    }

    /// The folder of an HCA, behind its link in the class.
    pub fn hca_folder(&self, name: &str) -> PathBuf {
        self.sysfs().join("class/infiniband").join(name)
    }

    /// Changes the states of a port: [`PORT_UP`], [`PORT_DOWN`] or others.
    pub fn set_port(&mut self, hca: &str, port: u32, (state, phys_state): (&str, &str)) -> io::Result<()> {
        let folder = self.hca_folder(hca).join(format!("ports/{port}"));
        let planned = self.hca_mut(hca).ports.iter_mut().find(|planned| planned.number == port);
        let planned = planned.expect("the HCA has such a port");
        (planned.state, planned.phys_state) = (state.to_owned(), phys_state.to_owned());
        sysfs::rewrite(&folder.join("state"), state)?;
        sysfs::rewrite(&folder.join("phys_state"), phys_state)
    }

    /// Takes an HCA out, as when its driver is unbound. It returns the HCA's plan, for [`FakeMachine::add_hca`].
    pub fn remove_hca(&mut self, name: &str) -> io::Result<HcaPlan> {
        let at = self.plan.hcas.iter().position(|hca| hca.name == name).expect("there is such an HCA");
        let hca = self.plan.hcas.remove(at);
        self.sysfs.remove_hca(&hca)?;
        Ok(hca)
    }

    /// Puts an HCA in, as when its driver is bound.
    pub fn add_hca(&mut self, hca: HcaPlan) -> io::Result<()> {
        self.sysfs.add_hca(&hca)?;
        self.plan.hcas.push(hca);
        Ok(())
    }

    /// Gives an HCA another name, as `rdma dev set` does.
    pub fn rename_hca(&mut self, name: &str, new: &str) -> io::Result<()> {
        let hca = self.hca_mut(name);
        new.clone_into(&mut hca.name);
        let hca = hca.clone();
        self.sysfs.rename_hca(name, &hca)
    }

    /// Gives the network interfaces of an HCA other names, in its GIDs, too: as udev does, or a pod that an interface was moved to.
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

    /// Replaces what an HCA's port has of addresses.
    pub fn set_gids(&mut self, hca: &str, port: u32, gids: Vec<GidPlan>) -> io::Result<()> {
        let planned = self.hca_mut(hca).ports.iter_mut().find(|planned| planned.number == port);
        let planned = planned.expect("the HCA has such a port");
        planned.gids = gids;
        let planned = planned.clone();
        sysfs::write_gids(&self.hca_folder(hca), &planned)
    }

    /// The folder of the PCI function at an address, whatever it is.
    pub fn pci_folder(&self, address: &str) -> PathBuf {
        self.sysfs().join("bus/pci/devices").join(address)
    }

    fn hca_mut(&mut self, name: &str) -> &mut HcaPlan {
        self.plan.hcas.iter_mut().find(|hca| hca.name == name).expect("there is such an HCA")
    }
}

/// Puts something else in the place of a file, a link or a folder: to see what a reader makes of it.
pub fn replace_entry(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => std::fs::remove_dir_all(path)?,
        Ok(_) => std::fs::remove_file(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    make(path)
}
