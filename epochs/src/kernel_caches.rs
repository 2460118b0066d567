//! The kernel's caches, and how to empty them between measurements.

use anyhow::Context;

/// Writes dirty pages back, then drops the kernel's clean pages, names and inodes. Needs root.
pub fn drop_kernel_caches() -> anyhow::Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("drop the kernel's caches (needs root)")
}
