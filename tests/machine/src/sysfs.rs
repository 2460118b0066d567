//! The files of a fake machine, as the kernel lays them out: a tree of devices by position, and links into it.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::plan::{GpuPlan, HcaPlan, PcieSlot, PortPlan};

/// The major number of `uverbsN`, `umadN` and `issmN`, and the first minor number of each kind.
const RDMA_MAJOR: u32 = 231;
const UVERBS: u32 = 192;
const UMAD: u32 = 0;
const ISSM: u32 = 64;

/// The device number of `/dev/infiniband/rdma_cm`.
const RDMA_CM: (u32, u32) = (10, 58);

/// The major number of `/dev/nvidiaN`.
const NVIDIA_MAJOR: u32 = 195;

/// The directories that stand for `/sys` and `/dev`.
#[derive(Debug)]
pub(super) struct Sysfs {
    sys: PathBuf,
    dev: PathBuf,
}

/// Replaces the text of an attribute within its file, so that a reader with an open file sees the new text.
pub(super) fn rewrite(path: &Path, text: &str) -> io::Result<()> {
    let line = format!("{text}\n");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    // Old bytes may remain after the new line for a moment. Readers use only the first line.
    file.write_all(line.as_bytes())?;
    file.set_len(line.len() as u64)
}

/// The class links of an HCA: the link to the HCA first, then the links to its character devices.
fn class_links(hca: &HcaPlan) -> Vec<(&'static str, String)> {
    let mut links = vec![("infiniband", hca.name.clone()), ("infiniband_verbs", format!("uverbs{}", hca.uverbs))];
    for port in &hca.ports {
        links.extend(mad_names(port).map(|name| ("infiniband_mad", name)));
    }
    links
}

fn mad_names(port: &PortPlan) -> impl Iterator<Item = String> {
    let issm = (port.link_layer == "InfiniBand").then(|| format!("issm{}", port.umad));
    [format!("umad{}", port.umad)].into_iter().chain(issm)
}

fn mad_minor(name: &str, port: &PortPlan) -> u32 {
    port.umad + if name.starts_with("issm") { ISSM } else { UMAD }
}

/// Writes the whole GID table, in which most entries are zero. An empty entry has neither a type nor a network
/// interface.
pub(super) fn write_gids(hca: &Path, port: &PortPlan) -> io::Result<()> {
    let folder = hca.join(format!("ports/{}", port.number));
    for part in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
        fs::create_dir_all(folder.join(part))?;
    }
    for index in 0..port.gid_places {
        let gid = port.gids.iter().find(|gid| gid.index == index);
        let empty = "0000:0000:0000:0000:0000:0000:0000:0000";
        rewrite(&folder.join(format!("gids/{index}")), gid.map_or(empty, |gid| &gid.gid))?;
        for (part, text) in [("types", gid.map(|gid| &gid.gid_type)), ("ndevs", gid.map(|gid| &gid.netdev))] {
            let path = folder.join(format!("gid_attrs/{part}/{index}"));
            match text.filter(|text| !text.is_empty()) {
                Some(text) => rewrite(&path, text)?,
                // The kernel fails reads of the type and interface of an empty entry.
                None => drop(fs::remove_file(&path)),
            }
        }
    }
    Ok(())
}

impl Sysfs {
    pub(super) fn new(folder: &Path) -> Self {
        Self { sys: folder.join("sys"), dev: folder.join("dev") }
    }

    /// Writes the directories that every machine has.
    pub(super) fn write_skeleton(&self, exclusive_namespaces: bool) -> io::Result<()> {
        for folder in ["devices/virtual", "class/net", "bus/pci/devices", "module"] {
            fs::create_dir_all(self.sys.join(folder))?;
        }
        fs::create_dir_all(&self.dev)?;
        if exclusive_namespaces {
            self.attribute(Path::new("module/ib_core/parameters"), "netns_mode", "N")?;
        }
        Ok(())
    }

    pub(super) fn add_gpu(&self, gpu: &GpuPlan) -> io::Result<()> {
        self.add_function(&gpu.slot, ["10de", "2330", "030200"], "nvidia")?;
        self.node(&format!("nvidia{}", gpu.minor), (NVIDIA_MAJOR, gpu.minor))?;
        self.node("nvidiactl", (NVIDIA_MAJOR, 255))
    }

    pub(super) fn add_hca(&self, hca: &HcaPlan) -> io::Result<()> {
        let function = self.add_function(&hca.slot, [&hca.vendor, &hca.device, "020700"], &hca.driver)?;
        if let Some(physical) = &hca.physical_function {
            self.link(&function.join("physfn"), &function.with_file_name(physical))?;
        }
        self.attribute(&function, "sriov_numvfs", &hca.virtual_functions.len().to_string())?;
        for (nth, address) in hca.virtual_functions.iter().enumerate() {
            self.link(&function.join(format!("virtfn{nth}")), &function.with_file_name(address))?;
        }
        self.write_netdevs(hca)?;
        // The link in the class is what readers look for, so it comes last: no reader finds an incomplete HCA.
        self.write_nodes(hca, &function)?;
        let hca_folder = function.join("infiniband").join(&hca.name);
        self.attribute(&hca_folder, "node_guid", &hca.node_guid)?;
        self.attribute(&hca_folder, "node_type", "1: CA")?;
        self.link(&hca_folder.join("device"), &function)?;
        for port in &hca.ports {
            let folder = hca_folder.join(format!("ports/{}", port.number));
            let lid = format!("{:#x}", port.lid);
            for (name, text) in [
                ("link_layer", &port.link_layer),
                ("state", &port.state),
                ("phys_state", &port.phys_state),
                ("rate", &port.rate),
                ("lid", &lid),
            ] {
                self.attribute(&folder, name, text)?;
            }
            write_gids(&self.sys.join(&hca_folder), port)?;
        }
        for (class, name) in class_links(hca) {
            self.link(&Path::new("class").join(class).join(&name), &function.join(class).join(&name))?;
        }
        Ok(())
    }

    pub(super) fn remove_hca(&self, hca: &HcaPlan) -> io::Result<()> {
        let function = self.function(&hca.slot);
        for (class, name) in class_links(hca) {
            fs::remove_file(self.sys.join("class").join(class).join(&name))?;
        }
        for name in &hca.netdevs {
            fs::remove_file(self.sys.join("class/net").join(name))?;
        }
        for class in ["infiniband", "infiniband_verbs", "infiniband_mad", "net"] {
            match fs::remove_dir_all(self.sys.join(&function).join(class)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        class_links(hca)
            .iter()
            .skip(1)
            .try_for_each(|(_, node)| fs::remove_file(self.dev.join("infiniband").join(node)))
    }

    /// Renames an HCA from `before`. `hca` already has the new name.
    pub(super) fn rename_hca(&self, before: &str, hca: &HcaPlan) -> io::Result<()> {
        let function = self.function(&hca.slot);
        let folder = self.sys.join(&function).join("infiniband");
        fs::rename(folder.join(before), folder.join(&hca.name))?;
        fs::remove_file(self.sys.join("class/infiniband").join(before))?;
        for (class, name) in class_links(hca).iter().skip(1) {
            rewrite(&self.sys.join(&function).join(class).join(name).join("ibdev"), &hca.name)?;
        }
        self.link(&Path::new("class/infiniband").join(&hca.name), &function.join("infiniband").join(&hca.name))
    }

    /// Replaces the network interfaces `before`. `hca` already has the new ones.
    pub(super) fn replace_netdevs(&self, hca: &HcaPlan, before: &[String]) -> io::Result<()> {
        let function = self.function(&hca.slot);
        for name in before {
            fs::remove_file(self.sys.join("class/net").join(name))?;
            fs::remove_dir_all(self.sys.join(&function).join("net").join(name))?;
        }
        self.write_netdevs(hca)?;
        let folder = self.sys.join(&function).join("infiniband").join(&hca.name);
        hca.ports.iter().try_for_each(|port| write_gids(&folder, port))
    }

    fn write_netdevs(&self, hca: &HcaPlan) -> io::Result<()> {
        let function = self.function(&hca.slot);
        for name in &hca.netdevs {
            let netdev = function.join("net").join(name);
            self.attribute(&netdev, "operstate", "up")?;
            self.link(&netdev.join("device"), &function)?;
            self.link(&Path::new("class/net").join(name), &netdev)?;
        }
        Ok(())
    }

    /// The character devices of an HCA and its ports.
    fn write_nodes(&self, hca: &HcaPlan, function: &Path) -> io::Result<()> {
        let name = format!("uverbs{}", hca.uverbs);
        self.char_device(function, "infiniband_verbs", &name, hca, UVERBS + hca.uverbs)?;
        for port in &hca.ports {
            for name in mad_names(port) {
                let folder = self.char_device(function, "infiniband_mad", &name, hca, mad_minor(&name, port))?;
                self.attribute(&folder, "port", &port.number.to_string())?;
            }
        }
        self.node("infiniband/rdma_cm", RDMA_CM)?;
        self.attribute(Path::new("devices/virtual/misc/rdma_cm"), "dev", &format!("{}:{}", RDMA_CM.0, RDMA_CM.1))?;
        self.link(Path::new("class/misc/rdma_cm"), Path::new("devices/virtual/misc/rdma_cm"))
    }

    fn char_device(&self, function: &Path, class: &str, name: &str, hca: &HcaPlan, minor: u32) -> io::Result<PathBuf> {
        let folder = function.join(class).join(name);
        self.attribute(&folder, "dev", &format!("{RDMA_MAJOR}:{minor}"))?;
        self.attribute(&folder, "ibdev", &hca.name)?;
        self.link(&folder.join("device"), function)?;
        self.node(&format!("infiniband/{name}"), (RDMA_MAJOR, minor))?;
        Ok(folder)
    }

    /// The folder of a PCI function, below `/sys`.
    fn function(&self, slot: &PcieSlot) -> PathBuf {
        let mut path = Path::new("devices").join(&slot.root);
        path.extend(&slot.bridges);
        path.join(&slot.pci)
    }

    /// Writes a function and the bridges above it. Vendor, device and class are hexadecimal.
    fn add_function(&self, slot: &PcieSlot, identity: [&str; 3], driver: &str) -> io::Result<PathBuf> {
        let mut folder = Path::new("devices").join(&slot.root);
        for bridge in &slot.bridges {
            folder.push(bridge);
            self.write_function(&folder, ["1000", "c030", "060400"], slot.numa, "pcieport")?;
        }
        folder.push(&slot.pci);
        self.write_function(&folder, identity, slot.numa, driver)?;
        Ok(folder)
    }

    fn write_function(&self, folder: &Path, identity: [&str; 3], numa: i32, driver: &str) -> io::Result<()> {
        for (name, text) in ["vendor", "device", "class"].into_iter().zip(identity) {
            self.attribute(folder, name, &format!("0x{text}"))?;
        }
        let [vendor, device, class] = identity.map(str::to_uppercase);
        let (base, sub, interface) = (&class[..2], &class[2..4], &class[4..]);
        let alias = format!("pci:v0000{vendor}d0000{device}sv0000{vendor}sd0000{device}bc{base}sc{sub}i{interface}");
        self.attribute(folder, "modalias", &alias)?;
        self.attribute(folder, "numa_node", &numa.to_string())?;
        let bus = Path::new("bus/pci");
        fs::create_dir_all(self.sys.join(bus).join("drivers").join(driver))?;
        self.link(&folder.join("driver"), &bus.join("drivers").join(driver))?;
        self.link(&folder.join("subsystem"), bus)?;
        let name = folder.file_name().unwrap_or_default();
        self.link(&bus.join("devices").join(name), folder)
    }

    /// Writes an attribute of a folder below `/sys`.
    fn attribute(&self, folder: &Path, name: &str, text: &str) -> io::Result<()> {
        let folder = self.sys.join(folder);
        fs::create_dir_all(&folder)?;
        rewrite(&folder.join(name), text)
    }

    /// Creates a relative link from one path below `/sys` to another, unless it exists.
    fn link(&self, at: &Path, target: &Path) -> io::Result<()> {
        let up = at.components().count() - 1;
        let relative: PathBuf = std::iter::repeat_n("..", up).collect::<PathBuf>().join(target);
        let at = self.sys.join(at);
        if let Some(folder) = at.parent() {
            fs::create_dir_all(folder)?;
        }
        match symlink(relative, at) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            result => result,
        }
    }

    /// Creates a character device below `/dev`, unless it exists.
    fn node(&self, name: &str, (major, minor): (u32, u32)) -> io::Result<()> {
        let path = self.dev.join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mode = Mode::from_raw_mode(0o666);
        match mknodat(CWD, &path, FileType::CharacterDevice, mode, makedev(major, minor)) {
            Err(rustix::io::Errno::EXIST) | Ok(()) => Ok(()),
            Err(errno) => Err(io::Error::other(format!("make the device {} (only root may): {errno}", path.display()))),
        }
    }
}
