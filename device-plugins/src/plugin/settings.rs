//! The settings that all servers share.

use std::fmt;
use std::path::PathBuf;

use crate::cdi::Found;
use crate::grant::Means;
use crate::machine::Machine;
use crate::resource::Resource;

/// Prefers some of the available IDs: `(machine, resource, available, must_include, size)`.
pub type Choose = dyn Fn(&Machine, &Resource, &[String], &[String], usize) -> Vec<String> + Send + Sync;

/// The settings that all servers share.
pub struct Settings {
    /// The kubelet's folder of device plugins.
    pub folder: PathBuf,
    /// How containers get devices.
    pub means: Means,
    /// The host's /dev, as a path in the runtime's mount namespace.
    pub host_dev: PathBuf,
    /// The CDI files of other programs.
    pub found: Found,
    /// Computes the preferred allocation.
    pub choose: Box<Choose>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("folder", &self.folder).field("means", &self.means).finish_non_exhaustive()
    }
}
