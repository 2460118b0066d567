//! The paths of a node's `/sys` and `/dev`.

use std::path::PathBuf;

/// The directories that an inventory reads: the host's own, or a fake machine's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// The host's `/sys`.
    pub sysfs: PathBuf,
    /// The host's `/dev`.
    pub dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { sysfs: PathBuf::from("/sys"), dev: PathBuf::from("/dev") }
    }
}

impl Roots {
    /// The folder of a class of devices, such as `infiniband`.
    pub(super) fn class(&self, name: &str) -> PathBuf {
        self.sysfs.join("class").join(name)
    }

    /// The path of an RDMA device node, such as `/dev/infiniband/uverbs0`.
    pub fn rdma_node(&self, name: &str) -> PathBuf {
        self.dev.join("infiniband").join(name)
    }
}
