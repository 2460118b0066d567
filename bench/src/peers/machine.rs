//! The machine that a run was measured on.

use std::path::Path;

use serde::Serialize;

use larder_daemon_api::mountinfo;
use larder_epochs::process::total_memory;

/// The properties of a machine that figures depend on.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's model.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// The filesystem of the files and of all caches.
    pub filesystem: String,
}

impl Machine {
    /// This machine, with the disk of a folder.
    pub(super) fn of(folder: &Path) -> anyhow::Result<Self> {
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Ok(Self {
            cpu: cpu_model(&cpus).unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: total_memory()?,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            filesystem: mountinfo::holding(folder)?.map_or_else(|| "unknown".to_owned(), |mount| mount.fs_type),
        })
    }
}

fn cpu_model(text: &str) -> Option<&str> {
    // x86 has this line; ARM has numbers only.
    text.lines().find_map(|line| Some(line.strip_prefix("model name")?.trim_start().strip_prefix(':')?.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described() {
        let text = "processor\t: 0\nmodel name\t: AMD EPYC 7B13\nmodel\t: 1\n";
        assert_eq!(cpu_model(text), Some("AMD EPYC 7B13"));
        assert_eq!(cpu_model("processor : 0"), None);
        let machine = Machine::of(Path::new("/")).unwrap();
        assert!(machine.cores > 0 && machine.memory_bytes > 0 && !machine.kernel.is_empty());
    }
}
