//! The settings of `larder-devices`, as they are once the file was found to be sound.

use std::fmt;
use std::time::Duration;

use crate::machine::LinkLayer;

/// The file, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Its path, which errors name.
    pub file: String,
    /// In the order of the file.
    pub resources: Vec<ResourceConfig>,
    /// When devices leave service and come back.
    pub health: HealthConfig,
}

/// A resource that pods may request.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceConfig {
    /// Its name.
    pub name: ResourceName,
    /// What it is made of.
    pub kind: Kind,
    /// Which devices of that kind.
    pub select: Select,
    /// IDs per device, 1 to 256; 1 is exclusive. With [`Give::All`], all IDs of the resource: a file of Mellanox's plugin may have
    /// more of them.
    pub share: u16,
    /// The devices that one ID stands for.
    pub give: Give,
    /// Who hands it out.
    pub mode: Mode,
    /// True if containers also get `umadN`, and `issmN` of InfiniBand's ports.
    pub mad: bool,
    /// Limits of the RDMA objects and of the locked memory of each container.
    pub limits: Option<Limits>,
    /// The line of the file that it begins on, for errors.
    pub line: usize,
}

/// The name of a resource, such as `larder.dev/gpu`: a domain, `/`, and a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceName(String);

impl ResourceName {
    /// `None` unless it is a name that Kubernetes accepts as an extended resource.
    pub fn new(name: &str) -> Option<Self> {
        let part = |text: &str, most: usize, dots: bool| {
            let middle = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
            let lower = |text: &str| !text.bytes().any(|byte| byte.is_ascii_uppercase() || byte == b'_');
            let labels =
                |text: &str| text.split('.').all(|label| ends(label.bytes().next()) && ends(label.bytes().last()));
            text.len() <= most
                && text.bytes().all(middle)
                && ends(text.bytes().next())
                && ends(text.bytes().last())
                && (!dots || (lower(text) && labels(text)))
        };
        let (domain, rest) = name.split_once('/')?;
        // Kubernetes keeps its own domain, and writes `requests.` in front of a name where it counts quotas.
        let is_sound = part(domain, 253 - "requests.".len(), true)
            && part(rest, 63, false)
            && !domain.ends_with("kubernetes.io")
            && !domain.starts_with("requests.");
        is_sound.then(|| Self(name.to_owned()))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a resource is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Whole GPUs.
    Gpu,
    /// Slices of GPUs.
    Mig,
    /// HCAs.
    Rdma,
    /// GPUs, each with the HCA nearest to it.
    Rail,
}

impl Kind {
    /// The kind as a configuration writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Mig => "mig",
            Self::Rdma => "rdma",
            Self::Rail => "rail",
        }
    }
}

/// The devices that one ID stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Give {
    /// One.
    #[default]
    One,
    /// All devices of the resource, as Mellanox's plugin gives them.
    All,
}

/// Who hands a resource out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The kubelet, by the device plugin API.
    #[default]
    Plugin,
    /// The scheduler, by ResourceSlices.
    Dra,
}

impl Mode {
    /// The mode as a configuration writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plugin => "plugin",
            Self::Dra => "dra",
        }
    }
}

/// Which devices a resource is made of: those that match every list that is not empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Select {
    /// PCI vendors of HCAs, such as `15b3`.
    pub vendors: Vec<String>,
    /// PCI devices of HCAs, such as `1021`.
    pub device_ids: Vec<String>,
    /// Kernel drivers of HCAs, such as `mlx5_core`.
    pub drivers: Vec<String>,
    /// Network interfaces of HCAs, such as `ens1f0np0`.
    pub if_names: Vec<String>,
    /// What a port is connected to.
    pub link_types: Vec<LinkLayer>,
    /// Parts of the names of GPUs' models and MIG profiles, in upper or lower case.
    pub models: Vec<String>,
    /// UUIDs of GPUs and slices, node GUIDs of HCAs. For a rail, those that begin with `GPU-` choose GPUs and the others HCAs; a
    /// slice is also chosen by the UUID of its GPU.
    pub uuids: Vec<String>,
}

/// Limits of a container that uses a resource's HCAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Handles of each HCA (`hca_handle` of the rdma controller). Never unlimited.
    pub hca_handles: Option<u32>,
    /// Objects of each HCA (`hca_object`). Never unlimited.
    pub hca_objects: Option<u32>,
    /// Bytes of RLIMIT_MEMLOCK; `u64::MAX` is unlimited.
    pub memlock: Option<u64>,
    /// True if devices with `memlock` are out of service while NRI is away. Limits of RDMA objects always count.
    pub required: bool,
}

/// When devices leave service and come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthConfig {
    /// How long a port is down before its HCA leaves service.
    pub port_down: Duration,
    /// How long a port is up before its HCA returns to service.
    pub port_up: Duration,
    /// How long a GPU is without faults before it returns to service.
    pub gpu_quiet: Duration,
    /// How long NVML fails before its GPUs leave service.
    pub nvml_unknown: Duration,
    /// What the file says about Xids, before the program's own table.
    pub xids: Vec<(u64, XidAction)>,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self {
            port_down: Duration::from_secs(5),
            port_up: Duration::from_secs(30),
            gpu_quiet: Duration::from_secs(60),
            nvml_unknown: Duration::from_secs(30),
            xids: Vec::new(),
        }
    }
}

/// What follows from an Xid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum XidAction {
    /// Nothing: the application's own fault.
    Ignore,
    /// It is counted and reported; the GPU stays in service.
    Watch,
    /// The pod that uses the GPU should be started again; the GPU stays in service.
    RestartWorker,
    /// The GPU leaves service until it has recovered.
    DrainGpu,
    /// All GPUs of the node leave service until it has recovered.
    DrainNode,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_extended_resources() {
        for name in ["larder.dev/gpu", "nvidia.com/gpu", "rdma/hca_shared_devices_a", "a/B-c.D_e"] {
            assert_eq!(ResourceName::new(name).map(|name| name.to_string()).as_deref(), Some(name));
        }
        let long = format!("larder.dev/{}", "x".repeat(64));
        for name in [
            "gpu",
            "/gpu",
            "larder.dev/",
            "Larder.dev/gpu",
            "a..b/c",
            "a/b/c",
            "a/-b",
            "kubernetes.io/gpu",
            "requests.a/gpu",
            &long,
        ] {
            assert_eq!(ResourceName::new(name), None, "{name}");
        }
    }
}
